"""A model as a description: its layers as plain data, from which every backend builds what it needs.

A part in fedfilt/models has a method `layers()`; `described(part)` is its `Description`. The native core, torch and
NumPy all train the same description, and a row of weights has the same layout for each of them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np

from fedfilt._types import Array
from fedfilt.training.rows import Layout

ENCODER = "encoder"  # name of the layer that stands before a model: see `fedfilt.training.encoders`


@dataclass(frozen=True)
class Convolution:
    """A convolution over time (one number per kernel, stride, padding) or over a picture (two), zeros around it."""

    inputs: int  # channels
    outputs: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    bias: bool = True
    name: str = ""  # of its weights in a state dict; empty: its place among the layers

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its weights, as torch has them."""
        return (self.outputs, self.inputs, *self.kernel)


@dataclass(frozen=True)
class Dense:
    """Every output a weighted sum of all inputs."""

    inputs: int
    outputs: int
    bias: bool = True
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its weights, as torch has them."""
        return (self.outputs, self.inputs)


@dataclass(frozen=True)
class Relu:
    """max(0, x)."""


@dataclass(frozen=True)
class Pool:
    """The maximum over adjacent windows; what does not fill a window is dropped."""

    size: tuple[int, ...]


@dataclass(frozen=True)
class Flatten:
    """All numbers of a sample in one list."""


Layer: TypeAlias = Convolution | Dense | Relu | Pool | Flatten


class Described(Protocol):
    """A model that lists its layers."""

    def layers(self) -> Iterable[Layer]:
        """From input to output."""
        ...


@dataclass(frozen=True)
class Description:
    """A sequence of layers.

    The first layer with weights has `room` for so many in a row, if that is more than it needs.

    >>> Description((Flatten(), Dense(4, 2))).layout.size
    10
    """

    layers: tuple[Layer, ...]
    room: int = 0

    def __post_init__(self) -> None:
        named = tuple(
            replace(layer, name=layer.name or str(place)) if isinstance(layer, Convolution | Dense) else layer
            for place, layer in enumerate(self.layers)
        )
        object.__setattr__(self, "layers", named)

    @property
    def weighted(self) -> list[Convolution | Dense]:
        """The layers that have weights."""
        return [layer for layer in self.layers if isinstance(layer, Convolution | Dense)]

    @cached_property
    def layout(self) -> Layout:
        """Where every weight lies in a row."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in self.weighted:
            shapes[f"{layer.name}.weight"] = layer.shape
            if layer.bias:
                shapes[f"{layer.name}.bias"] = (layer.outputs,)
        plain = Layout.of(shapes)
        own = [slot for slot in plain.slots if slot.name.rpartition(".")[0] == self.weighted[0].name]
        spare = max(0, self.room - own[-1].stop) if own else 0
        later = (slot._replace(start=slot.start + spare, stop=slot.stop + spare) for slot in plain.slots[len(own) :])
        return Layout((*own, *later), plain.trained + spare)

    @property
    def outputs(self) -> int:
        """Numbers that come out: labels it tells apart."""
        return self.weighted[-1].outputs if self.weighted else 0

    def start(self, seed: int) -> Array:
        """A first row as Keras does: Glorot-uniform U(-a, a) with a² = 6 / (inputs + outputs), zero biases.

        The numbers are those of torch's generator with this seed, whether torch is installed or not. Those of an
        encoder are drawn apart: what comes after it starts alike behind every encoder.
        """
        common, apart = (np.random.RandomState((seed + i) & 0xFFFFFFFF) for i in range(2))
        values = {}
        for layer in self.weighted:
            numbers = apart if layer.name == ENCODER else common
            field = math.prod(layer.shape[2:])
            reach = np.float32(math.sqrt(6 / (field * (layer.outputs + layer.inputs))))
            values[f"{layer.name}.weight"] = _uniform(numbers, reach, layer.shape)
            if layer.bias:
                values[f"{layer.name}.bias"] = np.zeros(layer.outputs, np.float32)
        return self.layout.row(values)


def described(model: Description | Described) -> Description:
    """The description of a model part, or the description itself."""
    if isinstance(model, Description):
        return model
    return Description(tuple(model.layers()), getattr(model, "room", 0))


def _uniform(numbers: np.random.RandomState, reach: np.float32, shape: tuple[int, ...]) -> Array:
    """U(-reach, reach) from the lowest 24 bits of each number of a Mersenne twister, as torch computes it."""
    drawn = numbers.randint(0, 1 << 32, math.prod(shape), np.uint32) & 0xFFFFFF
    width = np.float64(np.float32(reach) - np.float32(-reach))
    return (drawn * 2.0**-24 * width - np.float64(reach)).astype(np.float32).reshape(shape)
