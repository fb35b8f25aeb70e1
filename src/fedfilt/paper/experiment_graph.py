"""The graph of the experiments: 20 devices in four rooms."""

import numpy as np

from fedfilt.graph import Graph
from fedfilt.paper._figures import network
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import table

place = "fig. graph_sim"
order = 30


def make(results: Results) -> Item:
    """The graph, with its rooms apart from each other."""
    graph = Graph.paper()
    rooms = np.asarray(graph.rooms)
    between = sum(int(rooms[a] != rooms[b]) for a, b in graph.edges)
    turn = (
        2 * np.pi * np.arange(graph.count) / 5 + np.pi / 5 * np.array([0.25, 0, 0, 0.25])[rooms]
    )  # no link passes another device
    corner = np.array([(0, 0), (3, 0), (3, -3), (0, -3)])[rooms]
    positions = corner + np.column_stack([np.cos(turn), np.sin(turn)])
    text = table(
        ["", "paper", "here"],
        [
            ["devices", "20", str(graph.count)],
            ["rooms", "4, of 4 to 7 devices each", "4, of 5 devices each"],
            ["links", "drawn, not listed", f"{len(graph.edges)}, {between} of them between rooms"],
            ["connected", "yes", "yes" if graph.components.max() == 0 else "no"],
        ],
    )
    text += (
        "\n\nThe links are those of the authors' published program. Every room has five devices, although the text "
        "draws their number from 4 to 7."
    )
    return Item(text, {"experiment_graph": network(graph, positions)})
