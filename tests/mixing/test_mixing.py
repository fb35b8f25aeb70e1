"""The mathematics of the mixing, stated as properties and compared with independent oracles."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import Graph, mix, mixing, mixing_matrix, strength
from fedfilt.filters import AllPass, Floor, Heat, Ideal, Tikhonov
from fedfilt.mixing import _solvers as solvers
from helpers import graphs, strengths, weighted_graphs

responses = st.one_of(
    st.builds(Tikhonov, strengths),
    st.builds(Heat, st.floats(0, 5)),
    st.builds(Ideal, st.floats(0, 10)),
    st.builds(AllPass),
    st.builds(Floor, strengths, st.floats(0, 1)),
)


def component_mean(graph, weights, signal):
    means = np.empty_like(signal)
    for members in graph.members():
        means[members] = np.average(signal[members], axis=0, weights=weights[members])
    return means


@given(weighted_graphs(zeros=True), strengths.filter(lambda mu: mu > 0))
def test_tikhonov_is_the_solution_of_the_weighted_system(case, mu):
    graph, weights, _ = case
    n = np.diag(weights / weights.mean())
    expected = np.linalg.solve(n + mu * graph.laplacian.toarray(), n)
    np.testing.assert_allclose(mixing_matrix(graph, Tikhonov(mu), weights), expected, atol=1e-8)


@given(weighted_graphs(zeros=True), responses)
def test_rows_sum_to_one_and_the_weighted_mean_is_kept(case, response):
    graph, weights, signal = case
    matrix = mixing_matrix(graph, response, weights)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-10)
    kept = component_mean(graph, weights, matrix @ signal)
    np.testing.assert_allclose(kept, component_mean(graph, weights, signal), atol=1e-9)


@given(weighted_graphs(zeros=True), responses)
def test_mix_applies_the_mixing_matrix(case, response):
    graph, weights, signal = case
    expected = mixing_matrix(graph, response, weights) @ signal
    np.testing.assert_allclose(mix(graph, response, signal, weights), expected, atol=1e-9)
    single = mix(graph, response, signal.astype(np.float32), weights)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, atol=1e-5)


@given(weighted_graphs(zeros=True))
def test_mu_zero_is_exactly_the_identity(case):
    graph, weights, signal = case
    for response in (Tikhonov(0.0), AllPass(), Heat(0.0), Floor(3.0, 1.0)):
        np.testing.assert_array_equal(mixing_matrix(graph, response, weights), np.eye(graph.count))
        np.testing.assert_array_equal(mix(graph, response, signal, weights), signal)


@given(weighted_graphs(zeros=True))
def test_mu_to_infinity_is_fedavg_per_component(case):
    graph, weights, signal = case
    expected = component_mean(graph, weights, signal)
    for response in (Tikhonov(1e9), Tikhonov(1e200), Ideal(0.0)):
        np.testing.assert_allclose(mix(graph, response, signal, weights), expected, atol=1e-6)


@given(graphs(), strengths)
def test_equal_weights_give_a_symmetric_non_negative_contraction(graph, mu):
    matrix = mixing_matrix(graph, Tikhonov(mu))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert matrix.min() >= -1e-12
    assert np.linalg.norm(matrix, 2) <= 1 + 1e-12


@given(weighted_graphs(zeros=True), strengths)
def test_maximum_principle(case, mu):
    graph, weights, signal = case
    present = weights > 0
    result = mix(graph, Tikhonov(mu), np.where(present[:, None], signal, 0), weights)
    for members in graph.members():
        source = signal[members[present[members]]] if mu > 0 else np.where(present[:, None], signal, 0)[members]
        assert (result[members] <= source.max(axis=0) + 1e-9).all()
        assert (result[members] >= source.min(axis=0) - 1e-9).all()


@given(weighted_graphs(), st.floats(0, 50), st.floats(0.01, 50))
def test_total_variation_falls_with_mu(case, mu, more):
    graph, weights, signal = case
    before = graph.total_variation(mix(graph, Tikhonov(mu), signal, weights))
    after = graph.total_variation(mix(graph, Tikhonov(mu + more), signal, weights))
    assert after <= before * (1 + 1e-9) + 1e-12


@given(weighted_graphs(zeros=True), responses)
def test_nothing_passes_between_components(case, response):
    graph, weights, _ = case
    apart = graph.components[:, None] != graph.components[None]
    assert (mixing_matrix(graph, response, weights)[apart] == 0).all()


@given(weighted_graphs(zeros=True), responses, st.randoms())
def test_permutation_equivariance(case, response, random):
    graph, weights, signal = case
    order = np.array(random.sample(range(graph.count), graph.count))
    expected = mix(graph, response, signal, weights)[order]
    np.testing.assert_allclose(mix(graph.subgraph(order), response, signal[order], weights[order]), expected, atol=1e-6)


@given(weighted_graphs(zeros=True), st.floats(0.01, 100))
def test_zero_weight_is_the_limit_of_vanishing_weight(case, mu):
    graph, weights, signal = case
    nearly = np.where(weights > 0, weights, 1e-6 * weights.mean())
    for response in (Tikhonov(mu), Floor(mu, 0.3), Heat(0.5)):
        np.testing.assert_allclose(
            mix(graph, response, signal, weights), mix(graph, response, signal, nearly), atol=2e-4
        )


def test_zero_weight_device_relays_and_receives():
    path = Graph.from_edges(3, [(0, 1), (1, 2)])
    matrix = mixing_matrix(path, Tikhonov(2.0), [1, 0, 1])
    assert (matrix[:, 1] == 0).all()  # contributes nothing
    assert matrix[0, 2] > 0.1  # relays between its neighbours
    np.testing.assert_allclose(matrix[1], [0.5, 0, 0.5])  # receives their mean


@given(weighted_graphs(zeros=True), st.floats(0.01, 100))
def test_cutting_the_links_of_absent_devices_is_the_subgraph(case, mu):
    graph, weights, signal = case
    present = weights > 0
    cut = np.where(np.outer(present, present), graph.adjacency.toarray(), 0)
    whole = mix(Graph.from_adjacency(cut), Tikhonov(mu), signal, np.where(present, weights, weights[present].mean()))
    part = mix(graph.subgraph(present), Tikhonov(mu), signal[present], weights[present])
    np.testing.assert_allclose(whole[present], part, atol=1e-9)


@pytest.mark.parametrize("mu", [0.1, 1, 10, 100])
def test_equals_pygsp(mu):
    pygsp = pytest.importorskip("pygsp")
    graph = Graph.paper()
    signal = np.random.default_rng(0).standard_normal((20, 6))
    peer = pygsp.graphs.Graph(graph.adjacency.toarray())
    peer.compute_fourier_basis()
    for response in (Tikhonov(mu), Heat(mu), Floor(mu, 0.2)):
        expected = pygsp.filters.Filter(peer, response).filter(signal, method="exact")
        np.testing.assert_allclose(mix(graph, response, signal), expected, atol=1e-10)


def test_self_weights_of_the_paper_graph():
    found = [strength(Graph.paper(), Tikhonov(mu)).self_weight for mu in (0.1, 1, 10, 100)]
    np.testing.assert_allclose(found, [0.74, 0.30, 0.09, 0.054], atol=0.005)


# --- large graphs: the same results without a dense matrix ------------------------------------------------------


@cache
def large_graph(kind):
    rng = np.random.default_rng(0)
    if kind == "expander":
        nx = pytest.importorskip("networkx")
        return Graph.from_networkx(nx.random_regular_graph(6, 900, seed=0))
    if kind == "components":
        rooms = np.sort(rng.integers(0, 120, 900))
        return Graph.from_rooms(rooms)
    return Graph.nearest(rng.random((900, 2 if kind == "plane" else 3)), 6)


@cache
def decomposed(kind):
    """(weights, N, generalised eigenvalues and eigenvectors of L and N): independent of the package's own way."""
    graph = large_graph(kind)
    weights = np.random.default_rng(1).integers(50, 500, graph.count).astype(float)
    n = np.diag(weights / weights.mean())
    return weights, n, *scipy.linalg.eigh(graph.laplacian.toarray(), n)


