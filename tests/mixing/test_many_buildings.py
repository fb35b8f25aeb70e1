"""Buildings with a cloud of border rows: examples/many_buildings.py does what the filter on the whole graph does."""

import runpy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfilt import Graph, mix
from fedfilt.filters import Tikhonov
from helpers import ROOT, strengths, weighted_graphs

EXAMPLE = runpy.run_path(str(ROOT / "examples" / "many_buildings.py"))
positive = strengths.filter(lambda mu: mu > 0)


@st.composite
def cities(draw, **options):
    """(graph, weights, signal, devices of each building): graphs of any shape, cut anywhere."""
    graph, weights, signal = draw(weighted_graphs(**options))
    cuts = draw(st.sets(st.integers(1, max(graph.count - 1, 1)), max_size=min(3, graph.count - 1)))
    return graph, weights, signal, np.diff([0, *sorted(cuts), graph.count])


def mixed(graph, weights, signal, sizes, mu):
    servers, cloud = EXAMPLE["prepare"](graph, sizes, weights, mu)
    return np.concatenate(EXAMPLE["mix"](servers, cloud, np.split(signal, np.cumsum(sizes)[:-1])))


@given(cities(zeros=True), positive)
def test_buildings_and_a_cloud_give_the_filter_of_the_whole_graph(city, mu):
    """Whatever the weights (also zero), the components, the cut; also one building, or none with a link outside."""
    graph, weights, signal, sizes = city
    whole = mix(graph, Tikhonov(mu), signal, weights)
    np.testing.assert_allclose(mixed(graph, weights, signal, sizes, mu), whole, rtol=0, atol=1e-6 * abs(signal).max())


@settings(max_examples=30)
@given(cities(zeros=True), positive)
def test_rows_in_float32_cost_no_more_than_their_rounding(city, mu):
    """Once on the way to the cloud, once in the result: each at most 2^-24 of the largest value."""
    graph, weights, signal, sizes = city
    single = signal.astype(np.float32)
    found = mixed(graph, weights, single, sizes, mu)
    assert found.dtype == np.float32
    whole = mix(graph, Tikhonov(mu), single.astype(float), weights)
    assert abs(found - whole).max() <= (4 * 2**-24 + 1e-7) * abs(single).max()


def servers_of(city, mu):
    """(edge server, its graph, its weights, its models) of each building."""
    graph, weights, signal, sizes = city
    servers, _ = EXAMPLE["prepare"](graph, sizes, weights, mu)
    for server, own in zip(servers, np.split(np.arange(graph.count), np.cumsum(sizes)[:-1]), strict=True):
        yield server, graph.subgraph(own), weights[own], signal[own]


@settings(max_examples=30)
@given(cities(zeros=True), positive)
def test_a_border_row_is_a_sum_of_models_weighted_by_chances(city, mu):
    """follow[i, j]: the chance that a walk from inner device i leaves the building's inside at border device j."""
    for server, _, _, models in servers_of(city, mu):
        assert (server.follow >= -1e-9).all()
        assert (server.follow.sum(axis=1) <= 1 + 1e-9).all()
        weighted = server.mass * models
        rows = weighted[server.border] + server.follow.T @ weighted[server.inner]
        np.testing.assert_allclose(server.reduce(models), rows, atol=1e-8)
        whole = server.mass[server.border] + server.follow.T @ server.mass[server.inner]
        np.testing.assert_allclose(server.schur.sum(axis=1), whole[:, 0], atol=1e-8 * max(mu, 1))


@settings(max_examples=30)
@given(cities(), positive)
def test_the_cloud_learns_the_border_rows_of_the_filter_of_each_building_alone(city, mu):
    """reduce(G) = S F, with F the border rows of the building's own filter."""
    _, weights, _, _ = city
    for server, graph, own, models in servers_of(city, mu):
        alone = mix(graph, Tikhonov(mu * weights.mean() / own.mean()), models, own)
        np.testing.assert_allclose(server.reduce(models), server.schur @ alone[server.border], atol=1e-7 * max(mu, 1))


@pytest.mark.parametrize(("buildings", "devices"), [(1, 8), (2, 5), (7, 12)])
def test_the_street_of_the_example(buildings, devices):
    graph = EXAMPLE["street"](buildings, devices)
    assert isinstance(graph, Graph)
    assert graph.count == buildings * devices
    across = graph.edges // devices
    apart = across[across[:, 0] != across[:, 1]]
    assert len(apart) == 0 if buildings == 1 else set(np.diff(apart).ravel()) <= {1, buildings - 1}
