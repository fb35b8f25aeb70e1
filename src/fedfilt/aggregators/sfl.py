from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class SFL:
    """SFL's graph convolution Â^k of the trained models: k times the mean over a device and its neighbours.

    Â is A + I with rows scaled to sum to 1 and links weighted by samples. A device without present neighbours keeps its
    own model.

    >>> import numpy as np
    >>> updates = Updates(rows=np.array([[0.0], [6.0], [0.0]]), weights=np.ones(3))
    >>> SFL(hops=1)(np.zeros((3, 1)), updates, Graph.from_edges(3, [(0, 1), (1, 2)]))
    array([[3.],
           [2.],
           [3.]])
    """

    hops: int = 1  # times that neighbours are averaged
    search: ClassVar = {"hops": (1, 5)}

    def __post_init__(self) -> None:
        check_count("hops", self.hops)

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        links = (graph.adjacency + sp.eye_array(graph.count)) @ sp.diags_array(updates.weights)
        total = np.asarray(links.sum(axis=1)).ravel()
        alone = total == 0
        average = sp.diags_array(1 / np.where(alone, 1, total)) @ links + sp.diags_array(alone.astype(float))
        average = average.tocsr().astype(models.dtype)
        result = updates.trained(models)
        for _ in range(self.hops):
            result = average @ result
        return result
