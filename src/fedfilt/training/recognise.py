"""Which torch modules the native core can train: the module is the definition, this only reads it."""

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from fedfilt.native import Convolution, Dense, Network
from fedfilt.training.rows import Layout

LARGEST = 2**31 - 1  # places inside a batch are 32-bit numbers
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
TESTED = 64  # samples that are tested at a time


class Unknown(ValueError):
    """Why torch has to train this module."""


def recognise(module: nn.Module, layout: Layout, shape: Sequence[int]) -> Network:
    """The module as the native core sees it, for samples of a shape such as (1, 28, 28), (9, 128) or (60,).

    The family: 0 to 3 blocks of Conv1d or Conv2d + ReLU + optional MaxPool, then 1 to 3 Linear layers with ReLU between
    them. Raises Unknown for anything else.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    >>> recognise(net, Layout(net), (1, 28, 28)).denses
    1
    """
    start = {slot.name: slot.start for slot in layout.slots}
    place = {id(p): start[name] for name, p in module.named_parameters()}
    layers = _layers(module)
    if layout.size != layout.trained or any(not p.requires_grad for p in module.parameters()):
        raise Unknown("buffers or frozen parameters")
    convolutions: list[Convolution] = []
    size = tuple(shape)
    while layers and isinstance(layers[0], nn.Conv1d | nn.Conv2d):
        convolution, size = _convolution(layers, size, place)
        convolutions.append(convolution)
    if layers and isinstance(layers[0], nn.Flatten):
        flatten = layers.pop(0)
        if (flatten.start_dim, flatten.end_dim) != (1, -1):
            raise Unknown("a Flatten of only some dimensions")
        size = (math.prod(size),)
    denses = _denses(layers, size, place)
    if len(convolutions) > 3 or not 1 <= len(denses) <= 3:
        raise Unknown(f"{len(convolutions)} convolutions and {len(denses)} dense layers (at most 3 and 1 to 3)")
    used = [c.weight for c in convolutions] + [d.weight for d in denses]
    used += [one.bias for one in (*convolutions, *denses) if one.bias >= 0]
    if sorted(used) != sorted(slot.start for slot in layout.slots):
        raise Unknown("parameters that are shared, or not used in order")
    channels, height, width = (shape[0], 1, shape[-1]) if len(shape) == 2 else (*shape[:1], *shape[1:3], 1, 1)[:3]
    if not convolutions:
        channels, height, width = math.prod(shape), 1, 1
    network = Network(channels, height, width, layout.size, len(convolutions), len(denses))
    for i, convolution in enumerate(convolutions):
        network.convolution[i] = convolution
    for i, dense in enumerate(denses):
        network.dense[i] = dense
    if not fits(network, TESTED) or _packed(network) > 4 * layout.size + 2**22:
        raise Unknown("a layer that is too large for it")
    return network


def fits(network: Network, batch: int) -> bool:
    """Whether places in a batch of so many samples are 32-bit numbers."""
    return batch * max(_widths(network)) <= LARGEST and _packed(network) <= LARGEST


def flops(network: Network) -> int:
    """Multiplications and additions of training on one sample: forward, and backward but for the first layer's input.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    >>> flops(recognise(net, Layout(net), (1, 28, 28))) == 2 * 2 * 784 * 10
    True
    """
    channels, height, width, total, ways = network.channels, network.height, network.width, 0, 2
    for c in network.convolution[: network.convolutions]:
        height, width = _size(height, 0, c), _size(width, 1, c)
        total += ways * 2 * height * width * c.outputs * channels * c.kernel[0] * c.kernel[1]
        height, width, channels, ways = height // c.pool[0], width // c.pool[1], c.outputs, 3
    inputs = channels * height * width
    for d in network.dense[: network.denses]:
        total += ways * 2 * inputs * d.outputs
        inputs, ways = d.outputs, 3
    return total


