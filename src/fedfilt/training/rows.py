"""A model as one row of float32 numbers: where every tensor lies in the (K, B) buffer. Nothing here needs torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedfilt._types import Array


class Slot(NamedTuple):
    """The place of one tensor in a row."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """Parameters first, then float buffers (such as running means of a batch norm), in the model's order.

    Weights of a convolution over pictures lie channels last, as torch computes with them fastest.

    >>> layout = Layout.of({"weight": (2, 3), "bias": (2,)})
    >>> layout.size, [slot.name for slot in layout.slots]
    (8, ['weight', 'bias'])
    """

    slots: tuple[Slot, ...]
    trained: int  # columns that gradients reach
    names: Mapping[str, str] = field(default_factory=dict)  # key of a state dict -> slot, where they differ
    constants: Mapping[str, Array] = field(default_factory=dict)  # what a state dict has besides: counters

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> "Layout":
        """Tensors of these shapes, one after the other, all of them trained."""
        slots, place = [], 0
        for name, shape in shapes.items():
            slots.append(Slot(name, tuple(shape), place, place := place + math.prod(shape)))
        return cls(tuple(slots), place)

    @property
    def size(self) -> int:
        """Numbers in a row, B."""
        return self.slots[-1].stop if self.slots else 0

    def view(self, row: Array, slot: Slot) -> Array:
        """The tensor of a slot as a view of a row."""
        part = row[slot.start : slot.stop]
        if len(slot.shape) == 4:
            out, channels, height, width = slot.shape
            return part.reshape(out, height, width, channels).transpose(0, 3, 1, 2)
        return part.reshape(slot.shape)

    def row(self, values: Mapping[str, Array]) -> Array:
        """The (B,) row of some tensors by slot."""
        row = np.empty(self.size, np.float32)
        for slot in self.slots:
            self.view(row, slot)[...] = values[slot.name]
        return row

    def tensors(self, row: Array) -> dict[str, Array]:
        """A row as a state dict, in torch's own order."""
        values = {slot.name: self.view(row, slot) for slot in self.slots} | dict(self.constants)
        keys = self.names or {name: name for name in values}
        return {key: np.array(values[name], order="C") for key, name in keys.items()}
