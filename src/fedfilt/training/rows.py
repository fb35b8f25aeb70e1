"""A model as one row of float32 numbers: where every parameter of a torch module lies in the (K, B) buffer."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedfilt._types import Array


class Slot(NamedTuple):
    """The place of one tensor in a row."""

    name: str
    shape: torch.Size
    start: int
    stop: int


class Layout:
    """Parameters first, then float buffers (such as running means of a batch norm), in the module's order.

    Convolution weights lie channels last, as torch computes with them fastest.

    >>> layout = Layout(nn.Linear(3, 2))
    >>> layout.size, [slot.name for slot in layout.slots]
    (8, ['weight', 'bias'])
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = dict(module.named_parameters())
        buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
        self.slots: list[Slot] = []
        place = 0
        for name, tensor in {**parameters, **buffers}.items():
            if tensor.dtype != torch.float32:
                raise ValueError(f"model must be float32, got {tensor.dtype} in {name}")
            self.slots.append(Slot(name, tensor.shape, place, place := place + tensor.numel()))
        self.size = place
        # What else a module keeps (counters) is no part of a row: every job finds it as it was at the start
        self._constants = {name: b.clone() for name, b in module.named_buffers() if name not in buffers}
        named = {id(tensor): name for name, tensor in {**parameters, **buffers}.items()}
        self._names = {key: named.get(id(value), key) for key, value in module.state_dict(keep_vars=True).items()}
        self.trained = sum(p.numel() for p in parameters.values())  # columns that gradients reach
        if not self.trained:
            raise ValueError("model must have parameters to train, got none")

    def view(self, row: Tensor, slot: Slot) -> Tensor:
        """The tensor of a slot as a view of a row."""
        part = row[slot.start : slot.stop]
        if len(slot.shape) == 4:
            out, channels, height, width = slot.shape
            return part.view(out, height, width, channels).permute(0, 3, 1, 2)
        return part.view(slot.shape)

    def attach(self, module: nn.Module, row: Tensor, gradient: Tensor | None = None) -> None:
        """Make a module compute with a row in place; `gradient` (B,) receives its gradients."""
        for slot in self.slots:
            owner, _, name = slot.name.rpartition(".")
            tensor = getattr(module.get_submodule(owner), name)
            tensor.data = self.view(row, slot)
            if gradient is not None and isinstance(tensor, nn.Parameter):
                tensor.grad = self.view(gradient, slot)
        for name, constant in self._constants.items():
            module.get_buffer(name).copy_(constant)

    def row(self, module: nn.Module) -> Array:
        """The (B,) row of a module's present values."""
        row = torch.empty(self.size)
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for slot in self.slots:
            self.view(row, slot).copy_(values[slot.name].detach())
        return row.numpy()

    def tensors(self, row: Array) -> dict[str, Tensor]:
        """A row as a state dict in torch's own order, for `module.load_state_dict(...)`."""
        whole = torch.from_numpy(row)
        values = {slot.name: self.view(whole, slot) for slot in self.slots} | self._constants
        keys = self._names.items()
        return {key: values[name].clone(memory_format=torch.contiguous_format) for key, name in keys}


def glorot(module: nn.Module, generator: torch.Generator) -> None:
    """Start weights as Keras does: Glorot-uniform U(-a, a) with a² = 6 / (inputs + outputs), zero biases.

    Layers of other kinds keep their own start.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
            field = math.prod(layer.weight.shape[2:])
            reach = math.sqrt(6 / (field * (layer.weight.shape[0] + layer.weight.shape[1])))
            with torch.no_grad():
                layer.weight.uniform_(-reach, reach, generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()
