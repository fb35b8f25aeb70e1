"""Devices with different sensors (the paper's Remark 1): an encoder for every kind of device, and a trunk for all.

Windows have the channels of all kinds, with zeros for missing sensors. The first layer is the encoder: it maps a
device's channels to a common latent size, and is mixed only among devices of its kind. The later layers are mixed over
the graph. Weights of channels that a kind lacks get no gradient and do not matter: each kind has its own encoder.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedfilt._checks import check_choice, check_count
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Rule, Updates, interpolating

if TYPE_CHECKING:  # only its slots are read; no need to load torch
    from fedfilt.training.rows import Layout

MIX = ("trunk", "alone", "all")


@dataclass(frozen=True)
class Kinds:
    """The table [kinds]: what devices of different kinds share, if the data has kinds.

    mix "trunk" keeps the first `encoder` layers within a kind; "alone" keeps everything within it; "all" mixes all.

    >>> Kinds(mix="alone")
    Kinds(mix='alone', encoder=1)
    """

    mix: str = "trunk"  # "trunk" keeps the first `encoder` layers within a kind, "alone" keeps all, "all" mixes all
    encoder: int = 1  # layers that belong to a kind

    def __post_init__(self) -> None:
        check_choice("kinds.mix", self.mix, MIX)
        check_count("kinds.encoder", self.encoder)

    def private(self, layout: "Layout") -> Array:
        """(B,) True for columns that are mixed only within a kind."""
        layers = list(dict.fromkeys(slot.name.rpartition(".")[0] for slot in layout.slots))
        if self.mix == "trunk" and self.encoder >= len(layers):
            raise ValueError(
                f"kinds.encoder must leave some of the model's {len(layers)} layers as the trunk, got {self.encoder}"
            )
        own = set(layers[: self.encoder]) if self.mix == "trunk" else set(layers if self.mix == "alone" else ())
        columns = np.zeros(layout.size, bool)
        for slot in layout.slots:
            columns[slot.start : slot.stop] = slot.name.rpartition(".")[0] in own
        return columns


@dataclass(frozen=True, eq=False)
class ByKind:
    """A rule whose private columns are mixed only among devices of one kind, as `graph.kinds` says.

    >>> from fedfilt.aggregators import FedAvg
    >>> rule = ByKind(FedAvg(), private=np.array([True, False]))
    >>> graph = Graph([[0, 0], [0, 0]], kinds=("watch", "phone"))
    >>> rule(np.array([[1.0, 1.0], [3.0, 3.0]]), Updates(np.zeros((2, 2)), np.ones(2)), graph)
    array([[1., 2.],
           [3., 2.]])
    """

    rule: Rule
    private: Array  # (B,) True for the encoder's columns

    def interpolating(self) -> "ByKind":
        """The same for the rule that gives a model to a device without an update."""
        return replace(self, rule=interpolating(self.rule))

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        updates.check(models, graph)
        if graph.kinds is None:
            raise ValueError("mixing by kind needs a graph with kinds, got one without kinds")
        result = models.copy()
        rows, weights = updates
        shared, private = ~self.private, self.private
        if shared.any():
            result[:, shared] = self.rule(models[:, shared], Updates(rows[:, shared], weights), graph)
        for kind in dict.fromkeys(graph.kinds) if private.any() else ():
            members = tuple(device for device, name in enumerate(graph.kinds) if name == kind)
            own = np.ix_(np.array(members), np.flatnonzero(private))
            result[own] = self.rule(models[own], Updates(rows[own], weights[list(members)]), _among(graph, members))
        return result


@lru_cache(maxsize=64)
def _among(graph: Graph, members: tuple[int, ...]) -> Graph:
    """The graph of some devices, cached so that it is factored only once."""
    return graph.subgraph(members)
