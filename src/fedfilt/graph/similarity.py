"""Links between devices and people that are alike: by distance, by place, or by what their first updates say."""

import csv
from pathlib import Path

import numpy as np

from fedfilt._checks import check_count, check_signal
from fedfilt._reading import csv_text
from fedfilt._types import Array
from fedfilt.graph.graph import Graph


def with_links(graph: Graph, links: Array) -> Graph:
    """The graph with the weights (K, K) added to its links."""
    return Graph.from_adjacency(graph.adjacency.toarray() + links, rooms=graph.rooms, positions=graph.positions)


def same_place(graph: Graph, closeness: Array) -> Array:
    """Weights (K, K) that link the first device of a room with the first of another, and so on: closeness (R, R).

    >>> same_place(Graph.from_rooms([0, 0, 1, 1]), np.array([[0, 0.5], [0.5, 0]]))[0].tolist()
    [0.0, 0.0, 0.5, 0.0]
    """
    each = graph.count // len(closeness)
    return np.kron(closeness, np.eye(each))


def by_distance(path: Path, rooms: int, k: int) -> Array:
    """Closeness (R, R) of people from distances between them: exp(-d²/s²) with the k nearest, s their mean distance.

    The CSV file has a header `a,b,distance` and a line per pair of people, counted from 0.
    """
    distance = np.full((rooms, rooms), np.inf)
    with csv_text(path) as file:
        table = csv.DictReader(file)
        if list(table.fieldnames or []) != ["a", "b", "distance"]:
            raise ValueError(f"{path}: header must be a,b,distance, got {table.fieldnames}")
        for row in table:
            try:
                a, b, apart = int(row["a"]), int(row["b"]), float(row["distance"])
                fits = 0 <= a < rooms and 0 <= b < rooms and a != b and 0 <= apart < np.inf
            except (TypeError, ValueError):
                fits = False
            if not fits:
                raise ValueError(
                    f"{path} line {table.line_num}: must be two people from 0 to {rooms - 1} and a distance, got {row}"
                )
            distance[a, b] = distance[b, a] = apart
    near = _nearest(-distance, k) & np.isfinite(distance)
    scale = distance[near].mean() if near.any() else 1.0
    return np.where(near, np.exp(-(np.where(near, distance, 0) ** 2) / (scale**2 if scale > 0 else 1.0)), 0.0)


def alike(updates: Array) -> Array:
    """Cosine (K, K) of the devices' early updates after their mean is taken off; negative ones are 0.

    It needs no raw data: the server has the updates anyway.

    >>> alike(np.array([[1.0, 0.0], [1.0, 0.1], [-2.0, 0.0]])).round(2)[0].tolist()
    [0.0, 1.0, 0.0]
    """
    rows = check_signal("updates", np.asarray(updates, np.float64), len(updates))
    rows = rows - rows.mean(axis=0)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.where(length > 0, length, 1)
    cosine = np.clip(rows @ rows.T, 0, 1)
    np.fill_diagonal(cosine, 0)
    return (cosine + cosine.T) / 2


def similar_people(graph: Graph, cosine: Array, k: int) -> Array:
    """Weights (K, K) that link every device with the k most similar devices of other people; either end may choose."""
    others = graph.rooms[:, None] != graph.rooms[None, :]
    return np.where(others & _nearest(np.where(others, cosine, -np.inf), k), cosine, 0.0)


def reweighted(graph: Graph, cosine: Array) -> Graph:
    """The same links, each as strong as its ends are alike (and a hundredth at least, so that none is lost)."""
    weights = graph.adjacency.toarray() * np.maximum(cosine, 0.01)
    return Graph.from_adjacency(weights, rooms=graph.rooms, positions=graph.positions)


def shuffled(graph: Graph, rng: np.random.Generator) -> Graph:
    """A control: the same links between other devices. The rooms of the devices stay as they are.

    >>> shuffled(Graph.from_rooms([0, 0, 1, 1]), np.random.default_rng(0)).edges.tolist()
    [[0, 3], [1, 2]]
    """
    order = rng.permutation(graph.count)
    links = graph.adjacency[order][:, order]
    return Graph(links, rooms=graph.rooms, positions=graph.positions, laplacian_kind=graph.laplacian_kind)


def _nearest(closeness: Array, k: int) -> Array:
    """(n, n) True for the k closest of every row, and for the rows that chose it."""
    count = len(closeness)
    check_count("graph.k", k)
    apart = np.where(np.eye(count, dtype=bool), -np.inf, closeness)
    order = np.argsort(-apart, axis=1, kind="stable")[:, : min(k, count - 1)]
    chosen = np.zeros((count, count), bool)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen | chosen.T
