"""Tables of an experiment that are not parts: how a part is named, and where and how often things happen."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfilt import _parts
from fedfilt._checks import check_choice, check_count, check_number
from fedfilt._draws import Key, generator
from fedfilt._types import Array
from fedfilt.graph.graph import KINDS, Graph
from fedfilt.graph.similarity import shuffled
from fedfilt.topologies._building import check_size

CONTROLS = ("shuffled", "complete", "empty")  # different links between the same devices


@dataclass(frozen=True)
class ModelTable:
    """The table [model]: a file in fedfilt/models, or module:Class, with its options."""

    name: str = "paper_cnn"  # a model, or module:Class
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # those of the model


@dataclass(frozen=True)
class GraphTable:
    """The table [graph]: a file in fedfilt/topologies, or module:Class, with its options and those of every graph.

    `laplacian` is its Laplacian; `shuffle` moves the links to other devices, as a control. `control` replaces the links
    between the same devices in the same rooms: "shuffled", "complete" (all with weight 1) or "empty".
    """

    topology: Any  # a topology, which brings options of its own
    laplacian: str = "combinatorial"  # "combinatorial", "random_walk" or "symmetric"
    shuffle: bool = False  # a control: give the links to other devices, drawn with the seed
    control: str = ""  # a control: other links between the same devices, "shuffled", "complete" or "empty"; "" for none

    def __post_init__(self) -> None:
        check_choice("graph.laplacian", self.laplacian, KINDS)
        check_choice("graph.control", self.control, ("", *CONTROLS))

    @property
    def learned(self) -> bool:
        """Whether the graph needs the devices' first updates."""
        return bool(getattr(self.topology, "learned", False)) and self.control in ("", "shuffled")

    @property
    def halved(self) -> bool:
        """Whether it also needs the updates from two halves of the devices' samples."""
        return self.learned and bool(getattr(self.topology, "halved", False))

    @property
    def every(self) -> int:
        """Rounds after which the graph is found again; 0 keeps it."""
        return int(getattr(self.topology, "every", 0)) if self.learned else 0

    def settled(self, halves: Array) -> "GraphTable":
        """The same table, completed with what updates (2, K, B) from two halves of the devices' samples decide."""
        return dataclasses.replace(self, topology=self.topology.settled(halves))

    def graph(self, seed: int, updates: Array | None = None) -> Graph:
        """The graph. Random parts depend on the seed; `learned` parts are missing without the updates (K, B)."""
        made = self.topology(seed) if updates is None or not self.learned else self.topology.learn(seed, updates)
        graph: Graph = made.with_laplacian(self.laplacian)
        if self.control in ("complete", "empty"):
            check_size(graph.count, graph.count * (graph.count - 1) // 2)
            links = (1 - np.eye(graph.count)) * (self.control == "complete")
            graph = dataclasses.replace(graph, adjacency=links)
        elif self.shuffle or self.control:
            graph = shuffled(graph, generator(seed, Key.SHUFFLE))
        wanted = getattr(self.topology, "devices", None)
        if wanted not in (None, graph.count):
            raise ValueError(f"graph.devices must be {graph.count} for this graph, got {wanted}")
        return graph


@dataclass(frozen=True)
class EngineTable:
    """The table [engine]: where training happens, and with how many worker processes (0: one per core).

    The rest is for Flower: the longest time a round may take; whether clocks and deadlines are real instead of
    simulated; and the extra time that a real deadline allows for Flower's polling and for starting processes. In a
    deployment, `every` is the time from one round to the next, such as "6h", and `between` the times of day between
    which rounds start, such as ["23:00", "05:00"].
    """

    name: str = "local"  # "local" (this machine) or "flower"; the keys below `workers` are for Flower
    workers: int = 0  # threads of the native core, or processes where torch trains; 0: one per core, 1: this process
    timeout_seconds: float = 600.0  # the longest that a round may take
    real_time: bool = False  # whether clocks and deadlines are real instead of simulated
    # what a real deadline allows on top, for Flower's own polling and starting of processes
    grace_seconds: float = 15.0
    every: str = ""  # time from one round of a deployment to the next, such as "6h"
    between: tuple[str, ...] = ()  # times of day within which rounds of a deployment begin, such as ["23:00", "05:00"]

    def __post_init__(self) -> None:
        check_choice("engine.name", self.name, _parts.names("engines"))
        check_count("engine.workers", self.workers, low=0)
        check_number("engine.timeout_seconds", self.timeout_seconds, low=0, above=True)
        check_number("engine.grace_seconds", self.grace_seconds, low=0)
        if self.real_time and self.name != "flower":
            raise ValueError(f"engine.real_time needs engine.name = 'flower', with real devices, got {self.name!r}")


@dataclass(frozen=True)
class CheckpointTable:
    """The table [checkpoint]: how often the state of a run is saved."""

    every: int = 10  # rounds lost at most if the run is killed

    def __post_init__(self) -> None:
        check_count("checkpoint.every", self.every)
