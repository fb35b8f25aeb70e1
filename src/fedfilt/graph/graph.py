"""The graph of the devices: their links, and the graph's frequencies."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from fedfilt._checks import check_choice, check_count, check_number, check_signal, check_weights
from fedfilt._types import Array
from fedfilt.graph._edges import (
    checked_adjacency,
    checked_edges,
    checked_points,
    frozen,
    nearest_rows,
    neighbour_pairs,
    symmetric,
)

KINDS = ("combinatorial", "random_walk", "symmetric")
SPECTRUM_LIMIT = 5_000  # devices; all modes of 5,000 devices need 200 MB and about half a minute

# The 20-device graph of the paper's experiments: four rooms of five, seven links between rooms.
PAPER_EDGES = (
    "0-1 0-2 0-3 0-4 0-7 0-12 1-2 1-3 1-18 2-3 3-4 5-6 5-7 5-8 6-8 6-9 7-8 7-9 8-9 8-18 9-12 9-13 10-11 10-12 "
    "10-13 11-12 11-14 11-16 12-13 12-14 13-14 15-16 15-17 15-18 16-17 16-18 16-19 17-18 17-19"
)


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An undirected weighted graph of K devices.

    `adjacency` is a symmetric (K, K) matrix of non-negative link weights, dense or sparse, with a zero diagonal.
    `rooms` (a label per device) and `positions` (metres) are optional; `laplacian_kind` chooses the Laplacian:
    combinatorial L = D - A (the paper's), random-walk I - D⁻¹A, or symmetric I - D^-½ A D^-½.

    >>> graph = Graph.paper()
    >>> graph
    Graph(20 devices, 39 links, 1 component, 4 rooms)
    >>> graph.frequencies[[0, 1, 2, 3, -1]].round(3)
    array([0.   , 0.488, 0.567, 0.803, 8.028])
    """

    adjacency: Any
    rooms: Any = None
    positions: Any = None
    laplacian_kind: str = "combinatorial"
    kinds: tuple[str, ...] | None = None  # of devices, if their sensors differ: see `fedfilt.rounds.kinds`

    def __post_init__(self) -> None:
        adjacency = checked_adjacency(self.adjacency)
        count = adjacency.shape[0]
        object.__setattr__(self, "adjacency", adjacency)
        if self.rooms is not None:
            rooms = np.array(self.rooms)
            if rooms.shape != (count,):
                raise ValueError(f"rooms must have shape ({count},), one per device, got shape {rooms.shape}")
            object.__setattr__(self, "rooms", frozen(rooms))
        if self.positions is not None:
            positions = checked_points("positions", self.positions)
            if len(positions) != count:
                raise ValueError(f"positions must have {count} rows, one per device, got {len(positions)}")
            object.__setattr__(self, "positions", frozen(positions))
        check_choice("laplacian_kind", self.laplacian_kind, KINDS)
        if self.kinds is not None and len(self.kinds) != count:
            raise ValueError(f"kinds must have {count} names, one per device, got {len(self.kinds)}")

    # --- ways to make one -------------------------------------------------------------------------------------

    @classmethod
    def from_adjacency(cls, a: Any, *, rooms: Any = None, positions: Any = None) -> "Graph":
        """Graph of a dense or sparse adjacency matrix.

        >>> Graph.from_adjacency([[0, 1], [1, 0]])
        Graph(2 devices, 1 link, 1 component)
        """
        return cls(a, rooms=rooms, positions=positions)

    @classmethod
    def from_edges(
        cls, count: int, edges: Iterable[Sequence[int]], weights: Any = None, *, rooms: Any = None
    ) -> "Graph":
        """Graph of that many devices with the given links (i, j), each named once, with weight 1 by default.

        >>> Graph.from_edges(3, [(0, 1), (1, 2)]).adjacency.toarray()
        array([[0., 1., 0.],
               [1., 0., 1.],
               [0., 1., 0.]])
        """
        count = check_count("count", count)
        pairs = checked_edges("edges", edges, count)
        values = check_weights("weights", weights, len(pairs), per="edge")
        return cls(symmetric(count, pairs, values), rooms=rooms)

    @classmethod
    def from_rooms(cls, rooms: Any, links: Iterable[Sequence[int]] = ()) -> "Graph":
        """Link all devices in a room with each other, and add the given links (i, j) between devices.

        >>> Graph.from_rooms(["hall", "hall", "attic"], links=[(1, 2)])
        Graph(3 devices, 2 links, 1 component, 2 rooms)
        """
        rooms = np.array(rooms)
        if rooms.ndim != 1 or not len(rooms) or rooms.dtype.kind not in "iuUSb":
            raise ValueError(f"rooms must be a list with one name or number per device, got {rooms!r}")
        pairs = [checked_edges("links", links, len(rooms))]
        for label in np.unique(rooms):
            members = np.flatnonzero(rooms == label)
            first, second = np.triu_indices(len(members), k=1)
            pairs.append(np.column_stack([members[first], members[second]]))
        both = np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)
        return cls(symmetric(len(rooms), both), rooms=rooms)

    @classmethod
    def within_distance(cls, positions: Any, reach: float, *, rooms: Any = None) -> "Graph":
        """Link devices nearer than `reach` metres: the paper's rule d_ij < d_max.

        >>> Graph.within_distance([[0.0], [1.0], [3.0]], reach=2.0)
        Graph(3 devices, 1 link, 2 components)
        """
        points = checked_points("positions", positions)
        reach = check_number("reach", reach, low=0)
        pairs = cKDTree(points).query_pairs(reach, output_type="ndarray")
        apart = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)
        return cls(symmetric(len(points), pairs[apart < reach]), rooms=rooms, positions=points)

    @classmethod
    def nearest(cls, positions: Any, k: int, *, rooms: Any = None) -> "Graph":
        """Link every device to its k nearest; a link exists if either end chose it.

        >>> Graph.nearest([[0.0], [1.0], [3.0]], k=1)
        Graph(3 devices, 2 links, 1 component)
        """
        points = checked_points("positions", positions)
        k = check_count("k", k, high=max(len(points) - 1, 1))
        found = np.atleast_2d(cKDTree(points).query(points, k=min(k + 1, len(points)))[1])
        return cls(symmetric(len(points), neighbour_pairs(found)), rooms=rooms, positions=points)

    @classmethod
    def from_similarity(cls, features: Any, k: int, metric: str = "cosine", *, rooms: Any = None) -> "Graph":
        """Link every device to the k devices with the most similar features; the link weight is the similarity.

        Features are anything with one row per device: hardware data, label histograms, updates. The metric "cosine"
        weighs by the cosine (links that are not positive are dropped); "euclidean" scales every column to unit spread
        and weighs by exp(-d²/s²), where s is the mean distance over links.

        >>> Graph.from_similarity([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], k=1).adjacency.toarray().round(2)
        array([[0., 1., 0.],
               [1., 0., 0.],
               [0., 0., 0.]])
        """
        rows = checked_points("features", features)
        k = check_count("k", k, high=max(len(rows) - 1, 1))
        check_choice("metric", metric, ("cosine", "euclidean"))
        if metric == "cosine":
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.where(lengths > 0, lengths, 1)  # for unit vectors, near means similar
        else:
            spread = rows.std(axis=0)
            rows = (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1)
        found = nearest_rows(rows, k)
        pairs = neighbour_pairs(np.column_stack([np.arange(len(rows)), found]))
        ends = rows[pairs[:, 0]], rows[pairs[:, 1]]
        if metric == "cosine":
            weights = np.clip(np.einsum("ij,ij->i", *ends), 0, 1)
        else:
            squared = ((ends[0] - ends[1]) ** 2).sum(axis=1)
            scale = np.sqrt(squared).mean() if len(pairs) else 0.0
            weights = np.exp(-squared / scale**2) if scale > 0 else np.ones(len(pairs))
        return cls(symmetric(len(rows), pairs, weights), rooms=rooms)

    @classmethod
    def from_networkx(cls, g: Any) -> "Graph":
        """Graph of an undirected networkx graph; devices in its node order, edge attribute "weight" or 1.

        >>> import networkx
        >>> Graph.from_networkx(networkx.path_graph(3))
        Graph(3 devices, 2 links, 1 component)
        """
        if not hasattr(g, "is_directed") or g.is_directed() or g.is_multigraph():
            raise ValueError(f"g must be a plain undirected networkx.Graph, got {type(g).__name__}")
        index = {node: i for i, node in enumerate(g)}
        edges = [(index[a], index[b]) for a, b in g.edges()]
        return cls.from_edges(len(index), edges, [w for _, _, w in g.edges(data="weight", default=1.0)])

    @classmethod
    def of(cls, given: Any, count: int | None = None) -> "Graph":
        """Make a graph from a Graph, a networkx graph, a (K, K) matrix, dense or sparse, or a list of links (i, j).

        `count` is the number of devices, which links alone do not determine; the default is the largest number plus 1.

        >>> Graph.of([(0, 1), (1, 2)], count=4), Graph.of([[0, 1], [1, 0]])
        (Graph(4 devices, 2 links, 2 components), Graph(2 devices, 1 link, 1 component))
        """
        if isinstance(given, Graph):
            return given
        if hasattr(given, "is_directed"):
            return cls.from_networkx(given)
        if sp.issparse(given):
            return cls(given)
        try:
            links = np.asarray(given if hasattr(given, "shape") else list(given))
        except (TypeError, ValueError):
            links = np.empty(0)
        square = links.ndim == 2 and links.shape[0] == links.shape[1]
        # Two links can look like a matrix of two devices, but never have a zero diagonal and name each link once
        if square and (len(links) != 2 or ((links == links.T).all() and not links.diagonal().any())):
            return cls(links)
        if links.ndim == 2 and links.shape[1] == 2 and np.issubdtype(links.dtype, np.integer):
            return cls.from_edges(int(links.max()) + 1 if count is None else count, links)
        if isinstance(given, list | tuple) and not given and count is not None:
            return cls.from_edges(count, [])
        raise ValueError(
            "graph must be a Graph, a networkx graph, a square matrix or a list of links (i, j), "
            f"got {type(given).__name__}{f' of shape {links.shape}' if links.size else ''}"
        )

    @classmethod
    def paper(cls) -> "Graph":
        """The 20-device graph of the paper's experiments: four rooms of five devices."""
        edges = [tuple(int(end) for end in edge.split("-")) for edge in PAPER_EDGES.split()]
        return cls.from_edges(20, edges, rooms=np.arange(20) // 5)

    def with_laplacian(self, kind: str) -> "Graph":
        """The same links with another Laplacian: "combinatorial", "random_walk" or "symmetric"."""
        return replace(self, laplacian_kind=kind)

    def subgraph(self, devices: Any) -> "Graph":
        """The graph of some devices, in the given order; `devices` are indices, or one True/False per device.

        >>> Graph.paper().subgraph(range(5))
        Graph(5 devices, 8 links, 1 component, 1 room)
        """
        chosen = np.asarray(devices if isinstance(devices, np.ndarray) else list(devices))
        if chosen.dtype == bool:
            if chosen.shape != (self.count,):
                raise ValueError(f"devices must have {self.count} True/False values, got shape {chosen.shape}")
            chosen = np.flatnonzero(chosen)
        whole = chosen.ndim == 1 and (np.issubdtype(chosen.dtype, np.integer) or not chosen.size)
        if not whole or chosen.size == 0:
            raise ValueError(f"devices must be at least one index from 0 to {self.count - 1}, got {devices!r}")
        if chosen.min() < 0 or chosen.max() >= self.count or len(np.unique(chosen)) != len(chosen):
            raise ValueError(f"devices must be different indices from 0 to {self.count - 1}, got {devices!r}")
        return replace(
            self,
            adjacency=self.adjacency[chosen][:, chosen],
            rooms=None if self.rooms is None else self.rooms[chosen],
            positions=None if self.positions is None else self.positions[chosen],
            kinds=None if self.kinds is None else tuple(self.kinds[device] for device in chosen),
        )

    # --- properties -------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of devices K."""
        return int(self.adjacency.shape[0])

    @property
    def edges(self) -> Array:
        """The links (i, j), i < j, one row each, in lexical order."""
        upper = sp.triu(self.adjacency, k=1).tocoo()
        pairs = np.column_stack([upper.row, upper.col]).astype(np.int64)
        return pairs[np.lexsort(pairs.T[::-1])]

    @cached_property
    def hash(self) -> str:
        """sha256 of the links, their weights, the rooms and the kind of Laplacian."""
        digest = hashlib.sha256(
            f"{self.count} {self.laplacian_kind} {[] if self.rooms is None else self.rooms.tolist()}".encode()
        )
        for part in (self.adjacency.indptr, self.adjacency.indices):
            digest.update(part.astype(np.int64).tobytes())
        digest.update(self.adjacency.data.tobytes())
        return digest.hexdigest()

    @cached_property
    def degrees(self) -> Array:
        """Sum of link weights per device."""
        return np.asarray(self.adjacency.sum(axis=1), dtype=np.float64).ravel()

    @cached_property
    def components(self) -> Array:
        """(K,) the number of each device's connected component, from 0."""
        return np.asarray(connected_components(self.adjacency, directed=False)[1])

    @cached_property
    def laplacian(self) -> Any:
        """Sparse (K, K) Laplacian of the chosen kind."""
        if self.laplacian_kind == "random_walk":
            mass, stiffness = self.pencil(np.ones(self.count))
            return (sp.diags_array(1 / mass) @ stiffness).tocsr()
        return self.pencil(np.ones(self.count))[1]

    @property
    def frequencies(self) -> Array:
        """Eigenvalues of the Laplacian in rising order; exactly one zero per connected component."""
        return self._spectrum[0]

    @property
    def modes(self) -> Array:
        """Eigenvectors of the Laplacian as columns, orthonormal (under the degrees for the random walk)."""
        return self._spectrum[1]

    def fourier(self, signal: Array) -> Array:
        """Graph Fourier transform Vᵀ M x of a (K, B) signal; M = I, or the degrees for the random walk."""
        mass = self.pencil(np.ones(self.count))[0]
        return self.modes.T @ (mass[:, None] * check_signal("signal", signal, self.count))

    def inverse_fourier(self, coefficients: Array) -> Array:
        """The signal V c of (K, B) Fourier coefficients."""
        return self.modes @ check_signal("coefficients", coefficients, self.count)

    def total_variation(self, signal: Array) -> float:
        """Σ over links and columns of a_ij (x_i - x_j)²: how rough a (K, B) signal is on the graph.

        >>> Graph.from_edges(2, [(0, 1)]).total_variation(np.array([[0.0], [3.0]]))
        9.0
        """
        rows = check_signal("signal", signal, self.count)
        i, j = self.edges.T
        weights = np.asarray(self.adjacency[i, j]).ravel()
        return float((weights[:, None] * (rows[i] - rows[j]).astype(np.float64) ** 2).sum())

    def pencil(self, weights: Array) -> tuple[Array, Any]:
        """Mass (K,) and sparse stiffness S whose pencil S x = λ diag(mass) x carries the frequencies.

        mass is weights / mean(weights), times the degrees for the random walk; S is D - A, or D^-½ (D - A) D^-½ for the
        symmetric kind. A device without links has degree 1 here: it keeps its model either way.
        """
        stiffness = (sp.diags_array(self.degrees) - self.adjacency).tocsr()
        mass = weights / weights.max()  # in two steps: the sum of huge weights would overflow
        mass = mass / mass.mean()
        degrees = np.where(self.degrees > 0, self.degrees, 1)
        if self.laplacian_kind == "random_walk":
            mass = mass * degrees
        elif self.laplacian_kind == "symmetric":
            scale = sp.diags_array(1 / np.sqrt(degrees))
            stiffness = (scale @ stiffness @ scale).tocsr()
        return mass, stiffness

    @property
    def lowest(self) -> Array:
        """The mode of frequency zero of all components together: constant, or √degree for the symmetric Laplacian."""
        if self.laplacian_kind == "symmetric":
            return np.sqrt(np.where(self.degrees > 0, self.degrees, 1))
        return np.ones(self.count)

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        if self.count > SPECTRUM_LIMIT:
            raise ValueError(
                f"frequencies and modes are computed for up to {SPECTRUM_LIMIT} devices, got {self.count}; "
                "mix() filters larger graphs without them"
            )
        mass, stiffness = self.pencil(np.ones(self.count))
        frequencies = np.zeros(self.count)
        modes = np.zeros((self.count, self.count))
        done = 0
        for nodes in self.members():  # one component at a time keeps the zeros between components exact
            block = stiffness[nodes][:, nodes].toarray()
            values, vectors = spectrum(block, mass[nodes], self.lowest[nodes])
            columns = slice(done, done := done + len(nodes))
            frequencies[columns] = values
            modes[nodes, columns] = vectors
        order = np.argsort(frequencies, kind="stable")
        return frozen(frequencies[order]), frozen(modes[:, order])

    def members(self) -> list[Array]:
        """The devices in each connected component."""
        order = np.argsort(self.components, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.components))[:-1])

    def __repr__(self) -> str:
        parts = [(self.count, "device"), (self.adjacency.nnz // 2, "link"), (self.components.max() + 1, "component")]
        if self.rooms is not None:
            parts.append((len(np.unique(self.rooms)), "room"))
        text = ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in parts)
        return f"Graph({text})"


def spectrum(stiffness: Array, mass: Array, lowest: Array) -> tuple[Array, Array]:
    """Frequencies λ and modes V of one connected component: S V = diag(m) V Λ, Vᵀ diag(m) V = I.

    `lowest` is its mode of frequency zero up to scale. A reflection removes it before the decomposition, so that it
    stays exact however uneven the masses are.
    """
    root = np.sqrt(mass)
    unit = root * lowest
    unit = unit / np.linalg.norm(unit)
    normal = unit.copy()
    normal[0] += 1.0  # the reflection across `normal` swaps the first axis and -unit
    reflection = np.eye(len(mass)) - np.outer(normal, normal) / normal[0]
    turned = reflection @ (stiffness / np.outer(root, root)) @ reflection
    values, vectors = np.linalg.eigh(turned[1:, 1:])
    modes = np.column_stack([unit, reflection[:, 1:] @ vectors])
    return np.concatenate([[0.0], np.maximum(values, 0)]), modes / root[:, None]