def solved(kind, response, signal):
    """The definition by generalised eigenvectors."""
    _, n, values, vectors = decomposed(kind)
    return vectors @ (response(np.maximum(values, 0))[:, None] * (vectors.T @ n @ signal))


@pytest.mark.parametrize("kind", ["plane", "space", "components", "expander"])
@pytest.mark.parametrize("response", [Tikhonov(1.0), Tikhonov(10.0), Floor(10.0, 0.3), Heat(2.0), AllPass()])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_graphs_agree_with_the_definition(kind, response, dtype):
    graph = large_graph(kind)
    assert graph.count > mixing.DENSE_LIMIT
    weights, rng = decomposed(kind)[0], np.random.default_rng(4)
    signal = (5 + rng.standard_normal((graph.count, 9))).astype(dtype)
    result = mix(graph, response, signal, weights)
    assert result.dtype == dtype
    expected = solved(kind, response, signal.astype(float))
    error = np.linalg.norm(result - expected) / np.linalg.norm(signal - signal.mean(axis=0))
    assert error < (1e-5 if dtype == np.float32 else 1e-11)


@pytest.mark.parametrize("kind", ["plane", "expander"])
def test_large_graphs_with_absent_devices_agree_with_the_small_method(kind, monkeypatch):
    graph = large_graph(kind)
    rng = np.random.default_rng(2)
    weights = rng.integers(50, 500, graph.count) * (rng.random(graph.count) < 0.7)
    signal = rng.standard_normal((graph.count, 5))
    for response in (Tikhonov(3.0), Floor(3.0, 0.3), Heat(1.0)):
        expected = mixing_matrix(graph, response, weights) @ signal
        np.testing.assert_allclose(mix(graph, response, signal, weights), expected, atol=1e-9)


