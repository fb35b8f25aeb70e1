"""A round, from plan to mixed models: a straight line.

schedule -> jobs -> engine -> replies -> updates -> aggregator -> models, one row per device
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fedfilt.checks import Array, check_count, check_signal, check_weights
from fedfilt.graph import Graph


class Plan(NamedTuple):
    """What a device is to do this round."""

    epochs: int = 3
    data_fraction: float = 1.0  # of its samples, rounded down
    density: float = 1.0  # of its update, by number of values sent


class Schedule(NamedTuple):
    """A plan per device (None: not this round) and the deadline of the round in seconds."""

    plans: Sequence[Plan | None]
    deadline: float = float("inf")


class Job(NamedTuple):
    """What the edge server sends to a device."""

    round: int
    device: int
    model: Array  # (B,) the device's own row
    plan: Plan


class Reply(NamedTuple):
    """What a device sends back."""

    device: int
    update: Array  # (B,) trained model minus the model it was given
    samples: int  # it trained on
    loss: float


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


class Record(NamedTuple):
    """What a person wants to see of a round."""

    round: int  # counted from 1
    seconds: float  # of wall time
    samples: Array  # (K,) each device trained on
    losses: Array  # (K,) mean training loss of the last epoch, NaN for who did not train
    mixed: Tests | None  # of the models after mixing, as the devices get them back
    trained: Tests | None  # of the models after local training, before mixing


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
    scheduler: Callable[[int, int], Schedule]  # (round, devices) -> schedule
    engine: Engine
    rounds: int
    evaluation: Evaluation = Evaluation()


def play_round(state: State, experiment: Experiment) -> tuple[State, Record]:
    """One round: plan, train, mix, and test if it is time to."""
    start = time.perf_counter()
    graph, engine = experiment.graph, experiment.engine
    count, size = state.models.shape
    schedule = experiment.scheduler(state.round, count)
    jobs = [Job(state.round, i, state.models[i], plan) for i, plan in enumerate(schedule.plans) if plan is not None]
    replies = list(engine.train(jobs, schedule.deadline))
    updates = Updates.stack(replies, count, size)
    losses = np.full(count, np.nan)
    losses[[reply.device for reply in replies]] = [reply.loss for reply in replies]
    done = state.round + 1
    due = done % experiment.evaluation.every == 0 or done == experiment.rounds
    trained = engine.test(state.models + updates.rows) if due and experiment.evaluation.trained else None
    models = experiment.aggregator(state.models, updates, graph)
    mixed = engine.test(models) if due else None
    seconds = time.perf_counter() - start
    return State(done, models), Record(done, seconds, updates.weights, losses, mixed, trained)


def play(state: State, experiment: Experiment) -> Iterator[tuple[State, Record]]:
    """The rounds from `state` to the last, each as (state, record)."""
    while state.round < experiment.rounds:
        state, record = play_round(state, experiment)
        yield state, record
