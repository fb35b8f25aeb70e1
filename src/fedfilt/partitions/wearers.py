from dataclasses import dataclass, replace

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.data.deal import WHOLE, Sizes, draw_global_test, split
from fedfilt.data.samples import FederatedData, Samples


@dataclass(frozen=True)
class Wearers:
    """Every device has its own recordings: at most `samples.train` windows, with labels in their proportions.

    `unseen` randomly drawn people do not take part: their tests form the global test. Without them, it is all tests.

    >>> Wearers(unseen=2)
    Wearers(unseen=2)
    """

    unseen: int = 0  # people whose tests are the global test, and who take no part

    def __post_init__(self) -> None:
        check_count("unseen", self.unseen, low=0)

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        if samples.devices is None or samples.writers is None:
            raise ValueError(f"partition wearers needs recordings of devices, such as watch; got {samples.name}")
        people = np.unique(samples.writers)
        if self.unseen >= len(people):
            raise ValueError(
                f"partition.unseen must be less than {len(people)}, the people of {samples.name}, got {self.unseen}"
            )
        strangers = np.isin(samples.writers, rng.permutation(people)[: self.unseen])
        devices = np.unique(samples.devices[~strangers])
        if len(devices) != len(rooms):
            raise ValueError(
                f"graph must have {len(devices)} devices, as {samples.name} has with {self.unseen} people unseen, "
                f"got {len(rooms)}"
            )
        owners = [samples.writers[samples.devices == device][0] for device in devices]
        homes = len(np.unique(rooms)), len(set(owners))
        if homes[0] == homes[1] != len({*zip(np.asarray(rooms).tolist(), owners, strict=True)}):
            raise ValueError(
                f"the graph's rooms must be the people of {samples.name}, who have "
                f"{', '.join(str(owners.count(person)) for person in dict.fromkeys(owners))} devices; "
                f"got rooms {np.asarray(rooms).tolist()}"
            )
        numbers = sizes.draw(len(devices), rng)
        train, local, spare = [], [], []
        for device, number in zip(devices, numbers, strict=True):
            own = samples.devices == device
            train.append(_draw(samples, own & ~samples.test, int(number), rng))
            spare.append(np.setdiff1d(np.flatnonzero(own & ~samples.test), train[-1]))
            whole = sizes.local_test == WHOLE
            local.append(_draw(samples, own & samples.test, None if whole else int(sizes.local_test), rng))
        if self.unseen:
            pool = strangers & samples.test
            test = _draw(samples, pool, None if sizes.global_test == WHOLE else int(sizes.global_test), rng)
        else:
            test = draw_global_test(samples, sizes, rng)
        kinds = None if samples.kinds is None else tuple(samples.kinds[device] for device in devices)
        named = samples.name, samples.x, samples.y, samples.classes
        data = FederatedData(*named, tuple(train), tuple(local), test, samples.moments, kinds, tuple(spare))
        if samples.shapes is None or samples.kinds is None:
            return data
        shapes = tuple(samples.shapes[device] for device in devices)
        return replace(data, shapes=shapes, made_by=np.array(samples.kinds)[samples.devices])


def _draw(samples: Samples, pool: Array, number: int | None, rng: np.random.Generator) -> Array:
    """Up to `number` samples of the pool, in order of time, with labels in their proportions."""
    rows = np.flatnonzero(pool)
    if number is None or number >= len(rows):
        return rows
    if not samples.labelled:
        return np.sort(rng.choice(rows, number, replace=False))
    counts = np.bincount(samples.y[rows], minlength=samples.classes)
    wanted = np.minimum(split(number, counts, rng.random(samples.classes)), counts)
    chosen = [rng.choice(rows[samples.y[rows] == label], n, replace=False) for label, n in enumerate(wanted) if n]
    return np.sort(np.concatenate(chosen)) if chosen else rows[:0]