@pytest.mark.parametrize("kind", ["plane", "components", "expander"])
@pytest.mark.parametrize("mu", [1e4, 1e9, 1e200])
def test_large_mu_on_large_graphs_keeps_constants_and_means(kind, mu):
    graph = large_graph(kind)
    rng = np.random.default_rng(3)
    weights = rng.integers(1, 500, graph.count).astype(float)
    constant = np.full((graph.count, 2), 7.5, dtype=np.float32)
    np.testing.assert_array_equal(mix(graph, Tikhonov(mu), constant, weights), constant)
    signal = rng.standard_normal((graph.count, 4)).astype(np.float32)
    result = mix(graph, Tikhonov(mu), signal, weights)
    expected = component_mean(graph, weights, signal.astype(float))
    np.testing.assert_allclose(component_mean(graph, weights, result.astype(float)), expected, atol=1e-6)
    if mu > 1e8:
        np.testing.assert_allclose(result, expected, atol=2e-5)


def test_only_expanders_are_taken_to_fill_in():
    for kind, fills in [("plane", False), ("space", False), ("components", False), ("expander", True)]:
        assert solvers.fills_in(large_graph(kind)) is fills, kind


def test_the_frequency_bound_is_safe():
    for kind in ("plane", "space", "expander"):
        graph = large_graph(kind)
        mass = np.random.default_rng(0).uniform(0.2, 2, graph.count)
        scaled = graph.laplacian.toarray() / np.sqrt(np.outer(mass, mass))
        assert np.linalg.eigvalsh(scaled)[-1] <= solvers.frequency_bound(graph.laplacian, mass)


def test_a_response_too_steep_for_a_series_is_refused():
    with pytest.raises(ValueError, match="response is too steep"):
        mix(large_graph("plane"), Ideal(1.0), np.ones((900, 1)))


