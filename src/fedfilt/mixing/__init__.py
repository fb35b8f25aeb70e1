"""Mixes the models of all devices with a filter on their graph: the paper's aggregation, weighted by samples.

With N = diag(n_i / mean n) and N^-½ L N^-½ = V Λ Vᵀ the mixing matrix of a response h is
W = N^-½ V h(Λ) Vᵀ N^½; for the paper's h(λ) = 1 / (1 + μλ) that is W = (N + μL)⁻¹ N. Its rows sum to 1 and it keeps
the n-weighted mean of every connected component.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedfilt import native
from fedfilt._checks import check_signal, check_weights
from fedfilt._threads import one_thread
from fedfilt._types import Array, Response
from fedfilt.graph.graph import SPECTRUM_LIMIT, Graph
from fedfilt.mixing import _solvers

DENSE_LIMIT = 512  # most devices for which the mixing matrix is stored: above, a sparse solve is cheaper


def mix(graph: Any, response: Response, signal: Array, weights: Any = None, out: Array | None = None) -> Array:
    """Filter a (K, B) signal: every row becomes its device's mixture of all rows, W @ signal.

    `graph` is a Graph or anything `Graph.of` accepts; a Graph is prepared once for all calls with the same weights.
    `weights` are the devices' sample counts (by default equal); a device with weight 0 contributes nothing, but relays
    and receives. The result has the dtype of the signal, float32 or float64; `out` (which may be the signal itself)
    saves memory. On large graphs, sparse solves and series are accurate to about 1e-6 (float32).

    >>> from fedfilt.filters import Tikhonov
    >>> graph = Graph.from_edges(2, [(0, 1)])
    >>> mix(graph, Tikhonov(mu=1.0), np.array([[0.0], [3.0]]))
    array([[1.],
           [2.]])
    """
    graph = Graph.of(graph, len(signal) if isinstance(signal, np.ndarray) and signal.ndim else None)
    check_signal("signal", signal, graph.count)
    if out is None:
        out = np.empty(signal.shape, signal.dtype)
    elif not isinstance(out, np.ndarray) or out.shape != signal.shape or out.dtype != signal.dtype:
        raise ValueError(f"out must be {signal.dtype} of shape {signal.shape}, got {getattr(out, 'shape', out)!r}")
    elif not out.flags.writeable:
        raise ValueError("out must be writeable, got a read-only array")
    elif out is not signal and np.may_share_memory(out, signal):
        signal = signal.copy()
    _prepared(graph, response, _checked_weights(graph, weights), signal.dtype.type)(signal, out)
    return out


def _by_matrix(matrix: Array, signal: Array, out: Array) -> None:
    for start in range(0, signal.shape[1], 4096):
        columns = slice(start, start + 4096)
        out[:, columns] = matrix @ signal[:, columns]


def _by_blocks(apply: _solvers.Apply, signal: Array, out: Array) -> None:
    """Two blocks of columns at a time, column by column in memory; apply() sees blocks that fit the cache."""
    count = len(signal)
    width = max(8, min(64, 800_000 // count))
    for start in range(0, signal.shape[1], 2 * width):
        columns = slice(start, min(start + 2 * width, signal.shape[1]))
        wide = np.empty((count, columns.stop - start), signal.dtype, order="F")
        for rows in _tiles(count):
            wide[rows] = signal[rows, columns]
        for narrow in (slice(0, width), slice(width, 2 * width)):
            wide[:, narrow] = apply(wide[:, narrow])
        for rows in _tiles(count):
            out[rows, columns] = wide[rows]


def _by_rows(filter: _solvers.Filter, signal: Array, out: Array) -> None:
    """For a filter that needs the numbers of a row side by side."""
    given = signal if _side_by_side(signal) else np.ascontiguousarray(signal)
    taken = out if _side_by_side(out) else np.empty(out.shape, out.dtype)
    filter(given, taken)
    if taken is not out:
        out[:] = taken


def _side_by_side(array: Array) -> bool:
    apart, each = array.strides
    return array.flags.aligned and each == array.itemsize and apart % array.itemsize == 0


def _tiles(count: int, size: int = 256) -> Iterator[slice]:
    """Groups of rows small enough to convert a block from row order to column order within the cache."""
    return (slice(start, start + size) for start in range(0, count, size))


def mixing_matrix(graph: Any, response: Response, weights: Any = None) -> Array:
    """The (K, K) float64 matrix W with mix(graph, response, x, weights) = W @ x.

    >>> from fedfilt.filters import Tikhonov
    >>> mixing_matrix(Graph.from_edges(2, [(0, 1)]), Tikhonov(mu=1.0)).round(3)
    array([[0.667, 0.333],
           [0.333, 0.667]])
    """
    graph = _graph_of(graph, weights)
    if graph.count > SPECTRUM_LIMIT:
        raise ValueError(
            f"graph must have at most {SPECTRUM_LIMIT} devices for its (K, K) mixing matrix, got {graph.count}; "
            "mix() needs no such matrix"
        )
    mass, stiffness = graph.pencil(_checked_weights(graph, weights))
    matrix = np.zeros((graph.count, graph.count))
    for nodes in graph.members():  # one component at a time: unconnected entries stay exactly zero
        block = stiffness[nodes][:, nodes].toarray()
        matrix[np.ix_(nodes, nodes)] = _solvers.dense_matrix(block, mass[nodes], graph.lowest[nodes], response)
    return matrix


class Strength(NamedTuple):
    """How strongly a filter mixes on a graph, averaged over devices; str() describes it in words.

    >>> from fedfilt.filters import Tikhonov
    >>> print(strength(Graph.paper(), Tikhonov(1.0)))
    a device keeps 30% of its own model and learns from about 6.5 other devices
    """

    self_weight: float  # share of its own model that a device keeps: mean of W_ii
    neighbours: float  # how many others it learns from: mean of 1 / Σ_j W_ij² - 1

    def __str__(self) -> str:
        return (
            f"a device keeps {self.self_weight:.0%} of its own model and learns from "
            f"about {self.neighbours:.1f} other devices"
        )


def strength(graph: Any, response: Response, weights: Any = None, sample: int = 256) -> Strength:
    """Mean self-weight and effective number of neighbours; graphs beyond the dense limit are sampled.

    >>> from fedfilt.filters import Tikhonov
    >>> print(strength(Graph.paper(), Tikhonov(mu=1.0)))
    a device keeps 30% of its own model and learns from about 6.5 other devices
    """
    graph = _graph_of(graph, weights)
    if graph.count <= DENSE_LIMIT:
        rows, devices = mixing_matrix(graph, response, weights), np.arange(graph.count)
    else:
        mass = graph.pencil(_checked_weights(graph, weights))[0]
        present = np.flatnonzero(mass)
        devices = np.random.default_rng(0).choice(present, min(sample, len(present)), replace=False)
        units = np.zeros((graph.count, len(devices)))
        units[devices, np.arange(len(devices))] = 1
        # M W is symmetric, so a row of W is its column, weighted
        rows = (mix(graph, response, units, weights) * mass[:, None] / mass[devices]).T
    own = rows[np.arange(len(devices)), devices]
    return Strength(float(own.mean()), float((1 / (rows**2).sum(axis=1)).mean() - 1))


def _graph_of(given: Any, weights: Any) -> Graph:
    return Graph.of(given, None if weights is None else np.size(weights))


def _checked_weights(graph: Graph, weights: Any) -> Array:
    checked = check_weights("weights", weights, graph.count)
    if checked.max() > 0 and ((checked > 0) & (checked < 1e-15 * checked.max())).any():
        least = checked[checked > 0].min()
        raise ValueError(f"weights must be 0 or within 1e15 of each other, got {least:g} and {checked.max():g}")
    empty = np.bincount(graph.components, weights=checked) == 0
    if empty.any():
        devices = np.flatnonzero(empty[graph.components])
        raise ValueError(
            f"weights must not be all zero in a connected component, got zeros for devices {devices[:10].tolist()}"
            f"{' ...' if len(devices) > 10 else ''}"
        )
    return checked


def _prepared(graph: Graph, response: Response, weights: Array, dtype: Any) -> _solvers.Filter:
    """The filter prepared for this graph and these weights; the last few are cached for the next rounds."""
    parameters, level = getattr(type(response), "__dataclass_params__", None), native.chosen().level
    if parameters is not None and parameters.frozen and parameters.eq:  # equal means the same function for ever
        return _prepare(graph, response, weights.tobytes(), dtype, level)
    return _prepare.__wrapped__(graph, response, weights.tobytes(), dtype, level)


@lru_cache(maxsize=4)
@one_thread()
def _prepare(graph: Graph, response: Response, weights: bytes, dtype: Any, level: str | None) -> _solvers.Filter:
    if graph.count <= DENSE_LIMIT:
        exact = mixing_matrix(graph, response, np.frombuffer(weights))
        matrix = exact.astype(dtype)
        # Rounding must not change the sum of a row: over many rounds, models would grow or shrink.
        loss = exact.sum(axis=1) - matrix.sum(axis=1, dtype=np.float64)
        matrix[np.arange(graph.count), matrix.argmax(axis=1)] += loss.astype(dtype)
        if (
            level is not None and dtype is np.float32
        ):  # unlike BLAS, it starts no threads, which would slow down training
            return partial(_by_rows, partial(native.apply, matrix, level=level))
        return partial(_by_matrix, matrix)
    mass, stiffness = graph.pencil(np.frombuffer(weights))
    filter = _solvers.natively(graph, mass, stiffness, response, dtype, level) if level else None
    if filter is not None:
        return partial(_by_rows, filter)
    method = _solvers.sparse_method(graph, mass, stiffness, response, dtype)

    # The lowest mode of a component (its weighted mean) passes with gain h(0). Removing it first keeps it exact even if
    # the system is nearly singular (large μ): only deviations from it go through the solver.
    sense = _solvers.scaled_sense(graph, mass)
    members = sp.csr_array((sense, (np.arange(graph.count), graph.components)))  # (K, components)
    gain = _solvers.respond(response, np.zeros(1))[0]
    lowest = graph.lowest.astype(dtype)[:, None]

    def means(block: Array) -> Array:
        average = block.T.astype(np.float64, copy=False) @ members
        return lowest * average.astype(dtype).T[graph.components]

    def apply(block: Array) -> Array:
        mean = means(block)
        rest = method(block - mean)
        rest += dtype(gain) * mean - means(rest)
        return rest

    return partial(_by_blocks, apply)
