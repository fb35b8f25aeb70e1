from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.remembering import Remembered
from fedfilt.rounds.types import Rule, Updates


@dataclass(frozen=True)
class FedDyn:
    """FedDyn's shared model (Acar et al. 2021): the mean of the trained models, corrected by how far they have moved.

    h -= alpha · (sum of updates) / K; every device gets the mean of the trained models minus h / alpha. It belongs to
    the client of the same name, with the same alpha. All trained models count equally.

    >>> rule, updates = FedDyn(alpha=0.5), Updates(np.array([[1.0], [3.0]]), np.ones(2))
    >>> models, kept = rule(np.zeros((2, 1)), updates, Graph.from_edges(2, []), rule.start(np.zeros((2, 1))))
    >>> models.ravel(), kept.everyone["h"]
    (array([4., 4.]), array([-1.]))
    """

    alpha: float = 0.1  # that of the client of the same name

    def __post_init__(self) -> None:
        check_number("aggregator.alpha", self.alpha, low=0, above=True)

    def start(self, models: Array) -> Remembered:
        """Nothing has moved yet."""
        return Remembered(everyone={"h": np.zeros_like(models[0])})

    def interpolating(self) -> Rule:
        """A device without an update gets the mean."""
        return lambda models, updates, graph: updates.averaged(models)

    def __call__(self, models: Array, updates: Updates, graph: Graph, before: Remembered) -> tuple[Array, Remembered]:
        updates.check(models, graph)
        brings, alpha = updates.weights > 0, models.dtype.type(self.alpha)
        if not brings.any():
            return models.copy(), before
        h = before.everyone["h"] - alpha * updates.rows[brings].sum(axis=0) / models.dtype.type(len(models))
        shared = (models + updates.rows)[brings].mean(axis=0) - h / alpha
        return np.tile(shared, (len(models), 1)), Remembered(everyone={"h": h})
