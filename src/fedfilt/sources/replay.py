import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfilt._checks import check_choice, check_number
from fedfilt._types import Array
from fedfilt.data._tables import BadData, opened, read_npz, read_rows
from fedfilt.data.own import Making
from fedfilt.home.bus import Bus
from fedfilt.home.clock import Clock
from fedfilt.home.readings import Complaints, Reading

LATE = 10.0  # seconds, at home, by which a recording may be behind before that is said


@dataclass(frozen=True)
class Replay:
    """A recording, replayed at the speed of the home's clock: from a time on, or at its own times.

    A CSV or Parquet file as in a device's data folder, or a .npz file with time (n), values (n, channels) and, if
    known, label (n). Readings carry the label along for comparison.

    >>> Replay(file="monday.csv")
    Replay(file='monday.csv', time='time', label='label', again=False, at='now')
    """

    file: str  # CSV, Parquet or .npz
    time: str = "time"  # its column
    label: str = "label"  # its column
    again: bool = False  # from the start, when it has ended
    at: str | float = "now"  # or when it begins; "time": each row at its own time, and what is past is passed over

    def __post_init__(self) -> None:
        if not isinstance(self.at, str):
            check_number("at", self.at, low=0)
        elif check_choice("at", self.at, ("now", "time")) == "time" and self.again:
            raise ValueError('a recording that is played at = "time" cannot be played again')

    def readings(self, making: Making, bus: Bus, clock: Clock, stop: threading.Event) -> Iterator[Reading]:
        """The rows of the recording, each at its time."""
        times, values, labels = self._recording(making)
        period = float(np.median(np.diff(times))) if len(times) > 1 else 1.0
        start = clock.now() if isinstance(self.at, str) else self.at
        complaints = Complaints("replay")
        if self.at == "time":
            past = int(np.searchsorted(times, start))
            times, values, labels = times[past:], values[past:], labels[past:]
            start = 0.0
        elif len(times):
            times = times - times[0]
        while len(times):
            for when, row, label in zip(start + times, values, labels, strict=True):
                if stop.is_set() or ((early := when - clock.now()) > 0 and not clock.sleep(early, stop)):
                    return
                if early < -LATE:
                    complaints("behind", "%s is %.0f s behind: this machine is too slow for it", self.file, -early)
                yield Reading(float(when), row, str(label))
            if not self.again:
                return
            start += float(times[-1]) + period

    def _recording(self, making: Making) -> tuple[Array, Array, Array]:
        """(times (n,), values (n, channels), labels (n,))."""
        path = Path(self.file)
        if path.suffix.lower() == ".npz":
            with opened(path) as file:
                found = read_npz(file, path)
            if not {"time", "values"} <= set(found):
                raise BadData(f"{path} must have the arrays time and values, got {', '.join(sorted(found)) or 'none'}")
            times, values = found["time"], found["values"]
            labels = found.get("label", np.full(len(times), ""))
        else:
            rows = read_rows(path, self.time, self.label, making.channels)
            times, values, labels = rows.times, rows.values, np.array([*rows.labels, ""])[rows.codes]
        shapes = [np.shape(array) for array in (times, values, labels)]
        if shapes != [(len(times),), (len(times), making.shape[0]), (len(times),)]:
            raise BadData(f"{path} must have {making.shape[0]} channels, and a time for each row, got shapes {shapes}")
        if times.dtype.kind not in "iuf" or values.dtype.kind not in "iuf" or not (np.diff(times) > 0).all():
            raise BadData(f"{path} must have numbers as values, and times in seconds that increase")
        return times.astype(np.float64), values, labels
