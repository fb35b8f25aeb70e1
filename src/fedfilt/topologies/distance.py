from dataclasses import dataclass

from scipy.spatial import cKDTree

from fedfilt.graph import Graph
from fedfilt.topologies._building import InBuilding, check_size


@dataclass(frozen=True)
class Distance(InBuilding):
    """Links between devices that are nearer than `reach` metres, the paper's rule.

    >>> Distance(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 10 edges, 3 components, 2 rooms)
    """

    reach: float = 6.0

    def __call__(self, seed: int) -> Graph:
        place = self.place(seed)
        near = cKDTree(place.positions)
        check_size(place.count, int(near.count_neighbors(near, self.reach) - place.count) // 2)
        return place.graph(self.reach)
