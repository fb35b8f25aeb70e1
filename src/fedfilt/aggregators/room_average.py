from dataclasses import dataclass

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class RoomAverage:
    """One model per room: FedAvg among the devices of each room. A room without a device present stays as it is.

    >>> import numpy as np
    >>> updates = Updates(rows=np.array([[1.0], [3.0], [9.0]]), weights=np.ones(3))
    >>> RoomAverage()(np.zeros((3, 1)), updates, Graph.from_rooms(["a", "a", "b"]))
    array([[2.],
           [2.],
           [9.]])
    """

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        if graph.rooms is None:
            raise ValueError(
                "room_average needs a graph with rooms, got one without; use Graph.from_rooms or rooms=..."
            )
        result = models.copy()
        for room in np.unique(graph.rooms):
            members = np.flatnonzero(graph.rooms == room)
            some = Updates(updates.rows[members], updates.weights[members])
            result[members] = some.averaged(models[members])
        return result
