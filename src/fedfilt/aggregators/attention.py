from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_choice, check_number
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates


@dataclass(frozen=True)
class Attention:
    """Attention over updates, as in pFedGraph (Ye et al. 2023): a device takes more from devices that learn alike.

    The row of device i is Σⱼ xᵢⱼ wⱼ of the trained models. With p the shares of samples and cᵢⱼ the cosine of two
    updates, x minimises ‖x - p‖² - 2 · strength · cᵢᵀ x among weights >= 0 that sum to 1: p + strength · cᵢ, projected.
    `weights` "softmax" is pⱼ exp(strength · cᵢⱼ), scaled to 1. At strength 0 it is FedAvg. Unlike pFedGraph, it uses
    only the updates of the current round. Updates of zeros resemble no others.

    >>> import numpy as np
    >>> updates = Updates(np.array([[1.0], [3.0], [-5.0]]), np.ones(3))
    >>> Attention()(np.zeros((3, 1)), updates, Graph.from_edges(3, [])).ravel()
    array([ 2.,  2., -5.])
    """

    strength: float = 1.0  # how much alike updates count; 0 is FedAvg
    weights: str = "projected"  # "projected" or "softmax"
    linear = False
    search: ClassVar = {"strength": (0.03, 3.0)}

    def __post_init__(self) -> None:
        check_number("aggregator.strength", self.strength, low=0)
        check_choice("aggregator.weights", self.weights, ("projected", "softmax"))

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        there = np.flatnonzero(updates.weights)
        if not len(there):
            return models.copy()
        shares = updates.weights[there] / updates.weights[there].sum()
        alike = self.strength * _cosines(updates.rows)[:, there]
        if self.weights == "softmax":
            found = shares * np.exp(alike - alike.max(axis=1, keepdims=True))
            found /= found.sum(axis=1, keepdims=True)
        else:
            found = _projected(shares + alike)
        return found.astype(models.dtype) @ (models[there] + updates.rows[there])


def _cosines(rows: Array) -> Array:
    """(K, K) cosines; those of a row of zeros are 0."""
    unit = rows.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(float).tiny)
    return unit @ unit.T


def _projected(rows: Array) -> Array:
    """Every row at the nearest point with entries >= 0 that sum to 1.

    >>> _projected(np.array([[0.9, 0.7, -1.0]])).round(3)
    array([[0.6, 0.4, 0. ]])
    """
    falling = -np.sort(-rows, axis=1)
    excess = (np.cumsum(falling, axis=1) - 1) / np.arange(1, rows.shape[1] + 1)
    last = (falling > excess).sum(axis=1) - 1
    return np.maximum(rows - excess[np.arange(len(rows)), last][:, None], 0)
