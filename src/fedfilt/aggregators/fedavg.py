from dataclasses import dataclass

import numpy as np

from fedfilt.checks import Array
from fedfilt.graph import Graph
from fedfilt.rounds import Updates


@dataclass(frozen=True)
class FedAvg:
    """One shared model: every device gets the mean of all trained models, weighted by samples.

    It looks at no graph: also who was absent, and who is not connected, gets the mean.

    >>> import numpy as np
    >>> updates = Updates(rows=np.array([[1.0], [4.0]]), weights=np.array([2.0, 1.0]))
    >>> FedAvg()(np.zeros((2, 1)), updates, Graph.from_edges(2, []))
    array([[2.],
           [2.]])
    """

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        if not updates.weights.any():
            return models.copy()
        shares = (updates.weights / updates.weights.sum()).astype(models.dtype)
        return np.broadcast_to(shares @ (models + updates.rows), models.shape).copy()
