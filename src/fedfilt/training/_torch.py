"""Training and testing a row in torch: the definition of what the native core computes."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfilt._draws import RoundKey, in_round
from fedfilt._types import Array
from fedfilt.training.rows import Layout
from fedfilt.training.sgd import Training, diverged, orders


def inputs(x: Array) -> Tensor:
    """Samples as torch wants them: float32 (pixels scaled to 0..1), pictures channels last."""
    tensor = torch.from_numpy(np.ascontiguousarray(x))
    tensor = tensor.float().div_(255) if tensor.dtype == torch.uint8 else tensor.float()
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


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
        torch.manual_seed(int(in_round(seed, round, device, RoundKey.LAYERS).integers(2**62)))
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
        raise diverged(device, round, training)
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


def outputs(module: nn.Module, x: Array, y: Array, classes: int) -> int:
    """How many labels the model tells apart; the data must not have more."""
    with torch.no_grad():
        result = copy.deepcopy(module).eval()(inputs(x[:2]))
    if result.ndim != 2 or result.shape[1] < classes:
        raise ValueError(f"model must give {classes} numbers, one per label, got shape {tuple(result.shape)}")
    if len(y) and not 0 <= y.min() <= y.max() < classes:
        raise ValueError(f"labels must be from 0 to {classes - 1}, got {y.min()} to {y.max()}")
    return int(result.shape[1])
