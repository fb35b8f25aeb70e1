"""A round, from plan to mixed models: a straight line.

schedule -> jobs -> engine -> replies -> updates -> guard -> aggregator -> models, one row per device
"""

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedfilt._threads import one_thread
from fedfilt._types import Array
from fedfilt.rounds.guard import Guard, Watched
from fedfilt.rounds.remembering import Remembered, mixed, told
from fedfilt.rounds.types import Cost, Experiment, Record, Reply, State, Updates
from fedfilt.system.orders import Job, Schedule

OFF = Guard(on=False)


@one_thread()
def play_round(state: State, experiment: Experiment) -> tuple[State, Record]:
    """One round: plan, train, mix, and test if a test is due.

    >>> import fedfilt
    >>> table = {"data": "digits", "model": "logistic", "samples": {"train": 9, "local_test": 9}}
    >>> run = fedfilt.Run(fedfilt.from_table({**table, "engine": {"workers": 1}}))
    >>> with run.experiment() as experiment:
    ...     state, record = play_round(run.start(), experiment)
    >>> state.round, int(record.samples.sum())
    (1, 180)
    """
    start = time.perf_counter()
    engine, done, (count, size) = experiment.engine, state.round + 1, state.models.shape
    schedule = experiment.scheduler(experiment.hardware.at(experiment.seed, done), experiment.update_bytes)
    replies = list(engine.train(_jobs(state, schedule, experiment.rounds), schedule.deadline))
    absent = {reply.device: reply.absent for reply in replies if reply.absent}
    counted = [reply for reply in replies if not reply.late and not reply.absent]
    stacked = Updates.stack(counted, count, size, state.models.dtype)
    stacked = stacked.counting(experiment.hardware.samples) if experiment.weights == "held" else stacked
    watched = _watched(state, experiment, schedule, replies, stacked)
    updates = watched.updates
    if watched.back is None:
        models, kept = mixed(experiment.aggregator, state, updates, experiment.graph)
    else:
        models, kept = watched.back, Remembered.of(state.memory).named()
    shut = (stacked.weights > 0) & (
        (updates.weights == 0) | (watched.back is not None)
    )  # updates the guard did not use
    final = [reply for reply in counted if not shut[reply.device]]
    after = _after(state, models, final, {**watched.memory, **kept})
    due = done % experiment.evaluation.every == 0 or done == experiment.rounds
    before = (
        after._replace(models=_trained(state, updates, experiment)) if due and experiment.evaluation.trained else None
    )
    trained, tested = (None if which is None else engine.test(which) for which in (before, after if due else None))

    losses, costs, sizes = np.full(count, np.nan), np.zeros((count, len(Cost._fields))), np.zeros(count, np.int64)
    late = np.zeros(count, bool)
    for reply in replies:
        i = reply.device
        losses[i], costs[i], sizes[i], late[i] = reply.loss, reply.cost, reply.size, reply.late
    latency = max((reply.end for reply in replies), default=0.0)
    seconds = time.perf_counter() - start
    samples = np.zeros(count)
    samples[[reply.device for reply in counted]] = [reply.samples for reply in counted]
    record = Record(done, seconds, samples, losses, schedule, costs, sizes, late, latency, tested, trained)
    measured = told(state.memory, kept)
    return after, record._replace(absent=absent, events=watched.events, kept=_kept(counted, count), measured=measured)


def _trained(state: State, updates: Updates, experiment: Experiment) -> Array:
    """(K, B) models as trained by the devices; anything else they sent is not part of a model they decide with."""
    models, size = state.models.copy(), experiment.model_size or None
    models[:, :size] += updates.rows[:, :size]
    return models


def _after(state: State, models: Array, counted: Sequence[Reply], memory: Mapping[str, Array]) -> State:
    """The state after a round: replies that count take effect; other devices stay as they were."""
    done, (count, size), came = state.round + 1, state.models.shape, [reply.device for reply in counted]
    accepted = np.zeros(count, np.int64) if state.accepted is None else state.accepted.copy()
    accepted[came] = done
    residuals = _residuals(state.residuals, counted, count, size)
    clients = {device: kept for device, kept in state.clients.items() if device not in came}
    clients |= {reply.device: reply.state for reply in counted if reply.state}
    return State(done, models, residuals, accepted, memory, clients)


def _kept(replies: Sequence[Reply], count: int) -> Array | None:
    """(K,) bytes that the devices' clients keep; None if no client keeps anything."""
    sizes = np.zeros(count, np.int64)
    for reply in replies:
        sizes[reply.device] = reply.kept
    return sizes if sizes.any() else None


def _watched(
    state: State, experiment: Experiment, schedule: Schedule, replies: Sequence[Reply], updates: Updates
) -> Watched:
    """The guard's verdict on the replies."""
    losses = np.full(len(updates.weights), np.nan)
    for reply in replies:
        if updates.weights[reply.device]:
            losses[reply.device] = reply.loss
    diverged = {reply.device: reply.absent for reply in replies if reply.diverged}
    held = experiment.hardware.samples  # as the server knows, not as a device claims
    work = np.array([p.epochs * p.samples(n) for p, n in zip(schedule.plans, held, strict=True)], float)
    return (experiment.guard or OFF).watch(state, updates, losses, diverged, work, experiment.model_size)


def _jobs(state: State, schedule: Schedule, rounds: int) -> list[Job]:
    left, seen = state.residuals, state.accepted
    return [
        Job(
            state.round + 1,
            i,
            state.models[i],
            plan,
            None if left is None else left[i],
            0 if seen is None else int(seen[i]),
            state.clients.get(i),
            rounds,
        )
        for i, plan in enumerate(schedule.plans)
        if plan.epochs
    ]


def _residuals(before: Array | None, replies: Sequence[Reply], count: int, size: int) -> Array | None:
    """What each device has not sent yet; unchanged for devices whose replies did not count."""
    if before is None and all(reply.residual is None for reply in replies):
        return None
    after = np.zeros((count, size), np.float32) if before is None else before.copy()
    for reply in replies:
        after[reply.device] = 0 if reply.residual is None else reply.residual
    return after


def play(state: State, experiment: Experiment) -> Iterator[tuple[State, Record]]:
    """The rounds from `state` to the last, each as (state, record).

    >>> import fedfilt
    >>> table = {"data": "digits", "model": "logistic", "rounds": 2, "samples": {"train": 9, "local_test": 9}}
    >>> run = fedfilt.Run(fedfilt.from_table({**table, "engine": {"workers": 1}}))
    >>> with run.experiment() as experiment:
    ...     [record.round for state, record in play(run.start(), experiment)]
    [1, 2]
    """
    while state.round < experiment.rounds:
        play_one = play_round if experiment.events is None else experiment.events.play_round
        with one_thread():
            state, record = play_one(state, experiment)
        yield state, record