def test_sampled_strength_is_near_the_exact_one():
    graph = large_graph("plane")
    matrix = mixing_matrix(graph, Tikhonov(1.0))
    assert strength(graph, Tikhonov(1.0)).self_weight == pytest.approx(matrix.diagonal().mean(), rel=0.05)
    everybody = strength(graph, Tikhonov(1.0), sample=900)
    assert everybody.self_weight == pytest.approx(matrix.diagonal().mean(), rel=1e-9)
    assert everybody.neighbours == pytest.approx((1 / (matrix**2).sum(axis=1)).mean() - 1, rel=1e-9)


def test_in_place_and_repeated_calls_give_the_same_bits():
    graph = large_graph("plane")
    signal = np.random.default_rng(0).standard_normal((900, 700)).astype(np.float32)
    first = mix(graph, Tikhonov(2.0), signal)
    mixing._prepare.cache_clear()
    again = mix(graph, Tikhonov(2.0), signal, out=signal)
    assert again is signal
    np.testing.assert_array_equal(first, again)


def test_any_callable_is_a_filter():
    class Unhashable(list[int]):
        def __call__(self, frequencies):
            return 1 / (1 + frequencies) ** 2

    graph, signal = Graph.paper(), np.random.default_rng(0).standard_normal((20, 2))
    twice = mix(graph, Tikhonov(1.0), mix(graph, Tikhonov(1.0), signal))
    np.testing.assert_allclose(mix(graph, lambda f: 1 / (1 + f) ** 2, signal), twice)
    np.testing.assert_allclose(mix(graph, Unhashable(), signal), twice)


# --- hard cases ---------------------------------------------------------------------------------------------------


def path(count, **options):
    return Graph.from_edges(count, [(i, i + 1) for i in range(count - 1)], **options)


@pytest.mark.parametrize("count", [6, 300, 600])
@pytest.mark.parametrize("mu", [1.0, 4e3, 1e9])
def test_very_uneven_weights_keep_rows_and_means(count, mu):
    weights = 10 ** np.random.default_rng(0).uniform(-6, 6, count)
    signal = np.random.default_rng(1).standard_normal((count, 3))
    graph = path(count)
    ones = np.ones((count, 1))
    for response, allowed in ((Tikhonov(mu), 1e-11), (Floor(mu, 0.2), 1e-11)):
        np.testing.assert_allclose(mix(graph, response, ones, weights), ones, atol=allowed)
        kept = np.average(mix(graph, response, signal, weights), axis=0, weights=weights)
        np.testing.assert_allclose(kept, np.average(signal, axis=0, weights=weights), atol=allowed)
    np.testing.assert_allclose(mixing_matrix(path(6), Heat(1.0), [1e-6, 1e6] * 3).sum(axis=1), 1, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_component_with_few_samples_does_not_make_the_system_singular(dtype):
    graph = Graph.from_edges(600, [(i, i + 1) for i in range(597)] + [(598, 599)])
    weights = np.full(600, 1e6)
    weights[-2:] = 1
    signal = np.random.default_rng(0).standard_normal((600, 2)).astype(dtype)
    for mu in (1e3, 1e12):
        result = mix(graph, Tikhonov(mu), signal, weights)
        np.testing.assert_allclose(result[-2:], signal[-2:].mean(axis=0, keepdims=True).repeat(2, axis=0), atol=1e-5)


def test_long_paths_reach_the_average_as_mu_grows():
    count = 20_000
    mode = np.cos(np.pi * (np.arange(count) + 0.5) / count)[:, None]  # an eigenvector: the answer is known
    frequency = 4 * np.sin(np.pi / 2 / count) ** 2
    for mu in (1e4, 1e9, 1e12, 1e15):
        for dtype, allowed in ((np.float64, 1e-6), (np.float32, 1e-4)):
            result = mix(path(count), Tikhonov(mu), mode.astype(dtype))
            assert abs(result).max() == pytest.approx(abs(mode).max() / (1 + mu * frequency), rel=allowed, abs=1e-9)


def test_a_weak_link_lets_through_what_it_should():
    edges = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)]
    graph = Graph.from_edges(6, edges, weights=[1] * 6 + [1e-15])
    matrix = mixing_matrix(graph, Tikhonov(1e15), [1, 2, 3, 4, 5, 6])
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
    assert matrix[0, 5] > 0.01


