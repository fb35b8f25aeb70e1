"""How much every device takes from every other: the mixing matrix of a run's rule, and of another strength μ."""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.shares import LIMIT, shares_of
from fedfilt.runs.records import Records
from fedfilt.runs.rules import rule_of


def shares(run: Records, mu: float | None = None, number: int | None = None) -> Array:
    """(K, K): row i shows what device i's new model is made of, on the graph and with the samples of a round.

    Without a round, it uses the graph of the last round and all samples. A device that is away keeps its own model.
    If there is no such matrix, a ValueError explains why.
    """
    now = run.moment(number)
    if now is None:
        raise ValueError("the graph of this run is unknown")
    if now.graph.count > LIMIT:
        raise ValueError(f"the mixing matrix is drawn for up to {LIMIT} devices; this run has {now.graph.count}")
    weights = run.weights(number)
    if weights is None or len(weights) != now.graph.count or not weights[now.present].any():
        weights = np.ones(now.graph.count)
    given = json.dumps(run.config.get("aggregator", {}), sort_keys=True, default=str)
    count, there = now.graph.count, now.present
    matrix = np.eye(count)
    matrix[np.ix_(there, there)] = _shares(_Hashed(now.among), given, mu, weights[there].tobytes())
    return matrix


class Taken(NamedTuple):
    """A share of a device's new model."""

    device: int  # the device it comes from
    share: float
    linked: bool  # otherwise it came through other devices


def taken(run: Records, devices: Iterable[int], number: int | None = None, most: int = 8) -> dict[int, list[Taken]]:
    """For each device present in a round (by default the last), its own share and those it takes most from.

    If there are no shares, a ValueError explains why.
    """
    number = run.rounds[-1]["round"] if number is None and run.rounds else number
    now, matrix = run.moment(number), shares(run, None, number)
    assert now is not None
    found = {}
    for device in devices:
        if device < len(matrix) and now.present[device]:
            row, linked = matrix[device], set(now.graph.adjacency[[device]].indices.tolist())
            top = [int(other) for other in np.argsort(-row, kind="stable")[: most + 1] if row[other] > 1e-4]
            found[device] = [Taken(other, float(row[other]), other in linked) for other in top]
    return found


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
    matrix = shares_of(rule_of({"aggregator": json.loads(aggregator)}, mu), key.graph, np.frombuffer(weights))
    matrix.flags.writeable = False
    return matrix
