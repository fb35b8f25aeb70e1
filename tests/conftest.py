import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedfilt import Graph
from fedfilt import _parts as parts
from fedfilt.data.store import DataMissing, Store

settings.register_profile(
    "fedfilt", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedfilt")
torch.set_num_threads(1)  # the tests run in one process per core


def real(name, **options):
    """The samples of a real data set; a test that needs one has nothing to test where it cannot be had."""
    try:
        return parts.find("datasets", name)(**options).load(Store())
    except DataMissing as error:
        pytest.skip(f"no network and no copy of {name}: {str(error)[:80]}")


@st.composite
def graphs(draw, max_count=10, connected=False):
    """Weighted graphs of any shape: lone devices and several components included."""
    count = draw(st.integers(1, max_count))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    adjacency = np.triu(rng.uniform(0.1, 3.0, (count, count)) * (rng.random((count, count)) < density), k=1)
    if connected:
        adjacency[np.arange(count - 1), np.arange(1, count)] = 1
    return Graph.from_adjacency(adjacency + adjacency.T, rooms=rng.integers(0, 3, count))


@st.composite
def weighted_graphs(draw, zeros=False, **options):
    """(graph, sample counts, (K, 3) signal); with `zeros` some devices of a component have no samples."""
    graph = draw(graphs(**options))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = rng.integers(1, 500, graph.count).astype(float)
    if zeros:
        weights *= rng.random(graph.count) < 0.6
        for members in graph.members():
            if not weights[members].any():
                weights[members[0]] = 7.0
    return graph, weights, rng.standard_normal((graph.count, 3))


strengths = st.one_of(st.just(0.0), st.floats(1e-3, 1e4))
