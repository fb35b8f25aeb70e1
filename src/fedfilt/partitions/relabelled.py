from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.data.deal import Sizes, changed_by_room
from fedfilt.data.samples import FederatedData, Samples
from fedfilt.partitions.uniform import Uniform


@dataclass(frozen=True)
class Relabelled:
    """Concept shift: the r-th room, from 0, calls label c of C (c + r · `shift`) mod C, for the same inputs.

    `partition` deals the samples. The global test has equally many samples labelled in each room's way, so no model can
    be right about all of it. Without rooms in the graph, nothing changes.

    >>> Relabelled().called(np.array([0, 1, 9]), room=2, classes=10).tolist()
    [2, 3, 1]
    """

    shift: int = 1  # of labels from room to room
    partition: Any = Uniform()  # deals the samples

    def __post_init__(self) -> None:
        check_count("partition.shift", self.shift, low=0)

    def called(self, labels: Array, room: int, classes: int) -> Array:
        """Labels as used by the room with this number."""
        return (labels + room * self.shift) % classes

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        if not samples.labelled:
            raise ValueError(f"partition relabelled changes labels, but samples of {samples.name} have none")
        data = self.partition(samples, rooms, sizes, rng)
        return changed_by_room(data, rooms, lambda x, y, room: (x, self.called(y, room, samples.classes)))
