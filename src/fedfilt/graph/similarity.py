"""Links between similar devices and people: by distance, by place, or by their first updates."""

import csv
from pathlib import Path

import numpy as np

from fedfilt._checks import check_count, check_signal
from fedfilt._reading import csv_text
from fedfilt._types import Array
from fedfilt.graph.graph import Graph

MOST_MERGED = 500  # most devices to merge into clusters one by one


def with_links(graph: Graph, links: Array) -> Graph:
    """The graph with weights (K, K) added to its links."""
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
    """Cosines (K, K) between the devices' early updates minus their mean; negative ones become 0.

    No raw data is needed: the server has the updates anyway.

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
    """Weights (K, K) that link each device to the k most similar devices of other people, chosen by either end."""
    others = graph.rooms[:, None] != graph.rooms[None, :]
    return np.where(others & _nearest(np.where(others, cosine, -np.inf), k), cosine, 0.0)


def linked_by_updates(updates: Array, k: int) -> Array:
    """Weights (K, K) that link each device to the k with the most similar updates, chosen by either end.

    A weight is the cosine between two updates minus the mean of all; without a positive cosine there is no link. If all
    updates are equal, all devices are linked with weight 1. For two devices, whose updates minus the mean are opposite,
    it is the cosine of the updates themselves. Devices without an update (zeros), and a single device, have no links.

    >>> linked_by_updates(np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [0.0, 0.0]]), k=1).round(1)[0]
    array([0., 1., 0., 0., 0.])
    """
    rows = check_signal("updates", np.asarray(updates, np.float64), len(updates))
    there = np.flatnonzero(rows.any(axis=1))
    found, links = rows[there], np.zeros((len(rows), len(rows)))
    if len(there) < 2:
        return links
    apart = np.linalg.norm(found - found.mean(axis=0), axis=1).max()
    if apart <= 1e-6 * np.linalg.norm(found, axis=1).max():
        links[np.ix_(there, there)] = 1 - np.eye(len(there))
        return links
    cosine = alike(found) if len(there) > 2 else np.clip(_cosines(found), 0, 1) * (1 - np.eye(2))
    links[np.ix_(there, there)] = np.where(_nearest(cosine, k), cosine, 0.0)
    return links


def neighbours(halves: Array, most: int = 15) -> int:
    """The best number of neighbours, at least 1, judged by updates (2, K, B) from two halves of the samples.

    The mean update of a device and its k neighbours, computed from one half, should be closest to the device's own
    update from the other half. The halves have independent noise, so noise is not fitted.

    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(rng.standard_normal((3, 50)), 5, axis=0)  # three groups of five
    >>> neighbours(groups + 2 * rng.standard_normal((2, 15, 50)))
    4
    """
    rows = np.asarray(halves, np.float64)
    rows = rows[:, rows.any(axis=2).all(axis=0)]
    if rows.shape[1] < 3:
        return 1
    rows = rows - rows.mean(axis=1, keepdims=True)
    scores = np.zeros(min(most, rows.shape[1] - 1))
    for seen, other in (rows, rows[::-1]):
        order = np.argsort(-alike(seen), axis=1, kind="stable")
        together = seen.copy()
        for k in range(len(scores)):
            together += seen[order[:, k]]
            scores[k] += np.diag(_cosines(together, other)).sum()
    return int(scores.argmax()) + 1


def clusters(graph: Graph) -> tuple[Array, float]:
    """((K,) cluster of each device, from 0, modularity): groups with many links inside and few in between.

    Groups are merged one by one as long as that raises the modularity Q, the share of links inside groups minus that of
    random links between devices of the same degrees: near 0 there are no groups, from 0.3 on they are distinct. Without
    links, every device is its own group. With more than 500 devices, groups are the connected components.

    >>> found, modularity = clusters(Graph.from_rooms([0, 0, 0, 1, 1, 1]))
    >>> found.tolist(), modularity
    ([0, 0, 0, 1, 1, 1], 0.5)
    """
    between = graph.adjacency.astype(float)
    member = graph.components if graph.count > MOST_MERGED else np.arange(graph.count)
    total = between.sum()
    if total:
        groups = np.eye(member.max() + 1)[member]
        shares = groups.T @ (between / total) @ groups
        while len(shares) > 1 and graph.count <= MOST_MERGED:
            degrees = shares.sum(axis=1)
            gain = np.where(np.tri(len(shares), k=-1, dtype=bool), shares - np.outer(degrees, degrees), -np.inf)
            second, first = np.unravel_index(gain.argmax(), gain.shape)
            if gain[second, first] <= 1e-12:
                break
            member = np.where(member == second, first, member)
            member -= member > second
            shares[first] += shares[second]
            shares[:, first] += shares[:, second]
            shares = np.delete(np.delete(shares, second, axis=0), second, axis=1)
        modularity = float(np.trace(shares) - (shares.sum(axis=1) ** 2).sum())
    else:
        modularity = 0.0
    return np.unique(member, return_inverse=True)[1], modularity


def reweighted(graph: Graph, cosine: Array) -> Graph:
    """The same links, each weighted by the similarity of its ends (at least 0.01, so that none is lost)."""
    weights = graph.adjacency.toarray() * np.maximum(cosine, 0.01)
    return Graph.from_adjacency(weights, rooms=graph.rooms, positions=graph.positions)


def shuffled(graph: Graph, rng: np.random.Generator) -> Graph:
    """A control: the same links between other devices. The devices keep their rooms.

    >>> shuffled(Graph.from_rooms([0, 0, 1, 1]), np.random.default_rng(0)).edges.tolist()
    [[0, 3], [1, 2]]
    """
    order = rng.permutation(graph.count)
    links = graph.adjacency[order][:, order]
    return Graph(links, rooms=graph.rooms, positions=graph.positions, laplacian_kind=graph.laplacian_kind)


def _cosines(rows: Array, others: Array | None = None) -> Array:
    """Cosines between rows, or between rows and `others`; 0 for rows of zeros."""
    units = [
        one / np.maximum(np.linalg.norm(one, axis=1, keepdims=True), np.finfo(float).tiny)
        for one in (rows, rows if others is None else others)
    ]
    found: Array = units[0] @ units[1].T
    return found


def _nearest(closeness: Array, k: int) -> Array:
    """(n, n) True for the k closest of each row, and for the rows that chose it."""
    count = len(closeness)
    check_count("graph.k", k)
    apart = np.where(np.eye(count, dtype=bool), -np.inf, closeness)
    order = np.argsort(-apart, axis=1, kind="stable")[:, : min(k, count - 1)]
    chosen = np.zeros((count, count), bool)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen | chosen.T
