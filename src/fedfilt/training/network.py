"""A description as the native core sees it: which models it can train, and what they cost."""

import math
from collections.abc import Sequence

from fedfilt import native
from fedfilt.training.description import Convolution, Dense, Description, Flatten, Layer, Pool, Relu

LARGEST = 2**31 - 1  # places inside a batch are 32-bit numbers
TESTED = 64  # samples that are tested at a time


class Unknown(ValueError):
    """Why the native core cannot train a model."""


def network_of(description: Description, shape: Sequence[int], loss: str = native.LOSSES[0]) -> native.Network:
    """The description as the native core sees it, for samples of a shape such as (1, 28, 28), (9, 128) or (60,).

    The family: 0 to 3 blocks of a convolution + ReLU + optional pool, then 1 to 3 dense layers with ReLU between them.
    Raises Unknown for anything else.

    >>> network_of(Description((Flatten(), Dense(784, 10))), (1, 28, 28)).denses
    1
    """
    layout, layers = description.layout, list(description.layers)
    start = {slot.name: slot.start for slot in layout.slots}
    convolutions: list[native.Convolution] = []
    size = tuple(shape)
    while layers and isinstance(layers[0], Convolution):
        convolution, size = _block(layers, size, start)
        convolutions.append(convolution)
    if layers and isinstance(layers[0], Flatten):
        layers.pop(0)
        size = (math.prod(size),)
    denses = _denses(layers, size, start)
    if len(convolutions) > 3 or not 1 <= len(denses) <= 3:
        raise Unknown(f"{len(convolutions)} convolutions and {len(denses)} dense layers (at most 3 and 1 to 3)")
    channels, height, width = (shape[0], 1, shape[-1]) if len(shape) == 2 else (*shape[:1], *shape[1:3], 1, 1)[:3]
    if not convolutions:
        channels, height, width = math.prod(shape), 1, 1
    if loss not in native.LOSSES:
        raise Unknown(f"the loss {loss}")
    network = native.Network(channels, height, width, layout.size, len(convolutions), len(denses))
    network.loss = native.LOSSES.index(loss)
    for i, convolution in enumerate(convolutions):
        network.convolution[i] = convolution
    for i, dense in enumerate(denses):
        network.dense[i] = dense
    if not fits(network, TESTED) or _packed(network) > 4 * layout.size + 2**22:
        raise Unknown("a layer that is too large for it")
    return network


def output_size(layer: Convolution, size: Sequence[int]) -> tuple[int, ...]:
    """Sides of a picture, or the length of a window, after a convolution."""
    sides = zip(size, layer.padding, layer.kernel, layer.stride, strict=True)
    return tuple((n + 2 * p - k) // s + 1 for n, p, k, s in sides)


def fits(network: native.Network, batch: int) -> bool:
    """Whether 32-bit numbers suffice for positions in a batch of this many samples."""
    return batch * max(_widths(network)) <= LARGEST and _packed(network) <= LARGEST


def flops(description: Description, shape: Sequence[int]) -> int:
    """Multiplications and additions of training on one sample: forward, and backward but for the first layer's input.

    Of any description, whether the native core can train it or not.

    >>> flops(Description((Flatten(), Dense(784, 10))), (1, 28, 28)) == 2 * 2 * 784 * 10
    True
    """
    sides, total, ways = tuple(shape[1:]), 0, 2
    for layer in description.layers:
        if isinstance(layer, Pool):
            sides = tuple(n // q for n, q in zip(sides, layer.size, strict=True))
        elif isinstance(layer, Convolution | Dense):
            sides = output_size(layer, sides) if isinstance(layer, Convolution) else ()
            total += ways * 2 * math.prod(layer.shape) * math.prod(sides)
            ways = 3
    return total


def _block(
    layers: list[Layer], size: tuple[int, ...], start: dict[str, int]
) -> tuple[native.Convolution, tuple[int, ...]]:
    """Take one block off the layers: (what it is, the size of its output)."""
    layer = layers.pop(0)
    assert isinstance(layer, Convolution)
    flat = len(layer.kernel) == 1
    if len(size) != (2 if flat else 3) or layer.inputs != size[0]:
        raise Unknown(f"a convolution of {layer.inputs} channels on samples of shape {size}")
    after = [layers.pop(0) for _ in range(2) if layers and isinstance(layers[0], Relu | Pool)]
    pools = [one for one in after if isinstance(one, Pool)]
    if len(after) - len(pools) != 1 or len(pools) > 1:
        raise Unknown("a convolution without ReLU")
    pool = pools[0].size if pools else (1,) * len(layer.kernel)
    if len(pool) != len(layer.kernel):
        raise Unknown("a pool of another dimension than its convolution")
    out = tuple(n // q for n, q in zip(output_size(layer, size[1:]), pool, strict=True))
    if min(out) < 1:
        raise Unknown(f"a picture of {size} that leaves nothing")
    # Weights for pictures lie (output, y, x, channel) in a row, those for windows as torch has them
    shape = layer.shape
    steps = (shape[1] * shape[2], 0, 1, shape[2]) if flat else (math.prod(shape[1:]), shape[3] * shape[1], shape[1], 1)
    pairs = [
        (0 if name == "padding" else 1, *value) if flat else value
        for name, value in (
            ("kernel", layer.kernel),
            ("stride", layer.stride),
            ("padding", layer.padding),
            ("pool", pool),
        )
    ]
    numbers = (layer.outputs, *pairs, start[f"{layer.name}.weight"], steps, start.get(f"{layer.name}.bias", -1))
    return native.Convolution(*numbers), (layer.outputs, *out)


def _denses(layers: list[Layer], size: tuple[int, ...], start: dict[str, int]) -> list[native.Dense]:
    if len(size) != 1:
        raise Unknown(f"a dense layer on samples of shape {size}")
    found, inputs = [], size[0]
    for i, layer in enumerate(layers):
        if not isinstance(layer, Relu if i % 2 else Dense) or (i % 2 and i == len(layers) - 1):
            raise Unknown(f"{type(layer).__name__} at that place")
        if isinstance(layer, Dense):
            if layer.inputs != inputs:
                raise Unknown(f"a dense layer for {layer.inputs} numbers on {inputs}")
            inputs = layer.outputs
            bias = start.get(f"{layer.name}.bias", -1)
            found.append(native.Dense(layer.outputs, start[f"{layer.name}.weight"], bias))
    return found


def _size(size: int, side: int, c: native.Convolution) -> int:
    """Pixels of a side after a convolution, before its pool."""
    return int((size + 2 * c.padding[side] - c.kernel[side]) // c.stride[side] + 1)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _widths(network: native.Network) -> list[int]:
    """Numbers of one sample at each layer, with the padding of the widest level."""
    stored, height, width = network.channels, network.height, network.width
    found = [stored * height * width]
    for c in network.convolution[: network.convolutions]:
        found.append(stored * (height + 2 * c.padding[0]) * (width + 2 * c.padding[1]))
        height, width = _size(height, 0, c), _size(width, 1, c)
        found.append(_up(c.outputs, 32) * height * width)
        height, width, stored = height // c.pool[0], width // c.pool[1], _up(c.outputs, 16)
    return [*found, stored * height * width, *(_up(d.outputs, 32) for d in network.dense[: network.denses])]


def _packed(network: native.Network) -> int:
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
