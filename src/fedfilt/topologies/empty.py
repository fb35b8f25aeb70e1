from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.topologies._building import InBuilding


@dataclass(frozen=True)
class Empty(InBuilding):
    """No links at all: a control.

    >>> Empty(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 0 edges, 10 components, 2 rooms)
    """

    def __call__(self, seed: int) -> Graph:
        place = self.place(seed)
        return Graph.from_edges(place.count, [], rooms=place.rooms)
