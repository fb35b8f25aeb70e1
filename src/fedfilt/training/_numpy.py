"""Training and testing a described model in plain NumPy: slow, correct, and always there.

Samples go through a layer as arrays (n, channels, height, width), a window being a picture of height 1.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedfilt._threads import one_thread
from fedfilt._types import Array
from fedfilt.training.description import Convolution, Dense, Description, Flatten, Pool, Relu
from fedfilt.training.rows import Layout
from fedfilt.training.sgd import UNGUIDED, Guides, Training, diverged, orders, recalled

PART = 64  # samples that are tested at a time
USUAL = Training()

silent = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # `train` names a model that is not finite


class _Weights(NamedTuple):
    """The weights of a layer, or their gradients, as views of a row."""

    weight: Array
    bias: Array | None


@one_thread()
@silent
def train(
    description: Description,
    row: Array,
    x: Array,
    y: Array,
    training: Training,
    where: tuple[int, int, int, int, int, int],
    guides: Guides = UNGUIDED,
    moments: dict[str, Array] | None = None,
) -> float:
    """Train a row in place; `where` is seed, round, device, epochs, samples, first. The mean loss of the last epoch.

    `moments` is what the optimizer remembers: read, and replaced.
    """
    seed, round, device, epochs, samples, first_epoch = where
    gradient, start = np.zeros_like(row), row.copy()
    memory = recalled(training, len(row), moments)
    around = start if guides.around is None else guides.around
    weights, gradients = (_views(description, values) for values in (row, gradient))
    rate, loss = np.float32(training.rate(round)), math.nan
    chosen, draws = orders(seed, round, device, len(y), samples, epochs, first_epoch)
    for draw in draws:
        order, total = chosen[draw], 0.0
        for first in range(0, len(order), training.batch_size):
            batch = order[first : first + training.batch_size]
            outputs, kept = _forward(description, weights, x[batch])
            losses, slopes = loss_of(training, outputs, y[batch])
            _backward(description, weights, gradients, kept, slopes / np.float32(len(batch)))
            if training.weight_decay and training.optimizer != "adamw":
                gradient += np.float32(training.weight_decay) * row
            if training.proximal:
                gradient += np.float32(training.proximal) * (row - around)
            if guides.drift is not None:
                gradient += guides.drift
            _step(training, row, gradient, memory, rate)
            if guides.trained is not None:
                np.copyto(row, start, where=~guides.trained)
            total += float(losses.sum())
        loss = total / samples if samples else math.nan
    if not np.isfinite(row).all():
        raise diverged(device, round, training)
    if moments is not None:
        moments |= memory
    return loss


def _step(training: Training, row: Array, gradient: Array, kept: dict[str, Array], rate: np.float32) -> None:
    """One step of the optimizer, which remembers what is kept."""
    if training.optimizer == "sgd":
        if training.momentum:
            kept["velocity"] *= np.float32(training.momentum)
            kept["velocity"] += gradient
        row -= rate * (kept["velocity"] if training.momentum else gradient)
        return
    kept["steps"] += 1
    (low, high), (mean, square), count = training.betas, (kept["mean"], kept["square"]), int(kept["steps"][0])
    if training.optimizer == "adamw":
        row *= np.float32(1 - rate * training.weight_decay)
    mean += np.float32(1 - low) * (gradient - mean)
    square += np.float32(1 - high) * (gradient**2 - square)
    root = np.sqrt(square / np.float32(1 - high**count)) + np.float32(training.epsilon)
    row -= rate * (mean / np.float32(1 - low**count)) / root


@one_thread()
@silent
def test(
    description: Description,
    row: Array,
    x: Array,
    y: Array,
    training: Training = USUAL,  # noqa: PT028 (no test)
) -> tuple[Array, float]:
    """((labels, labels) counts: true label by row, guess by column; sum of the losses)."""
    labels, loss = description.outputs, 0.0
    counts = np.zeros((labels, labels), np.int64)
    for first in range(0, len(y), PART):
        part = slice(first, first + PART)
        given, _ = _forward(description, _views(description, row), x[part])
        loss += float(loss_of(training, given, y[part])[0].sum())
        np.add.at(counts, (y[part], given.argmax(axis=1)), 1)
    return counts, loss


@one_thread()
@silent
def outputs(description: Description, row: Array, x: Array) -> Array:
    """(n, outputs) what comes out of the last layer."""
    weights = _views(description, row)
    parts = [_forward(description, weights, x[i : i + PART])[0] for i in range(0, len(x), PART)]
    return np.concatenate(parts) if parts else np.empty((0, description.outputs), np.float32)


@silent
def predict(description: Description, row: Array, x: Array) -> Array:
    """(n, labels) probabilities."""
    return softmax(outputs(description, row, x))


@silent
def loss_of(training: Training, outputs: Array, targets: Array) -> tuple[Array, Array]:
    """(the loss of every sample, its slope in every output), for a loss that has a name.

    >>> loss_of(Training(loss="mse"), np.array([[3.0, 1.0]]), np.array([[1.0, 1.0]]))
    (array([2.]), array([[2., 0.]]))
    """
    every = np.arange(len(targets))
    if training.loss in ("cross_entropy", "smoothed"):
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        whole = np.log(np.exp(shifted).sum(axis=1))
        losses, slopes = whole - shifted[every, targets], softmax(outputs)
        if training.loss == "cross_entropy":
            slopes[every, targets] -= 1
            return losses, slopes
        share = np.float32(training.smoothing)  # of the truth that is spread over all labels
        slopes[every, targets] -= 1 - share
        return (1 - share) * losses + share * (whole - shifted.mean(axis=1)), slopes - share / outputs.shape[1]
    truth = targets.reshape(outputs.shape).astype(outputs.dtype)
    apart = outputs - truth
    if training.loss == "mse":
        losses, slopes = apart**2, 2 * apart
    elif training.loss == "mae":
        losses, slopes = abs(apart), np.sign(apart)
    else:
        losses = np.maximum(outputs, 0) - outputs * truth + np.log1p(np.exp(-abs(outputs)))
        slopes = sigmoid(outputs) - truth
    return losses.mean(axis=1), slopes / outputs.dtype.type(outputs.shape[1])


def _views(description: Description, row: Array) -> dict[str, _Weights]:
    layout: Layout = description.layout
    found = {slot.name: layout.view(row, slot) for slot in layout.slots}
    return {
        layer.name: _Weights(found[f"{layer.name}.weight"], found.get(f"{layer.name}.bias"))
        for layer in description.weighted
    }


def _forward(description: Description, weights: dict[str, _Weights], x: Array) -> tuple[Array, list[Any]]:
    """(outputs, what each layer must remember for its gradient)."""
    values = x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32, copy=False)
    if values.ndim == 3:
        values = values[:, :, None, :]  # a window is a picture of height 1
    kept: list[Any] = []
    for layer in description.layers:
        if isinstance(layer, Convolution):
            columns, size = _columns(layer, values)
            kept.append((columns, values.shape))
            own = weights[layer.name]
            values = columns @ own.weight.reshape(layer.outputs, -1).T
            values = (values if own.bias is None else values + own.bias).reshape(len(x), *size, layer.outputs)
            values = values.transpose(0, 3, 1, 2)
        elif isinstance(layer, Dense):
            if values.ndim != 2:
                raise ValueError(f"a dense layer on samples of shape {values.shape[1:]}: Flatten() must come before it")
            kept.append(values)
            own = weights[layer.name]
            values = values @ own.weight.T
            values = values if own.bias is None else values + own.bias
        elif isinstance(layer, Relu):
            values = np.maximum(values, 0)
            kept.append(values > 0)
        elif isinstance(layer, Pool):
            shape = values.shape
            values, where = _pooled(layer, values)
            kept.append((where, shape))
        else:
            kept.append(values.shape)
            values = values.reshape(len(x), -1)
    return values, kept


def _backward(
    description: Description,
    weights: dict[str, _Weights],
    gradients: dict[str, _Weights],
    kept: list[Any],
    values: Array,
) -> None:
    """Write the gradient of every weight; `values` is that of the outputs."""
    first = description.weighted[0]
    for layer, memory in zip(reversed(description.layers), reversed(kept), strict=True):
        if isinstance(layer, Dense):
            gradients[layer.name].weight[...] = values.T @ memory
            _add_up(gradients[layer.name].bias, values)
            if layer is first:
                return
            values = values @ weights[layer.name].weight
        elif isinstance(layer, Convolution):
            columns, shape = memory
            flat = values.transpose(0, 2, 3, 1).reshape(-1, layer.outputs)
            gradients[layer.name].weight[...] = (flat.T @ columns).reshape(layer.shape)
            _add_up(gradients[layer.name].bias, flat)
            if layer is first:
                return
            values = _spread(layer, flat @ weights[layer.name].weight.reshape(layer.outputs, -1), shape)
        elif isinstance(layer, Relu):
            values = values.reshape(memory.shape) * memory
        elif isinstance(layer, Pool):
            where, shape = memory
            spread = np.zeros(math.prod(shape), np.float32)
            spread[where.ravel()] = values.reshape(where.shape).ravel()
            values = spread.reshape(shape)
        else:
            assert isinstance(layer, Flatten)
            values = values.reshape(memory)


def _add_up(bias: Array | None, values: Array) -> None:
    if bias is not None:
        bias[...] = values.sum(axis=0)


def _sides(layer: Convolution | Pool, name: str) -> tuple[int, int]:
    """A setting of both sides of a picture; a window has height 1, which nothing changes."""
    value: tuple[int, ...] = getattr(layer, name)
    return (0 if name == "padding" else 1, value[0]) if len(value) == 1 else (value[0], value[1])


def patches(layer: Convolution | Dense, x: Array) -> Array:
    """(places, numbers) what a layer looks at in samples: of a convolution every patch, else every sample."""
    values = x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32, copy=False)
    if isinstance(layer, Dense):
        return values.reshape(len(values), -1)
    return np.ascontiguousarray(_columns(layer, values[:, :, None, :] if values.ndim == 3 else values)[0])


def _columns(layer: Convolution, values: Array) -> tuple[Array, tuple[int, int]]:
    """((places, inputs · kernel) what every output looks at, (height, width) of the outputs)."""
    padding, kernel, stride = (_sides(layer, name) for name in ("padding", "kernel", "stride"))
    padded = np.pad(values, ((0, 0), (0, 0), *((side, side) for side in padding)))
    windows = sliding_window_view(padded, kernel, (2, 3))[:, :, :: stride[0], :: stride[1]]
    size = windows.shape[2], windows.shape[3]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(len(values) * size[0] * size[1], -1), size


def _spread(layer: Convolution, columns: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of a convolution's input: what every output says about the places it looked at, added up."""
    padding, kernel, stride = (_sides(layer, name) for name in ("padding", "kernel", "stride"))
    count, channels, height, width = shape
    padded = np.zeros((count, channels, height + 2 * padding[0], width + 2 * padding[1]), np.float32)
    size = tuple((padded.shape[2 + i] - kernel[i]) // stride[i] + 1 for i in range(2))
    parts = columns.reshape(count, *size, channels, *kernel).transpose(0, 3, 4, 5, 1, 2)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows, places = (slice(k, k + s * n, s) for k, s, n in zip((i, j), stride, size, strict=True))
            padded[:, :, rows, places] += parts[:, :, i, j]
    return padded[:, :, padding[0] : padding[0] + height, padding[1] : padding[1] + width]


def _pooled(layer: Pool, values: Array) -> tuple[Array, Array]:
    """(the maxima, where in the flattened values they are); of equals the first."""
    high, wide = _sides(layer, "size")
    count, channels, height, width = values.shape
    rows, places = height // high, width // wide
    blocks = values[:, :, : rows * high, : places * wide].reshape(count, channels, rows, high, places, wide)
    blocks = blocks.transpose(0, 1, 2, 4, 3, 5).reshape(count, channels, rows, places, high * wide)
    best = blocks.argmax(axis=4)
    y = np.arange(rows)[:, None] * high + best // wide
    x = np.arange(places) * wide + best % wide
    picture = (np.arange(count)[:, None] * channels + np.arange(channels))[:, :, None, None]
    return np.take_along_axis(blocks, best[..., None], 4)[..., 0], (picture * height + y) * width + x


def softmax(outputs: Array) -> Array:
    """Probabilities of labels."""
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


@silent
def sigmoid(outputs: Array) -> Array:
    """Probabilities of choices."""
    return np.asarray(1 / (1 + np.exp(-outputs)))
