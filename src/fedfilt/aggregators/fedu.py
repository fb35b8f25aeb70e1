from dataclasses import dataclass
from typing import ClassVar

import scipy.sparse as sp

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class FedU:
    """FedU's explicit step (I - ημL) on the trained models: every device moves towards its neighbours.

    An absent device pulls no other. The step must satisfy ημ · (largest degree) <= 1, or weights become negative.

    >>> import numpy as np
    >>> updates = Updates(rows=np.array([[0.0], [10.0]]), weights=np.ones(2))
    >>> FedU(eta=0.1, mu=1.0)(np.zeros((2, 1)), updates, Graph.from_edges(2, [(0, 1)]))
    array([[1.],
           [9.]])
    """

    eta: float = 0.1  # size of the step
    mu: float = 1.0  # pull of a link
    search: ClassVar = {"mu": (0.1, 3.0)}

    def __post_init__(self) -> None:
        check_number("eta", self.eta, low=0)
        check_number("mu", self.mu, low=0)

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        step = self.eta * self.mu
        if step * graph.degrees.max() > 1:
            raise ValueError(
                f"eta * mu must be at most {1 / graph.degrees.max():.4g} on this graph (1 / its largest degree), "
                f"got {step:g}"
            )
        trained = updates.trained(models)
        pull = graph.adjacency @ sp.diags_array((updates.weights > 0).astype(float))  # a_ij where j is present
        difference = pull.astype(models.dtype) @ trained - pull.sum(axis=1).astype(models.dtype)[:, None] * trained
        return trained + models.dtype.type(step) * difference
