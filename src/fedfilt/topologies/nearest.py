from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.topologies._building import InBuilding, check_size


@dataclass(frozen=True)
class Nearest(InBuilding):
    """Links between every device and its `k` nearest.

    >>> Nearest(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 26 links, 1 component, 2 rooms)
    """

    k: int = 4  # neighbours of a device

    def __call__(self, seed: int) -> Graph:
        place = self.place(seed)
        check_size(place.count, place.count * self.k)
        return Graph.nearest(place.positions, self.k, rooms=place.rooms)