def _size(size: int, side: int, c: Convolution) -> int:
    """Pixels of a side after a convolution, before its pool."""
    return int((size + 2 * c.padding[side] - c.kernel[side]) // c.stride[side] + 1)


def _layers(module: nn.Module) -> list[Any]:
    """The layers in their order, if the module does nothing but apply them one after the other."""
    if any(getattr(module, hooks) for hooks in HOOKS):
        raise Unknown("hooks")
    if "forward" in vars(module) or type(module).__call__ is not nn.Module.__call__:
        raise Unknown(f"{type(module).__name__} with a call of its own")
    if isinstance(module, nn.Sequential):
        if type(module).forward is not nn.Sequential.forward:
            raise Unknown(f"{type(module).__name__} with a forward() of its own")
        found = [layer for child in module for layer in _layers(child)]
        weighted = [id(layer) for layer in found if list(layer.parameters())]
        if len(set(weighted)) < len(weighted):
            raise Unknown("a layer used twice")
        return found
    known = (nn.Conv1d, nn.Conv2d, nn.ReLU, nn.MaxPool1d, nn.MaxPool2d, nn.Flatten, nn.Linear)
    if type(module) not in known:
        raise Unknown(type(module).__name__)
    return [module]


def _convolution(
    layers: list[Any], size: tuple[int, ...], place: dict[int, int]
) -> tuple[Convolution, tuple[int, ...]]:
    """Take one block off the layers: (what it is, the size of its output)."""
    layer = layers.pop(0)
    flat = isinstance(layer, nn.Conv1d)
    if len(size) != (2 if flat else 3) or layer.in_channels != size[0]:
        raise Unknown(f"{type(layer).__name__} on samples of shape {size}")
    if layer.groups != 1 or any(d != 1 for d in layer.dilation) or layer.padding_mode != "zeros":
        raise Unknown("a convolution with groups, dilation or other than zero padding")
    kernel, stride = layer.kernel_size, layer.stride
    if layer.padding == "same" and all(k % 2 for k in kernel):
        padding: Any = tuple(k // 2 for k in kernel)
    elif isinstance(layer.padding, str):
        if layer.padding == "same":
            raise Unknown("'same' padding of an even kernel")
        padding = (0,) * len(kernel)
    else:
        padding = layer.padding
    after = [layers.pop(0) for _ in range(2) if layers and isinstance(layers[0], nn.ReLU | nn.MaxPool1d | nn.MaxPool2d)]
    pools = [one for one in after if not isinstance(one, nn.ReLU)]
    if len(after) - len(pools) != 1 or len(pools) > 1:
        raise Unknown("a convolution without ReLU")
    pool = (1,) * len(kernel)
    for one in pools:
        if isinstance(one, nn.MaxPool1d) != flat:
            raise Unknown("a pool of another dimension than its convolution")
        pool, step, border, gap = (
            _tuple(v, len(kernel)) for v in (one.kernel_size, one.stride, one.padding, one.dilation)
        )
        if step != pool or set(border) != {0} or set(gap) != {1} or one.ceil_mode or one.return_indices:
            raise Unknown("a pool whose windows overlap or leave gaps")
    out = tuple(
        ((n + 2 * p - k) // s + 1) // q for n, p, k, s, q in zip(size[1:], padding, kernel, stride, pool, strict=True)
    )
    if min(out) < 1:
        raise Unknown(f"a picture of {size} that leaves nothing")
    shape = layer.weight.shape  # a Conv2d's weights lie (output, y, x, channel) in a row, a Conv1d's as torch has them
    steps = (shape[1] * shape[2], 0, 1, shape[2]) if flat else (math.prod(shape[1:]), shape[3] * shape[1], shape[1], 1)
    pairs = [
        (0 if name == "padding" else 1, *value) if flat else value
        for name, value in (("kernel", kernel), ("stride", stride), ("padding", padding), ("pool", pool))
    ]
    bias = -1 if layer.bias is None else place[id(layer.bias)]
    numbers = (layer.out_channels, *pairs, place[id(layer.weight)], steps, bias)
    return Convolution(*numbers), (layer.out_channels, *out)


def _denses(layers: list[Any], size: tuple[int, ...], place: dict[int, int]) -> list[Dense]:
    if len(size) != 1:
        raise Unknown(f"Linear on samples of shape {size}")
    found, inputs = [], size[0]
    for i, layer in enumerate(layers):
        if not isinstance(layer, nn.ReLU if i % 2 else nn.Linear) or (i % 2 and i == len(layers) - 1):
            raise Unknown(f"{type(layer).__name__} at that place")
        if isinstance(layer, nn.Linear):
            if layer.in_features != inputs:
                raise Unknown(f"Linear for {layer.in_features} numbers on {inputs}")
            inputs = layer.out_features
            bias = -1 if layer.bias is None else place[id(layer.bias)]
            found.append(Dense(layer.out_features, place[id(layer.weight)], bias))
    return found


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _widths(network: Network) -> list[int]:
    """Numbers of one sample at each layer, with the padding of the widest level."""
    stored, height, width = network.channels, network.height, network.width
    found = [stored * height * width]
    for c in network.convolution[: network.convolutions]:
        found.append(stored * (height + 2 * c.padding[0]) * (width + 2 * c.padding[1]))
        height, width = _size(height, 0, c), _size(width, 1, c)
        found.append(_up(c.outputs, 32) * height * width)
        height, width, stored = height // c.pool[0], width // c.pool[1], _up(c.outputs, 16)
    return [*found, stored * height * width, *(_up(d.outputs, 32) for d in network.dense[: network.denses])]


def _packed(network: Network) -> int:
    """Numbers of a model as the core keeps it, with the padding of the widest level."""
    channels, height, width, total = network.channels, network.height, network.width, 0
    for c in network.convolution[: network.convolutions]:
        total += _up(c.outputs, 32) * (c.kernel[0] * c.kernel[1] * channels + 1)
        height, width = _size(height, 0, c) // c.pool[0], _size(width, 1, c) // c.pool[1]
        channels = _up(c.outputs, 16)
    inputs = channels * height * width
    for d in network.dense[: network.denses]:
        total += (inputs + 1) * _up(d.outputs, 32)
        inputs = d.outputs
    return total


def _tuple(value: Any, count: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * count
