from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.data.deal import WHOLE, Sizes, draw_global_test
from fedfilt.data.samples import FederatedData, Samples


@dataclass(frozen=True)
class Writers:
    """Every device has the digits of `per_device` people that no other device has, also in its local test.

    With similar_rooms, the people in a room write alike (their mean digits are close); the global test is by others.

    >>> Writers(per_device=1, similar_rooms=False)
    Writers(per_device=1, similar_rooms=False)
    """

    per_device: int = 1  # people
    similar_rooms: bool = True  # whether the people of a room write alike

    def __post_init__(self) -> None:
        check_count("per_device", self.per_device)

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        if samples.writers is None:
            raise ValueError(f"partition writers needs data with writers, such as mnist_writers; got {samples.name}")
        if self.similar_rooms and not samples.labelled:
            raise ValueError(
                f"partition.similar_rooms compares labels, but samples of {samples.name} have none: set it to false"
            )
        pool = np.flatnonzero(~samples.test)
        people, number = np.unique(samples.writers[pool], return_counts=True)
        tested = 1 if sizes.local_test == WHOLE else int(sizes.local_test)
        numbers = sizes.draw(len(rooms), rng)
        fit = people[number * self.per_device >= numbers.max() + tested]
        if len(fit) < len(rooms) * self.per_device:
            raise ValueError(
                f"samples asks for {numbers.max()} + {tested} digits of {self.per_device} writers for each of "
                f"{len(rooms)} devices; only {len(fit)} writers of {samples.name} have enough (at most {number.max()})"
            )
        fit = rng.permutation(fit)
        order = np.argsort(rooms, kind="stable")
        chosen = self._grouped(samples, pool, fit, rooms[order]) if self.similar_rooms else fit
        train: list[Array] = [np.empty(0, np.int64)] * len(rooms)
        local: list[Array] = [np.empty(0, np.int64)] * len(rooms)
        for place, device in enumerate(order):
            mine = chosen[place * self.per_device : (place + 1) * self.per_device]
            rows = rng.permutation(pool[np.isin(samples.writers[pool], mine)])
            train[device] = rows[: numbers[device]]
            rest = rows[numbers[device] :]
            local[device] = np.sort(rest if sizes.local_test == WHOLE else rest[:tested])
        test = draw_global_test(samples, sizes, rng)
        return FederatedData(samples.name, samples.x, samples.y, samples.classes, tuple(train), tuple(local), test)

    def _grouped(self, samples: Samples, pool: Array, people: Array, rooms: Array) -> Array:
        """People in an order that puts similar ones into a room: each room takes a person and the nearest others."""
        pictures = samples.x[pool].reshape(len(pool), -1).astype(np.float32)
        style = np.zeros((len(people), pictures.shape[1]), np.float32)
        for label in range(samples.classes):
            same = samples.y[pool] == label
            mean = pictures[same].mean(axis=0)
            for i, person in enumerate(people):
                own = same & (samples.writers[pool] == person)  # type: ignore[index]
                if own.any():
                    style[i] += pictures[own].mean(axis=0) - mean
        left = list(range(len(people)))
        taken: list[int] = []
        for room in np.unique(rooms):
            places = int((rooms == room).sum()) * self.per_device
            distance = ((style[left] - style[left[0]]) ** 2).sum(axis=1)
            near = [left[i] for i in np.argsort(distance, kind="stable")[:places]]
            taken += near
            left = [i for i in left if i not in near]
        return people[taken]
