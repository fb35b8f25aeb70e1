"""Training and testing a row in torch: the definition of what the other backends compute.

torch is imported when it is first needed, so that a device that trains in the native core never loads it.
"""

import copy
import inspect
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfilt import _parts
from fedfilt._draws import RoundKey, in_round
from fedfilt._types import Array
from fedfilt.data.samples import numbered
from fedfilt.training.description import (
    ENCODER,
    Convolution,
    Dense,
    Description,
    Flatten,
    Layer,
    Pool,
    Relu,
    described,
)
from fedfilt.training.goal import LOSSES, NO_LABEL, class_axis
from fedfilt.training.network import Unknown
from fedfilt.training.rows import Layout, Slot
from fedfilt.training.sgd import UNGUIDED, Guides, Training, diverged, orders, recalled

USUAL = Training()
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:

    class _Later:
        """torch, imported at its first use."""

        def __getattr__(self, name: str) -> Any:
            if not installed():
                raise ValueError("this model needs torch: pip install 'fedfilt[torch]'")
            return getattr(import_module("torch"), name)

    torch = _Later()


def installed() -> bool:
    """Whether torch is there."""
    return find_spec("torch") is not None


def is_module(kind: Any) -> bool:
    """Whether a class is a torch module; looks without loading torch."""
    return "torch" in sys.modules and isinstance(kind, type) and issubclass(kind, torch.nn.Module)


# --- modules and rows ---------------------------------------------------------------------------------------------


def torch_module(model: Any, row: Array | None = None) -> "nn.Module":
    """A described model as a plain torch module, with the weights of a row if one is given.

    >>> from fedfilt.models import MLP
    >>> torch_module(MLP((1, 8, 8), 10, hidden=16))[1]
    Linear(in_features=64, out_features=16, bias=True)
    """
    known = described(model)
    parts = {
        ENCODER if getattr(layer, "name", "") == ENCODER else str(place): _layer(layer)
        for place, layer in enumerate(known.layers)
    }
    module = torch.nn.Sequential(OrderedDict(parts))
    if row is not None:
        module.load_state_dict(state_dict(known.layout if known.room else layout_of(module), row))
    return module


def state_dict(layout: Layout, row: Array) -> "dict[str, Tensor]":
    """A row for `module.load_state_dict(...)`."""
    return {name: torch.from_numpy(values) for name, values in layout.tensors(row).items()}


def layout_of(module: "nn.Module") -> Layout:
    """Where every parameter and float buffer of a module lies in a row."""
    parameters = dict(module.named_parameters())
    buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    slots, place = [], 0
    for name, tensor in {**parameters, **buffers}.items():
        if tensor.dtype != torch.float32:
            raise ValueError(f"model must be float32, got {tensor.dtype} in {name}")
        slots.append(Slot(name, tuple(tensor.shape), place, place := place + tensor.numel()))
    trained = sum(p.numel() for p in parameters.values())
    if not trained:
        raise ValueError("model must have parameters to train, got none")
    # What else a module keeps (counters) is no part of a row: every job finds it as it was at the start
    constants = {name: b.clone().numpy() for name, b in module.named_buffers() if name not in buffers}
    named = {id(tensor): name for name, tensor in {**parameters, **buffers}.items()}
    keys = {key: named.get(id(value), key) for key, value in module.state_dict(keep_vars=True).items()}
    return Layout(tuple(slots), trained, keys, constants)


def row_of(module: "nn.Module") -> Array:
    """The (B,) row of a module's present values."""
    values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return layout_of(module).row({name: value.detach().numpy() for name, value in values.items()})


def attach(module: "nn.Module", layout: Layout, row: "Tensor", gradient: "Tensor | None" = None) -> None:
    """Make a module compute with a row in place; `gradient` (B,) receives its gradients."""
    for slot in layout.slots:
        owner, _, name = slot.name.rpartition(".")
        tensor = getattr(module.get_submodule(owner), name)
        tensor.data = _view(row, slot)
        if gradient is not None and isinstance(tensor, torch.nn.Parameter):
            tensor.grad = _view(gradient, slot)
    for name, constant in layout.constants.items():
        module.get_buffer(name).copy_(torch.from_numpy(constant))


