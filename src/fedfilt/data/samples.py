"""Samples, and which device holds which of them."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedfilt._brief import brief
from fedfilt._types import Array


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """A data set before it is dealt: inputs, targets, which samples are for testing, and who produced them.

    Targets are labels, true or false, or numbers: see `FederatedData.from_arrays`.
    """

    name: str
    x: Array  # (N, ...) uint8 (0..255, scaled to 0..1 for training) or float32
    y: Array  # (N,) labels from 0; or other targets, (N, ...)
    classes: int  # number of labels
    test: Array  # (N,) True for samples of the test set
    writers: Array | None = None  # (N,) number of the person behind each sample
    devices: Array | None = None  # (N,) number of the device that recorded it
    moments: Array | None = None  # (N,) the same number for samples of the same moment
    kinds: tuple[str, ...] | None = None  # kind of every device, where devices differ in their sensors
    shapes: tuple[tuple[int, ...], ...] | None = None  # of every device's inputs, where they differ: see `flat`

    @property
    def labelled(self) -> bool:
        """Whether every sample has one label."""
        return _labelled(self.y)

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """What every device holds: indices into one pool of samples.

    `local_test` is None if the local test is the whole global test restricted to the device's own labels; these are
    then weighted by `shares`.

    >>> import fedfilt
    >>> config = {"data": "digits", "model": "logistic", "samples": {"train": 9, "local_test": 9}}
    >>> data = fedfilt.Run(fedfilt.from_table(config)).data
    >>> data.count, data.classes, len(data.train[0])
    (20, 10, 9)
    """

    name: str
    x: Array
    y: Array
    classes: int
    train: tuple[Array, ...]
    local_test: tuple[Array, ...] | None
    global_test: Array
    moments: Array | None = None  # (N,) the same number for samples of the same moment
    kinds: tuple[str, ...] | None = None  # kind of every device, where devices differ in their sensors
    validation: tuple[Array, ...] | None = None  # per device: samples used neither for training nor for tests
    elsewhere: bool = False  # held by the devices themselves and unknown here
    shapes: tuple[tuple[int, ...], ...] | None = None  # of every device's inputs, where they differ: see `flat`
    made_by: Array | None = None  # (N,) kind of the device behind each sample, where shapes differ

    def __repr__(self) -> str:
        return brief(self)

    @property
    def count(self) -> int:
        """Number of devices K."""
        return len(self.train)

    @property
    def examples(self) -> tuple[Array, Array]:
        """(two inputs, their labels) to try a model on; zeros if there are no samples here."""
        if len(self.y):
            return self.x[:2], self.y[:2]
        return np.zeros((2, *self.x.shape[1:]), self.x.dtype), np.zeros((2, *self.y.shape[1:]), self.y.dtype)

    @property
    def labelled(self) -> bool:
        """Whether every sample has one label."""
        return _labelled(self.y)

    def everybodys(self, device: int) -> Array:
        """The global test of a device; if shapes differ, only the part from devices of its kind."""
        if self.made_by is None or self.kinds is None:
            return self.global_test
        return self.global_test[self.made_by[self.global_test] == self.kinds[device]]

    @cached_property
    def label_counts(self) -> Array:
        """(K, classes) training samples per device and label; (K, 1) per device if samples have no labels."""
        if not self.labelled:
            return np.array([[len(rows)] for rows in self.train])
        return np.stack([np.bincount(self.y[rows], minlength=self.classes) for rows in self.train])

    @cached_property
    def shares(self) -> Array:
        """(K, classes) share of each label in a device's training samples; equal shares for a device without any."""
        counts = self.label_counts + (self.label_counts.sum(axis=1, keepdims=True) == 0)
        return counts / counts.sum(axis=1, keepdims=True)

    @cached_property
    def hash(self) -> str:
        """sha256 of which device holds which samples, and of their labels; if they are elsewhere, of what is known."""
        digest = hashlib.sha256(self.name.encode())
        if self.shapes is not None:
            digest.update(f"{self.shapes} {self.kinds}".encode())
        if self.elsewhere:
            digest.update(f"{self.x.shape[1:]} {self.classes}".encode() + self.y[self.global_test].tobytes())
            return digest.hexdigest()
        for rows in (*self.train, *(self.local_test or ()), self.global_test):
            digest.update(np.int64(len(rows)).tobytes() + rows.astype(np.int64).tobytes())
            digest.update(self.y[rows].astype(np.float64 if self.y.dtype.kind == "f" else np.int64).tobytes())
        return digest.hexdigest()

    def to_json(self) -> str:
        """The partition as JSON: indices per device, label counts, shape and hash; less if samples are elsewhere."""
        if self.elsewhere:
            return json.dumps({"data": self.name, "hash": self.hash, "devices": self.count})
        return json.dumps(
            {
                "data": self.name,
                "hash": self.hash,
                "shape": list(self.x.shape[1:]),
                **({} if self.shapes is None else {"shapes": self.shapes, "kinds": self.kinds}),
                "dtype": str(self.x.dtype),
                "label_counts": self.label_counts.tolist(),
                "train": [rows.tolist() for rows in self.train],
                "local_test": None if self.local_test is None else [rows.tolist() for rows in self.local_test],
                "global_test": self.global_test.tolist() if len(self.global_test) < 2000 else len(self.global_test),
            }
        )

    @classmethod
    def from_arrays(
        cls,
        train: Sequence[Any],
        local_test: Sequence[tuple[Any, Any]] | None = None,
        global_test: tuple[Any, Any] | None = None,
    ) -> "FederatedData":
        """Your own data: (inputs, targets) per device for training and, optionally, for tests.

        Inputs of type uint8 are treated as pixels and scaled to 0..1 for the model. Other integers are passed to a
        torch module as integers if it accepts them, as for an embedding; otherwise they become floats. A tuple or dict
        of arrays holds several inputs of a torch module. Instead of a pair, you can pass a torch `Dataset`.
        Targets are labels (integers from 0: one per sample, or one per token, with -100 for none), answers (True or
        False, one or several per sample; or 0 and 1 with the loss bce), or numbers (floats, one or several per sample).
        Without a local test, each device is tested on its training samples; without a global test, on all local tests.
        Devices may have inputs of different shapes, to be trained behind encoders: devices with the same shape are then
        of one kind, and their global test is the part with that shape.

        >>> data = FederatedData.from_arrays([(np.zeros((4, 2)), [0, 1, 0, 1]), (np.ones((3, 2)), [1, 1, 1])])
        >>> data.count, data.classes, data.label_counts.tolist()
        (2, 2, [[2, 2], [0, 3]])
        """
        if not train:
            raise ValueError("train must hold (inputs, targets) for at least one device, got none")
        if local_test is not None and len(local_test) != len(train):
            raise ValueError(f"local_test must have one entry per device ({len(train)}), got {len(local_test)}")
        named = [(f"train[{i}]", part) for i, part in enumerate(train)]
        named += [(f"local_test[{i}]", part) for i, part in enumerate(local_test or [])]
        named += [("global_test", global_test)] if global_test is not None else []
        checked = [arrays_of(name, part) for name, part in named]
        shapes = [x.shape[1:] for x, _ in checked]
        unlike = len(set(shapes)) > 1 and all(x.dtype.names is None for x, _ in checked)
        inputs = [x for x, _ in checked]
        x = _joined_inputs(dict(zip((name for name, _ in named), flat(inputs) if unlike else inputs, strict=True)))
        ends = np.cumsum([0, *(len(y) for _, y in checked)])
        rows = tuple(np.arange(a, b) for a, b in itertools.pairwise(ends))
        trains = rows[: len(train)]
        tests = rows[len(train) : 2 * len(train)] if local_test is not None else trains
        everybody = rows[-1] if global_test is not None else np.concatenate(tests)
        y = _joined({name: y for (name, _), (_, y) in zip(named, checked, strict=True) if len(y)})
        classes = int(y.max()) + 1 if y.dtype.kind == "i" else math.prod(y.shape[1:])
        data = cls("arrays", x, y, classes, trains, tests, everybody)
        if not unlike:
            return data
        for i in range(len(local_test or [])):
            if (got := checked[len(train) + i][0].shape[1:]) != shapes[i]:
                raise ValueError(f"local_test[{i}] must have inputs of shape {shapes[i]}, like train[{i}], got {got}")
        if global_test is not None and shapes[-1] not in shapes[: len(train)]:
            allowed = ", ".join(map(str, dict.fromkeys(shapes[: len(train)])))
            raise ValueError(f"global_test must have inputs of a shape that devices have ({allowed}), got {shapes[-1]}")
        names = ["x".join(map(str, shape)) for shape in shapes]
        made_by = np.repeat(names, [len(part) for _, part in checked])
        count = len(train)
        return replace(data, shapes=tuple(shapes[:count]), kinds=tuple(names[:count]), made_by=made_by)


