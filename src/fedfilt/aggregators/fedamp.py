from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class FedAMP:
    """FedAMP's messages (Huang et al. 2021): u = Σⱼ ξᵢⱼ wⱼ over the trained models, with more weight on near ones.

    ξᵢⱼ = α A'(‖wᵢ - wⱼ‖²) with A'(x) = exp(-x / sigma) / sigma, and ξᵢᵢ is what is left to 1. With m others present,
    α = share · sigma / m: at a share of 1, devices with equal models give their own model no weight. A sigma of 0 means
    the median of all squared distances in the round. Absent devices send no message.

    >>> import numpy as np
    >>> updates = Updates(np.array([[0.0], [1.0], [100.0]]), np.ones(3))
    >>> FedAMP(share=0.5, sigma=10.0)(np.zeros((3, 1)), updates, Graph.from_edges(3, [])).round(2).ravel()
    array([  0.23,   0.77, 100.  ])
    """

    share: float = 0.9  # at 1, devices that are equal give themselves no weight of their own
    sigma: float = 0.0  # scale of squared distances; 0: their median in the round
    linear = False

    def __post_init__(self) -> None:
        check_number("aggregator.share", self.share, low=0, high=1)
        check_number("aggregator.sigma", self.sigma, low=0)

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        trained, there = updates.trained(models), updates.weights > 0
        apart = _squared_distances(trained)
        between = apart[np.ix_(there, there)][~np.eye(there.sum(), dtype=bool)]
        sigma = self.sigma or float(np.median(between)) if len(between) else 1.0
        others = there[None, :] & ~np.eye(len(there), dtype=bool)
        near = np.where(others, np.exp(-apart / (sigma or 1.0)), 0.0)
        weights = self.share * near / np.maximum(others.sum(axis=1, keepdims=True), 1)
        weights += np.diag(1 - weights.sum(axis=1))
        return weights.astype(models.dtype) @ trained


def _squared_distances(rows: Array) -> Array:
    """(K, K) in float64, each between two rows alone, so that no other row changes a bit of it."""
    found = np.zeros((len(rows), len(rows)))
    for i, row in enumerate(rows):
        apart = (rows[i + 1 :] - row).astype(np.float64)
        found[i, i + 1 :] = found[i + 1 :, i] = np.einsum("ij,ij->i", apart, apart)
    return found
