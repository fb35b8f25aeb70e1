"""How samples are dealt to devices."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedfilt._checks import check_count, check_number
from fedfilt._draws import Key, generator
from fedfilt._types import Array
from fedfilt.data.samples import FederatedData, Samples

WHOLE = "whole"


@dataclass(frozen=True)
class Sizes:
    """How many samples a device gets for training, for the local test (its own distribution) and for the global test.

    `train` may be a pair (low, high): each device's number is then drawn between them. "whole" means all test samples.
    """

    train: int | tuple[int, int] = 450  # training samples of a device, or [low, high] to draw a number for each
    # samples like the device's own, or "whole": all test samples of its labels, by their share in its data
    local_test: int | str = 100
    global_test: int | str = 100  # test samples of all labels, or "whole"

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


@dataclass(frozen=True)
class Numbers(Sizes):
    """Sizes with a given number of training samples for each device, for partitions that reuse another's draw."""

    numbers: tuple[int, ...] = ()

    @classmethod
    def of(cls, sizes: Sizes, numbers: Array) -> "Numbers":
        """The same tests, with these numbers of training samples.

        >>> Numbers.of(Sizes(), np.array([3, 450])).draw(2, np.random.default_rng(0)).tolist()
        [3, 450]
        """
        span = int(numbers.min(initial=0)), max(int(numbers.max(initial=0)), 1)
        return cls(span, sizes.local_test, sizes.global_test, tuple(numbers.tolist()))

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Number of training samples of every device."""
        return np.array(self.numbers, np.int64)


def deal_by_shares(samples: Samples, shares: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
    """Deal samples so that every device has the given shares (K, classes) of labels; no sample is dealt twice."""
    if not samples.labelled:
        raise ValueError(f"this partition deals by labels, but samples of {samples.name} have none; use uniform")
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
                f"but {samples.name} has {len(pool)}; use fewer samples or devices"
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


def held_out(data: FederatedData, share: float, rng: np.random.Generator) -> FederatedData:
    """The same data, with a random share of each device's training samples, balanced in labels, for validation.

    >>> data = FederatedData.from_arrays([(np.zeros((10, 1)), [0] * 6 + [1] * 4)])
    >>> found = held_out(data, 0.3, np.random.default_rng(0))
    >>> len(found.train[0]), data.y[found.validation[0]].tolist()
    (7, [0, 0, 1])
    """
    train, validation = [], []
    for rows, counts in zip(data.train, data.label_counts, strict=True):
        number = min(round(share * len(rows)), max(len(rows) - 1, 0))
        labels = data.y[rows] if data.labelled else np.zeros(len(rows), int)
        taken = np.zeros(len(rows), bool)
        for label, wanted in enumerate(split(number, counts)) if number else ():
            taken[rng.permutation(np.flatnonzero(labels == label))[:wanted]] = True
        train.append(rows[~taken])
        validation.append(rows[taken])
    if not any(map(len, validation)):
        raise ValueError(
            f"evaluation.validation = {share:g} gives no device a sample: each has too few training samples"
        )
    return replace(data, train=tuple(train), validation=tuple(validation))


Change = Callable[[Array, Array, int], tuple[Array, Array]]  # inputs, targets, number of a room -> the same as it has


def changed_by_room(data: FederatedData, rooms: Array, change: Change) -> FederatedData:
    """The same data, with the samples of each room changed in its own way; rooms are numbered in order.

    The global test is dealt to the rooms in turn, so it has equal parts of all. A new pool holds copies of the samples
    in use; a test shared by devices in several rooms is in it once for each room. If the local test is the part of the
    whole global test with the device's labels, it is changed in the way of the device's room.

    >>> data = FederatedData.from_arrays([(np.zeros((2, 1)), [0, 1]), (np.ones((2, 1)), [0, 1])])
    >>> changed_by_room(data, np.array([0, 1]), lambda x, y, room: (x + 10 * room, y)).x.ravel().tolist()
    [0.0, 1.0, 10.0, 11.0, 0.0, 0.0, 11.0, 11.0, 0.0, 0.0, 11.0, 11.0]
    """
    number = np.unique(rooms, return_inverse=True)[1].tolist()
    count, own, whole = max(number) + 1, data.count, data.local_test is None
    parts = [(data.global_test if whole else data.global_test[room::count], room) for room in range(count)]
    for of_devices in (data.train, data.validation or (), data.local_test or ()):
        parts += [(rows, number[device]) for device, rows in enumerate(of_devices)]
    made = [change(data.x[rows], data.y[rows], room) for rows, room in parts]
    ends = np.cumsum([len(rows) for rows, _ in parts])
    places = [np.arange(end - len(rows), end) for end, (rows, _) in zip(ends, parts, strict=True)]
    everybody, mine = places[:count], places[count:]
    local = tuple(mine[-own:])
    if whole:
        has = data.label_counts[:, data.y[data.global_test]] > 0
        local = tuple(everybody[number[device]][has[device]] for device in range(own))
    return replace(
        data,
        x=np.concatenate([x for x, _ in made]),
        y=np.concatenate([y for _, y in made]),
        train=tuple(mine[:own]),
        local_test=local,
        global_test=np.concatenate([rows[room::count] if whole else rows for room, rows in enumerate(everybody)]),
        moments=None if data.moments is None else data.moments[np.concatenate([rows for rows, _ in parts])],
        validation=None if data.validation is None else tuple(mine[own : 2 * own]),
    )


def draw_test(samples: Samples, numbers: Array, rng: np.random.Generator, key: str = "local_test") -> Array:
    """Test samples with the given number of each label; devices may share them."""
    parts = []
    for label, number in enumerate(numbers):
        pool = np.flatnonzero((samples.y == label) & samples.test)
        if number > len(pool):
            raise ValueError(
                f"samples.{key} asks for {number} test samples with label {label}, but {samples.name} has {len(pool)}"
            )
        parts.append(rng.choice(pool, number, replace=False))
    return np.sort(np.concatenate(parts))


def draw_global_test(samples: Samples, sizes: Sizes, rng: np.random.Generator) -> Array:
    """The global test: all test samples, or a random part that has all labels if there are labels."""
    pool = np.flatnonzero(samples.test)
    if sizes.global_test == WHOLE:
        return pool
    number = int(sizes.global_test)
    if number > len(pool):
        raise ValueError(f"samples.global_test asks for {number} test samples, {samples.name} has {len(pool)}")
    if not samples.labelled:
        return np.sort(rng.choice(pool, number, replace=False))
    return draw_test(samples, split(number, np.full(samples.classes, 1 / samples.classes)), rng, "global_test")


def split(number: int, shares: Array, before: Array | None = None) -> Array:
    """Whole numbers in proportion to `shares` that sum to `number`: largest remainders first.

    Equal remainders are rounded up where `before`, what others got, is smallest, so that no label is favoured.

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


