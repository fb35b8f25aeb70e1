"""Rules for a server that cannot look: any rule that is linear, as whole weights, on rows in fixed point or masked."""

from dataclasses import dataclass

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Rule, Updates
from fedfilt.system.blind import floats, mixed, mixed_sealed, whole, whole_weights


@dataclass(frozen=True, eq=False)
class Blind:
    """A linear rule in fixed point, H (models + updates) with whole weights: the same on rows and on masked rows.

    Of `sealed` rows the server knows only whose masks are in them (`fedfilt.system.blind`), and an "update" is the
    whole trained row. A device that brings nothing is not mixed into others; if its own row stays, it stays to the bit.

    >>> from fedfilt.aggregators import FedAvg
    >>> updates = Updates(np.array([[1.0], [4.0]], np.float32), np.array([2.0, 1.0]))
    >>> Blind(FedAvg())(np.zeros((2, 1), np.float32), updates, Graph.from_edges(2, []))
    array([[2.],
           [2.]], dtype=float32)
    """

    rule: Rule
    sealed: bool = False

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        matrix, stays = matrix_of(self.rule, updates.weights, graph)
        weights = whole_weights(np.where(stays[:, None], 0.0, matrix))
        if self.sealed:
            result = mixed_sealed(weights, updates.rows)
        else:
            result = floats(mixed(weights, whole(models + updates.rows)))
        result[stays] = models[stays]
        return result


def matrix_of(rule: Rule, weights: Array, graph: Graph) -> tuple[Array, Array]:
    """((K, K) H of a rule that gives H (models + updates), (K,) True where a device's row stays as it is).

    ValueError if the rule is not of that kind, or mixes an old row of a device that brings nothing: the server has
    that only as part of a mixture.
    """
    count, brings = graph.count, weights > 0
    unit, nothing = np.eye(count), np.zeros((count, count))
    matrix = rule(unit, Updates(nothing, weights), graph)
    by_update = rule(nothing, Updates(np.diag(brings.astype(float)), weights), graph)
    tried = np.cos(np.arange(count * 3.0)).reshape(count, 3)  # and it must be linear
    off = (
        abs(by_update - matrix)[:, brings],
        abs(matrix.sum(axis=1) - 1),
        abs(
            rule(tried, Updates(-3 * tried * brings[:, None], weights), graph)
            - matrix @ (tried * (1 - 3 * brings)[:, None])
        ),
    )
    if any(part.max(initial=0) > 1e-6 for part in off):
        raise ValueError("must be linear in models + updates, with weights that sum to 1")
    stays = ~brings & (abs(matrix - unit).max(axis=1) < 1e-9)
    if abs(matrix[~stays][:, ~brings]).max(initial=0) > 1e-9:
        raise ValueError("must not mix the old model of a device that is absent")
    return np.where(brings, matrix, 0.0), stays


def check_rule(rule: Rule, graph: Graph) -> None:
    """Refuse a rule that a server which cannot look cannot apply, whoever is absent."""
    everybody = np.arange(1.0, graph.count + 1)
    first = np.arange(graph.count) == 0
    for weights in (everybody, np.where(first, 0.0, everybody), np.where(first, everybody, 0.0), 0.0 * everybody):
        try:
            whole_weights(matrix_of(rule, weights, graph)[0])
        except ValueError as error:
            name = type(rule).__name__
            raise ValueError(f"privacy.blind = true: the aggregator {name} does not do for it: {error}") from None
