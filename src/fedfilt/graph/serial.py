"""graph.json: a graph as stored in a run folder."""

import json
from typing import Any

import numpy as np

from fedfilt._types import Table
from fedfilt.graph.graph import Graph
from fedfilt.graph.similarity import clusters

DEVICE_LIMIT = 100_000  # most devices of a graph to read: a file of 30 bytes can claim any number
EDGE_LIMIT = 1_000_000  # most links of a graph to store in a run folder


def links_of(graph: Graph) -> Table:
    """Links with weights, and clusters, of a graph that was found during a run."""
    edges = graph.edges
    weights = np.asarray(graph.adjacency[edges[:, 0], edges[:, 1]]).ravel() if len(edges) else np.ones(0)
    member, modularity = clusters(graph)
    return {
        "edges": edges.tolist(),
        "weights": weights.tolist(),
        "clusters": member.tolist(),
        "modularity": round(modularity, 6),
    }


def graph_json(graph: Graph) -> str | None:
    """A graph as JSON for a run folder; None if it is too large.

    >>> graph_of(json.loads(graph_json(Graph.paper()))).hash == Graph.paper().hash
    True
    """
    if graph.adjacency.nnz > 2 * EDGE_LIMIT:
        return None
    edges = graph.edges
    weights = np.asarray(graph.adjacency[edges[:, 0], edges[:, 1]]).ravel() if len(edges) else np.ones(0)
    table: Table = {"count": graph.count, "laplacian": graph.laplacian_kind, "edges": edges.tolist()}
    if (weights != 1).any():
        table["weights"] = weights.tolist()
    if graph.rooms is not None:
        table["rooms"] = graph.rooms.tolist()
    if graph.positions is not None:
        table["positions"] = graph.positions.tolist()
    return json.dumps(table)


def graph_of(table: Any) -> Graph:
    """The graph from parsed JSON of `graph_json`, or ValueError; sizes are checked before memory is allocated."""
    try:
        count, rooms = table["count"], table.get("rooms")
        if type(count) is not int or not 0 < count <= DEVICE_LIMIT:
            raise ValueError(f"count must be from 1 to {DEVICE_LIMIT}, got {count!r}")
        if rooms is not None and {type(room) for room in rooms} not in ({int}, {str}):
            raise ValueError("rooms must be all numbers or all names")
        return _graph_of(table)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a graph ({type(error).__name__}: {error})") from None


def _graph_of(table: Table) -> Graph:
    graph = Graph.from_edges(table["count"], table["edges"], table.get("weights"), rooms=table.get("rooms"))
    return Graph(graph.adjacency, graph.rooms, table.get("positions"), table.get("laplacian", "combinatorial"))
