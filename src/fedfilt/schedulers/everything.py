from dataclasses import dataclass

from fedfilt.checks import check_count
from fedfilt.hardware import Hardware
from fedfilt.rounds import Plan, Schedule


@dataclass(frozen=True)
class Everything:
    """Every device trains the same number of epochs on all its data and sends the whole update; no deadline.

    >>> import numpy as np
    >>> from fedfilt.populations import Paper
    >>> Everything(epochs=3)(Paper().draw(np.full(2, 450), 1000, np.random.default_rng(0)), 1000).plans[1].epochs
    3
    """

    epochs: int = 3

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, low=0)

    def __call__(self, hardware: Hardware, update_bytes: int) -> Schedule:
        return Schedule([Plan(epochs=self.epochs)] * hardware.count)
