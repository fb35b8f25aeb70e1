from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.topologies._building import InBuilding


@dataclass(frozen=True)
class Distance(InBuilding):
    """Links between devices that are nearer than `reach` metres, the paper's rule.

    >>> Distance(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 10 edges, 3 components, 2 rooms)
    """

    reach: float = 6.0

    def __call__(self, seed: int) -> Graph:
        place = self.place(seed)
        return place.graph(self.reach)
