from dataclasses import dataclass, replace

import numpy as np

from fedfilt._checks import check_choice
from fedfilt._types import Array, Response
from fedfilt.filters.tikhonov import Tikhonov
from fedfilt.graph import Graph
from fedfilt.mixing import mix
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class GFedFilt:
    """G-Fedfilt: the trained models pass through a low-pass filter on the graph of the devices, weighted by samples.

    signal "models" filters models + updates (this is what the authors' code does, and what reproduces the paper's
    tables); "updates" adds the filtered updates to the models (the paper's equation; models then drift apart for ever).
    A connected component without a device present stays as it is.

    >>> import numpy as np
    >>> updates = Updates(rows=np.array([[0.0], [3.0]]), weights=np.ones(2))
    >>> GFedFilt(Tikhonov(mu=1.0))(np.zeros((2, 1)), updates, Graph.from_edges(2, [(0, 1)]))
    array([[1.],
           [2.]])
    """

    filter: Response = Tikhonov()  # a function of graph frequency
    signal: str = "models"  # what passes the filter: trained "models", or "updates" alone

    def __post_init__(self) -> None:
        check_choice("signal", self.signal, ("models", "updates"))

    def interpolating(self) -> "GFedFilt":
        """The rule for a device without an update, which needs models: filtered updates alone would give it none."""
        return replace(self, signal="models")

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        present = np.bincount(graph.components, weights=updates.weights) > 0
        alive = present[graph.components]
        if not alive.all():
            result = models.copy()
            if alive.any():
                some = Updates(updates.rows[alive], updates.weights[alive])
                result[alive] = self(models[alive], some, graph.subgraph(alive))
            return result
        if self.signal == "updates":
            return models + mix(graph, self.filter, updates.rows, updates.weights)
        trained = updates.trained(models)
        return mix(graph, self.filter, trained, updates.weights, out=trained)