def test_a_system_too_hard_for_conjugate_gradients_is_factored():
    nx = pytest.importorskip("networkx")
    edges = Graph.from_networkx(nx.random_regular_graph(4, 1000, seed=0)).edges
    graph = Graph.from_edges(1000, edges, weights=10 ** np.random.default_rng(0).uniform(-6, 6, len(edges)))
    assert solvers.fills_in(graph)
    signal = np.random.default_rng(1).standard_normal((1000, 2))
    expected = mixing_matrix(graph, Tikhonov(1000.0)) @ signal
    np.testing.assert_allclose(mix(graph, Tikhonov(1000.0), signal), expected, atol=1e-6)


def test_several_expanders_fill_in_too():
    nx = pytest.importorskip("networkx")
    parts = [nx.random_regular_graph(6, 700, seed=i) for i in range(3)]
    assert solvers.fills_in(Graph.from_networkx(nx.disjoint_union_all(parts)))


def test_a_response_too_narrow_to_see_is_refused():
    weights = np.ones(600)
    weights[0] = 1e-12
    with pytest.raises(ValueError, match="response is too steep"):
        mix(path(600), lambda f: 0.3 + 0.7 * np.exp(-f), np.ones((600, 1)), weights)


def test_heat_on_large_graphs_with_uneven_counts():
    graph = large_graph("plane")
    weights = np.random.default_rng(0).integers(1, 1000, graph.count)
    for dtype, allowed in ((np.float32, 3e-6), (np.float64, 1e-10)):
        signal = np.random.default_rng(1).standard_normal((graph.count, 2)).astype(dtype)
        expected = mixing_matrix(graph, Heat(3.0), weights) @ signal
        np.testing.assert_allclose(mix(graph, Heat(3.0), signal, weights), expected, atol=allowed)


def test_an_ideal_filter_below_all_frequencies_is_the_mean_at_any_size():
    signal = np.random.default_rng(0).standard_normal((600, 2))
    np.testing.assert_allclose(mix(path(600), Ideal(0.0), signal), np.tile(signal.mean(axis=0), (600, 1)), atol=1e-12)


def test_a_callable_that_changes_is_not_taken_from_memory():
    mu = 1.0

    def response(frequencies):
        return 1 / (1 + mu * frequencies)

    signal = np.random.default_rng(0).standard_normal((20, 2))
    first = mix(Graph.paper(), response, signal)
    mu = 100.0
    np.testing.assert_allclose(mix(Graph.paper(), response, signal), mix(Graph.paper(), Tikhonov(100.0), signal))
    assert not np.allclose(first, mix(Graph.paper(), response, signal))


def test_out_may_overlap_the_signal():
    buffer = np.random.default_rng(0).standard_normal((600, 220))
    expected = buffer[:, :200].copy()
    mix(Graph.from_edges(600, []), Tikhonov(1.0), buffer[:, :200], out=buffer[:, 20:])
    np.testing.assert_allclose(buffer[:, 20:], expected)


def test_large_symmetric_laplacian():
    star = Graph.from_edges(600, [(0, i) for i in range(1, 600)]).with_laplacian("symmetric")
    signal = np.random.default_rng(0).standard_normal((600, 2))
    expected = mixing_matrix(star, Tikhonov(4000.0)) @ signal
    np.testing.assert_allclose(mix(star, Tikhonov(4000.0), signal.astype(np.float32)), expected, atol=1e-5)
    with_gaps = np.arange(600) % 2.0
    expected = mixing_matrix(star, Tikhonov(4000.0), with_gaps) @ signal
    np.testing.assert_allclose(mix(star, Tikhonov(4000.0), signal, with_gaps), expected, atol=1e-8)


# --- the other Laplacians -----------------------------------------------------------------------------------------


