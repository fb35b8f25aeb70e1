import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import Graph, Updates, mixing_matrix
from fedfilt.aggregators import SFL, FedAvg, FedU, GFedFilt, Local, PaperLiteral, RoomAverage, SelfBlend
from fedfilt.filters import Heat, Tikhonov
from helpers import strengths, weighted_graphs


def as_round(weights, signal):
    models = signal[:, ::-1].copy()
    return models, Updates(np.where(weights[:, None] > 0, signal, 0), weights)


@given(weighted_graphs(zeros=True), strengths)
def test_gfedfilt_filters_models_or_updates(case, mu):
    graph, weights, signal = case
    models, updates = as_round(weights, signal)
    matrix = mixing_matrix(graph, Tikhonov(mu), weights)
    filtered = GFedFilt(Tikhonov(mu))(models, updates, graph)
    np.testing.assert_allclose(filtered, matrix @ (models + updates.rows), atol=1e-9)
    filtered = GFedFilt(Tikhonov(mu), signal="updates")(models, updates, graph)
    np.testing.assert_allclose(filtered, models + matrix @ updates.rows, atol=1e-9)


@given(weighted_graphs(zeros=True, connected=True))
def test_gfedfilt_slides_from_local_to_fedavg(case):
    graph, weights, signal = case
    models, updates = as_round(weights, signal)
    local = GFedFilt(Tikhonov(0.0))(models, updates, graph)
    np.testing.assert_array_equal(local, Local()(models, updates, graph))
    shared = GFedFilt(Tikhonov(1e9))(models, updates, graph)
    np.testing.assert_allclose(shared, FedAvg()(models, updates, graph), atol=1e-6)


def test_a_component_without_anybody_present_stays_as_it_is():
    graph = Graph.from_edges(5, [(0, 1), (2, 3), (3, 4)])
    models = np.arange(5.0)[:, None]
    updates = Updates(np.ones((5, 1)) * [[1], [1], [0], [0], [0]], np.array([1.0, 3.0, 0, 0, 0]))
    for rule in (GFedFilt(Tikhonov(5.0)), GFedFilt(Heat(1.0), signal="updates")):
        result = rule(models, updates, graph)
        np.testing.assert_array_equal(result[2:], models[2:])
        assert not np.array_equal(result[:2], models[:2])


@given(weighted_graphs(), st.floats(0.1, 10))
def test_paper_literal_is_k_times_too_small_for_equal_weights(case, mu):
    graph, _, signal = case
    with pytest.warns(UserWarning, match="shrinks every update"):
        rule = PaperLiteral(Tikhonov(mu))
    zeros = np.zeros_like(signal)
    equal = Updates(signal, np.ones(graph.count))
    right = GFedFilt(Tikhonov(mu), signal="updates")(zeros, equal, graph)
    np.testing.assert_allclose(rule(zeros, equal, graph) * graph.count, right, atol=1e-9)


@given(weighted_graphs(zeros=True))
def test_room_average_is_fedavg_in_every_room(case):
    graph, weights, signal = case
    models, updates = as_round(weights, signal)
    result = RoomAverage()(models, updates, graph)
    for room in np.unique(graph.rooms):
        members = graph.rooms == room
        part = Updates(updates.rows[members], weights[members])
        expected = FedAvg()(models[members], part, graph.subgraph(members))
        np.testing.assert_allclose(result[members], expected, atol=1e-12)


@given(weighted_graphs(), st.floats(0, 1))
def test_fedu_is_one_explicit_step(case, step):
    graph, _, signal = case
    eta = step / max(graph.degrees.max(), 1)
    models, updates = as_round(np.ones(graph.count), signal)
    expected = (np.eye(graph.count) - eta * 2 * graph.laplacian.toarray()) @ (models + updates.rows)
    if eta * 2 * graph.degrees.max() <= 1:
        np.testing.assert_allclose(FedU(eta, 2.0)(models, updates, graph), expected, atol=1e-9)
    else:
        with pytest.raises(ValueError, match="eta \\* mu must be at most"):
            FedU(eta, 2.0)(models, updates, graph)


@given(weighted_graphs(zeros=True), st.integers(1, 3))
def test_sfl_is_a_power_of_a_row_stochastic_matrix(case, hops):
    graph, weights, signal = case
    models, updates = as_round(weights, signal)
    links = (graph.adjacency.toarray() + np.eye(graph.count)) * weights
    alone = links.sum(axis=1) == 0
    links[alone, alone] = 1
    average = links / links.sum(axis=1, keepdims=True)
    expected = np.linalg.matrix_power(average, hops) @ (models + updates.rows)
    np.testing.assert_allclose(SFL(hops)(models, updates, graph), expected, atol=1e-9)


def test_bad_input():
    with pytest.raises(ValueError, match="unknown signal 'model'; did you mean 'models'"):
        GFedFilt(signal="model")
    with pytest.raises(ValueError, match="hops must be a whole number >= 1, got 0"):
        SFL(0)
    with pytest.raises(ValueError, match="own must be a finite number >= 0 and <= 1, got 2"):
        SelfBlend(2)
    with pytest.raises(ValueError, match="needs a graph with rooms"):
        RoomAverage()(np.zeros((2, 1)), Updates(np.zeros((2, 1)), np.ones(2)), Graph.from_edges(2, [(0, 1)]))
