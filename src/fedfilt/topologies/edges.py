import csv
from dataclasses import dataclass
from pathlib import Path

from fedfilt._reading import csv_text
from fedfilt.graph import Graph
from fedfilt.topologies._building import InBuilding, check_size


@dataclass(frozen=True)
class Edges(InBuilding):
    """Links from a CSV file with a header `a,b` or `a,b,weight` and a line per link, devices counted from 0.

    Without a `building`, `devices` is the number of devices and there are no rooms.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("a,b,weight\\n0,1,0.5\\n")
    ...     file.flush()
    ...     Edges(devices=3, file=file.name)(seed=0)
    Graph(3 devices, 1 link, 2 components)
    """

    file: str = ""  # CSV: a,b or a,b,weight

    def __post_init__(self) -> None:
        if not self.file:
            raise ValueError("graph.file must name the CSV file of the edges")

    def __call__(self, seed: int) -> Graph:
        if self.devices is not None and not self.building:
            check_size(self.devices)
            return _read(Path(self.file), self.devices, None)
        place = self.place(seed)
        return _read(Path(self.file), place.count, place.rooms)


def _read(path: Path, count: int, rooms: object) -> Graph:
    edges, weights = [], []
    with csv_text(path) as file:
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
