from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_choice, check_number
from fedfilt._types import Array
from fedfilt.system.hardware import Hardware

# Cycles per sample of the paper's CNN (2.3 MFLOP forward and backward), clock in Hz, transmit watts, joules a round
PROFILES = {
    "smartwatch": (2.3e6, 1.0e9, 0.10, 0.5),
    "phone": (5.8e5, 2.4e9, 0.25, 5.0),
    "tablet": (5.8e5, 2.2e9, 0.30, 8.0),
    "laptop": (1.5e5, 3.0e9, 0.50, 30.0),
    "tv": (1.2e6, 1.5e9, 0.80, np.inf),
}


@dataclass(frozen=True)
class Everyday:
    """Smartwatches, phones, tablets, laptops and TVs in turn, in round figures; measure yours with `fedfilt profile`.

    >>> Everyday().draw(np.full(5, 450), 212008, np.random.default_rng(0)).kinds
    ('smartwatch', 'phone', 'tablet', 'laptop', 'tv')
    """

    kinds: str = "smartwatch phone tablet laptop tv"  # in turn
    path_loss_db: float = 90.0  # some metres indoors, through a wall
    bandwidth_hz: float = 20e6  # of all devices together
    variability: float = 0.0  # spread from round to round that devices report before the plan is made
    error: float = 0.0  # spread that nobody knows in advance

    def __post_init__(self) -> None:
        for kind in self.kinds.split() or [""]:
            check_choice("kind of device", kind, PROFILES)
        check_number("path_loss_db", self.path_loss_db, low=0)
        check_number("bandwidth_hz", self.bandwidth_hz, low=0, above=True)

    def draw(self, samples: Array, update_bytes: int, rng: np.random.Generator) -> Hardware:
        """The hardware of devices that hold these numbers of samples."""
        names = self.kinds.split()
        kinds = tuple(names[i % len(names)] for i in range(len(samples)))
        cycles, clock, power, limit = np.array([PROFILES[kind] for kind in kinds]).T
        gain = np.full(len(kinds), -self.path_loss_db)
        band = np.full(len(kinds), self.bandwidth_hz / len(kinds))
        held = np.asarray(samples)
        return Hardware(held, cycles, clock, power, gain, band, limit, kinds, self.variability, self.error)
