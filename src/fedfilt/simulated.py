"""Simulated time: an engine that wraps another and charges what training and sending would cost real devices."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedfilt.checks import Array, check_choice, check_number
from fedfilt.hardware import Hardware
from fedfilt.rounds import Cost, Engine, Job, Reply, Tests


@dataclass(frozen=True)
class Lateness:
    """What the server does about late devices: the table [late].

    policy "wait" waits for all; "deadline" leaves out who is not there by deadline · exp(margin · σ), σ being the
    spread that the plan does not know; "quorum" ends the round when so large a share of the devices has arrived.
    """

    policy: str = "wait"
    margin: float = 1.6
    quorum: float = 0.9

    def __post_init__(self) -> None:
        check_choice("late.policy", self.policy, ("wait", "deadline", "quorum"))
        check_number("late.margin", self.margin, low=0)
        check_number("late.quorum", self.quorum, low=0, high=1, above=True)

    def end(self, arrivals: Array, deadline: float, spread: float) -> float:
        """The moment at which the round ends: who arrives later is absent.

        >>> arrivals = np.array([1.0, 2.0, 4.0])
        >>> [Lateness(p, quorum=0.6).end(arrivals, 3.0, 0.0) for p in ("wait", "deadline", "quorum")]
        [4.0, 3.0, 2.0]
        """
        last = float(arrivals.max())
        if self.policy == "deadline":
            if math.isinf(deadline):
                raise ValueError(
                    "late.policy = 'deadline' needs a scheduler that sets a deadline, such as same_deadline"
                )
            return min(last, deadline * float(np.exp(np.minimum(self.margin * spread, 700))))
        if self.policy == "quorum":
            return float(np.sort(arrivals)[math.ceil(self.quorum * len(arrivals) - 1e-9) - 1])
        return last


class Simulated:
    """Runs jobs on another engine, and gives each reply the seconds and joules its device would have needed."""

    def __init__(self, inner: Engine, hardware: Hardware, seed: int, lateness: Lateness) -> None:
        self._inner = inner
        self._hardware = hardware
        self._seed = seed
        self._lateness = lateness

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Replies with their costs; those that came too late are marked."""
        came = list(self._inner.train(jobs, deadline))
        yield from (reply for reply in came if reply.absent)
        replies = {reply.device: reply for reply in came if not reply.absent}
        if not replies:
            return
        round = jobs[0].round
        now = self._hardware.at(self._seed, round)
        clock, band = np.ones(now.count), now.bandwidth_hz.copy()
        for job in jobs:
            clock[job.device] = job.plan.clock
            if job.plan.bandwidth_hz:
                band[job.device] = job.plan.bandwidth_hz
        planned = replace(now, clock_hz=now.clock_hz * clock, bandwidth_hz=band)
        true = planned.in_truth(self._seed, round)
        epoch_seconds, epoch_joules = true.compute_seconds(), true.compute_joules()
        byte_seconds, byte_joules = true.send_seconds(1), true.send_joules(1)
        costs = {}
        for job in jobs:
            if (reply := replies.get(job.device)) is None:
                continue
            device = job.device
            share = job.plan.epochs * reply.samples / max(true.samples[device], 1)
            costs[device] = Cost(
                compute_seconds=float(share * epoch_seconds[device]),
                send_seconds=float(reply.size * byte_seconds[device]),
                compute_joules=float(share * epoch_joules[device]),
                send_joules=float(reply.size * byte_joules[device]),
            )
        arrivals = np.array([cost.seconds for cost in costs.values()])
        end = self._lateness.end(arrivals, deadline, self._hardware.error)
        for device, cost in costs.items():
            late = cost.seconds > end * (1 + 1e-9)
            idle = max(0.0, end - cost.seconds)
            yield replies[device]._replace(cost=cost._replace(idle_seconds=idle), late=late, end=end)

    def test(self, models: Array) -> Tests:
        """Testing costs the devices nothing here."""
        return self._inner.test(models)
