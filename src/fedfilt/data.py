"""Samples, and how they are dealt to devices."""

import gzip
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedfilt.checks import Array, check_count

WHOLE = "whole"


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


@dataclass(frozen=True)
class Sizes:
    """How many samples a device gets: to train on, as local test (its own distribution), as global test (everybody's).

    `train` may be a pair (low, high): each device's number is then drawn between them. "whole" is all test samples.
    """

    train: int | tuple[int, int] = 450
    local_test: int | str = 100
    global_test: int | str = 100

    def __post_init__(self) -> None:
        low, high = self.train_range
        check_count("samples.train", low, low=0)
        check_count("samples.train", high, low=max(low, 1))
        for name in ("local_test", "global_test"):
            if (value := getattr(self, name)) != WHOLE:
                if isinstance(value, str):
                    raise ValueError(f"samples.{name} must be a number or {WHOLE!r}, got {value!r}")
                check_count(f"samples.{name}", value)
        if self.local_test == WHOLE and self.global_test != WHOLE:
            raise ValueError("samples.local_test can only be 'whole' if samples.global_test is 'whole' too")

    @property
    def train_range(self) -> tuple[int, int]:
        """(low, high) of the number of training samples."""
        if isinstance(self.train, tuple | list):
            if len(self.train) != 2:
                raise ValueError(f"samples.train must be a number or a pair (low, high), got {self.train!r}")
            return self.train[0], self.train[1]
        return self.train, self.train

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Number of training samples of every device."""
        low, high = self.train_range
        return rng.integers(low, high + 1, size=count)


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

    @property
    def count(self) -> int:
        """Number of devices K."""
        return len(self.train)

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
        """sha256 of who holds which samples, and of the samples' labels."""
        digest = hashlib.sha256(self.name.encode())
        for rows in (*self.train, *(self.local_test or ()), self.global_test):
            digest.update(np.int64(len(rows)).tobytes() + rows.astype(np.int64).tobytes())
            digest.update(self.y[rows].astype(np.int64).tobytes())
        return digest.hexdigest()

    def to_json(self) -> str:
        """The partition as JSON: indices per device, label counts and hash."""
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


def deal_by_shares(samples: Samples, shares: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
    """Deal samples so that every device has the given shares (K, classes) of labels; no sample is dealt twice."""
    numbers = sizes.draw(len(shares), rng)
    wanted = np.zeros(shares.shape, np.int64)
    for device, (number, share) in enumerate(zip(numbers, shares, strict=True)):
        wanted[device] = split(number, share, wanted.sum(axis=0))
    train: list[list[Array]] = [[] for _ in shares]
    for label in range(samples.classes):
        pool = rng.permutation(np.flatnonzero((samples.y == label) & ~samples.test))
        if wanted[:, label].sum() > len(pool):
            raise ValueError(
                f"samples.train asks for {wanted[:, label].sum()} training samples with label {label}, "
                f"{samples.name} has {len(pool)}; ask for fewer samples or devices"
            )
        for device, rows in enumerate(np.split(pool, np.cumsum(wanted[:, label]))[:-1]):
            train[device].append(rows)
    if sizes.local_test == WHOLE:
        local = None
    else:
        number = int(sizes.local_test)
        local = tuple(draw_test(samples, split(number, share), rng) for share in shares)
    return FederatedData(
        samples.name,
        samples.x,
        samples.y,
        samples.classes,
        tuple(np.concatenate(parts) for parts in train),
        local,
        draw_global_test(samples, sizes, rng),
    )


def draw_test(samples: Samples, numbers: Array, rng: np.random.Generator, key: str = "local_test") -> Array:
    """Test samples with the given number of each label; devices may share them."""
    parts = []
    for label, number in enumerate(numbers):
        pool = np.flatnonzero((samples.y == label) & samples.test)
        if number > len(pool):
            raise ValueError(
                f"samples.{key} asks for {number} test samples with label {label}, {samples.name} has {len(pool)}"
            )
        parts.append(rng.choice(pool, number, replace=False))
    return np.sort(np.concatenate(parts))


def draw_global_test(samples: Samples, sizes: Sizes, rng: np.random.Generator) -> Array:
    """The global test: all test samples, or a random part with all labels."""
    pool = np.flatnonzero(samples.test)
    if sizes.global_test == WHOLE:
        return pool
    number = int(sizes.global_test)
    if number > len(pool):
        raise ValueError(f"samples.global_test asks for {number} test samples, {samples.name} has {len(pool)}")
    return draw_test(samples, split(number, np.full(samples.classes, 1 / samples.classes)), rng, "global_test")


def split(number: int, shares: Array, before: Array | None = None) -> Array:
    """Whole numbers in proportion to `shares` that sum to `number`: largest remainders first.

    Equal remainders are rounded up where `before`, what others got, is least: no label is favoured over the devices.

    >>> shares = np.array([0.25, 0.25, 0.5])
    >>> split(10, shares).tolist(), split(10, shares, before=np.array([3, 2, 5])).tolist()
    ([3, 2, 5], [2, 3, 5])
    """
    exact = number * shares / shares.sum()
    whole = np.floor(exact + 1e-9).astype(np.int64)
    ties = np.zeros(len(shares)) if before is None else before
    order = np.lexsort([ties, -np.round(exact - whole, 9)])
    whole[order[: number - whole.sum()]] += 1
    return whole


def read_idx(path: Path) -> Array:
    """The array of an IDX file, packed with gzip or not."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return parse_idx(file, str(path))


def parse_idx(file: Any, name: str) -> Array:
    """An array in the IDX format of MNIST; sizes are checked before memory is taken."""
    kinds: dict[int, Any] = {0x08: np.uint8, 0x09: np.int8, 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
    head = file.read(4)
    if len(head) != 4 or head[:2] != b"\0\0" or head[2] not in kinds or not 1 <= head[3] <= 4:
        raise ValueError(f"{name} is not an IDX file")
    shape = np.frombuffer(file.read(4 * head[3]), ">u4").astype(np.int64)
    kind = np.dtype(kinds[head[2]])
    size = int(np.prod(shape)) * kind.itemsize if len(shape) == head[3] else -1
    if not 0 <= size <= 1 << 30:
        raise ValueError(f"{name} claims an unlikely shape {shape.tolist()}")
    body = file.read(size + 1)
    if len(body) != size:
        raise ValueError(f"{name} must hold {size} bytes after its header, got {len(body)}")
    return np.frombuffer(body, kind).reshape(shape)
