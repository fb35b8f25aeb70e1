from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedfilt._types import Array
from fedfilt.aggregators._server import Adaptive, check_inner
from fedfilt.aggregators.fedavg import FedAvg
from fedfilt.graph import Graph
from fedfilt.rounds.remembering import Remembered
from fedfilt.rounds.types import Rule, Updates, interpolating


@dataclass(frozen=True)
class FedYogi:
    """FedYogi (Reddi et al. 2021): Yogi on the server. v += (1 - beta2) · sign(Δ² - v) · Δ².

    m = beta1 · m + (1 - beta1) · Δ; models += rate · m / (√v + tau), where Δ is the change that the inner
    `aggregator` would make: FedAvg, or any other rule without memory, such as G-Fedfilt.

    >>> rule, updates = FedYogi(rate=1.0), Updates(np.array([[1.0], [3.0]]), np.ones(2))
    >>> models, kept = rule(np.zeros((2, 1)), updates, Graph.from_edges(2, []), rule.start(np.zeros((2, 1))))
    >>> models.ravel().round(2), sorted(kept.devices)
    (array([1., 1.]), ['m', 'v'])
    """

    rate: float = 0.01  # of the server's steps
    beta1: float = 0.9  # how slowly m follows
    beta2: float = 0.99  # how slowly v follows
    tau: float = 0.001  # keeps steps small where v is near 0
    aggregator: Any = FedAvg()  # the rule inside, without memory of its own
    search: ClassVar = {"rate": (0.001, 0.3)}

    def __post_init__(self) -> None:
        self._optimiser.check()
        check_inner(self.aggregator)

    @property
    def _optimiser(self) -> Adaptive:
        return Adaptive(self.rate, self.beta1, self.beta2, self.tau)

    def start(self, models: Array) -> Remembered:
        """m is 0 and v is tau²."""
        return self._optimiser.start(models)

    def interpolating(self) -> Rule:
        """For devices without an update: the same as the inner rule."""
        return interpolating(self.aggregator)

    def __call__(self, models: Array, updates: Updates, graph: Graph, before: Remembered) -> tuple[Array, Remembered]:
        updates.check(models, graph)
        if not updates.weights.any():
            return models.copy(), before
        less = models.dtype.type(1 - self.beta2)

        def spread(v: Array, square: Array) -> Array:
            return v + less * np.sign(square - v) * square

        found = self.aggregator(models, updates, graph) - models
        return self._optimiser.step(models, found, before, spread)