def flat(parts: Sequence[Array]) -> list[Array]:
    """Inputs of different shapes as rows of one length: each sample is flattened and padded with zeros.

    >>> [one.shape for one in flat([np.ones((2, 3, 4)), np.ones((5, 6))])]
    [(2, 12), (5, 12)]
    """
    sizes = [math.prod(x.shape[1:]) for x in parts]
    pairs = zip(parts, sizes, strict=True)
    return [np.pad(x.reshape(len(x), size), ((0, 0), (0, max(sizes) - size))) for x, size in pairs]


def shaped(x: Array, shape: tuple[int, ...]) -> Array:
    """Inputs in their shape again, if `flat` has made rows of them.

    >>> shaped(flat([np.ones((2, 3, 4)), np.ones((5, 6))])[1], (6,)).shape
    (5, 6)
    """
    size = math.prod(shape)
    if x.shape[1:] == shape or x.ndim != 2 or x.shape[1] < size:
        return x
    return np.ascontiguousarray(x[:, :size]).reshape(-1, *shape)


def _labelled(y: Array) -> bool:
    return y.ndim == 1 and y.dtype.kind in "iu"


def _joined(targets: dict[str, Array]) -> Array:
    """The targets of all non-empty parts in one array."""
    if not targets:
        raise ValueError("train must hold at least one sample, got none")
    first = next(iter(targets.values()))
    for name, y in targets.items():
        if (y.dtype, y.shape[1:]) != (first.dtype, first.shape[1:]):
            wanted, got = (f"{one.dtype} of shape {one.shape[1:]}" for one in (first, y))
            raise ValueError(f"{name} must have targets like the others, {wanted} each, got {got}")
    return np.concatenate(list(targets.values()))


