from typing import Any

import networkx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import Graph
from helpers import graphs


def test_paper_graph():
    graph = Graph.paper()
    assert graph.count == 20
    assert len(graph.edges) == 39
    assert (graph.components == 0).all()
    np.testing.assert_allclose(
        graph.frequencies[[0, 1, 2, 3, 4, -1]], [0, 0.488, 0.567, 0.803, 2.055, 8.028], atol=5e-4
    )
    between = [edge for edge in graph.edges.tolist() if graph.rooms[edge[0]] != graph.rooms[edge[1]]]
    assert between == [[0, 7], [0, 12], [1, 18], [8, 18], [9, 12], [9, 13], [11, 16]]


@given(graphs())
def test_the_same_graph_by_every_door(graph):
    dense = graph.adjacency.toarray()
    i, j = graph.edges.T
    weights = dense[i, j]
    peer = networkx.Graph()
    peer.add_nodes_from(range(graph.count))
    peer.add_weighted_edges_from(zip(i.tolist(), j.tolist(), weights.tolist(), strict=True))
    for other in (
        Graph.from_adjacency(dense),
        Graph.from_adjacency(sp.coo_matrix(dense)),
        Graph.from_edges(graph.count, graph.edges, weights),
        Graph.from_networkx(peer),
    ):
        np.testing.assert_array_equal(other.adjacency.toarray(), dense)
    assert graph.components.max() + 1 == networkx.number_connected_components(peer)


@given(graphs(), st.sampled_from(["combinatorial", "random_walk", "symmetric"]))
def test_laplacian_frequencies_and_modes(graph, kind):
    graph = graph.with_laplacian(kind)
    degrees = np.where(graph.degrees > 0, graph.degrees, 1)
    combinatorial = np.diag(graph.degrees) - graph.adjacency.toarray()
    expected = {
        "combinatorial": combinatorial,
        "random_walk": combinatorial / degrees[:, None],
        "symmetric": combinatorial / np.sqrt(np.outer(degrees, degrees)),
    }[kind]
    np.testing.assert_allclose(graph.laplacian.toarray(), expected, atol=1e-12)
    np.testing.assert_allclose(expected @ graph.modes, graph.modes * graph.frequencies, atol=1e-9)
    assert (graph.frequencies[: graph.components.max() + 1] == 0).all()
    assert (np.diff(graph.frequencies) >= 0).all()
    metric = np.diag(degrees) if kind == "random_walk" else np.eye(graph.count)
    np.testing.assert_allclose(graph.modes.T @ metric @ graph.modes, np.eye(graph.count), atol=1e-9)


@given(graphs(), st.integers(0, 2**32 - 1), st.sampled_from(["combinatorial", "random_walk", "symmetric"]))
def test_fourier_round_trip_parseval_and_total_variation(graph, seed, kind):
    signal = np.random.default_rng(seed).standard_normal((graph.count, 3))
    other = graph.with_laplacian(kind)
    np.testing.assert_allclose(other.inverse_fourier(other.fourier(signal)), signal, atol=1e-9)
    spectrum = graph.fourier(signal)
    assert (spectrum**2).sum() == pytest.approx((signal**2).sum())
    expected = np.einsum("ib,ij,jb->", signal, graph.laplacian.toarray(), signal)
    assert graph.total_variation(signal) == pytest.approx(expected, abs=1e-9)
    assert graph.total_variation(signal) == pytest.approx((graph.frequencies[:, None] * spectrum**2).sum(), abs=1e-9)


@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.floats(0, 2))
def test_within_distance_is_the_papers_rule(count, seed, reach):
    positions = np.random.default_rng(seed).random((count, 3))
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    expected = (distance < reach) & ~np.eye(count, dtype=bool)
    np.testing.assert_array_equal(Graph.within_distance(positions, reach).adjacency.toarray(), expected)


def test_a_device_exactly_at_reach_is_not_linked():
    assert Graph.within_distance([[0.0], [1.0], [1.5]], 1.0).edges.tolist() == [[1, 2]]


