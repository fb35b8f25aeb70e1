"""One door to training and testing a row: the native core where it knows the model, torch elsewhere."""

import copy
import logging
from functools import cache

import numpy as np
import torch
from torch import nn

from fedfilt import native
from fedfilt._types import Array
from fedfilt.training._torch import confusion, inputs, one_thread, train
from fedfilt.training.recognise import Unknown, fits, recognise
from fedfilt.training.rows import Layout
from fedfilt.training.sgd import Training, diverged, orders


class Trainer:
    """Trains and tests rows of a module: in the native core where it knows the module, else in torch.

    >>> module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> trainer = Trainer(module, Training(), shape=(1, 2, 2))
    >>> row, x, y = trainer.layout.row(module), np.eye(4, dtype=np.float32).reshape(4, 1, 2, 2), np.array([0, 1, 0, 1])
    >>> loss = trainer.train(row, x, y, np.arange(4), seed=0, round=1, device=0, epochs=1, samples=4)
    >>> counts, loss = trainer.test(row, x, y, np.arange(4), classes=2)
    >>> counts.sum()
    np.int64(4)
    """

    def __init__(self, module: nn.Module, training: Training, shape: tuple[int, ...]) -> None:
        self.module, self.training, self.layout = copy.deepcopy(module), training, Layout(module)
        self.level: str | None = native.chosen().level
        self.network: native.Network | None = None
        if self.level is not None:
            try:
                self.network = recognise(module, self.layout, shape)
            except Unknown as reason:
                _say_once(f"torch trains this model, as the native core does not know it: {reason}")

    def train(
        self,
        row: Array,
        x: Array,
        y: Array,
        own: Array,
        *,
        seed: int,
        round: int,
        device: int,
        epochs: int,
        samples: int,
    ) -> float:
        """Train a row in place on `samples` of the samples own of x and y; the mean loss of the last epoch."""
        batch = min(self.training.batch_size, samples)
        if self.network is None or not epochs or not samples or not fits(self.network, batch):
            with one_thread():
                tensors = torch.from_numpy(row), inputs(x[own]), torch.from_numpy(y[own])
                where = seed, round, device, epochs, samples
                return train(self.module, self.layout, *tensors, self.training, *where)
        assert self.level is not None
        chosen, order = orders(seed, round, device, len(own), samples, epochs)
        training = self.training
        given = native.samples_of(self.network, x, y, own[chosen])
        extras = training.momentum, training.weight_decay, training.proximal
        steps = native.Steps(order.ctypes.data, epochs, batch, training.rate(round), *extras)
        status, loss = native.train(self.network, row, given, steps, self.level)
        if status == native.DIVERGED:
            raise diverged(device, round, training)
        return loss

    def test(self, row: Array, x: Array, y: Array, rows: Array, classes: int) -> tuple[Array, float]:
        """((classes, classes) counts: true label, guess; sum of the losses) on the samples `rows` of x and y."""
        if self.network is not None:
            assert self.level is not None
            counts, loss = native.test(self.network, row, native.samples_of(self.network, x, y, rows), self.level)
            if counts.shape != (classes, classes):
                raise ValueError(f"classes must be the {len(counts)} outputs of the model, got {classes}")
            return counts, loss
        total, loss = np.zeros((classes, classes), np.int64), 0.0
        with one_thread():
            for start in range(0, len(rows), 2000):  # or the tests of 1,000 devices would fill the memory
                part = rows[start : start + 2000]
                counts, more = confusion(
                    self.module, self.layout, torch.from_numpy(row), inputs(x[part]), y[part], classes
                )
                total, loss = total + counts, loss + more
        return total, loss


@cache
def _say_once(text: str) -> None:
    logging.getLogger("fedfilt").warning(text)
