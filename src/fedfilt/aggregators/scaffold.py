from dataclasses import dataclass
from typing import ClassVar

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class Scaffold:
    """SCAFFOLD's shared model (Karimireddy et al. 2020) on the rows of the client of that name: a model and a control.

    The first half of a row is averaged as FedAvg does. The second moves by the sum of what the devices that took part
    changed, over the number of all devices K: c += (|S| / K) · mean of Δcₖ over S.

    >>> import numpy as np
    >>> updates = Updates(np.array([[2.0, 4.0], [0.0, 0.0]]), np.array([1.0, 0.0]))  # one of two devices took part
    >>> Scaffold()(np.zeros((2, 2)), updates, Graph.from_edges(2, []))
    array([[2., 2.],
           [2., 2.]])
    """

    client = "scaffold"
    travels: ClassVar = ("control",)

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        result, half = updates.averaged(models), models.shape[1] // 2
        moved = updates.rows[updates.weights > 0, half:].sum(axis=0) / models.dtype.type(len(models))
        result[:, half:] = models[:, half:] + moved
        return result
