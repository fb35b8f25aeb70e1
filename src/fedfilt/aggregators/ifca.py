from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.aggregators.fedavg import FedAvg
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class IFCA:
    """IFCA's shared models (Ghosh et al. 2020), on the rows of the client of the same name: `clusters` models.

    Each is averaged as in FedAvg, over the devices that have changed it. A model that no device has changed stays.

    >>> import numpy as np
    >>> updates = Updates(np.array([[2.0, 0.0], [4.0, 0.0], [0.0, 1.0]]), np.ones(3))  # the third is in another cluster
    >>> IFCA()(np.zeros((3, 2)), updates, Graph.from_edges(3, []))[0]
    array([3., 1.])
    """

    clusters: int = 2  # shared models, as many as the client of that name has
    client = "ifca"
    linear = False

    @property
    def travels(self) -> tuple[str, ...]:
        """Names of the models that go with the first."""
        return tuple(f"cluster_{number}" for number in range(1, self.clusters))

    def __post_init__(self) -> None:
        check_count("aggregator.clusters", self.clusters, low=2, high=100)

    def interpolating(self) -> FedAvg:
        """A device that joins gets the models that all have."""
        return FedAvg()

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        result = models.copy()
        for columns in np.array_split(np.arange(models.shape[1]), self.clusters):
            rows = updates.rows[:, columns]
            members = Updates(rows, np.where(rows.any(axis=1), updates.weights, 0.0))
            result[:, columns] = members.averaged(models[:, columns])
        return result
