"""The one job of a device: draw samples, train its row, cut the update down, keep the rest. Every engine calls it."""

import math
from typing import NamedTuple

from fedfilt._types import Array, Sparsifier
from fedfilt.system.orders import Job
from fedfilt.training.trainer import Trainer


class Desk(NamedTuple):
    """How devices train: the same for all devices of a run."""

    trainer: Trainer
    sparsifier: Sparsifier
    seed: int
    classes: int


class Own(NamedTuple):
    """What a device trains or is tested on: the samples `rows` of x and y."""

    x: Array
    y: Array
    rows: Array


class Done(NamedTuple):
    """What comes of a job."""

    content: bytes  # the update, cut down and packed; see `fedfilt.system.wire`
    samples: int  # it was trained on
    loss: float  # mean of the last epoch, NaN without samples
    residual: Array | None  # what stays on the device


class Tested(NamedTuple):
    """What a test of a row found."""

    confusion: Array  # (classes, classes) counts: true label, guess
    loss: float  # mean, NaN without samples


def work(job: Job, own: Own, desk: Desk, row: Array | None = None) -> Done:
    """Do a job on the device's own samples; `row` is memory for the trained model, if the caller has some."""
    if row is None:
        row = job.model.copy()
    else:
        row[:] = job.model
    samples, loss = job.plan.samples(len(own.rows)), math.nan
    if samples:
        loss = desk.trainer.train(
            row,
            *own,
            seed=desk.seed,
            round=job.round,
            device=job.device,
            epochs=job.plan.epochs,
            samples=samples,
        )
    row -= job.model
    content, left = desk.sparsifier(row, job.residual, job.plan.density)
    return Done(content, samples, loss, left)


def examine(row: Array, own: Own, desk: Desk) -> Tested:
    """Test a row on samples."""
    counts, loss = desk.trainer.test(row, *own, desk.classes)
    return Tested(counts, loss / len(own.rows) if len(own.rows) else math.nan)