@given(weighted_graphs(connected=True), st.floats(0.01, 100))
def test_random_walk_and_symmetric_filters_solve_their_systems(case, mu):
    graph, _, signal = case
    identity = np.eye(graph.count)
    for kind in ("random_walk", "symmetric"):
        other = graph.with_laplacian(kind)
        expected = np.linalg.solve(identity + mu * other.laplacian.toarray(), signal)
        np.testing.assert_allclose(mix(other, Tikhonov(mu), signal), expected, atol=1e-8)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signal", "weights", "message"),
    [
        (np.ones((19, 2)), None, r"signal must have shape \(20, B\).*got shape \(19, 2\)"),
        (np.ones(20), None, "signal must have shape"),
        (np.ones((20, 2, 1)), None, "signal must have shape"),
        (np.ones((20, 2), dtype=int), None, "signal must be a NumPy array of float32 or float64, got dtype int64"),
        ([[1.0]] * 20, None, "signal must be a NumPy array"),
        (np.full((20, 2), np.nan), None, "signal must be finite"),
        (np.full((20, 2), np.inf), None, "signal must be finite"),
        (np.ones((20, 2)), np.ones(19), r"weights must have shape \(20,\)"),
        (np.ones((20, 2)), 1.0, "weights must have shape"),
        (np.ones((20, 2)), -np.ones(20), "weights must be finite and >= 0"),
        (np.ones((20, 2)), np.full(20, np.nan), "weights must be finite"),
        (np.ones((20, 2)), np.zeros(20), "weights must not be all zero in a connected component"),
        (np.ones((20, 2)), ["x"] * 20, "weights must be numbers"),
        (np.ones((20, 2)), ["1"] * 20, "weights must be numbers"),
        (np.ones((20, 2)), np.full(20, 1 + 1j), "weights must be numbers"),
        (np.ones((20, 2)), np.ma.array(np.ones(20), mask=[True] + [False] * 19), "weights must be numbers"),
        (np.ones((20, 2)), [1e-320] + [1] * 19, "weights must be 0 or within 1e15 of each other"),
    ],
)
def test_bad_signal_or_weights(signal, weights, message):
    with pytest.raises(ValueError, match=message):
        mix(Graph.paper(), Tikhonov(1.0), signal, weights)


def test_bad_out_leaves_it_alone():
    with pytest.raises(ValueError, match="out must be float32"):
        mix(Graph.paper(), Tikhonov(), np.ones((20, 2), np.float32), out=np.zeros((20, 2)))


@pytest.mark.parametrize("value", [-1, np.nan, np.inf, "1", None, True, 10**400])
def test_bad_filter_parameters(value):
    for make in (Tikhonov, Heat, Ideal, Floor, lambda v: Floor(1.0, v)):
        with pytest.raises(ValueError, match=r"(mu|t|cutoff|floor) must be a finite number >= 0"):
            make(value)


def test_a_response_that_is_not_a_function_of_frequency():
    wrong: list[Any] = [lambda f: 1.0, lambda f: np.full_like(f, np.nan), lambda f: f[:-1]]
    for response in wrong:
        with pytest.raises(ValueError, match="response must give one finite number per frequency"):
            mix(Graph.paper(), response, np.ones((20, 1)))
    growing = Graph.from_edges(2, [(0, 1)])
    with pytest.raises(ValueError, match="response must give one finite number"):
        mix(growing, lambda f: 1 + f**2, np.ones((2, 1)), [1, 0])


@pytest.mark.parametrize("response", [1.0, Tikhonov, None])
def test_a_response_must_be_a_function(response):
    with pytest.raises(ValueError, match="response must be a function of frequency"):
        mix(Graph.paper(), response, np.ones((20, 1)))


def test_huge_weights_do_not_overflow():
    np.testing.assert_allclose(
        mixing_matrix(path(3), Tikhonov(1.0), [1e308] * 3), mixing_matrix(path(3), Tikhonov(1.0))
    )


def test_matrices_too_large_are_refused_before_memory_is_taken():
    many = Graph.from_edges(1_000_000, [(0, 1)])
    with pytest.raises(ValueError, match="at most 5000 devices"):
        mixing_matrix(many, Tikhonov())
    with pytest.raises(ValueError, match="up to 5000 devices"):
        _ = many.frequencies
