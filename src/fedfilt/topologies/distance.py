from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist, squareform

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.topologies._building import InBuilding, check_size

MOST = 4000  # most devices for which all distances are computed


@dataclass(frozen=True)
class Distance(InBuilding):
    """Links between devices nearer than `reach` metres, the paper's rule.

    Without `reach`, it is the smallest that connects all devices: the longest link of their minimum spanning tree.

    >>> Distance(rooms=2, devices=10)(seed=0)
    Graph(10 devices, 20 links, 1 component, 2 rooms)
    """

    reach: float | None = None  # metres; by default the least that connects all devices

    def __call__(self, seed: int) -> Graph:
        place = self.place(seed)
        reach = least_reach(place.positions) if self.reach is None else self.reach
        near = cKDTree(place.positions)
        check_size(place.count, int(near.count_neighbors(near, reach) - place.count) // 2)
        return place.graph(reach)


def least_reach(positions: Array) -> float:
    """The smallest reach at which links between nearer devices connect all of them.

    >>> least_reach(np.array([[0.0], [1.0], [4.0]]))
    3.0000000000000004
    """
    if len(positions) > MOST:
        raise ValueError(f"graph.reach must be given for more than {MOST} devices, got {len(positions)} devices")
    if len(positions) < 2:
        return 1.0
    apart = np.maximum(pdist(positions), 1e-6)  # a distance of 0 would be no link to SciPy
    return float(np.nextafter(minimum_spanning_tree(squareform(apart)).data.max(), np.inf))
