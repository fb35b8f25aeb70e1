"""Simulated time: an engine that wraps another and charges what training and sending would cost on real devices."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedfilt._types import Array
from fedfilt.rounds.types import Cost, Engine, Reply, State, Tests
from fedfilt.system.hardware import Hardware
from fedfilt.system.lateness import Lateness
from fedfilt.system.orders import Job


class Simulated:
    """Runs jobs on another engine, and gives each reply the seconds and joules its device would have needed."""

    def __init__(
        self,
        inner: Engine,
        hardware: Hardware,
        seed: int,
        lateness: Lateness,
        extra: Callable[[int, int], float] = lambda round, rounds: 0.0,
    ) -> None:
        """`extra(round, rounds)` are the epochs that devices train beyond the plan."""
        self._inner = inner
        self._hardware = hardware
        self._seed = seed
        self._lateness = lateness
        self._extra = extra

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Replies with their costs; late ones are marked."""
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
            epochs = job.plan.epochs + self._extra(job.round, job.rounds)
            share = epochs * reply.samples / max(true.samples[device], 1)
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

    def test(self, state: State) -> Tests:
        """Testing costs the devices nothing here."""
        return self._inner.test(state)

    def personal(self, state: State) -> Array:
        """The models that devices decide with, where the other engine knows them; else their rows."""
        known = getattr(self._inner, "personal", None)
        found: Array = state.models if known is None else known(state)
        return found
