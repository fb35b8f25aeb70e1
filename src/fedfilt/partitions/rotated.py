from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.data.deal import Sizes, changed_by_room
from fedfilt.data.samples import FederatedData, Samples
from fedfilt.partitions.uniform import Uniform


@dataclass(frozen=True)
class Rotated:
    """Pictures in the r-th room, from 0, are turned by r times `degrees`, a multiple of 90: rooms differ in inputs.

    `partition` deals the samples; with room_labels, rooms differ in both. The global test has equally many pictures
    turned like each room's. Without rooms in the graph, nothing is turned.

    >>> Rotated().turned(np.array([[[[1, 2], [3, 4]]]]), room=1).tolist()
    [[[[2, 4], [1, 3]]]]
    """

    degrees: int = 90  # from room to room, a multiple of 90
    partition: Any = Uniform()  # deals the samples

    def __post_init__(self) -> None:
        if check_count("partition.degrees", self.degrees, low=0, high=360) % 90:
            raise ValueError(f"partition.degrees must be a multiple of 90, got {self.degrees}")

    def turned(self, pictures: Array, room: int) -> Array:
        """Pictures (n, channels, height, width) as seen by the room with this number."""
        return np.rot90(pictures, room * self.degrees // 90 % 4, axes=(2, 3))

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        if samples.x.ndim != 4 or (samples.x.shape[2] != samples.x.shape[3] and self.degrees % 180):
            shape = samples.x.shape[1:]
            raise ValueError(f"partition rotated needs square pictures, such as mnist; {samples.name} has {shape}")
        data = self.partition(samples, rooms, sizes, rng)
        return changed_by_room(data, rooms, lambda x, y, room: (self.turned(x, room), y))
