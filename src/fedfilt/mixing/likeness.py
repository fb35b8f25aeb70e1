"""What links say about the changes of devices: are linked devices alike, and does one predict what another learns?

Every device has changed the same model on two halves of its samples. The halves have independent noise, so links found
in one half are judged on the other, and compared with the same links between other devices.
"""

from typing import Any, NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.graph.similarity import linked_by_updates

SHUFFLES = 999  # of the links: the smallest measurable probability is 1 / 1000
DRAWS = 200  # of the devices, with replacement
WEIGHTS = (
    0.0,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.7,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
)  # of the others' mean, relative to a device's own change
BLOCK = 4096  # columns at a time


class Links(NamedTuple):
    """What links say about changes they were not found from."""

    links: int  # their number
    linked: float  # mean cosine of the changes of linked devices
    unlinked: float  # of the others
    chance: float  # how often links between shuffled devices would have as large a difference
    own: Array  # (K,) cosine of a device's change from one half with that from the other
    neighbours: Array  # (K,) the same after adding the mean of its neighbours, with the best weight
    everyone: Array  # (K,) the same after adding the mean of all others
    weight: float  # of the neighbours' mean
    sure: float  # share of resamples in which linked devices are more alike and neighbours predict more than everyone

    @property
    def more(self) -> float:
        """How much better neighbours predict a device's other half than everyone, or the device alone."""
        return float(self.neighbours.mean() - max(self.everyone.mean(), self.own.mean()))


def nearest_links(changes: Array, k: int) -> Array:
    """(K, K) bool: the links that a graph found from these changes has; see `fedfilt.graph.similarity`.

    >>> nearest_links(np.array([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1]]), 1)[0].tolist()
    [False, True, False, False]
    """
    return linked_by_updates(changes, k) > 0


def judged(first: Array, second: Array, known: tuple[Array, Array], rng: np.random.Generator) -> Links:
    """Judge links by the changes (K, B) from two halves of the devices' samples.

    `known` are the links (K, K) to judge on the second half, and those to judge on the first: links found in one half
    are judged on the other; given links are the same for both. There must be at least one link and one unlinked pair.

    chance = (1 + shuffles with as large a difference) / (1 + shuffles), where a shuffle moves the links to other
    devices. Devices without changes do not count.

    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(rng.standard_normal((4, 200)), 5, axis=0)
    >>> first, second = groups + 2 * rng.standard_normal((2, 20, 200))
    >>> found = judged(first, second, (nearest_links(first, 3), nearest_links(second, 3)), rng)
    >>> found.chance, found.linked > found.unlinked + 0.1, found.more > 0.05
    (0.001, True, True)
    """
    a, b = _units(first), _units(second)
    aa, ab, bb = _products(a, a), _products(a, b), _products(b, b)
    apart = ~np.eye(len(a), dtype=bool) & np.outer(a.any(axis=1) & b.any(axis=1), a.any(axis=1) & b.any(axis=1))
    seen = [(bb, known[0] & apart), (aa, known[1] & apart)]
    order = np.arange(len(a))
    means = np.mean([_means(cosines, links, apart, order) for cosines, links in seen], axis=0)
    gap, larger = means[0] - means[1], 0
    for _ in range(SHUFFLES):
        order = rng.permutation(len(a))
        linked, others = np.mean([_means(cosines, links, apart, order) for cosines, links in seen], axis=0)
        larger += int(linked - others >= gap)
    shared = [_foretold(aa, ab, links) + _foretold(bb, ab.T, other) for links, other in (known, (apart, apart))]
    best = [int(one.mean(axis=1).argmax()) for one in shared]
    own, (neighbours, everyone) = shared[0][0] / 2, (one[at] / 2 for one, at in zip(shared, best, strict=True))
    sure = [_holds(seen, apart, neighbours - everyone, rng) for _ in range(DRAWS)]
    return Links(
        int(np.triu(known[0]).sum()),
        float(means[0]),
        float(means[1]),
        (1 + larger) / (1 + SHUFFLES),
        own,
        neighbours,
        everyone,
        WEIGHTS[best[0]],
        float(np.mean(sure)),
    )


def by_labels(cosines: Array, labels: Array) -> float:
    """How far similarity is due to labels: the correlation, over pairs, between cosines of changes and of labels.

    `cosines` (K, K) are between changes; `labels` are rows (K, C), whose mean is subtracted. The result is 0 if either
    is constant.

    >>> labels = np.eye(3)[[0, 0, 1, 1, 2]]
    >>> round(by_labels(labels @ labels.T, labels), 2)
    0.95
    """
    pairs = np.triu_indices(len(cosines), 1)
    rows = _units(labels - labels.mean(axis=0))
    one, other = cosines[pairs], (rows @ rows.T)[pairs]
    if len(one) < 2 or one.std() < 1e-9 or other.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def _units(rows: Array) -> Array:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)


def _products(one: Array, other: Array) -> Array:
    """(K, K) inner products, some columns at a time, in float64."""
    total = np.zeros((len(one), len(other)))
    for start in range(0, one.shape[1], BLOCK):
        columns = slice(start, start + BLOCK)
        total += one[:, columns].astype(np.float64) @ other[:, columns].astype(np.float64).T
    return total


def _means(cosines: Array, links: Array, apart: Array, order: Array) -> tuple[float, float]:
    """Mean cosines of linked pairs and of the others, with the links moved to other devices."""
    one, other = np.nonzero(links)
    among = apart[order[one], order[other]]
    linked = cosines[order[one], order[other]][among]
    rest = apart.sum() - len(linked)
    within = float(linked.sum())
    without = (float(cosines[apart].sum()) - within) / rest if rest else 0.0
    return within / len(linked) if len(linked) else 0.0, without


def _foretold(same: Array, across: Array, links: Array) -> Array:
    """(weights, K) cosine of each device's row in one half with that in the other plus a weight times its neighbours'.

    `same` are products of rows of the predicting half, `across` those with the predicted half.
    """
    mean = links / np.maximum(links.sum(axis=1, keepdims=True), 1)
    from_others, overlap = mean @ across, np.einsum("ij,ij->i", mean, same)
    length = np.einsum("ij,jk,ik->i", mean, same, mean, optimize=True)
    found = []
    for weight in WEIGHTS:
        square = same.diagonal() + 2 * weight * overlap + weight**2 * length
        found.append((across.diagonal() + weight * from_others.diagonal()) / np.sqrt(np.maximum(square, 1e-12)))
    return np.array(found)


def _holds(seen: Any, apart: Array, more: Array, rng: np.random.Generator) -> bool:
    """Whether linked devices are more alike and neighbours predict more in a resample of devices."""
    drawn = np.bincount(rng.integers(len(more), size=len(more)), minlength=len(more))
    pairs, gaps = np.outer(drawn, drawn) * apart, []
    for cosines, links in seen:
        near, far = pairs * links, pairs * ~links
        gaps.append((cosines * near).sum() / max(near.sum(), 1) - (cosines * far).sum() / max(far.sum(), 1))
    return bool(np.mean(gaps) > 0 and drawn @ more > 0)
