from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.graph.building import Building


@dataclass(frozen=True)
class Distance:
    """Links between devices that are nearer than `reach` metres, the paper's rule.

    The building has `rooms` rooms with `devices` devices in all, or is read from the CSV or TOML file `building`.

    >>> Distance(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 10 edges, 3 components, 2 rooms)
    """

    rooms: int = 4
    devices: int | None = None
    building: str = ""
    reach: float = 6.0

    def __call__(self, seed: int) -> Graph:
        place = Building.of(self.building, self.rooms, self.devices, seed)
        return place.graph(self.reach)
