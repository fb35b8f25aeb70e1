"""Robust mixing: a linear rule that limits every device's share in every other model.

Both ways look only at distances between devices, so they replace the rule's matrix H by another, H', and mix as usual.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedfilt._checks import check_choice, check_number
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Rule, Updates, interpolating

HOW = ("none", "filter", "geometric")
LIMIT = 2_000  # most devices for which the (K, K) matrices are made
STEPS = 50  # of Weiszfeld's iteration for a geometric median


@dataclass(frozen=True)
class Robust:
    """A linear rule v = H g in which no device moves another beyond a limit.

    how "filter": v_i = g_i + Σ_j H_ij clip(g_j - g_i, τ), where clip shortens a difference to the length τ. Whatever j
    sends moves v_i by at most 2 τ H_ij, and the weighted mean of all stays what it was, as the rule's own does; τ is
    `reach` times the median distance between devices that mix. how "geometric": v_i is the geometric median of the g_j
    with weights H_ij, the point with the smallest sum of distances to them.

    >>> from fedfilt.aggregators import FedAvg
    >>> updates = Updates(np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [900.0]]), np.ones(6))
    >>> Robust(FedAvg(), "filter", reach=1.0)(np.zeros((6, 1)), updates, Graph.from_edges(6, [])).round(1).ravel()
    array([  2. ,   2.3,   2.5,   2.7,   3. , 897.5])
    """

    rule: Rule
    how: str = "filter"
    reach: float = 2.0

    def __post_init__(self) -> None:
        check_choice("guard.robust", self.how, HOW[1:])
        check_number("guard.reach", self.reach, low=0, above=True)

    def interpolating(self) -> "Robust":
        """The same for the rule that gives a model to a device without an update."""
        return replace(self, rule=interpolating(self.rule))

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        if not updates.weights.any():
            return self.rule(models, updates, graph)
        linear = matrices(self.rule, updates.weights, graph)
        mixed = models + updates.rows if linear.whole else updates.rows
        distances = _distances(mixed)
        if self.how == "filter":
            matrix = clipped(linear.matrix, distances, self.reach * usual(linear.matrix, distances))
        else:
            matrix = geometric(linear.matrix, distances)
        result = (matrix @ mixed.astype(np.float64)).astype(models.dtype)
        return result if linear.whole else models + result


class Linear(NamedTuple):
    """What a linear rule does to models and updates."""

    matrix: Array  # (K, K)
    whole: bool  # True: it mixes models + updates; False: it adds mixed updates to the models


def matrices(rule: Rule, weights: Array, graph: Graph) -> Linear:
    """The matrix of a linear rule, found from what it does to unit rows."""
    count = graph.count
    if count > LIMIT:
        raise ValueError(f"guard.robust is for up to {LIMIT} devices, got {count}; set it to 'none'")
    unit, nothing = np.eye(count), np.zeros((count, count))
    of_updates = rule(nothing, Updates(unit, weights), graph)
    of_models = rule(unit, Updates(nothing, weights), graph)
    whole = np.allclose(of_models, of_updates, atol=1e-6)
    if not whole and not np.allclose(of_models, unit, atol=1e-6):
        raise ValueError(f"guard.robust needs a rule that mixes models or updates linearly, got {rule}")
    return Linear(of_models if whole else of_updates, whole)


def usual(matrix: Array, distances: Array) -> float:
    """The median distance between devices that mix."""
    mixing = (matrix > 1e-9) & ~np.eye(len(matrix), dtype=bool)
    return float(np.median(distances[mixing])) if mixing.any() else 0.0


def clipped(matrix: Array, distances: Array, most: float) -> Array:
    """(K, K) H' with H' g = g_i + Σ_j H_ij clip(g_j - g_i, most), up to what rows of H sum to.

    >>> clipped(np.full((2, 2), 0.5), np.array([[0.0, 4.0], [4.0, 0.0]]), most=1.0)
    array([[0.875, 0.125],
           [0.125, 0.875]])
    """
    share = matrix * np.divide(most, distances, out=np.ones_like(distances), where=distances > most)
    own = np.arange(len(matrix))
    share[own, own] = 0
    share[own, own] = matrix.sum(axis=1) - share.sum(axis=1)
    return share


def geometric(matrix: Array, distances: Array) -> Array:
    """(K, K) whose row i, applied to what is mixed, is the geometric median under the weights of row i of H.

    Rows that are not averages (negative entries, or sums far from 1) stay as they are.
    """
    squared, found = distances**2, matrix.copy()
    for i, weights in enumerate(matrix):
        total = weights.sum()
        if (weights < 0).any() or not np.isclose(total, 1, atol=1e-3):
            continue
        share = weights / total
        for _ in range(STEPS):
            # the squared distance of Σ_j share_j g_j from every g_j, by distances between devices alone
            away = np.sqrt(np.maximum(squared @ share - share @ squared @ share / 2, 0))
            pull = weights / np.maximum(away, 1e-12 + 1e-6 * away.max())
            if not pull.sum() > 0:
                break
            share = pull / pull.sum()
        found[i] = share * total
    return found


def _distances(rows: Array) -> Array:
    """(K, K) Euclidean distances, from differences to the first row, so that what all share causes no rounding."""
    apart = rows.astype(np.float64) - rows[0].astype(np.float64)
    squares = (apart**2).sum(axis=1)
    found = squares[:, None] + squares - 2 * apart @ apart.T
    np.fill_diagonal(found, 0)
    return np.sqrt(np.maximum(found, 0))
