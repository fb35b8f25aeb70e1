"""Links between devices: checks of user input, and the search for neighbours."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedfilt._checks import check_numbers
from fedfilt._types import Array

BLOCK = 20_000_000  # distances in memory at once when features are compared


def frozen(array: Array) -> Array:
    """The array, made read-only."""
    array.setflags(write=False)
    return array


def checked_adjacency(a: Any) -> Any:
    """A read-only copy of an adjacency matrix in CSR form, checked."""
    if sp.issparse(a) and a.dtype.kind in "buif":
        matrix = sp.csr_array(a, dtype=np.float64, copy=True)
    else:
        dense = check_numbers("adjacency", a, "a square matrix of numbers")
        matrix = sp.csr_array(np.atleast_2d(dense))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ValueError(f"adjacency must be square and not empty, got shape {matrix.shape}")
    matrix.sum_duplicates()
    if not np.isfinite(matrix.data).all():
        raise ValueError("adjacency must be finite, got NaN or infinity")
    if matrix.nnz and matrix.data.min() < 0:
        raise ValueError(f"adjacency must be >= 0, got {matrix.data.min():g}")
    matrix.eliminate_zeros()
    loops = np.flatnonzero(matrix.diagonal())
    if len(loops):
        raise ValueError(f"adjacency must have a zero diagonal, got a self-loop at device {loops[0]}")
    if (matrix != matrix.T).nnz:
        lopsided = (abs(matrix - matrix.T) > 1e-12 * matrix.maximum(matrix.T)).nonzero()
        if len(lopsided[0]):
            i, j = (int(end[0]) for end in lopsided)
            raise ValueError(
                f"adjacency must be symmetric, got {matrix[i, j]:g} at ({i}, {j}) and {matrix[j, i]:g} at ({j}, {i})"
            )
        matrix = matrix.maximum(matrix.T).tocsr()  # equal except for rounding
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.setflags(write=False)
    return matrix


def checked_edges(name: str, edges: Iterable[Sequence[int]], count: int) -> Array:
    """The links as (n, 2) device numbers, checked: between `count` devices, and each given once."""
    try:
        given = edges if isinstance(edges, np.ndarray) else list(edges)
        pairs = np.asarray(given)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be pairs (i, j) of device numbers, got {edges!r}") from None
    if len(given) == 0:
        return np.empty((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise ValueError(f"{name} must be pairs (i, j) of device numbers, got {given[0]!r} ...")
    outside = ((pairs < 0) | (pairs >= count)).any(axis=1)
    if outside.any():
        raise ValueError(f"{name} must name devices from 0 to {count - 1}, got {pairs[outside][0].tolist()}")
    loops = pairs[:, 0] == pairs[:, 1]
    if loops.any():
        raise ValueError(f"{name} must link two devices, got a self-loop at {pairs[loops][0][0]}")
    unique, times = np.unique(np.sort(pairs, axis=1), axis=0, return_counts=True)
    if (times > 1).any():
        raise ValueError(f"{name} must name each link once, got {unique[times > 1][0].tolist()} twice")
    return pairs.astype(np.int64)


def checked_points(name: str, points: Any) -> Array:
    """Rows of numbers, one per device, checked."""
    rows = check_numbers(name, points, "numbers, one row per device")
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"{name} must have shape (K, columns), one row per device, got shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity in row {np.argwhere(~np.isfinite(rows))[0][0]}")
    return rows


def symmetric(count: int, pairs: Array, weights: Array | None = None) -> Any:
    """The adjacency matrix of links, each given once."""
    values = np.ones(len(pairs)) if weights is None else weights
    half = sp.coo_array((values, (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    return (half + half.T).tocsr()


def neighbour_pairs(found: Array) -> Array:
    """The links, each once, from rows of nearest devices, in which a device itself may appear."""
    count = len(found)
    own = np.arange(count)[:, None]
    # Devices at the same place may list each other before themselves: drop the device wherever it appears.
    at_own = found == own
    at_own[:, -1] |= ~at_own.any(axis=1)
    chosen = found[~at_own].reshape(count, -1)
    pairs = np.column_stack([np.repeat(own.ravel(), chosen.shape[1]), chosen.ravel()])
    return np.unique(np.sort(pairs, axis=1), axis=0)


def nearest_rows(rows: Array, k: int) -> Array:
    """The k nearest other rows of every row, in blocks: K² distances are never in memory at once."""
    count = len(rows)
    squared = (rows**2).sum(axis=1)
    found = np.empty((count, k), dtype=np.int64)
    block = max(1, BLOCK // count)
    for start in range(0, count, block):
        part = slice(start, min(start + block, count))
        distance = squared[part, None] + squared[None] - 2 * rows[part] @ rows.T
        distance[np.arange(part.stop - start), np.arange(start, part.stop)] = np.inf
        found[part] = np.argsort(distance, axis=1, kind="stable")[:, :k]
    return found
