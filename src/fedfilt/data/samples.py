"""Samples, and what every device holds of them."""

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedfilt._types import Array


@dataclass(frozen=True, eq=False)
class Samples:
    """A data set before it is dealt: inputs, labels, which samples are for testing, and who wrote them."""

    name: str
    x: Array  # (N, ...) uint8 (0..255, scaled to 0..1 for training) or float32
    y: Array  # (N,) labels from 0
    classes: int
    test: Array  # (N,) True for samples of the test set
    writers: Array | None = None  # (N,) number of the person behind each sample
    devices: Array | None = None  # (N,) number of the device that recorded it
    moments: Array | None = None  # (N,) the same number for samples of the same moment
    kinds: tuple[str, ...] | None = None  # kind of every device, where devices differ in their sensors


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What every device holds: indices into one pool of samples.

    `local_test` is None where the local test is the whole global test restricted to the device's own labels; `shares`
    then weighs them.
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
    validation: tuple[Array, ...] | None = None  # per device: samples it neither trains on nor is tested with
    elsewhere: bool = False  # held by the devices themselves: nothing is known here about it

    @property
    def count(self) -> int:
        """Number of devices K."""
        return len(self.train)

    @property
    def examples(self) -> tuple[Array, Array]:
        """(two inputs, their labels) to try a model on; zeros where there are no samples here."""
        if len(self.y):
            return self.x[:2], self.y[:2]
        return np.zeros((2, *self.x.shape[1:]), self.x.dtype), np.zeros(2, np.int64)

    @cached_property
    def label_counts(self) -> Array:
        """(K, classes) training samples per device and label."""
        return np.stack([np.bincount(self.y[rows], minlength=self.classes) for rows in self.train])

    @cached_property
    def shares(self) -> Array:
        """(K, classes) share of every label in a device's training samples; equal shares for a device without any."""
        counts = self.label_counts + (self.label_counts.sum(axis=1, keepdims=True) == 0)
        return counts / counts.sum(axis=1, keepdims=True)

    @cached_property
    def hash(self) -> str:
        """sha256 of who holds which samples, and of the samples' labels; of what is known, if they are elsewhere."""
        digest = hashlib.sha256(self.name.encode())
        if self.elsewhere:
            digest.update(f"{self.x.shape[1:]} {self.classes}".encode() + self.y[self.global_test].tobytes())
            return digest.hexdigest()
        for rows in (*self.train, *(self.local_test or ()), self.global_test):
            digest.update(np.int64(len(rows)).tobytes() + rows.astype(np.int64).tobytes())
            digest.update(self.y[rows].astype(np.int64).tobytes())
        return digest.hexdigest()

    def to_json(self) -> str:
        """The partition as JSON: indices per device, label counts and hash; nothing of samples that are elsewhere."""
        if self.elsewhere:
            return json.dumps({"data": self.name, "hash": self.hash, "devices": self.count})
        return json.dumps(
            {
                "data": self.name,
                "hash": self.hash,
                "label_counts": self.label_counts.tolist(),
                "train": [rows.tolist() for rows in self.train],
                "local_test": None if self.local_test is None else [rows.tolist() for rows in self.local_test],
                "global_test": self.global_test.tolist() if len(self.global_test) < 2000 else len(self.global_test),
            }
        )

    @classmethod
    def from_arrays(
        cls,
        train: Sequence[tuple[Any, Any]],
        local_test: Sequence[tuple[Any, Any]] | None = None,
        global_test: tuple[Any, Any] | None = None,
    ) -> "FederatedData":
        """The user's own data: (inputs, labels) per device to train on and, optionally, to test on.

        Inputs of type uint8 are taken as pixels and scaled to 0..1 for the model; others are used as they are.
        Without a local test each device is tested on what it trained on; without a global test, on all local tests.

        >>> data = FederatedData.from_arrays([(np.zeros((4, 2)), [0, 1, 0, 1]), (np.ones((3, 2)), [1, 1, 1])])
        >>> data.count, data.classes, data.label_counts.tolist()
        (2, 2, [[2, 2], [0, 3]])
        """
        if not train:
            raise ValueError("train must hold (inputs, labels) for at least one device, got none")
        if local_test is not None and len(local_test) != len(train):
            raise ValueError(f"local_test must have one entry per device ({len(train)}), got {len(local_test)}")
        named = [(f"train[{i}]", part) for i, part in enumerate(train)]
        named += [(f"local_test[{i}]", part) for i, part in enumerate(local_test or [])]
        named += [("global_test", global_test)] if global_test is not None else []
        checked = [_checked_part(name, part) for name, part in named]
        shape = next(x.shape[1:] for x, _ in checked)
        for (name, _), (x, _) in zip(named, checked, strict=True):
            if x.shape[1:] != shape:
                raise ValueError(f"{name} must have inputs of shape {shape} like the others, got {x.shape[1:]}")
        ends = np.cumsum([0, *(len(y) for _, y in checked)])
        rows = tuple(np.arange(a, b) for a, b in itertools.pairwise(ends))
        trains = rows[: len(train)]
        tests = rows[len(train) : 2 * len(train)] if local_test is not None else trains
        everybody = rows[-1] if global_test is not None else np.concatenate(tests)
        y = np.concatenate([y for _, y in checked])
        if not len(y):
            raise ValueError("train must hold at least one sample, got none")
        return cls("arrays", np.concatenate([x for x, _ in checked]), y, int(y.max()) + 1, trains, tests, everybody)


def _checked_part(name: str, part: Any) -> tuple[Array, Array]:
    try:
        inputs, labels = part
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a pair (inputs, labels), got {type(part).__name__}") from None
    x, y = np.asarray(inputs), np.asarray(labels)
    x = x if x.dtype == np.uint8 else x.astype(np.float32)
    if x.ndim < 2 or y.shape != (len(x),):
        raise ValueError(f"{name} must be n inputs and n labels, got shapes {x.shape} and {y.shape}")
    if len(y) and (not np.issubdtype(y.dtype, np.integer) or y.min() < 0):
        raise ValueError(f"{name} must have labels 0, 1, 2, ..., got {y.dtype} from {y.min()}")
    if not np.isfinite(x).all():
        raise ValueError(f"{name} must have finite inputs, got NaN or infinity")
    return x, y.astype(np.int64)
