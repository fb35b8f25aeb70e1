from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.graph.building import Building


@dataclass(frozen=True)
class Nearest:
    """Links between every device and the `k` nearest.

    The building has `rooms` rooms with `devices` devices in all, or is read from the CSV or TOML file `building`.

    >>> Nearest(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 26 edges, 1 component, 2 rooms)
    """

    rooms: int = 4
    devices: int | None = None
    building: str = ""
    k: int = 4

    def __call__(self, seed: int) -> Graph:
        place = Building.of(self.building, self.rooms, self.devices, seed)
        return Graph.nearest(place.positions, self.k, rooms=place.rooms)
