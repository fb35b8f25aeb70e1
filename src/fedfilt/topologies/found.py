from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.graph.similarity import linked_by_updates, neighbours
from fedfilt.topologies._building import check_size
from fedfilt.topologies.paper import Paper


@dataclass(frozen=True)
class Found:
    """Links between every device and the `k` devices with the most similar updates, regardless of rooms.

    `graph` describes the devices and rooms; its links are ignored. Every device trains for one epoch before round 1.
    The cosines between these updates are the links' weights; unless `weighted`, all weights are 1. With k = 0, the
    number is chosen from two halves of the devices' samples. `every` = n finds the graph again in every n-th round,
    from the models trained by then; the number of neighbours stays.

    >>> Found(k=1).learn(0, np.repeat(np.eye(4), 5, axis=0))  # each five of the paper's 20 devices learn the same
    Graph(20 devices, 16 links, 4 components, 4 rooms)
    """

    k: int = 2  # neighbours of a device; 0: chosen by two halves of the samples
    every: int = 0  # rounds after which it is found again; 0: never
    weighted: bool = True  # links weigh the cosine of two updates, instead of 1
    graph: Any = Paper()  # which devices and rooms there are
    learned = True

    def __post_init__(self) -> None:
        check_count("graph.k", self.k, low=0)
        check_count("graph.every", self.every, low=0)
        if getattr(self.graph, "learned", False):
            raise ValueError("graph.graph must be a fixed graph, got one that is itself found or learned")

    @property
    def halved(self) -> bool:
        """Whether it needs updates from two halves of the devices' samples."""
        return self.k == 0

    def settled(self, halves: Array) -> "Found":
        """The same with the number of neighbours chosen from updates (2, K, B) on two halves of the samples."""
        return replace(self, k=neighbours(halves))

    def __call__(self, seed: int) -> Graph:
        place: Graph = self.graph(seed)
        check_size(place.count, place.count * (place.count - 1) // 2)  # all pairs are looked at
        return replace(place, adjacency=np.zeros((place.count, place.count)))

    def learn(self, seed: int, updates: Array) -> Graph:
        """The graph found from updates (K, B)."""
        links = linked_by_updates(updates, max(self.k, 1))
        return replace(self(seed), adjacency=links if self.weighted else np.sign(links))
