from dataclasses import dataclass

from fedfilt.graph import Graph


@dataclass(frozen=True)
class Paper:
    """The 20 devices of the paper's experiments: four rooms of five, 39 links.

    >>> Paper()(seed=0)
    Graph(20 devices, 39 links, 1 component, 4 rooms)
    """

    devices: int = 20  # always 20

    def __post_init__(self) -> None:
        if self.devices != 20:
            raise ValueError(f"graph.devices must be 20 for this graph, got {self.devices!r}")

    def __call__(self, seed: int) -> Graph:
        return Graph.paper()
