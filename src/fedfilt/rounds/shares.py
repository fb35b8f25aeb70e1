"""What a rule makes each row of: shares of all devices' updates, and how much of them can be read back."""

from typing import Any

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.remembering import is_linear, name_of, remembers
from fedfilt.rounds.types import Rule, Updates, interpolating

LIMIT = 2_000  # most devices for which the (K, K) matrix is made
NEGLIGIBLE = 1e-6  # rows are float32: anything smaller than this, relative to the largest, is lost in them


def shares_of(rule: Rule, graph: Graph, weights: Any = None) -> Array:
    """(K, K): row i is what device i's row takes from each device's update; a linear rule applied to unit updates.

    For a rule with memory, it is the rule for devices without an update, which has none.

    >>> from fedfilt.aggregators import FedAvg
    >>> shares_of(FedAvg(), Graph.from_edges(2, [(0, 1)]), [1.0, 3.0])
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    count = graph.count
    if count > LIMIT:
        raise ValueError(f"shares are computed for up to {LIMIT} devices, got a graph of {count}")
    given = np.ones(count) if weights is None else np.asarray(weights, float)
    if not is_linear(rule):
        raise ValueError(
            f"the rule {name_of(rule)} weighs updates by their content, so its shares differ in every round"
        )
    forgetful = interpolating(rule) if remembers(rule) else rule
    return forgetful(np.zeros((count, count)), Updates(np.eye(count), given), graph)


def others(shares: Array) -> Array:
    """(K,) among how many other devices a row hides each: the sum of their shares divided by the largest.

    A row with equal shares of n others has n; 0 means that a row takes nothing from others.

    >>> others(np.array([[0.5, 0.4, 0.1], [0.2, 0.6, 0.2], [0.0, 0.0, 1.0]]))
    array([1.25, 2.  , 0.  ])
    """
    of_others = np.abs(shares - np.diag(np.diag(shares)))
    largest = of_others.max(axis=1)
    largest[largest < NEGLIGIBLE * np.abs(shares).max(axis=1)] = 0
    return np.divide(of_others.sum(axis=1), largest, out=np.zeros(len(shares)), where=largest > 0)


def error_of_reading(shares: Array, together: Any) -> Array:
    """(K,) relative error, from 0 to 1, with which devices that share their rows can read each device's update.

    They know their own updates, all shares, and that updates are independent and of similar size. The error is that of
    the best linear estimate, √(1 - P_jj), where P projects on the span of their rows: with 0 they read the update
    exactly, with 1 they learn nothing about it. For their own updates it is 0.

    >>> pair_and_more = np.array([[0.6, 0.4, 0.0], [0.4, 0.3, 0.3], [0.0, 0.3, 0.7]])
    >>> error_of_reading(pair_and_more, [0]).round(3), error_of_reading(pair_and_more, [1]).round(3)
    (array([0., 0., 1.]), array([0.6, 0. , 0.8]))
    """
    members = np.unique(np.asarray(together, int))
    error = np.zeros(len(shares))
    unknown = np.setdiff1d(np.arange(len(shares)), members)
    basis = _span(shares[np.ix_(members, unknown)])
    error[unknown] = np.sqrt(np.clip(1 - (basis**2).sum(axis=0), 0, 1))
    return error


def error_of_mixed(shares: Array, together: Any) -> Array:
    """(K,) the same for each device's mixed row: the part that their rows and own updates do not span.

    >>> leaf = np.linalg.inv(np.array([[2.0, -1, 0, 0], [-1, 4, -1, -1], [0, -1, 3, -1], [0, -1, -1, 3]]))  # mu = 1
    >>> error_of_mixed(leaf, [0]).round(2)  # device 0 has one link: it reads the row of device 1
    array([0. , 0. , 0.6, 0.6])
    """
    members = np.unique(np.asarray(together, int))
    unknown = np.setdiff1d(np.arange(len(shares)), members)
    rows = shares[:, unknown]
    basis = _span(rows[members])
    length = np.linalg.norm(rows, axis=1)
    rest = np.linalg.norm(rows - rows @ basis.T @ basis, axis=1)
    return np.divide(rest, length, out=np.zeros(len(rows)), where=length > 0)


def _span(rows: Array) -> Array:
    """Orthonormal rows that span the given ones."""
    if not rows.size:
        return np.zeros((0, rows.shape[1]))
    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    return basis[sizes > NEGLIGIBLE * max(sizes.max(), np.finfo(float).tiny)]
