import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfilt._checks import check_number
from fedfilt._reading import csv_text
from fedfilt._types import Array
from fedfilt.system.hardware import Hardware
from fedfilt.system.radio import NOISE_DBM_PER_HZ, watts


@dataclass(frozen=True)
class Measured:
    """Real devices from a CSV table in the format of `fedfilt profile`: device,seconds_per_sample,bits_per_second.

    Optional columns: clock_hz, transmit_watts, energy_limit (joules per round). One line per device, in order.

    >>> Measured("home.csv")
    Measured(table='home.csv', variability=0.0, error=0.0)
    """

    table: str = ""  # CSV file of fedfilt profile's lines
    variability: float = 0.0  # spread from round to round that devices report before the plan is made
    error: float = 0.0  # spread that nobody knows in advance

    def draw(self, samples: Array, update_bytes: int, rng: np.random.Generator) -> Hardware:
        """The hardware of the devices in the table."""
        if not self.table:
            raise ValueError("devices.table must name a CSV file in the format of `fedfilt profile`, got none")
        with csv_text(Path(self.table)) as file:
            rows = list(csv.DictReader(file))
        if len(rows) != len(samples):
            raise ValueError(f"{self.table} must have {len(samples)} lines, one per device, got {len(rows)}")

        def column(name: str, default: float | None = None) -> Array:
            values = []
            for number, row in enumerate(rows, start=2):
                text = row.get(name) or default
                try:
                    values.append(float(text))  # type: ignore[arg-type]
                except (TypeError, ValueError):
                    raise ValueError(f"{self.table} line {number}: {name} must be a number, got {text!r}") from None
                if values[-1] != np.inf:
                    check_number(f"{self.table} line {number}: {name}", values[-1], low=0, above=True)
            return np.array(values)

        clock, power = column("clock_hz", 2e9), column("transmit_watts", 0.5)
        rate = column("bits_per_second")
        band = rate / np.log2(1001)  # at a signal-to-noise ratio of 1000
        gain = 10 * np.log10(1000 * band * watts(NOISE_DBM_PER_HZ) / power)
        return Hardware(
            np.asarray(samples),
            column("seconds_per_sample") * clock,
            clock,
            power,
            gain,
            band,
            column("energy_limit", np.inf),
            tuple(row.get("device") or "" for row in rows),
            self.variability,
            self.error,
            shared_band=False,
        )