def _view(row: "Tensor", slot: Slot) -> "Tensor":
    part = row[slot.start : slot.stop]
    if len(slot.shape) == 4:
        out, channels, height, width = slot.shape
        return part.view(out, height, width, channels).permute(0, 3, 1, 2)
    return part.view(slot.shape)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's own generator with a seed, for layers that draw from it, in one thread; afterwards as it was."""
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        yield


def glorot(module: "nn.Module", seed: int) -> None:
    """Start weights as Keras does: Glorot-uniform U(-a, a) with a² = 6 / (inputs + outputs), zero biases.

    Layers of other kinds keep their own start.
    """
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv1d | torch.nn.Conv2d):
            field = math.prod(layer.weight.shape[2:])
            reach = math.sqrt(6 / (field * (layer.weight.shape[0] + layer.weight.shape[1])))
            with torch.no_grad():
                layer.weight.uniform_(-reach, reach, generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()


# --- describing ---------------------------------------------------------------------------------------------------


def describe(module: "nn.Module") -> Description:
    """What a module does, if it does nothing but apply known layers one after the other; else Unknown says why not.

    >>> describe(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))).outputs
    2
    """
    if any(not p.requires_grad for p in module.parameters()) or list(module.buffers()):
        raise Unknown("buffers or frozen parameters")
    found = _described(module, "")
    names = [
        f"{layer.name}.{kind}".lstrip(".")
        for layer in found
        if isinstance(layer, Convolution | Dense)
        for kind in ("weight", "bias")[: 1 + layer.bias]
    ]
    if names != [name for name, _ in module.named_parameters()]:
        raise Unknown("parameters that are shared, or not used in order")
    return Description(tuple(found))


def _described(module: Any, name: str) -> list[Layer]:
    nn = torch.nn
    if any(getattr(module, hooks) for hooks in HOOKS):
        raise Unknown("hooks")
    if "forward" in vars(module) or type(module).__call__ is not nn.Module.__call__:
        raise Unknown(f"{type(module).__name__} with a call of its own")
    if isinstance(module, nn.Sequential):
        if type(module).forward is not nn.Sequential.forward:
            raise Unknown(f"{type(module).__name__} with a forward() of its own")
        inner = [(f"{name}.{key}".lstrip("."), child) for key, child in module._modules.items() if child is not None]
        return [layer for path, child in inner for layer in _described(child, path)]
    kind = type(module)
    if kind is nn.ReLU:
        return [Relu()]
    if kind is nn.Flatten:
        if (module.start_dim, module.end_dim) != (1, -1):
            raise Unknown("a Flatten of only some dimensions")
        return [Flatten()]
    if kind is nn.Linear:
        return [Dense(module.in_features, module.out_features, module.bias is not None, name)]
    if kind in (nn.MaxPool1d, nn.MaxPool2d):
        return [_described_pool(module, 1 if kind is nn.MaxPool1d else 2)]
    if kind in (nn.Conv1d, nn.Conv2d):
        return [_described_convolution(module, name)]
    raise Unknown(kind.__name__)


def _described_pool(pool: Any, sides: int) -> Pool:
    size, step, border, gap = (_tuple(v, sides) for v in (pool.kernel_size, pool.stride, pool.padding, pool.dilation))
    if step != size or set(border) != {0} or set(gap) != {1} or pool.ceil_mode or pool.return_indices:
        raise Unknown("a pool whose windows overlap or leave gaps")
    return Pool(size)


def _described_convolution(layer: Any, name: str) -> Convolution:
    if layer.groups != 1 or any(d != 1 for d in layer.dilation) or layer.padding_mode != "zeros":
        raise Unknown("a convolution with groups, dilation or other than zero padding")
    kernel = tuple(layer.kernel_size)
    if layer.padding == "same" and any(k % 2 == 0 for k in kernel):
        raise Unknown("'same' padding of an even kernel")
    named = {"same": tuple(k // 2 for k in kernel), "valid": (0,) * len(kernel)}
    padding = named[layer.padding] if isinstance(layer.padding, str) else tuple(layer.padding)
    sides = kernel, tuple(layer.stride), padding
    return Convolution(layer.in_channels, layer.out_channels, *sides, layer.bias is not None, name)


def _tuple(value: Any, count: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * count


def _layer(layer: Layer) -> "nn.Module":
    nn = torch.nn
    if isinstance(layer, Convolution):
        kind = nn.Conv1d if len(layer.kernel) == 1 else nn.Conv2d
        sides: Any = layer.kernel, layer.stride, layer.padding
        return kind(layer.inputs, layer.outputs, *sides, bias=layer.bias)  # type: ignore[misc]
    if isinstance(layer, Dense):
        return nn.Linear(layer.inputs, layer.outputs, layer.bias)
    if isinstance(layer, Pool):
        size: Any = layer.size if len(layer.size) == 2 else layer.size[0]
        return nn.MaxPool2d(size) if len(layer.size) == 2 else nn.MaxPool1d(size)
    return nn.ReLU() if isinstance(layer, Relu) else nn.Flatten()


# --- training and testing -----------------------------------------------------------------------------------------


def inputs(x: Array) -> Any:
    """Samples as torch wants them: float32 (pixels scaled to 0..1) or whole numbers, pictures channels last.

    Several inputs of each sample are a tuple or a dict of these, as they were: see `fedfilt.data.samples.joined`.
    """
    if x.dtype.names is not None:
        parts = {name: inputs(x[name]) for name in x.dtype.names}
        return tuple(parts.values()) if numbered(parts) else parts
    tensor = torch.from_numpy(np.ascontiguousarray(x))
    if x.dtype.kind in "ib":
        return tensor
    tensor = tensor.float().div_(255) if tensor.dtype == torch.uint8 else tensor.float()
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def some(given: Any, which: Any) -> Any:
    """Some of the samples."""
    if isinstance(given, tuple):
        return tuple(part[which] for part in given)
    return {name: part[which] for name, part in given.items()} if isinstance(given, dict) else given[which]


def called(module: "nn.Module", given: Any) -> "Tensor":
    """What a module gives. Several inputs are arguments of its forward() if that takes so many, else one argument."""
    if isinstance(given, tuple | dict):
        arguments = (given, {}) if isinstance(given, tuple) else ((), given)
        try:
            inspect.signature(module.forward).bind(*arguments[0], **arguments[1])
        except TypeError:
            arguments = (given,), {}
        return module(*arguments[0], **arguments[1])
    return module(given)


def takes_integers(module: "nn.Module", x: Array) -> bool:
    """Whether a module can be given whole numbers, as an embedding wants them; found out by trying."""
    try:
        with torch.no_grad():
            copy.deepcopy(module).eval()(torch.from_numpy(x[:2].astype(np.int64)))
    except (RuntimeError, TypeError):
        return False
    except IndexError:  # it takes them, but not as large ones: see `outputs`
        return True
    return True


@contextmanager
def lone(module: "nn.Module") -> Iterator[None]:
    """While a batch of one sample is trained: of one value per channel there is no variance.

    A batch norm that sees just one uses its running statistics and leaves them as they are.
    """
    norm = torch.nn.modules.batchnorm._BatchNorm
    layers = [one for one in module.modules() if isinstance(one, norm) and one.training]

    def before(layer: Any, given: Any) -> None:
        layer.train(given[0].numel() > given[0].shape[1])

    def after(layer: Any, given: Any, gives: Any) -> None:
        layer.train()

    handles = [layer.register_forward_pre_hook(before) for layer in layers]
    handles += [layer.register_forward_hook(after) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def train(
    module: "nn.Module",
    layout: Layout,
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
    loss_of = loss_function(training)
    whole, given, targets = torch.from_numpy(row), inputs(x), targets_of(training, y)
    gradient = torch.zeros(layout.trained)
    weights = whole[: layout.trained]
    attach(module, layout, whole, gradient)
    module.train()
    rate, start, fixed = training.rate(round), whole.clone(), _fixed(module, layout, guides.trained)
    around = (start if guides.around is None else torch.from_numpy(guides.around))[: layout.trained]
    drift = None if guides.drift is None else torch.from_numpy(guides.drift)[: layout.trained]
    kept = recalled(training, layout.trained, moments)
    step = _optimizer(training, weights, gradient, kept, rate)
    chosen, draws = orders(seed, round, device, len(y), samples, epochs, first_epoch)
    losses: list[Tensor] = []
    with seeded(int(in_round(seed, round, device, RoundKey.LAYERS).integers(2**62))):  # for dropout and the like
        for draw in draws:
            order = torch.from_numpy(chosen[draw])
            shuffled, labels = some(given, order), targets[order]
            losses.clear()
            for first in range(0, len(order), training.batch_size):
                batch = slice(first, first + training.batch_size)
                with lone(module) if len(labels[batch]) == 1 else nullcontext():
                    loss = loss_of(called(module, some(shuffled, batch)), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                if training.weight_decay and training.optimizer != "adamw":
                    gradient.add_(weights, alpha=training.weight_decay)
                if training.proximal:
                    gradient.add_(weights - around, alpha=training.proximal)
                if drift is not None:
                    gradient.add_(drift)
                step()
                if fixed is not None:
                    whole.copy_(torch.where(fixed, start, whole))
                gradient.zero_()
                losses.append(loss.detach() * len(labels[batch]))
    if not torch.isfinite(whole).all():
        raise diverged(device, round, training)
    if moments is not None:
        moments |= kept
    return float(torch.stack(losses).sum()) / samples if losses else float("nan")


def _optimizer(
    training: Training, weights: "Tensor", gradient: "Tensor", kept: dict[str, Array], rate: float
) -> Callable[[], None]:
    """A step by the gradient as it is then; what the optimizer remembers is kept in these arrays."""
    memory = {name: torch.from_numpy(values) for name, values in kept.items()}
    steps = kept["steps"]

    def descend() -> None:
        if training.momentum:
            memory["velocity"].mul_(training.momentum).add_(gradient)
        weights.add_(memory["velocity"] if training.momentum else gradient, alpha=-rate)

    def adapt() -> None:
        steps[0] += 1
        (low, high), (mean, square) = training.betas, (memory["mean"], memory["square"])
        if training.optimizer == "adamw":
            weights.mul_(1 - rate * training.weight_decay)
        mean.lerp_(gradient, 1 - low)
        square.mul_(high).addcmul_(gradient, gradient, value=1 - high)
        root = square.sqrt().div_(math.sqrt(1 - high ** int(steps[0]))).add_(training.epsilon)
        weights.addcdiv_(mean, root, value=-rate / (1 - low ** int(steps[0])))

    return descend if training.optimizer == "sgd" else adapt


def _fixed(module: "nn.Module", layout: Layout, trained: Array | None) -> "Tensor | None":
    """(B,) the columns that stay as they are: those that are not trained, and a module's frozen parameters."""
    fixed = np.zeros(layout.size, bool) if trained is None else ~trained
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    for slot in layout.slots:
        if slot.name in frozen:
            fixed[slot.start : slot.stop] = True
    return torch.from_numpy(fixed) if fixed.any() else None


def loss_function(training: Training) -> "Callable[[Tensor, Tensor], Tensor]":
    """The mean loss of some outputs and targets."""
    functional = torch.nn.functional
    if training.own_loss:
        return _parts.function("training.loss", training.loss)
    if training.loss in ("cross_entropy", "smoothed"):
        share = training.smoothing * (training.loss == "smoothed")
        return lambda outputs, labels: functional.cross_entropy(
            by_class(outputs, labels.shape[1:]), labels, label_smoothing=share
        )
    names = {"mse": "mse_loss", "mae": "l1_loss", "bce": "binary_cross_entropy_with_logits"}
    of_numbers = getattr(functional, names[training.loss])
    return lambda outputs, targets: of_numbers(outputs, targets.reshape(outputs.shape))


def by_class(outputs: "Tensor", tokens: Sequence[int]) -> "Tensor":
    """(n, labels) as it is, or (n, labels, tokens)."""
    return outputs.movedim(class_axis(outputs.shape, tokens), 1) if len(tokens) else outputs


def targets_of(training: Training, y: Array) -> "Tensor":
    """Targets as the loss wants them: labels as they are, others as float32."""
    labels = y.dtype.kind in "iu" and (training.own_loss or LOSSES[training.loss] == "labels")
    return torch.from_numpy(y if labels else y.astype(np.float32))


def confusion(
    module: "nn.Module", layout: Layout, row: Array, x: Array, y: Array, classes: int, training: Training = USUAL
) -> tuple[Array, float]:
    """((classes, classes) counts: true label by row, guess by column; sum of the losses)."""
    whole = _outputs(module, layout, row, x)
    if not len(whole):
        return np.zeros((classes, classes), np.int64), 0.0
    guesses, known = by_class(whole, y.shape[1:]).argmax(dim=1).numpy(), y != NO_LABEL
    counts = np.bincount(y[known] * classes + guesses[known], minlength=classes * classes)
    if training.loss == "cross_entropy" and y.ndim == 1:
        loss = torch.nn.functional.cross_entropy(whole, torch.from_numpy(y), reduction="sum")
    else:
        loss = loss_function(training)(whole, torch.from_numpy(y)) * len(y)
    return counts.reshape(classes, classes), float(loss)


def predict(module: "nn.Module", layout: Layout, row: Array, x: Array, tokens: Sequence[int] = ()) -> Array:
    """(n, labels) probabilities, or (n, tokens, labels)."""
    whole = _outputs(module, layout, row, x)
    if not len(whole):
        return np.empty((0, 1), np.float32)
    return np.asarray(by_class(whole, tokens).softmax(dim=1).movedim(1, -1).numpy())


def raw(
    module: "nn.Module", layout: Layout, row: Array, x: Array, y: Array | None, training: Training
) -> tuple[Array, float]:
    """(what a module gives, (n, ...); with targets, the sum of their losses)."""
    whole = _outputs(module, layout, row, x)
    if y is None or not len(whole):
        return np.asarray(whole.numpy()), 0.0
    return np.asarray(whole.numpy()), whole_loss(whole.numpy(), y, training)


def whole_loss(outputs: Array, y: Array, training: Training) -> float:
    """Sum of the losses of outputs."""
    given = torch.from_numpy(np.ascontiguousarray(outputs))
    return float(loss_function(training)(given, targets_of(training, y))) * len(y)


def _outputs(module: "nn.Module", layout: Layout, row: Array, x: Array) -> "Tensor":
    with torch.no_grad():
        attach(module, layout, torch.from_numpy(np.ascontiguousarray(row)))
        module.eval()
        given = inputs(x)
        outputs = [called(module, some(given, slice(i, i + 50))) for i in range(0, len(x), 50)]  # fits the cache
        return torch.cat(outputs) if outputs else torch.empty((0, 1))


def outputs(module: "nn.Module", x: Array) -> tuple[int, ...]:
    """Shape of what a module gives for two samples."""
    with torch.no_grad():
        return tuple(called(copy.deepcopy(module).eval(), inputs(x[:2])).shape)


def flops(module: "nn.Module", x: Array, y: Array, training: Training) -> int:
    """Floating-point operations of training on one sample, as torch counts them."""
    counter = import_module("torch.utils.flop_counter")  # takes a second to import
    module = copy.deepcopy(module).train()  # on two samples, for layers that need more than one (batch norm)
    with counter.FlopCounterMode(display=False) as counted:
        loss = loss_function(training)(called(module, inputs(x[:2])), targets_of(training, y[:2]))
        loss.backward()  # type: ignore[no-untyped-call]
    return int(counted.get_total_flops()) // 2


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside torch: parallel over devices instead, and the same bits everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def settle() -> None:
    """Prepare a worker process: one thread, and memory that is kept.

    Freeing one large block lets malloc keep what is freed. A new process would give the buffers of every batch back to
    the system and fetch them again, at the cost of a fifth of its time.
    """
    torch.set_num_threads(1)
    torch.empty(8_000_000)
