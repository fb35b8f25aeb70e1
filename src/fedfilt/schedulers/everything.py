from dataclasses import dataclass

from fedfilt._checks import check_count, check_number
from fedfilt.system.hardware import Hardware
from fedfilt.system.orders import Plan, Schedule


@dataclass(frozen=True)
class Everything:
    """The same work for every device, without a deadline: epochs on all data or a fraction, the full update or a share.

    >>> import numpy as np
    >>> from fedfilt.populations import Paper
    >>> Everything(epochs=3)(Paper().draw(np.full(2, 450), 1000, np.random.default_rng(0)), 1000).plans[1].epochs
    3
    """

    epochs: int = 3  # on a device's samples
    data_fraction: float = 1.0  # of its samples
    density: float = 1.0  # of the update's bytes

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, low=0)
        check_number("data_fraction", self.data_fraction, low=0, high=1, above=True)
        check_number("density", self.density, low=0, high=1, above=True)

    def __call__(self, hardware: Hardware, update_bytes: int) -> Schedule:
        everybody = Plan(self.epochs, self.data_fraction, self.density)
        return Schedule([everybody if n else Plan(0, 0.0, 0.0, outcome="no_samples") for n in hardware.samples])