@given(st.integers(2, 40), st.integers(0, 2**32 - 1), st.data())
def test_nearest_links_the_k_nearest(count, seed, data):
    positions = np.random.default_rng(seed).random((count, 2))
    k = data.draw(st.integers(1, count - 1))
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    expected = np.zeros((count, count))
    np.put_along_axis(expected, np.argsort(distance, axis=1)[:, :k], 1, axis=1)
    np.testing.assert_array_equal(Graph.nearest(positions, k).adjacency.toarray(), np.maximum(expected, expected.T))


def test_nearest_with_devices_at_the_same_place():
    graph = Graph.nearest([[0.0, 0.0]] * 5, 2)
    assert graph.adjacency.diagonal().sum() == 0
    assert (graph.degrees >= 2).all()


def test_similarity_of_label_histograms_links_like_with_like():
    histograms = np.array([[9, 1, 0], [8, 2, 0], [0, 1, 9], [0, 2, 8]])
    for metric in ("cosine", "euclidean"):
        graph = Graph.from_similarity(histograms, 1, metric)
        assert graph.edges.tolist() == [[0, 1], [2, 3]]
        assert (graph.adjacency.data > 0).all()
        assert (graph.adjacency.data <= 1).all()
    cosine = Graph.from_similarity(histograms, 1).adjacency[0, 1]
    assert cosine == pytest.approx((9 * 8 + 1 * 2) / np.hypot(9, 1) / np.hypot(8, 2))


def test_similarity_by_blocks_equals_all_at_once(monkeypatch):
    features = np.random.default_rng(0).standard_normal((50, 4))
    whole = Graph.from_similarity(features, 3).adjacency.toarray()
    monkeypatch.setattr("fedfilt.graph._edges.BLOCK", 170)
    np.testing.assert_allclose(Graph.from_similarity(features, 3).adjacency.toarray(), whole)


def test_rooms_are_cliques_with_links_between():
    graph = Graph.from_rooms(["a", "b", "a", "c"], links=[(1, 3), (0, 2)])
    assert graph.edges.tolist() == [[0, 2], [1, 3]]
    assert graph.rooms.tolist() == ["a", "b", "a", "c"]


def test_subgraph_keeps_rooms_positions_and_order():
    graph = Graph.nearest(np.random.default_rng(0).random((6, 2)), 2, rooms=list("aabbcc"))
    part = graph.subgraph([4, 0, 2])
    assert part.rooms.tolist() == ["c", "a", "b"]
    np.testing.assert_array_equal(part.positions, graph.positions[[4, 0, 2]])
    np.testing.assert_array_equal(part.adjacency.toarray(), graph.adjacency.toarray()[np.ix_([4, 0, 2], [4, 0, 2])])
    assert graph.subgraph(np.array([True, False] * 3)).count == 3


def test_rounding_is_not_asymmetry():
    graph = Graph.from_adjacency([[0, 0.1 + 0.2], [0.3, 0]])
    assert graph.adjacency[0, 1] == graph.adjacency[1, 0]


def test_a_graph_cannot_be_changed():
    mine = np.array([[0.0, 1.0], [1.0, 0.0]])
    graph = Graph.from_adjacency(mine)
    mine[0, 1] = 5
    assert graph.adjacency[0, 1] == 1
    with pytest.raises(ValueError, match="read-only"):
        graph.adjacency.data[0] = 3