def joined(parts: Any) -> Array:
    """Several inputs per sample, a tuple or a dict of arrays, in one structured array: one row per sample.

    A torch module receives them as a tuple or a dict again.

    >>> joined({"picture": np.zeros((2, 1, 8, 8)), "tokens": [[1, 2], [3, 4]]}).dtype.names
    ('picture', 'tokens')
    """
    named = dict(parts) if isinstance(parts, Mapping) else {str(i): part for i, part in enumerate(parts)}
    if isinstance(parts, Mapping) and (numbered(named) or not all(isinstance(name, str) for name in named)):
        raise ValueError(f"inputs must have names that are words, got {', '.join(map(str, named))}")
    arrays = {name: _plain(np.asarray(part)) for name, part in named.items()}
    count = {len(array) for array in arrays.values() if array.ndim}
    if len(count) != 1 or not all(array.ndim for array in arrays.values()):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"inputs must all have one row per sample, got shapes {shapes}")
    whole = np.empty(count.pop(), [(name, array.dtype, array.shape[1:]) for name, array in arrays.items()])
    for name, array in arrays.items():
        whole[name] = array
    return whole


def numbered(names: Iterable[str]) -> bool:
    """Whether inputs were a tuple, not a dict."""
    return all(str(name).isdigit() for name in names)


