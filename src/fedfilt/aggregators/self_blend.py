from dataclasses import dataclass
from typing import ClassVar

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class SelfBlend:
    """A blend without any graph: own · (own trained model) + (1 - own) · (mean of all trained models).

    >>> import numpy as np
    >>> updates = Updates(rows=np.array([[0.0], [10.0]]), weights=np.ones(2))
    >>> SelfBlend(own=0.2)(np.zeros((2, 1)), updates, Graph.from_edges(2, []))
    array([[4.],
           [6.]])
    """

    own: float = 0.2  # share of a device's own model
    search: ClassVar = {"own": (0.05, 0.9)}

    def __post_init__(self) -> None:
        check_number("own", self.own, low=0, high=1)

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        return self.own * updates.trained(models) + (1 - self.own) * updates.averaged(models)
