from dataclasses import dataclass

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class FedAvg:
    """One shared model: every device gets the mean of all trained models, weighted by samples.

    It ignores the graph: devices that were absent or are not connected get the mean too.

    >>> import numpy as np
    >>> updates = Updates(rows=np.array([[1.0], [4.0]]), weights=np.array([2.0, 1.0]))
    >>> FedAvg()(np.zeros((2, 1)), updates, Graph.from_edges(2, []))
    array([[2.],
           [2.]])
    """

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        return updates.averaged(models)
