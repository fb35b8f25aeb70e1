from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.aggregators._server import check_inner
from fedfilt.aggregators.fedavg import FedAvg
from fedfilt.graph import Graph
from fedfilt.rounds.remembering import Remembered
from fedfilt.rounds.types import Rule, Updates, interpolating


@dataclass(frozen=True)
class FedAvgM:
    """FedAvgM (Hsu et al. 2019): momentum on the server. m = momentum · m + Δ; models += rate · m.

    Δ is the change that the inner `aggregator` would make: FedAvg, or any other rule without memory, such as G-Fedfilt.

    >>> rule, updates = FedAvgM(momentum=0.5), Updates(np.array([[1.0], [3.0]]), np.ones(2))
    >>> graph, kept = Graph.from_edges(2, []), rule.start(np.zeros((2, 1)))
    >>> for _ in range(2):
    ...     models, kept = rule(np.zeros((2, 1)), updates, graph, kept)
    >>> models.ravel()
    array([3., 3.])
    """

    momentum: float = 0.9  # share of the last change that goes on
    rate: float = 1.0  # of the server's steps
    aggregator: Any = FedAvg()  # the rule inside, without memory of its own
    search: ClassVar = {"momentum": (0.3, 0.95)}

    def __post_init__(self) -> None:
        check_number("aggregator.momentum", self.momentum, low=0, high=0.9999)
        check_number("aggregator.rate", self.rate, low=0, above=True)
        check_inner(self.aggregator)

    def start(self, models: Array) -> Remembered:
        """No momentum yet."""
        return Remembered({"momentum": np.zeros_like(models)})

    def interpolating(self) -> Rule:
        """For devices without an update: the same as the inner rule."""
        return interpolating(self.aggregator)

    def __call__(self, models: Array, updates: Updates, graph: Graph, before: Remembered) -> tuple[Array, Remembered]:
        updates.check(models, graph)
        if not updates.weights.any():
            return models.copy(), before
        kind = models.dtype.type
        m = kind(self.momentum) * before.devices["momentum"] + self.aggregator(models, updates, graph) - models
        return models + kind(self.rate) * m, Remembered({"momentum": m})
