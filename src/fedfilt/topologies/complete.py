from dataclasses import dataclass

import numpy as np

from fedfilt.graph import Graph
from fedfilt.topologies._building import InBuilding, check_size


@dataclass(frozen=True)
class Complete(InBuilding):
    """Links between all devices: a control.

    >>> Complete(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 45 links, 1 component, 2 rooms)
    """

    def __call__(self, seed: int) -> Graph:
        place = self.place(seed)
        check_size(place.count, place.count * (place.count - 1) // 2)
        return Graph.from_adjacency(1 - np.eye(place.count), rooms=place.rooms)
