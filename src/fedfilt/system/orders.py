"""What the edge server asks of a device in a round."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedfilt._brief import brief
from fedfilt._types import Array


class Plan(NamedTuple):
    """A device's work for this round.

    >>> Plan(epochs=2, data_fraction=0.5).samples(held=45)
    22
    """

    epochs: int = 3  # 0: it does not take part
    data_fraction: float = 1.0  # of its samples, rounded down
    density: float = 1.0  # bytes it may send, as a share of the whole update's bytes
    clock: float = 1.0  # share of its full clock
    bandwidth_hz: float = 0.0  # assigned to it; 0: its own
    outcome: str = ""  # how the plan came about; see `fedfilt.system.planning`

    def samples(self, held: int) -> int:
        """How many of its samples a device trains on.

        >>> Plan(data_fraction=0.3).samples(held=10), Plan(epochs=0).samples(held=10)
        (3, 0)
        """
        return int(whole(self.data_fraction, held)) if self.epochs else 0


class Schedule(NamedTuple):
    """A plan for each device, and the round's deadline in seconds.

    >>> Schedule([Plan(), Plan(epochs=1)], deadline=2.5).plans[1].epochs
    1
    """

    plans: Sequence[Plan]
    deadline: float = math.inf

    def __repr__(self) -> str:
        return brief(self)


class Job(NamedTuple):
    """What the edge server sends to a device."""

    round: int  # counted from 1
    device: int
    model: Array  # (B,) the device's own row
    plan: Plan
    residual: Array | None = None  # (B,) what the device has not sent yet
    accepted: int = 0  # the last round in which this device's reply counted; 0: none
    state: Mapping[str, Array] | None = None  # what its client kept then; None: nothing, or the device stores it
    rounds: int = 0  # total number of rounds; 0: unknown

    def __repr__(self) -> str:
        return brief(self)


def whole(fraction: Any, held: Any) -> Any:
    """A fraction of numbers of samples, rounded down, but tolerant of rounding errors just below a whole number."""
    return np.floor(np.asarray(fraction) * held + 1e-9)
