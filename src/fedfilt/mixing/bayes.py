"""Empirical Bayes mixing: how much of its own and of others' changes a device takes, estimated from the changes.

Every device fine-tunes the same model on all of its samples and on two halves of them. The halves agree as far as
changes are signal; two devices' changes agree as far as the devices have something in common. This gives a covariance S
and a noise N, and the best linear estimate of all signals from all changes is H = S (S + N)⁻¹. Nothing is tuned.
"""

from typing import Any, NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.graph.graph import Graph

LEAST_COSINE = 1e-3  # of two halves: below, or without halves, changes count as almost pure noise
LEAST_LENGTH = 1e-6  # of a change: shorter ones do not count
MOST_DEVICES = 5000  # mixed at once: time grows with the cube of their number
BLOCK = 4096  # columns at a time


class Measured(NamedTuple):
    """What the changes of K devices say about each other; none of it needs their samples."""

    halves: float  # pooled cosine between the changes from two halves of a device's samples; 0 without halves
    reliability: Array  # (K,) share of a device's change that is signal: 0 nothing, 1 all
    cosines: Array  # (K, K) between the changes of devices; 0 where one has not changed, 1 on the diagonal
    linked: float  # mean cosine of linked devices that changed; NaN if there are none, or no links are given
    unlinked: float  # of the others


def measure(changes: Array, first: Array, second: Array, samples: Any, links: Any = None) -> Measured:
    """Measure (K, B) changes, those from two halves of the samples, and (K,) numbers of samples.

    c = Σₖ aₖ·bₖ / Σₖ |aₖ||bₖ|, pooled over devices; r₀ = 2c / (1 + c), as two halves make a whole (Spearman, Brown);
    rₖ = nₖ / (nₖ + κ) with κ = mean n · (1 - r₀) / r₀: with few samples, a change is unreliable. A device without
    samples has rₖ = 0 and counts as unchanged; one without halves (zeros) does not affect c. `links` is a
    Graph or (K, K) bool.

    >>> whole = np.array([[2.0, 0.0], [2.0, 0.1], [0.0, 2.0]])
    >>> found = measure(whole, whole / 2, whole / 3, [10, 10, 10], Graph.from_edges(3, [(0, 1)]))
    >>> round(found.linked, 2), round(found.unlinked, 2), found.reliability.tolist()
    (1.0, 0.02, [1.0, 1.0, 1.0])
    """
    changes, first, second, n = _checked(changes, first, second, samples)
    apart = float(np.sqrt(_dots(first, first) * _dots(second, second)).sum())
    halves = float(_dots(first, second).sum()) / max(apart, 1e-12)
    cosine = min(max(halves, LEAST_COSINE), 1.0)
    whole = 2 * cosine / (1 + cosine)
    usual = n[n > 0].mean() if n.any() else 1.0
    reliability = np.divide(n, n + usual * (1 - whole) / whole, out=np.zeros(len(n)), where=n > 0)
    cosines = _cosines(changes)
    np.fill_diagonal(cosines, 1.0)
    linked, unlinked = mean_cosines(cosines, links, _lengths(changes) > LEAST_LENGTH)
    return Measured(halves, reliability, cosines, linked, unlinked)


def mean_cosines(cosines: Array, links: Any, changed: Any = None) -> tuple[float, float]:
    """(mean of linked devices, mean of the others) of (K, K) cosines; NaN if there is no such pair.

    >>> mean_cosines(np.array([[1.0, 0.5], [0.5, 1.0]]), Graph.from_edges(2, [(0, 1)]))
    (0.5, nan)
    """
    if links is None:
        return np.nan, np.nan
    near, pairs = _linked(links, len(cosines)), ~np.eye(len(cosines), dtype=bool)
    if changed is not None:
        pairs &= np.outer(changed, changed)
    found = (cosines[pairs & which] for which in (near, ~near))
    linked, unlinked = (float(one.mean()) if one.size else np.nan for one in found)
    return linked, unlinked


