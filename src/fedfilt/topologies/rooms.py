from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.graph.building import Building


@dataclass(frozen=True)
class Rooms:
    """Links between all devices of a room, none between rooms.

    The building has `rooms` rooms with `devices` devices in all, or is read from the CSV or TOML file `building`.

    >>> Rooms(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 20 edges, 2 components, 2 rooms)
    """

    rooms: int = 4
    devices: int | None = None
    building: str = ""

    def __call__(self, seed: int) -> Graph:
        place = Building.of(self.building, self.rooms, self.devices, seed)
        return Graph.from_rooms(place.rooms)
