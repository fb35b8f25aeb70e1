"""A model as one row of float32 numbers: where every tensor lies in the (K, B) buffer. Nothing here needs torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from fedfilt._checks import check_choice
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

    Weights of a convolution over pictures lie channels last, as torch computes with them fastest. Columns that no slot
    has are 0: those that the encoder of another kind of device needs, see `fedfilt.training.encoders`.

    >>> layout = Layout.of({"0.weight": (2, 3), "0.bias": (2,), "2.weight": (1, 2)})
    >>> layout.size, [slot.name for slot in layout.slots]
    (10, ['0.weight', '0.bias', '2.weight'])
    >>> layout.columns(["head"]).sum(), layout.columns(["0"]).sum(), layout.columns(["0.bias"]).sum()
    (np.int64(2), np.int64(8), np.int64(2))
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
        row = np.zeros(self.size, np.float32)
        for slot in self.slots:
            self.view(row, slot)[...] = values[slot.name]
        return row

    def tensors(self, row: Array) -> dict[str, Array]:
        """A row as a state dict, in torch's own order."""
        values = {slot.name: self.view(row, slot) for slot in self.slots} | dict(self.constants)
        keys = self.names or {name: name for name in values}
        return {key: np.array(values[name], order="C") for key, name in keys.items()}

    def columns(self, names: Iterable[str]) -> Array:
        """(B,) bool: the columns of layers, of groups of layers or of single tensors, named as in a state dict.

        Unless a layer has that name, "head" is the last layer with weights, "head.bias" its biases, and "norm" all
        layers that normalise, with their means and spreads.
        """
        if isinstance(names, str):
            raise ValueError(f"names must be a list of layers such as ['head'], got {names!r}")
        known = {slot.name: slot for slot in self.slots}
        keys = {name: name for name in known} | {key: name for key, name in self.names.items() if name in known}
        named: dict[str, list[Slot]] = {}
        for key, name in keys.items():
            for group in accumulate(key.split("."), "{}.{}".format):
                named.setdefault(group, []).append(known[name])
        head = self._head()
        ours = {"head": head, "head.bias": [slot for slot in head if len(slot.shape) == 1], "norm": self._norms()}
        for name, slots in ours.items():
            if slots or name == "norm":
                named.setdefault(name, slots)
        found = np.zeros(self.size, bool)
        for name in names:
            for slot in named[check_choice("layer", name, named)]:
                found[slot.start : slot.stop] = True
        return found

    def _head(self) -> list[Slot]:
        """The tensors of the last layer with weights: a matrix, not the vectors of a batch norm; none without any."""
        layers = [slot.name.rpartition(".")[0] for slot in self.slots]
        pairs = list(zip(self.slots, layers, strict=True))
        weights = [layer for slot, layer in pairs if slot.stop <= self.trained and len(slot.shape) > 1]
        return [slot for slot, layer in pairs if weights and layer == weights[-1]]

    def _norms(self) -> list[Slot]:
        """The tensors of layers that have weights, but only vectors of them."""
        layers: dict[str, list[Slot]] = {}
        for slot in self.slots:
            layers.setdefault(slot.name.rpartition(".")[0], []).append(slot)
        flat = [slots for slots in layers.values() if all(len(slot.shape) <= 1 for slot in slots)]
        return [slot for slots in flat if any(not slot.name.endswith("bias") for slot in slots) for slot in slots]