def empirical_bayes(
    changes: Array, first: Array, second: Array, samples: Any, links: Any = None, balanced: bool = False
) -> tuple[Array, Measured]:
    """((K, K) H, what was measured): the personal change of device k is Σⱼ Hₖⱼ dⱼ, with the changes dⱼ of all devices.

    With changes of unit length, S has the cosines between devices, and the reliabilities rₖ on its diagonal, made
    positive semidefinite; N = diag(1 - rₖ). H = S (S + N)⁻¹ is the balanced reading, which shrinks a change towards 0,
    the shared model, as far as it is noise. The personal reading takes Z H, which scales every row so that a device's
    own signal keeps its size, (Z H S)ₖₖ = Sₖₖ: it forgets more of the others and is better at home. See `measure`.

    With `links`, a Graph or (K, K) bool, S has two numbers off its diagonal: the mean cosine of linked devices and that
    of the others. On a regular graph that is a graph filter, measured instead of chosen.

    The result is always finite: devices without changes or samples take and give nothing; a single device keeps its
    change (balanced: r times its change); cosines may be negative, S singular, the graph empty or complete.

    >>> ones = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> mixed, found = empirical_bayes(ones, ones, ones, [5, 5])  # nothing in common, no noise
    >>> mixed.round(6)
    array([[1., 0.],
           [0., 1.]])
    """
    found = measure(changes, first, second, samples, links)
    r, length = found.reliability, np.maximum(_lengths(changes), LEAST_LENGTH)
    s = found.cosines.copy()
    if links is not None:
        means = np.nan_to_num([found.unlinked, found.linked])  # without such a pair, the value is not used
        s = means[_linked(links, len(s)).astype(int)]
    changed = (length > LEAST_LENGTH) & (np.asarray(samples) > 0)
    s = np.where(np.outer(changed, changed), s, 0.0)
    np.fill_diagonal(s, np.where(changed, r, 0.0))
    values, vectors = np.linalg.eigh(s)
    s = (vectors * np.maximum(values, 0)) @ vectors.T
    h = np.linalg.solve(s + np.diag(1 - r) + 1e-9 * np.eye(len(s)), s).T
    if not balanced:
        h *= (np.diag(s) / np.maximum(np.diag(h @ s), 1e-12))[:, None]
    return np.where(changed[:, None] & changed, length[:, None] * h / length, 0.0), found


def combined(h: Array, changes: Array) -> Array:
    """H D, in the dtype of the changes, some columns at a time."""
    result = np.empty_like(changes)
    for start in range(0, changes.shape[1], BLOCK):
        columns = slice(start, start + BLOCK)
        result[:, columns] = h @ changes[:, columns].astype(np.float64)
    return result


def _checked(changes: Any, first: Any, second: Any, samples: Any) -> tuple[Array, Array, Array, Array]:
    n = np.asarray(samples, float)
    arrays = [np.asarray(one) for one in (changes, first, second)]
    for name, array in zip(("changes", "first", "second"), arrays, strict=True):
        if array.ndim != 2 or array.shape != arrays[0].shape or not len(array):
            raise ValueError(f"{name} must have shape (K, B), the same for all three with K >= 1, got {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")
    if len(n) > MOST_DEVICES:
        raise ValueError(f"empirical Bayes mixes at most {MOST_DEVICES} devices at once, got {len(n)}")
    if n.shape != (len(arrays[0]),) or not np.isfinite(n).all() or (n < 0).any():
        raise ValueError(f"samples must be {len(arrays[0])} numbers >= 0, got {samples!r}")
    if not n.all():  # what a device without samples sends says nothing about anybody
        arrays = [np.where(n[:, None] > 0, array, 0) for array in arrays]
    return arrays[0], arrays[1], arrays[2], n


def _dots(one: Array, other: Array) -> Array:
    """(K,) inner products, row by row."""
    return np.array(
        [float(np.dot(a.astype(np.float64), b.astype(np.float64))) for a, b in zip(one, other, strict=True)]
    )


def _lengths(changes: Array) -> Array:
    return np.sqrt(_dots(changes, changes))


def _cosines(changes: Array) -> Array:
    """(K, K) cosines between rows, some columns at a time; 0 where a row is 0."""
    total, lengths = np.zeros((len(changes), len(changes))), np.maximum(_lengths(changes), LEAST_LENGTH)
    for start in range(0, changes.shape[1], BLOCK):
        block = changes[:, start : start + BLOCK] / lengths[:, None]
        total += block @ block.T
    return np.clip((total + total.T) / 2, -1.0, 1.0)


def _linked(links: Any, count: int) -> Array:
    """(K, K) bool: which devices are linked."""
    near = (links.adjacency != 0).toarray() if isinstance(links, Graph) else np.asarray(links, bool)
    if near.shape != (count, count) or (near != near.T).any() or near.diagonal().any():
        raise ValueError(f"links must be a graph of {count} devices, symmetric and without loops, got {near.shape}")
    return near
