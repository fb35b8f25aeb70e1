"""Cuts readings into windows, as training does with recordings (`fedfilt.data.own` and `fedfilt.data.windows`)."""

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.data.own import GAP, OFF, Making
from fedfilt.home.readings import Complaints, Reading

LATEST = 1e11  # seconds; anything later, or NaN, is not a time
JUMP = 10.0  # seconds by which a clock was set back; less means that a reading came late


class Window(NamedTuple):
    """Consecutive readings in the form a model takes, not yet scaled."""

    begin: float  # time of the first reading, and of the last
    end: float
    values: Array  # (channels, rows) float32
    label: str = ""  # shared by all its readings, if a recording knows it


class Stream:
    """Cuts readings into windows; problems are counted in `counts` and logged at most once a minute each.

    A window has as many rows as in training, and the next starts `hop` rows later (0: as in training), at most one
    window later. Readings

    * whose time is not a number, or earlier than the last one, or the same, are dropped ("time", "late", "twice");
    * more than JUMP seconds earlier than the last one (or 10 periods, if that is more) mean that the clock was set
      back: a new window starts ("jump");
    * after a pause of more than 1.5 periods, or after the clock was set ahead, start a new window ("gap"). The period
      is the median of the steps in a window;
    * at a rate more than 10 % off the experiment's give no windows until that is over ("rate");
    * with NaN, infinity, or numbers beyond float32 make their windows unusable ("not finite");
    * with the wrong channels, or values that are not numbers, count as NaN ("channels").

    >>> stream = Stream(Making(shape=(1, 4), labels=("walk", "rest"), rate=10.0))
    >>> found = [stream.push(Reading(i / 10, np.array([i]))) for i in range(8)]
    >>> [window.values.tolist() for window in found if window]
    [[[0.0, 1.0, 2.0, 3.0]], [[2.0, 3.0, 4.0, 5.0]], [[4.0, 5.0, 6.0, 7.0]]]
    """

    def __init__(self, making: Making, hop: int = 0, who: str = "readings") -> None:
        if len(making.shape) != 2 or making.shape[1] < 2:
            raise ValueError(f"windows need data.shape = [channels, rows of a window], got {list(making.shape)}")
        self.channels, self.rows = making.shape
        self.hop = check_count("hop", hop, low=0, high=self.rows) or min(making.stride, self.rows)
        self.rate = making.rate
        self.complaints = Complaints(who)
        self._back = max(JUMP, 10 / making.rate if making.rate else 0)
        self._last = -math.inf  # time
        self._kept: deque[Reading] = deque()  # since the last new start, as far as the next window needs them

    @property
    def counts(self) -> dict[str, int]:
        """How often each problem occurred."""
        return self.complaints.counts

    def push(self, reading: Reading) -> Window | None:
        """Take a reading; returns the window it completes, if it does and the window is good."""
        when = _number(reading.time)
        if not abs(when) <= LATEST:
            self.complaints("time", "readings must have a time, got %r", reading.time)
            return None
        if when < self._last - self._back:
            self.complaints("jump", "the clock was set back by %.0f s; a new window starts", self._last - when)
            self._kept.clear()
        elif when <= self._last:
            kind, said = ("twice", "readings arrive twice") if when == self._last else ("late", "readings arrive late")
            self.complaints(kind, f"{said}; they are dropped")
            return None
        self._last = when
        self._kept.append(Reading(when, self._values(reading.values), reading.label))
        return self._window() if len(self._kept) >= self.rows else None

    def _values(self, given: Array) -> Array:
        """The values of a reading, as numbers."""
        try:
            with np.errstate(over="ignore"):
                values = np.asarray(given, np.float32)
        except (TypeError, ValueError, OverflowError):
            values = np.empty(0, np.float32)
        if values.shape == (self.channels,):
            return values
        self.complaints("channels", "readings must have %d numbers, one per channel", self.channels)
        return np.full(self.channels, np.nan, np.float32)

    def _window(self) -> Window | None:
        """The window that the readings make, unless something is wrong with it; drops its first `hop` readings."""
        whole, done = list(self._kept), self.hop
        values = np.stack([one.values for one in whole], axis=1)
        steps = np.diff([one.time for one in whole])
        period = float(np.sort(steps)[(len(steps) - 1) // 2])
        pauses = np.flatnonzero(steps > GAP * period)
        good = False
        if self.rate and abs(1 / period / self.rate - 1) > OFF:
            self.complaints("rate", "there must be about %g readings per second, got %.3g", self.rate, 1 / period)
        elif len(pauses):
            self.complaints("gap", "no readings for %.3g s; a new window starts", steps[pauses[-1]])
            done = int(pauses[-1]) + 1
        elif not np.isfinite(values).all():
            self.complaints("not finite", "windows with readings that are not finite are skipped")
        else:
            good = True
        for _ in range(done):
            self._kept.popleft()
        labels = {one.label for one in whole}
        label = labels.pop() if len(labels) == 1 else ""
        return Window(whole[0].time, whole[-1].time, values, label) if good else None


def _number(value: object) -> float:
    if isinstance(value, bool | str | bytes):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
