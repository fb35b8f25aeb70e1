"""What a device does: train its row on its samples, and test it. The same on every engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfilt.checks import Array, check_count, check_number
from fedfilt.layout import Layout


class Diverged(ArithmeticError):
    """A device's model is no longer finite."""


@dataclass(frozen=True)
class Training:
    """Stochastic gradient descent on a device: rate η · decay^round, batches, optional momentum within a round."""

    learning_rate: float = 0.02
    batch_size: int = 32
    momentum: float = 0.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_number("training.learning_rate", self.learning_rate, low=0, above=True)
        check_count("training.batch_size", self.batch_size)
        check_number("training.momentum", self.momentum, low=0, high=0.9999)
        check_number("training.decay", self.decay, low=0, high=1, above=True)


def inputs(x: Array) -> Tensor:
    """Samples as torch wants them: float32 (pixels scaled to 0..1), pictures channels last."""
    tensor = torch.from_numpy(np.ascontiguousarray(x))
    tensor = tensor.float().div_(255) if tensor.dtype == torch.uint8 else tensor.float()
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def generator(seed: int, *key: int) -> np.random.Generator:
    """Random numbers that depend on nothing but the seed and the key, such as (round, device, epoch)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


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
    rate = training.learning_rate * training.decay**round
    velocity = torch.zeros_like(gradient) if training.momentum else gradient
    chosen = generator(seed, round, device).permutation(len(y))[:samples] if samples < len(y) else np.arange(len(y))
    losses: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):  # for modules that draw themselves (dropout)
        torch.manual_seed(int(generator(seed, round, device, 2**31).integers(2**62)))
        for epoch in range(epochs):
            order = torch.from_numpy(chosen[generator(seed, round, device, epoch).permutation(len(chosen))])
            shuffled, labels = x[order], y[order]
            losses.clear()
            for start in range(0, len(order), training.batch_size):
                stop = start + training.batch_size
                loss = functional.cross_entropy(module(shuffled[start:stop]), labels[start:stop])
                loss.backward()  # type: ignore[no-untyped-call]
                if training.momentum:
                    velocity.mul_(training.momentum).add_(gradient)
                weights.add_(velocity, alpha=-rate)
                gradient.zero_()
                losses.append(loss.detach() * len(labels[start:stop]))
    if not torch.isfinite(row).all():
        raise Diverged(
            f"device {device} diverged in round {round}: its model is not finite any more; "
            f"lower training.learning_rate ({training.learning_rate:g})"
        )
    return float(torch.stack(losses).sum()) / samples if losses else float("nan")


@torch.no_grad()
def confusion(module: nn.Module, layout: Layout, row: Tensor, x: Tensor, y: Array, classes: int) -> Array:
    """(classes, classes) counts: row the true label, column the one the model gives."""
    layout.attach(module, row)
    module.eval()
    guesses = [module(x[start : start + 50]).argmax(dim=1) for start in range(0, len(y), 50)]  # fits the cache
    guess = torch.cat(guesses).numpy() if guesses else np.empty(0, np.int64)
    return np.bincount(y * classes + guess, minlength=classes * classes).reshape(classes, classes)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside torch: parallel over devices instead, and the same bits everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
