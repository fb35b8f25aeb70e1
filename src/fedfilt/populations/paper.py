from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.system.hardware import Hardware


@dataclass(frozen=True)
class Paper:
    """Devices drawn as in the paper's table.

    ρ ~ U(1, 5)·10⁴ cycles/sample, f ~ U(1, 3.5) GHz, p ~ U(0.5, 1) W, ξ ~ U(1, 2) dB, 20 MHz shared equally.
    `path_loss_db` 0 is as printed (an unlikely signal-to-noise ratio of 144 dB).

    >>> Paper().draw(np.full(20, 450), 212008, np.random.default_rng(0)).bandwidth_hz[0]
    np.float64(1000000.0)
    """

    path_loss_db: float = 0.0  # 0 is as printed
    bandwidth_hz: float = 20e6  # of all devices together
    energy_limit: float = np.inf  # joules a round
    variability: float = 0.0  # spread from round to round that devices report before the plan is made
    error: float = 0.0  # spread that nobody knows in advance

    def __post_init__(self) -> None:
        check_number("path_loss_db", self.path_loss_db, low=0)
        check_number("bandwidth_hz", self.bandwidth_hz, low=0, above=True)
        if not self.energy_limit > 0:
            raise ValueError(f"energy_limit must be > 0, got {self.energy_limit!r}")

    def draw(self, samples: Array, update_bytes: int, rng: np.random.Generator) -> Hardware:
        """The hardware of devices that hold these numbers of samples."""
        count = len(samples)
        return Hardware(
            samples=np.asarray(samples),
            cycles_per_sample=rng.uniform(1e4, 5e4, count),
            clock_hz=rng.uniform(1e9, 3.5e9, count),
            transmit_watts=rng.uniform(0.5, 1.0, count),
            gain_db=rng.uniform(1.0, 2.0, count) - self.path_loss_db,
            bandwidth_hz=np.full(count, self.bandwidth_hz / count),
            energy_limit=np.full(count, self.energy_limit),
            variability=self.variability,
            error=self.error,
        )
