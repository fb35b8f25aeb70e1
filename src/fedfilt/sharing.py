"""How much every device takes from every other: the mixing matrix of a run's rule, and of another strength μ."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from fedfilt import parts
from fedfilt.aggregators.gfedfilt import GFedFilt
from fedfilt.checks import Array, Response, check_choice
from fedfilt.filters.tikhonov import Tikhonov
from fedfilt.graph import Graph
from fedfilt.records import Records
from fedfilt.rounds import Updates

LIMIT = 2_000  # devices up to which the (K, K) matrix is made


def rule(table: Mapping[str, Any], mu: float | None = None) -> Callable[[Array, Updates, Graph], Array]:
    """The aggregation rule of a config's table; with `mu`, G-Fedfilt of that strength and otherwise alike.

    Only rules and filters of the package: a name that points to other code is refused, not imported.

    >>> rule({"aggregator": {"name": "fedavg"}}, mu=3.0)
    GFedFilt(filter=Tikhonov(mu=3.0), signal='models')
    """
    given = _named(table.get("aggregator"), "gfedfilt")
    name = check_choice("aggregation rule", given.pop("name"), parts.names("aggregators"))
    if "filter" in given or name == "gfedfilt":
        given["filter"] = response(table)
    try:
        made = parts.find("aggregators", name)(**given)
    except TypeError as error:
        raise ValueError(f"aggregator {name}: {error}") from None
    if mu is None:
        return made
    signal = made.signal if isinstance(made, GFedFilt) else "models"
    return GFedFilt(with_strength(getattr(made, "filter", None), mu), signal)


def response(table: Mapping[str, Any]) -> Response:
    """The filter of a config's table; Tikhonov where its rule has none."""
    given = _named(_named(table.get("aggregator"), "gfedfilt").get("filter"), "tikhonov")
    name = check_choice("filter", given.pop("name"), parts.names("filters"))
    try:
        return parts.find("filters", name)(**given)
    except TypeError as error:
        raise ValueError(f"filter {name}: {error}") from None


def with_strength(kind: Response | None, mu: float) -> Response:
    """The same filter at another μ; Tikhonov if it has none."""
    if dataclasses.is_dataclass(kind) and not isinstance(kind, type) and hasattr(kind, "mu"):
        return dataclasses.replace(kind, mu=mu)
    return Tikhonov(mu)


def shares(run: Records, mu: float | None = None, number: int | None = None) -> Array:
    """(K, K): row i is what device i's new model is made of, on the graph and with the samples of a round.

    Without a round, on the graph of the last one and with all samples. Who is not there keeps its own.
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
    matrix = rule({"aggregator": json.loads(aggregator)}, mu)(np.zeros((count, count)), updates, key.graph)
    matrix.flags.writeable = False
    return matrix


def _named(value: Any, default: str) -> dict[str, Any]:
    table = {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    return {"name": default, **table}
