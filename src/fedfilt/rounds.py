"""A round, from plan to mixed models: a straight line.

schedule -> jobs -> engine -> replies -> updates -> aggregator -> models, one row per device
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedfilt.checks import Array, check_count, check_signal, check_weights
from fedfilt.graph import Graph
from fedfilt.hardware import Hardware


class Plan(NamedTuple):
    """What a device is to do this round."""

    epochs: int = 3  # 0: it takes no part
    data_fraction: float = 1.0  # of its samples, rounded down
    density: float = 1.0  # bytes it may send, as a share of the whole update's
    clock: float = 1.0  # share of its full clock
    bandwidth_hz: float = 0.0  # that it is given; 0: what it has
    outcome: str = ""  # how the plan came about; see `fedfilt.planning`


class Schedule(NamedTuple):
    """A plan per device and the deadline of the round in seconds."""

    plans: Sequence[Plan]
    deadline: float = float("inf")


class Job(NamedTuple):
    """What the edge server sends to a device."""

    round: int
    device: int
    model: Array  # (B,) the device's own row
    plan: Plan
    residual: Array | None = None  # (B,) what the device has not sent yet
    accepted: int = 0  # the last round, counted from 1, in which this device's reply counted; 0: none


class Cost(NamedTuple):
    """What a round costs a device in simulated time."""

    compute_seconds: float = 0.0
    send_seconds: float = 0.0
    compute_joules: float = 0.0
    send_joules: float = 0.0
    idle_seconds: float = 0.0  # until the round ended

    @property
    def seconds(self) -> float:
        """From the start of the round to its arrival."""
        return self.compute_seconds + self.send_seconds


class Reply(NamedTuple):
    """What a device sends back."""

    device: int
    update: Array  # (B,) trained model minus the model it was given, as far as it was sent
    samples: int  # it trained on
    loss: float
    size: int = 0  # bytes it sent
    residual: Array | None = None  # (B,) what it did not send
    cost: Cost = Cost()
    late: bool = False  # too late to count
    end: float = 0.0  # simulated seconds until the round ended for all
    absent: str = ""  # why nothing usable came from the device; then only `device` counts


class Updates(NamedTuple):
    """What all devices learnt in a round: one row per device, in device order.

    A device that is absent, or has no samples, has a row of zeros and the weight 0: it contributes nothing.
    """

    rows: Array  # (K, B) trained model minus the model the device was given
    weights: Array  # (K,) samples behind each row

    def check(self, models: Array, graph: Graph) -> None:
        """Refuse updates that do not belong to these models and this graph."""
        check_signal("models", models, graph.count)
        check_signal("updates.rows", self.rows, graph.count)
        check_weights("updates.weights", self.weights, graph.count)
        if self.rows.shape != models.shape or self.rows.dtype != models.dtype:
            raise ValueError(
                f"updates.rows must be {models.dtype} of shape {models.shape} like models, "
                f"got {self.rows.dtype} of {self.rows.shape}"
            )
        if not isinstance(self.weights, np.ndarray):
            raise ValueError(f"updates.weights must be a NumPy array, got {type(self.weights).__name__}")

    @classmethod
    def stack(cls, replies: Iterable[Reply], count: int, size: int) -> "Updates":
        """Rows ordered by device, never by arrival."""
        updates = cls(np.zeros((count, size), np.float32), np.zeros(count))
        for reply in replies:
            updates.rows[reply.device] = reply.update
            updates.weights[reply.device] = reply.samples
        return updates


class Tests(NamedTuple):
    """Confusion matrices of every device's model, on its own test and on everybody's.

    `local_test` is None where the local test is the device's labels of the global test.
    """

    local_test: Array | None  # (K, C, C)
    global_test: Array  # (K, C, C)
    local_loss: Array | None = None  # (K,) mean losses, where they were computed
    global_loss: Array | None = None


class Sparsifier(Protocol):
    """Cuts an update down to a share of its bytes."""

    def full_bytes(self, size: int) -> int:
        """Bytes of a whole update of so many values."""
        ...

    def __call__(self, update: Array, residual: Array | None, density: float) -> tuple[bytes, Array | None]:
        """(bytes to send, see `fedfilt.wire`; what stays on the device)."""
        ...


class Engine(Protocol):
    """Where training happens: jobs in, replies out, in any order."""

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Train the jobs' models; a device that misses the deadline gives no reply."""
        ...

    def test(self, models: Array) -> Tests:
        """Test every device's model (K, B)."""
        ...


class State(NamedTuple):
    """What the next round needs."""

    round: int  # rounds played
    models: Array  # (K, B)
    residuals: Array | None = None  # (K, B) what each device has not sent yet; None: nothing
    accepted: Array | None = None  # (K,) last round in which each device's reply counted; 0 or None: no round


