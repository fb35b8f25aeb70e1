"""Rules for a blind server: any linear rule, with integer weights, on rows in fixed point, masked or not."""

from dataclasses import dataclass

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Rule, Updates
from fedfilt.system.blind import Cut, brought, floats, mixed, mixed_sealed, whole, whole_weights


@dataclass(frozen=True, eq=False)
class Blind:
    """A linear rule in fixed point, H (models + updates) with integer weights: the same on plain and masked rows.

    For `sealed` rows, the server only knows whose masks they contain (`fedfilt.system.blind`), and an "update" is the
    whole trained row. A device without an update is not mixed into others; if its own row stays, every bit stays.

    Each piece of the `cut` is mixed separately, among the devices that sent it. For a device that did not send it, the
    own piece stays: an update that was not sent is NaN, or has no mask.

    >>> from fedfilt.aggregators import FedAvg
    >>> updates = Updates(np.array([[1.0], [4.0]], np.float32), np.array([2.0, 1.0]))
    >>> Blind(FedAvg(), Cut(seed=0, size=1))(np.zeros((2, 1), np.float32), updates, Graph.from_edges(2, []))
    array([[2.],
           [2.]], dtype=float32)
    """

    rule: Rule
    cut: Cut
    sealed: bool = False

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        result, known = models.copy(), dict[bytes, tuple[Array, Array]]()
        for place in self.cut.places if self.sealed else self.cut.columns:
            rows = updates.rows[:, place]
            sent = brought(rows) if self.sealed else np.asarray((~np.isnan(rows)).any(axis=1))
            if not sent.any():
                continue  # it stays as it is
            if sent.tobytes() not in known:
                known[sent.tobytes()] = _weights(self.rule, sent, updates.weights, graph)
            weights, stays = known[sent.tobytes()]
            if self.sealed:
                mixture = mixed_sealed(weights, rows)
            else:
                mixture = floats(mixed(weights, whole(models[:, place] + np.where(sent[:, None], rows, 0))))
            result[:, place] = np.where(stays[:, None], models[:, place], mixture)
        return result


def _weights(rule: Rule, sent: Array, samples: Array, graph: Graph) -> tuple[Array, Array]:
    """((K, K) integer weights of a piece, (K,) True where it stays as it is) if only some devices `sent` it."""
    matrix, stays = matrix_of(rule, np.where(sent, samples, 0.0), graph)
    stays = stays | (~sent & (samples > 0))
    return whole_weights(np.where(stays[:, None], 0.0, matrix)), stays


def matrix_of(rule: Rule, weights: Array, graph: Graph) -> tuple[Array, Array]:
    """((K, K) H of a rule that gives H (models + updates), (K,) True where a device's row stays as it is).

    ValueError if the rule is not of that kind, or mixes the old row of a device without an update: the server has that
    row only as part of a mixture.
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
        raise ValueError("it must be linear in models + updates, with weights that sum to 1")
    stays = ~brings & (abs(matrix - unit).max(axis=1) < 1e-9)
    if abs(matrix[~stays][:, ~brings]).max(initial=0) > 1e-9:
        raise ValueError("it must not mix the old model of a device that is absent")
    return np.where(brings, matrix, 0.0), stays


def check_rule(rule: Rule, graph: Graph) -> None:
    """Refuse a rule that a blind server cannot apply, whichever devices are absent."""
    everybody = np.arange(1.0, graph.count + 1)
    first = np.arange(graph.count) == 0
    for weights in (everybody, np.where(first, 0.0, everybody), np.where(first, everybody, 0.0), 0.0 * everybody):
        try:
            whole_weights(matrix_of(rule, weights, graph)[0])
        except ValueError as error:
            name = type(rule).__name__
            raise ValueError(f"privacy.blind = true does not allow the aggregator {name}: {error}") from None
