"""A sensor for benchmarks/week.py, which runs in the devices' processes: it loads nothing else."""

import os
from dataclasses import dataclass

from fedfilt.sources.replay import Replay


@dataclass(frozen=True)
class Worn:
    """A recording that is played at its own times; each process that reads it is noted, with its first reading."""

    file: str

    def readings(self, making, bus, clock, stop):
        """The readings, as the device gets them."""
        for number, reading in enumerate(Replay(self.file, at="time").readings(making, bus, clock, stop)):
            if not number:
                with open(f"{self.file}.read", "a") as file:
                    file.write(f"{os.getpid()} {reading.time!r}\n")
            yield reading