NO_EDGES: list[Any] = [[(0.5, 1)], 5]
LINE = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Graph.from_adjacency([[0, 1], [0, 0]]), r"adjacency must be symmetric, got 1 at \(0, 1\) and 0 at"),
        (lambda: Graph.from_adjacency([[0, -1], [-1, 0]]), "adjacency must be >= 0, got -1"),
        (lambda: Graph.from_adjacency([[0, np.nan], [np.nan, 0]]), "adjacency must be finite"),
        (lambda: Graph.from_adjacency([[1, 0], [0, 0]]), "adjacency must have a zero diagonal.*device 0"),
        (lambda: Graph.from_adjacency(np.zeros((2, 3))), r"adjacency must be square.*\(2, 3\)"),
        (lambda: Graph.from_adjacency(np.zeros((0, 0))), "adjacency must be square and not empty"),
        (lambda: Graph.from_adjacency(np.zeros(4)), "adjacency must be"),
        (lambda: Graph.from_adjacency("nonsense"), "adjacency must be"),
        (lambda: Graph.from_edges(3, [(0, 3)]), r"edges must name devices from 0 to 2, got \[0, 3\]"),
        (lambda: Graph.from_edges(3, [(0, -1)]), "edges must name devices from 0 to 2"),
        (lambda: Graph.from_edges(3, [(1, 1)]), "edges must link two devices"),
        (lambda: Graph.from_edges(3, [(0, 1), (1, 0)]), "edges must name each link once"),
        (lambda: Graph.from_edges(3, [(0, 1, 2)]), "edges must be pairs"),
        (lambda: Graph.from_edges(3, NO_EDGES[0]), "edges must be pairs"),
        (lambda: Graph.from_edges(3, [(0, 1)], [1, 2]), r"weights must have shape \(1,\)"),
        (lambda: Graph.from_edges(3, [(0, 1)], [-1]), "weights must be finite and >= 0"),
        (lambda: Graph.from_edges(0, []), "count must be a whole number >= 1"),
        (lambda: Graph.from_rooms([]), "rooms must be"),
        (lambda: Graph.from_rooms(["a", "b"], links=[(0, 2)]), "links must name devices"),
        (lambda: Graph.from_rooms([None, "a"]), "rooms must be a list with one name or number per device"),
        (lambda: Graph.from_edges(3, NO_EDGES[1]), "edges must be pairs"),
        (lambda: Graph.from_adjacency([["0", "1"], ["1", "0"]]), "adjacency must be a square matrix of numbers"),
        (lambda: Graph.from_adjacency(np.array([[0, 1j], [1j, 0]])), "adjacency must be a square matrix of numbers"),
        (lambda: Graph.from_networkx("g"), "g must be a plain undirected"),
        (lambda: Graph.within_distance([[0, 0], [0, np.inf]], 1), "positions must be finite.*row 1"),
        (lambda: Graph.within_distance([1, 2, 3], 1), "positions must have shape"),
        (lambda: Graph.within_distance([[0], [1]], -1), "reach must be a finite number >= 0"),
        (lambda: Graph.nearest([[0], [1]], 2), "k must be a whole number from 1 to 1, got 2"),
        (lambda: Graph.nearest([[0], [1]], 0), "k must be a whole number"),
        (lambda: Graph.from_similarity([[0], [1]], 1, "cosinus"), "unknown metric 'cosinus'; did you mean 'cosine'"),
        (lambda: Graph.from_similarity([["a"], ["b"]], 1), "features must be numbers"),
        (lambda: Graph.from_networkx(networkx.DiGraph([(0, 1)])), "g must be a plain undirected"),
        (lambda: Graph.from_adjacency(LINE, rooms=[1, 2]), r"rooms must have shape \(3,\)"),
        (lambda: Graph.from_adjacency(LINE, positions=[[0.0]]), "positions must have 3 rows"),
        (lambda: Graph.paper().with_laplacian("randomwalk"), "did you mean 'random_walk'"),
        (lambda: Graph.paper().subgraph([0, 0]), "devices must be different indices"),
        (lambda: Graph.paper().subgraph([20]), "devices must be different indices from 0 to 19"),
        (lambda: Graph.paper().subgraph([]), "devices must be at least one index"),
        (lambda: Graph.paper().subgraph(np.array([True])), "devices must have 20 True/False"),
        (lambda: Graph.paper().fourier(np.ones((19, 1))), "signal must have shape"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
