from dataclasses import dataclass

from fedfilt.checks import check_count
from fedfilt.rounds import Plan, Schedule


@dataclass(frozen=True)
class Everything:
    """Every device trains the same number of epochs on all its data and sends the whole update; no deadline.

    >>> Everything(epochs=3)(0, 2).plans
    [Plan(epochs=3, data_fraction=1.0, density=1.0), Plan(epochs=3, data_fraction=1.0, density=1.0)]
    """

    epochs: int = 3

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, low=0)

    def __call__(self, round: int, count: int) -> Schedule:
        return Schedule([Plan(epochs=self.epochs)] * count)
