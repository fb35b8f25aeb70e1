import warnings
from dataclasses import dataclass

import numpy as np

from fedfilt._types import Array, Response
from fedfilt.filters.tikhonov import Tikhonov
from fedfilt.graph import Graph
from fedfilt.mixing import mix
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class PaperLiteral:
    """The paper's equation as printed: models + H diag(κ) G, with κ_i the device's share of all samples.

    It is about K times too small (μ → ∞ gives FedAvg / K, μ = 0 gives g_i / K) and, with unequal sample counts, its
    rows do not sum alike. Kept for comparison; `GFedFilt` is the rule to use.

    >>> import numpy as np
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     rule = PaperLiteral(Tikhonov(mu=0.0))
    >>> updates = Updates(rows=np.array([[1.0], [4.0]]), weights=np.ones(2))
    >>> rule(np.zeros((2, 1)), updates, Graph.from_edges(2, [(0, 1)]))
    array([[0.5],
           [2. ]])
    """

    filter: Response = Tikhonov()  # a function of graph frequency

    def __post_init__(self) -> None:
        warnings.warn(
            "paper_literal applies H diag(kappa) as printed, which shrinks every update about K times; "
            "use gfedfilt for the corrected rule",
            UserWarning,
            stacklevel=3,
        )

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        if not updates.weights.any():
            return models.copy()
        shares = (updates.weights / updates.weights.sum()).astype(models.dtype)
        return models + mix(graph, self.filter, shares[:, None] * updates.rows, np.ones(graph.count))