def hold_out(data: FederatedData, share: float, seed: int) -> FederatedData:
    """The same data, with a share of each device's training samples as its local test, and all of them as the global.

    Labels keep their proportions, and one sample of each stays for training, where there are enough of them. A device
    with fewer than two samples is not tested; with a share of 0 none is.

    >>> data = FederatedData.from_arrays([(np.zeros((10, 2)), [0, 1] * 5), (np.ones((1, 2)), [1])])
    >>> held = hold_out(data, 0.2, seed=0)
    >>> [len(rows) for rows in held.train], [held.label_counts[0].tolist(), len(held.global_test)]
    ([8, 1], [[4, 4], 2])
    """
    check_number("holdout", share, low=0, high=0.9)
    parts = [_parted(data.y, rows, share, generator(seed, Key.HOLDOUT, i)) for i, rows in enumerate(data.train)]
    train, test = zip(*parts, strict=True)
    return replace(data, train=train, local_test=test, global_test=np.concatenate(test))


def _parted(y: Array, rows: Array, share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """(the rest, a share) of some samples, both in their order."""
    number = min(max(round(share * len(rows)), 1), len(rows) - 1) if share else 0
    order = rng.permutation(len(rows))
    if number > 0 and y.ndim == 1 and np.issubdtype(y.dtype, np.integer):
        labels, kind = np.unique(y[rows], return_inverse=True)
        spare = np.bincount(kind, minlength=len(labels)) - 1
        if spare.sum() >= number:
            wanted = split(number, spare / spare.sum())
            order = np.concatenate([order[kind[order] == label][:few] for label, few in enumerate(wanted)])
    held = np.sort(order[: max(number, 0)])
    return np.delete(rows, held), rows[held]
