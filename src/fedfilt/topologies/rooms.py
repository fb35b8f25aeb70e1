from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.topologies._building import InBuilding, check_size, within


@dataclass(frozen=True)
class Rooms(InBuilding):
    """Links between all devices in a room, none between rooms: a strong filter gives every room its own model.

    >>> Rooms(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 20 links, 2 components, 2 rooms)
    """

    def __call__(self, seed: int) -> Graph:
        place = self.place(seed)
        check_size(place.count, within(place.rooms))
        return Graph.from_rooms(place.rooms)