def inputs_of(inputs: Any, count: int | None = None) -> Array:
    """Inputs as one array: a dict holds several inputs, and so does a tuple of arrays with `count` rows each.

    A tuple that itself has `count` entries holds samples.
    """
    if isinstance(inputs, Mapping):
        return joined(inputs)
    if isinstance(inputs, tuple) and len(inputs) != count and all(np.ndim(one) for one in inputs):
        rows = {len(one) for one in inputs}
        if len(rows) == 1 and count in (None, *rows):
            return joined(inputs)
    x = np.asarray(inputs)
    return x if x.dtype.names is not None else _plain(x.astype(np.float32) if x.dtype.kind == "b" else x)


def _plain(x: Array) -> Array:
    """Pixels and booleans unchanged; integers as int64, other numbers as float32."""
    if x.dtype == np.uint8 or x.dtype.kind == "b":
        return x
    return x.astype(np.int64 if x.dtype.kind in "iu" else np.float32)


def _joined_inputs(inputs: dict[str, Array]) -> Array:
    """The inputs of all parts in one array."""
    first = next(iter(inputs.values()))
    for name, x in inputs.items():
        if x.shape[1:] != first.shape[1:] or x.dtype.names != first.dtype.names:
            raise ValueError(f"{name} must have inputs of shape {first.shape[1:]} like the others, got {x.shape[1:]}")
    kinds = {x.dtype for x in inputs.values() if len(x)}
    if len(kinds) > 1 and first.dtype.names is None:
        return np.concatenate([x.astype(np.float32) if x.dtype.kind == "i" else x for x in inputs.values()])
    if len(kinds) > 1:
        raise ValueError(f"inputs must have the same type on all devices, got {' and '.join(map(str, kinds))}")
    return np.concatenate([x.astype(next(iter(kinds), x.dtype), copy=False) for x in inputs.values()])


def arrays_of(name: str, part: Any) -> tuple[Array, Array]:
    """(inputs, targets) of a device as checked arrays, from a pair or from a torch `Dataset` of pairs."""
    if hasattr(part, "__getitem__") and hasattr(part, "__len__") and not isinstance(part, tuple | list | np.ndarray):
        part = _read(name, part)
    try:
        inputs, targets = part
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a pair (inputs, targets) or a Dataset, got {type(part).__name__}") from None
    y = np.asarray(targets)
    x = inputs_of(inputs, len(y) if y.ndim else None)
    if x.ndim < 2 - (x.dtype.names is not None) or y.shape[:1] != (len(x),):
        raise ValueError(f"{name} must have as many targets as inputs, got shapes {x.shape} and {y.shape}")
    if not all(np.isfinite(x[key]).all() for key in x.dtype.names or [...]):
        raise ValueError(f"{name} must have finite inputs, got NaN or infinity")
    return x, _checked_targets(name, y)


def _read(name: str, dataset: Any) -> tuple[Any, Array]:
    """All samples of a data set that returns them one by one."""
    try:
        inputs, targets = zip(*(dataset[i] for i in range(len(dataset))), strict=True)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"{name} must be a pair or a Dataset of pairs (input, target): {error}") from None
    y = np.stack([np.asarray(target) for target in targets])
    if isinstance(inputs[0], Mapping):
        return {key: np.stack([np.asarray(one[key]) for one in inputs]) for key in inputs[0]}, y
    if isinstance(inputs[0], tuple | list):
        return joined(tuple(np.stack([np.asarray(one) for one in part]) for part in zip(*inputs, strict=True))), y
    return np.stack([np.asarray(one) for one in inputs]), y


def _checked_targets(name: str, y: Array) -> Array:
    kind = y.dtype.kind
    if not len(y) or kind == "b":
        return y
    low = y.min(where=y != -100, initial=0) if kind in "iu" and y.ndim > 1 else y.min() if kind in "iu" else 0
    if kind not in "iuf" or low < 0:
        got = f"{y.dtype} from {low}" if kind in "iu" else y.dtype
        raise ValueError(f"{name} must have labels 0, 1, 2, ..., True and False, or floats, got {got}")
    if not np.isfinite(y).all():
        raise ValueError(f"{name} must have finite targets, got NaN or infinity")
    return y.astype(np.float32 if kind == "f" else np.int64)
