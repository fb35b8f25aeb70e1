"""Simulated costs of a round that need no training: populations, plans, seconds."""

from typing import NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.paper._cases import POPULATIONS, SCHEDULES
from fedfilt.populations import Prescribed
from fedfilt.schedulers import Everything, SameDeadline
from fedfilt.sparsifiers import TopK
from fedfilt.system.hardware import Hardware
from fedfilt.system.orders import Schedule

PARAMETERS = 53_002  # of the paper's CNN
BYTES = TopK().full_bytes(PARAMETERS)


class Round(NamedTuple):
    """Seconds of every device, and when the round ends."""

    compute_seconds: Array
    send_seconds: Array
    idle_seconds: Array
    deadline: float | None
    end: float
    work: Array  # epochs on all data that a device trains
    fractions: Array  # of its data that it trains on
    outcomes: tuple[str, ...]  # see `fedfilt.system.planning`

    @property
    def desync(self) -> float:
        """From the first arrival to the end."""
        return self.end - float((self.compute_seconds + self.send_seconds).min())


def population(heterogeneity: float, samples: int = 450) -> Hardware:
    """20 devices of one of the paper's heterogeneities."""
    devices = Prescribed(heterogeneity, POPULATIONS[heterogeneity])
    return devices.draw(np.full(20, samples), BYTES, np.random.default_rng(0))


def round_of(hardware: Hardware, schedule: str = "") -> Round:
    """A round of those devices: everybody doing everything, or planned by one of the schedules."""
    if schedule:
        deadline, equality = SCHEDULES[schedule]
        made: Schedule = SameDeadline(deadline=deadline, equality=equality)(hardware, BYTES)
    else:
        made = Everything()(hardware, BYTES)
    work = np.array([plan.epochs * plan.data_fraction for plan in made.plans])
    compute = work * hardware.compute_seconds()
    send = np.array([plan.density for plan in made.plans]) * hardware.send_seconds(BYTES)
    end = float((compute + send).max())
    fractions = np.array([plan.data_fraction for plan in made.plans])
    outcomes = tuple(plan.outcome for plan in made.plans)
    left = end - compute - send
    return Round(compute, send, left, made.deadline if schedule else None, end, work, fractions, outcomes)
