from dataclasses import dataclass

import numpy as np

from fedfilt.graph import Graph
from fedfilt.graph.building import Building


@dataclass(frozen=True)
class Complete:
    """Links between all devices: a control.

    The building has `rooms` rooms with `devices` devices in all, or is read from the CSV or TOML file `building`.

    >>> Complete(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 45 edges, 1 component, 2 rooms)
    """

    rooms: int = 4
    devices: int | None = None
    building: str = ""

    def __call__(self, seed: int) -> Graph:
        place = Building.of(self.building, self.rooms, self.devices, seed)
        return Graph.from_adjacency(1 - np.eye(place.count), rooms=place.rooms)
