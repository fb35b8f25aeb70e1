from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfilt._checks import check_choice, check_count, check_number
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.graph.similarity import alike, by_distance, reweighted, same_place, similar_people, with_links
from fedfilt.topologies._building import check_size, within

BETWEEN = ("none", "same_place", "updates", "distances", "everyone")


@dataclass(frozen=True)
class Homes:
    """`rooms` people with equally many devices each, numbered one after the other; `inside` links a person's devices.

    `between` people: "none"; "same_place" (the first device of each, the second, ...); "updates" (every device and the
    k devices of other people whose first updates are most alike); "distances" (the k nearest people by the CSV `file`);
    "everyone". These links weigh `weight`. `reweigh` makes every link as strong as its ends' first updates are alike.

    >>> Homes(rooms=10, devices=20)(seed=0)
    Graph(20 devices, 10 links, 10 components, 10 rooms)
    """

    rooms: int = 4  # people
    devices: int | None = None  # in all; by default one each
    inside: bool = True  # link the devices of a person
    between: str = "none"  # link people: "none", "same_place", "updates", "distances" or "everyone"
    weight: float = 1.0  # of links between people
    k: int = 4  # neighbours, for "updates" and "distances"
    file: str = ""  # CSV of distances, for "distances"
    reweigh: bool = False  # links are as strong as the first updates of their ends are alike

    def __post_init__(self) -> None:
        check_choice("graph.between", self.between, BETWEEN)
        check_number("graph.weight", self.weight, low=0)
        if self.between == "distances" and not self.file:
            raise ValueError("graph.file must name the CSV file of the distances")

    @property
    def learned(self) -> bool:
        """Whether the graph needs the devices' first updates."""
        return self.between == "updates" or self.reweigh

    def __call__(self, seed: int) -> Graph:
        rooms, devices = self.rooms, self.rooms if self.devices is None else self.devices
        check_count("graph.rooms", rooms)
        check_count("graph.devices", devices)
        check_size(devices)
        if self.between != "none" or self.reweigh:
            check_size(devices, devices * (devices - 1) // 2)  # all pairs are looked at
        if devices % rooms:
            raise ValueError(f"graph.devices must be a multiple of the {rooms} rooms (people), got {devices}")
        people = np.arange(devices) // (devices // rooms)
        check_size(devices, within(people))
        graph = Graph.from_rooms(people) if self.inside else Graph.from_edges(devices, [], rooms=people)
        if self.between == "everyone":
            return with_links(graph, self.weight * (people[:, None] != people[None, :]))
        if self.between == "same_place":
            return with_links(graph, same_place(graph, self.weight * (1 - np.eye(rooms))))
        if self.between == "distances":
            closeness = by_distance(Path(self.file), rooms, self.k)
            return with_links(graph, same_place(graph, self.weight * closeness))
        return graph

    def learn(self, seed: int, updates: Array) -> Graph:
        """The graph, completed from the devices' first updates (K, B)."""
        graph, cosine = self(seed), alike(updates)
        if self.between == "updates":
            graph = with_links(graph, self.weight * similar_people(graph, cosine, self.k))
        return reweighted(graph, cosine) if self.reweigh else graph
