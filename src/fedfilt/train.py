"""What a device does: train its row on its samples, and test it. The same on every engine."""

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfilt import native
from fedfilt.checks import Array, check_count, check_number
from fedfilt.layout import Layout
from fedfilt.native.network import Unknown, fits, recognise


class Diverged(ArithmeticError):
    """A device's model is no longer finite."""


@dataclass(frozen=True)
class Training:
    """Stochastic gradient descent on a device: rate η · decay^round, batches, optional momentum within a round.

    The loss is the cross-entropy + weight_decay / 2 · ‖w‖² + proximal / 2 · ‖w - w₀‖², where w₀ is the model that the
    device was given (FedProx).
    """

    learning_rate: float = 0.02
    batch_size: int = 32
    momentum: float = 0.0
    decay: float = 1.0
    weight_decay: float = 0.0
    proximal: float = 0.0

    def __post_init__(self) -> None:
        check_number("training.learning_rate", self.learning_rate, low=0, above=True)
        check_count("training.batch_size", self.batch_size)
        check_number("training.momentum", self.momentum, low=0, high=0.9999)
        check_number("training.decay", self.decay, low=0, high=1, above=True)
        check_number("training.weight_decay", self.weight_decay, low=0)
        check_number("training.proximal", self.proximal, low=0)

    def rate(self, round: int) -> float:
        """The learning rate of a round."""
        return self.learning_rate * self.decay**round


def inputs(x: Array) -> Tensor:
    """Samples as torch wants them: float32 (pixels scaled to 0..1), pictures channels last."""
    tensor = torch.from_numpy(np.ascontiguousarray(x))
    tensor = tensor.float().div_(255) if tensor.dtype == torch.uint8 else tensor.float()
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def generator(seed: int, *key: int) -> np.random.Generator:
    """Random numbers that depend on nothing but the seed and the key, such as (round, device, epoch)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def orders(seed: int, round: int, device: int, held: int, samples: int, epochs: int) -> tuple[Array, Array]:
    """(which of the device's samples are used, their (epochs, samples) order): drawn anew each round and epoch."""
    chosen = generator(seed, round, device).permutation(held)[:samples] if samples < held else np.arange(held)
    draws = [generator(seed, round, device, epoch).permutation(samples) for epoch in range(epochs)]
    return chosen, np.stack(draws)


class Trainer:
    """Trains and tests rows of a module: in the native core where it knows the module, else in torch.

    >>> module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> trainer = Trainer(module, Training(), shape=(1, 2, 2))
    >>> row, x, y = trainer.layout.row(module), np.eye(4, dtype=np.float32).reshape(4, 1, 2, 2), np.array([0, 1, 0, 1])
    >>> loss = trainer.train(row, x, y, np.arange(4), seed=0, round=0, device=0, epochs=1, samples=4)
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
            raise _diverged(device, round, training)
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


def _diverged(device: int, round: int, training: Training) -> Diverged:
    return Diverged(
        f"device {device} diverged in round {round}: its model or loss is not finite any more; "
        f"lower training.learning_rate ({training.learning_rate:g}), or look for NaN in its samples"
    )


def train(
    module: nn.Module,
    layout: Layout,
    row: Tensor,
    x: Tensor,
    y: Tensor,
    training: Training,
    seed: int,
    round: int,
    device: int,
    epochs: int,
    samples: int,
) -> float:
    """Train a row in place on `samples` of the device's samples for some epochs; the mean loss of the last epoch."""
    gradient = torch.zeros(layout.trained)
    weights = row[: layout.trained]
    layout.attach(module, row, gradient)
    module.train()
    rate, start = training.rate(round), weights.clone() if training.proximal else None
    velocity = torch.zeros_like(gradient) if training.momentum else gradient
    chosen, draws = orders(seed, round, device, len(y), samples, epochs) if epochs else (np.empty(0), np.empty((0, 0)))
    losses: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):  # for modules that draw themselves (dropout)
        torch.manual_seed(int(generator(seed, round, device, 2**31).integers(2**62)))
        for draw in draws:
            order = torch.from_numpy(chosen[draw])
            shuffled, labels = x[order], y[order]
            losses.clear()
            for first in range(0, len(order), training.batch_size):
                batch = slice(first, first + training.batch_size)
                loss = functional.cross_entropy(module(shuffled[batch]), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                if training.weight_decay:
                    gradient.add_(weights, alpha=training.weight_decay)
                if start is not None:
                    gradient.add_(weights - start, alpha=training.proximal)
                if training.momentum:
                    velocity.mul_(training.momentum).add_(gradient)
                weights.add_(velocity, alpha=-rate)
                gradient.zero_()
                losses.append(loss.detach() * len(labels[batch]))
    if not torch.isfinite(row).all():
        raise _diverged(device, round, training)
    return float(torch.stack(losses).sum()) / samples if losses else float("nan")


@torch.no_grad()
def confusion(module: nn.Module, layout: Layout, row: Tensor, x: Tensor, y: Array, classes: int) -> tuple[Array, float]:
    """((classes, classes) counts: true label by row, guess by column; sum of the losses)."""
    layout.attach(module, row)
    module.eval()
    outputs = [module(x[start : start + 50]) for start in range(0, len(y), 50)]  # fits the cache
    if not outputs:
        return np.zeros((classes, classes), np.int64), 0.0
    whole = torch.cat(outputs)
    counts = np.bincount(y * classes + whole.argmax(dim=1).numpy(), minlength=classes * classes)
    loss = functional.cross_entropy(whole, torch.from_numpy(y), reduction="sum")
    return counts.reshape(classes, classes), float(loss)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside torch: parallel over devices instead, and the same bits everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
