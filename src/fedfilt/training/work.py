"""The one job of a device: let its client train, sparsify the update, keep the rest. Every engine calls it."""

import math
from typing import Any, NamedTuple

import numpy as np

from fedfilt._threads import one_thread
from fedfilt._types import Array, Sparsifier
from fedfilt.data.samples import FederatedData, shaped
from fedfilt.system.orders import Job, Plan
from fedfilt.training.client import (
    Client,
    Kept,
    Own,
    Task,
    begun,
    check_numbers,
    check_sent,
    ended,
    is_personal,
    split,
    travels,
    usual,
)
from fedfilt.training.memo import Memo
from fedfilt.training.sgd import Training, diverged
from fedfilt.training.trainer import NOTHING, Known, Trainer, labels_of, trainers_of

__all__ = ["Desk", "Done", "Own", "Tested", "examine", "personal", "work"]


class Desk(NamedTuple):
    """How devices train: the same for all devices of a run, except for encoders of their inputs."""

    trainer: Trainer
    sparsifier: Sparsifier
    seed: int
    classes: int
    client: Client
    unlike: tuple[Trainer, ...] = ()  # of every device, where their inputs are unlike
    memo: Memo | None = None  # of what other runs have trained

    @classmethod
    def of(
        cls,
        data: FederatedData,
        model: Any,
        training: Training,
        seed: int,
        sparsifier: Sparsifier,
        client: Client,
        memo: Memo | None = None,
    ) -> "Desk":
        """How devices that hold such data train a model, or, where it is behind encoders, each its own."""
        trainer, *unlike = trainers_of(data, model, training)
        return cls(trainer, sparsifier, seed, labels_of(trainer, data), client, tuple(unlike), memo)

    def at(self, device: int) -> "Desk":
        """How one device trains."""
        return self._replace(trainer=self.unlike[device], unlike=()) if self.unlike else self

    @property
    def size(self) -> int:
        """Numbers of a model, B."""
        return self.trainer.layout.size

    @property
    def width(self) -> int:
        """Numbers of a row: the model, and what travels with it."""
        return self.size * (1 + len(travels(self.client)))

    @property
    def least(self) -> int:
        """Numbers of a row that are always sent: all, unless some of what travels with the model does so seldom."""
        return self.size * usual(self.client)

    def sent(self, row: Array) -> Array:
        """The part of a row that is sent: without those arrays at its end that are zero, if they travel seldom."""
        used, least, size = self.width, self.least, self.size
        while used > least and not row[used - size : used].any():
            used -= size
        return row[:used]


class Done(NamedTuple):
    """The result of a job."""

    content: bytes  # the update, cut down and packed; see `fedfilt.system.wire`
    samples: int  # it was trained on
    loss: float  # mean of the last epoch, NaN without samples
    residual: Array | None  # what stays on the device
    state: Kept | None = None  # what its client keeps; None: nothing yet


class Tested(NamedTuple):
    """The result of testing a row."""

    sums: Array  # over samples, see `fedfilt.training.goal`; of labels (classes, classes) counts: true label, guess
    loss: float  # mean, NaN without samples


@one_thread()
def work(job: Job, own: Own, desk: Desk, row: Array | None = None) -> Done:
    """Do a job on the device's own samples; `row` is memory for the trained row, if the caller has some."""
    desk = desk.at(job.device)
    if row is None:
        row = job.model.copy()
    else:
        row[:] = job.model
    state, loss, samples = job.state, math.nan, job.plan.samples(len(own.rows))
    if samples:
        model, travelling = split(row, desk.client, desk.size)
        own = _shaped(own, desk.trainer)
        given = _pretrained(model, own, job, desk)
        where = job.round, job.device, job.plan
        more: dict[str, Any] = {"rounds": job.rounds, "given": given, "memo": desk.memo}
        task = Task(desk.trainer, desk.seed, own, *where, model, travelling, **more)
        sent = check_sent(desk.client, desk.client(begun(desk.client, task, state)), desk.size)
        if sent.travelling:
            row[:] = np.concatenate([sent.model, *(sent.travelling[name] for name in travelling)])
        elif sent.model is not model:
            model[:] = sent.model
        state, loss = ended(task, sent.state), sent.loss
        _check_finite(row, state, job, desk)
    row -= job.model
    part = desk.sent(row)
    owed = None if job.residual is None else job.residual[: len(part)]
    content, left = desk.sparsifier(part, owed, job.plan.density)
    return Done(content, samples, loss, _owed(left, desk), state or None)


def _owed(left: Array | None, desk: Desk) -> Array | None:
    """What was not sent, as a whole row, without what travels seldom."""
    if left is None or desk.least == desk.width:
        return left
    whole = np.zeros(desk.width, left.dtype)
    whole[: desk.least] = left[: desk.least]
    return whole


@one_thread()
def personal(model: Array, state: Kept | None, round: int, device: int, own: Own, desk: Desk) -> Array:
    """The model that a device decides with, from the row it received in a round and what its client kept.

    (B,), or (n, B) of several whose answers are averaged: see `Trainer.predict`.
    """
    if not is_personal(desk.client):
        return model[: desk.size]
    desk = desk.at(device)
    own = _shaped(own, desk.trainer)
    given = split(model.copy(), desk.client, desk.size)
    task = Task(desk.trainer, desk.seed, own, max(round, 1), device, Plan(), *given, testing=True, memo=desk.memo)
    found = desk.client.personal(begun(desk.client, task, state))  # type: ignore[attr-defined]
    check_numbers(desk.client, "decide with a model", found, desk.size, several=True)
    if not np.isfinite(found).all():
        raise ValueError(
            f"client {type(desk.client).__name__} must decide with a finite model, got NaN or infinity for device "
            f"{device} after round {round}"
        )
    return np.ascontiguousarray(found)


@one_thread()
def examine(row: Array, own: Own, desk: Desk, known: Known = NOTHING) -> Tested:
    """Test a row on samples, or the average answers of several rows; if inputs differ, at the device's own desk.

    What is `known` of several rows need not be computed again: see `Trainer.test`.
    """
    own = _shaped(own, desk.trainer)
    sums, loss = desk.trainer.test(row, *own, desk.classes, known)
    return Tested(sums, loss / len(own.rows) if len(own.rows) else math.nan)


def _shaped(own: Own, trainer: Trainer) -> Own:
    """Samples in the shape that a device's encoder takes; only those that it is about."""
    if trainer.encoder is None or own.x.shape[1:] == trainer.shape:
        return own
    return Own(shaped(own.x[own.rows], trainer.shape), own.y[own.rows], np.arange(len(own.rows)))


def _pretrained(model: Array, own: Own, job: Job, desk: Desk) -> Array | None:
    """Before a device's first round: train its encoder without labels, and give the model as it was; else None."""
    encoder = desk.trainer.encoder
    if encoder is None or not encoder.epochs or job.accepted:
        return None
    desk.trainer.pretrain(model, own.x[own.rows], seed=desk.seed, round=job.round, device=job.device)
    return job.model[: desk.size]


def _check_finite(row: Array, state: Kept, job: Job, desk: Desk) -> None:
    """Refuse a client's result that is no longer finite: it would stay on the device for ever."""
    if not all(np.isfinite(array).all() for array in (row, *state.values())):
        raise diverged(job.device, job.round, desk.trainer.training)
