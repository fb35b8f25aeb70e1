"""The graph an experiment names: the paper's, or one of a building."""

import csv
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfilt import homes
from fedfilt.building import Building
from fedfilt.checks import Array, check_choice
from fedfilt.graph import KINDS, Graph

# Keys that each kind of graph makes use of
USED: dict[str, tuple[str, ...]] = {
    "paper": (),
    "distance": ("rooms", "building", "reach"),
    "nearest": ("rooms", "building", "k"),
    "rooms": ("rooms", "building"),
    "complete": ("rooms", "building"),
    "empty": ("rooms", "building"),
    "edges": ("rooms", "building", "file"),
    "homes": ("rooms", "inside", "between", "weight", "k", "file", "reweigh"),
}


@dataclass(frozen=True)
class Topology:
    """The table [graph] of an experiment.

    name: "paper"; of a building: "distance" (reach), "nearest" (k), "rooms"; "complete", "empty"; "edges" (file).
    The building has `rooms` rooms with `devices` devices in all, or is read from the CSV or TOML file `building`.
    The file of "edges" has a header `a,b` or `a,b,weight` and a line per link.

    "homes" has `rooms` people with equally many devices, linked `inside`; `between` people: "none"; "same_place" (the
    first device of each, the second, ...); "updates" (every device and the k of other people whose first updates are
    most alike); "distances" (k nearest people by `file`); "everyone". These links weigh `weight`. `reweigh` makes every
    link as strong as its ends' first updates are alike. `shuffle` gives any graph's links to other devices: a control.

    >>> Topology(name="rooms", rooms=2, devices=10).graph(seed=0)
    Graph(10 devices, 20 edges, 2 components, 2 rooms)
    """

    name: str = "paper"
    devices: int | None = None
    rooms: int = 4
    building: str = ""
    reach: float = 6.0
    k: int = 4
    file: str = ""
    inside: bool = True
    between: str = "none"
    weight: float = 1.0
    reweigh: bool = False
    shuffle: bool = False
    laplacian: str = "combinatorial"

    def __post_init__(self) -> None:
        check_choice("graph.name", self.name, USED)
        check_choice("graph.laplacian", self.laplacian, KINDS)
        check_choice("graph.between", self.between, homes.BETWEEN)
        for field in dataclasses.fields(self):
            used = field.name in ("name", "devices", "shuffle", "laplacian", *USED[self.name])
            if not used and getattr(self, field.name) != field.default:
                raise ValueError(f"graph.{field.name} means nothing for the graph {self.name!r}; leave it out")
        if self.name == "edges" and not self.file:
            raise ValueError("graph.file must name the CSV file of the edges")
        if self.between == "distances" and not self.file:
            raise ValueError("graph.file must name the CSV file of the distances")

    @property
    def learned(self) -> bool:
        """Whether the graph needs the devices' early updates."""
        return self.between == "updates" or self.reweigh

    def graph(self, seed: int, updates: Array | None = None) -> Graph:
        """Make the graph; a building that is not from a file is drawn with the seed.

        `updates` (K, B) are the devices' early updates, for a graph that is `learned`; without them it lacks that part.
        """
        graph = self._graph(seed, updates).with_laplacian(self.laplacian)
        if self.shuffle:
            key = np.random.SeedSequence(seed, spawn_key=(2**30 + 3,))
            graph = homes.shuffled(graph, np.random.default_rng(key))
        if self.devices is not None and self.devices != graph.count:
            raise ValueError(f"graph.devices must be {graph.count} for this graph, got {self.devices}")
        return graph

    def _graph(self, seed: int, updates: Array | None) -> Graph:
        if self.name == "paper":
            return Graph.paper()
        if self.name == "homes":
            base = homes.homes(self.rooms, self.rooms if self.devices is None else self.devices, self.inside)
            cosine = None if updates is None else homes.alike(updates)
            return homes.between(base, self.between, self.k, self.weight, self.file, cosine, self.reweigh)
        if self.name == "edges" and self.devices is not None and not self.building:
            return _read_edges(Path(self.file), self.devices, None)
        if self.building:
            place = Building.from_table(self.building)
        else:
            place = Building.generate(self.rooms, self.devices, seed=seed)
        if self.name == "distance":
            return place.graph(self.reach)
        if self.name == "nearest":
            return Graph.nearest(place.positions, self.k, rooms=place.rooms)
        if self.name == "rooms":
            return Graph.from_rooms(place.rooms)
        if self.name == "edges":
            return _read_edges(Path(self.file), place.count, place.rooms)
        links = np.ones((place.count, place.count)) - np.eye(place.count)
        return Graph.from_adjacency(links if self.name == "complete" else 0 * links, rooms=place.rooms)


def _read_edges(path: Path, count: int, rooms: object) -> Graph:
    edges, weights = [], []
    with path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        if list(table.fieldnames or []) not in (["a", "b"], ["a", "b", "weight"]):
            raise ValueError(f"{path}: header must be a,b or a,b,weight, got {table.fieldnames}")
        for row in table:
            try:
                edges.append((int(row["a"]), int(row["b"])))
                weights.append(float(row.get("weight") or 1))
            except (TypeError, ValueError):
                raise ValueError(f"{path} line {table.line_num}: must be two device numbers, got {row}") from None
    return Graph.from_edges(count, edges, weights, rooms=rooms)
