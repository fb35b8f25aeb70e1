"""How much every device takes from every other: the mixing matrix of a run's rule, and of another strength μ."""

import json
from functools import lru_cache

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates
from fedfilt.runs.records import Records
from fedfilt.runs.rules import rule_of

LIMIT = 2_000  # devices up to which the (K, K) matrix is made


def shares(run: Records, mu: float | None = None, number: int | None = None) -> Array:
    """(K, K): row i is what device i's new model is made of, on the graph and with the samples of a round.

    Without a round, on the graph of the last one and with all samples. A device that is away keeps its own.
    ValueError says in words why it cannot be had.
    """
    now = run.moment(number)
    if now is None:
        raise ValueError("the graph of this run is not known")
    if now.graph.count > LIMIT:
        raise ValueError(f"the mixing matrix is drawn for up to {LIMIT} devices, this run has {now.graph.count}")
    weights = run.weights(number)
    if weights is None or len(weights) != now.graph.count or not weights[now.present].any():
        weights = np.ones(now.graph.count)
    given = json.dumps(run.config.get("aggregator", {}), sort_keys=True, default=str)
    count, there = now.graph.count, now.present
    matrix = np.eye(count)
    matrix[np.ix_(there, there)] = _shares(_Hashed(now.among), given, mu, weights[there].tobytes())
    return matrix


class _Hashed:
    """A graph as a key."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __hash__(self) -> int:
        return hash(self.graph.hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and other.graph.hash == self.graph.hash


@lru_cache(maxsize=16)
def _shares(key: _Hashed, aggregator: str, mu: float | None, weights: bytes) -> Array:
    """A linear rule applied to the unit updates gives its matrix."""
    count = key.graph.count
    updates = Updates(np.eye(count), np.frombuffer(weights))
    matrix = rule_of({"aggregator": json.loads(aggregator)}, mu)(np.zeros((count, count)), updates, key.graph)
    matrix.flags.writeable = False
    return matrix
