"""Server optimizers: they treat a rule's change as a gradient and take their own steps along it, device by device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.rounds.remembering import Remembered, name_of, remembers


def check_inner(rule: Any) -> None:
    """Refuse a rule to follow that has a memory of its own."""
    if remembers(rule):
        raise ValueError(f"aggregator.aggregator must be a rule without memory of its own, got {name_of(rule)}")


class Adaptive(NamedTuple):
    """Reddi et al. 2021: m = β₁ m + (1 - β₁) Δ; models += rate · m / (√v + tau); v is the optimizer's own."""

    rate: float
    beta1: float
    beta2: float
    tau: float

    def check(self) -> None:
        """Refuse options that do not fit."""
        check_number("aggregator.rate", self.rate, low=0, above=True)
        check_number("aggregator.beta1", self.beta1, low=0, high=0.9999)
        check_number("aggregator.beta2", self.beta2, low=0, high=0.99999)
        check_number("aggregator.tau", self.tau, low=0, above=True)

    def start(self, models: Array) -> Remembered:
        """m is 0 and v is tau²."""
        return Remembered({"m": np.zeros_like(models), "v": np.full_like(models, self.tau**2)})

    def step(
        self, models: Array, change: Array, before: Remembered, spread: Callable[[Array, Array], Array]
    ) -> tuple[Array, Remembered]:
        """The next models; `spread` is the next v of the last one and Δ²."""
        kind = models.dtype.type
        m = kind(self.beta1) * before.devices["m"] + kind(1 - self.beta1) * change
        v = spread(before.devices["v"], change * change)
        return models + kind(self.rate) * m / (np.sqrt(v) + kind(self.tau)), Remembered({"m": m, "v": v})