class Record(NamedTuple):
    """What a person wants to see of a round."""

    round: int  # counted from 1
    seconds: float  # of wall time
    samples: Array  # (K,) each device trained on
    losses: Array  # (K,) mean training loss of the last epoch, NaN for who did not train
    schedule: Schedule
    costs: Array  # (K, 5) the fields of Cost
    sizes: Array  # (K,) bytes sent
    late: Array  # (K,) True for who came too late to count
    latency: float  # simulated seconds until the round ended
    mixed: Tests | None  # of the models after mixing, as the devices get them back
    trained: Tests | None  # of the models after local training, before mixing
    events: tuple[str, ...] = ()  # what happened before it; see `fedfilt.events`
    away: tuple[int, ...] = ()  # who was not there, or offline
    absent: dict[int, str] = {}  # noqa: RUF012 (never changed) who gave no usable reply, and why


@dataclass(frozen=True)
class Evaluation:
    """When models are tested: every n rounds and after the last; `trained` also tests them before mixing."""

    every: int = 10
    trained: bool = False

    def __post_init__(self) -> None:
        check_count("evaluation.every", self.every)


@dataclass(frozen=True, eq=False)
class Experiment:
    """All that a run of rounds is made of."""

    graph: Graph
    aggregator: Callable[[Array, Updates, Graph], Array]
    scheduler: Callable[[Hardware, int], Schedule]  # (devices in this round, bytes of an update) -> schedule
    engine: Engine
    hardware: Hardware
    rounds: int
    update_bytes: int  # of a whole update
    evaluation: Evaluation = Evaluation()
    seed: int = 0
    events: Any = None  # a `fedfilt.events.Timeline`, if devices come, go or move


def play_round(state: State, experiment: Experiment) -> tuple[State, Record]:
    """One round: plan, train, mix, and test if it is time to."""
    start = time.perf_counter()
    engine, (count, size) = experiment.engine, state.models.shape
    schedule = experiment.scheduler(experiment.hardware.at(experiment.seed, state.round), experiment.update_bytes)
    replies = list(engine.train(_jobs(state, schedule), schedule.deadline))
    absent = {reply.device: reply.absent for reply in replies if reply.absent}
    counted = [reply for reply in replies if not reply.late and not reply.absent]
    updates = Updates.stack(counted, count, size)
    done = state.round + 1
    due = done % experiment.evaluation.every == 0 or done == experiment.rounds
    trained = engine.test(state.models + updates.rows) if due and experiment.evaluation.trained else None
    models = experiment.aggregator(state.models, updates, experiment.graph)
    mixed = engine.test(models) if due else None

    losses, costs, sizes = np.full(count, np.nan), np.zeros((count, len(Cost._fields))), np.zeros(count, np.int64)
    late = np.zeros(count, bool)
    for reply in replies:
        i = reply.device
        losses[i], costs[i], sizes[i], late[i] = reply.loss, reply.cost, reply.size, reply.late
    latency = max((reply.end for reply in replies), default=0.0)
    seconds = time.perf_counter() - start
    record = Record(done, seconds, updates.weights, losses, schedule, costs, sizes, late, latency, mixed, trained)
    accepted = np.zeros(count, np.int64) if state.accepted is None else state.accepted.copy()
    accepted[[reply.device for reply in counted]] = done
    residuals = _residuals(state.residuals, counted, count, size)
    return State(done, models, residuals, accepted), record._replace(absent=absent)


def _jobs(state: State, schedule: Schedule) -> list[Job]:
    left, seen = state.residuals, state.accepted
    return [
        Job(
            state.round,
            i,
            state.models[i],
            plan,
            None if left is None else left[i],
            0 if seen is None else int(seen[i]),
        )
        for i, plan in enumerate(schedule.plans)
        if plan.epochs
    ]


def _residuals(before: Array | None, replies: Sequence[Reply], count: int, size: int) -> Array | None:
    """What every device has not sent yet; a reply that did not count leaves its device's as it was."""
    if before is None and all(reply.residual is None for reply in replies):
        return None
    after = np.zeros((count, size), np.float32) if before is None else before.copy()
    for reply in replies:
        after[reply.device] = 0 if reply.residual is None else reply.residual
    return after


def play(state: State, experiment: Experiment) -> Iterator[tuple[State, Record]]:
    """The rounds from `state` to the last, each as (state, record)."""
    while state.round < experiment.rounds:
        play_one = play_round if experiment.events is None else experiment.events.play_round
        state, record = play_one(state, experiment)
        yield state, record
