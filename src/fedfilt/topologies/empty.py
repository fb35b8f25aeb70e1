from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.topologies._building import InBuilding


@dataclass(frozen=True)
class Empty(InBuilding):
    """No links at all: a control.

    Every device learns alone, however strong the filter is.

    >>> graph = Empty(rooms=2, devices=10)(seed=0)
    >>> len(graph.edges), graph.count
    (0, 10)
    """

    def __call__(self, seed: int) -> Graph:
        place = self.place(seed)
        return Graph.from_edges(place.count, [], rooms=place.rooms)
