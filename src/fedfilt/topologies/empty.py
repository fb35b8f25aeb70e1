from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.graph.building import Building


@dataclass(frozen=True)
class Empty:
    """No links at all: a control.

    The building has `rooms` rooms with `devices` devices in all, or is read from the CSV or TOML file `building`.

    >>> Empty(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 0 edges, 10 components, 2 rooms)
    """

    rooms: int = 4
    devices: int | None = None
    building: str = ""

    def __call__(self, seed: int) -> Graph:
        place = Building.of(self.building, self.rooms, self.devices, seed)
        return Graph.from_edges(place.count, [], rooms=place.rooms)
