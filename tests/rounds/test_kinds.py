"""Devices with unlike sensors: encoders mix within a kind, the trunk over the graph."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import Graph, Updates
from fedfilt import _parts as parts
from fedfilt.aggregators import FedAvg, GFedFilt
from fedfilt.filters import Tikhonov
from fedfilt.mixing import mixing_matrix
from fedfilt.models import Motifs
from fedfilt.rounds.kinds import ByKind, Kinds
from fedfilt.rounds.play import play
from fedfilt.rounds.remembering import remembers
from fedfilt.rounds.timeline import Event, Timeline
from fedfilt.training.description import described
from helpers import KINDS, sure, unlike_run

GRAPH = Graph.from_rooms([0, 0, 1, 1, 2, 2], links=[(0, 2), (2, 4), (1, 3), (3, 5)])
GRAPH = Graph(GRAPH.adjacency, rooms=GRAPH.rooms, kinds=KINDS)


@given(st.integers(0, 1000), st.sampled_from([0.1, 1.0, 10.0]))
def test_encoders_mix_within_a_kind_and_the_trunk_over_the_graph(seed, mu):
    rng = np.random.default_rng(seed)
    models, rows = rng.standard_normal((2, 6, 5))
    weights = rng.integers(1, 9, 6).astype(float)
    private = np.array([True, True, False, False, True])
    found = ByKind(GFedFilt(Tikhonov(mu)), private)(models, Updates(rows, weights), GRAPH)
    trained = models + rows
    whole = mixing_matrix(GRAPH, Tikhonov(mu), weights) @ trained
    np.testing.assert_allclose(found[:, ~private], whole[:, ~private], atol=1e-9)
    for first in (0, 1):  # watches are even, phones odd
        members = np.arange(first, 6, 2)
        own = mixing_matrix(GRAPH.subgraph(members), Tikhonov(mu), weights[members]) @ trained[members]
        np.testing.assert_allclose(found[np.ix_(members, private)], own[:, private], atol=1e-9)


@pytest.mark.parametrize("name", [n for n in parts.names("aggregators") if not remembers(parts.find("aggregators", n))])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_rule_without_memory_can_mix_by_kind(name):
    rng = np.random.default_rng(0)
    models, rows = rng.standard_normal((2, 6, 4)).astype(np.float32)
    rule = parts.find("aggregators", name)()
    private = np.array([True, False, False, True])
    before = ByKind(rule, private)(models, Updates(rows, np.ones(6)), GRAPH)
    rows[1::2] += 5  # phones learn something else: no watch's encoder may notice
    after = ByKind(rule, private)(models, Updates(rows, np.ones(6)), GRAPH)
    np.testing.assert_array_equal(after[::2][:, private], before[::2][:, private])
    assert after.dtype == np.float32
    if name != "local":
        assert (after[::2][:, ~private] != before[::2][:, ~private]).any()


def test_which_columns_are_the_encoders():
    layout = described(Motifs((9, 40), 4, filters=8, latent=3)).layout
    encoder = 3 * 9 * 9 + 3
    assert Kinds().private(layout).sum() == encoder
    assert Kinds().private(layout)[:encoder].all()
    assert Kinds(mix="alone").private(layout).all()
    assert not Kinds(mix="all").private(layout).any()
    with pytest.raises(ValueError, match=r"kinds\.encoder must leave some of the model's 3 layers as the trunk, got 3"):
        Kinds(encoder=3).private(layout)
    with pytest.raises(ValueError, match=r"unknown kinds\.mix 'trunks'; did you mean 'trunk'"):
        Kinds(mix="trunks")
    with pytest.raises(ValueError, match="needs a graph with kinds"):
        ByKind(FedAvg(), np.ones(1, bool))(
            np.zeros((2, 1)), Updates(np.zeros((2, 1)), np.ones(2)), Graph.from_edges(2, [])
        )
    with pytest.raises(ValueError, match="kinds must have 2 names, one per device, got 1"):
        Graph([[0, 1], [1, 0]], kinds=("watch",))


def test_a_run_with_unlike_sensors_keeps_encoders_apart_and_unused_weights_untouched():
    run = unlike_run(rule="fedavg")
    with run.experiment() as experiment:
        *_, (state, record) = play(run.start(), experiment)
    encoder = Kinds().private(run.layout)
    watches, phones = state.models[::2], state.models[1::2]
    assert (watches == watches[0]).all()
    assert (phones == phones[0]).all()
    assert (watches[0, ~encoder] == phones[0, ~encoder]).all()
    assert (watches[0, encoder] != phones[0, encoder]).any()
    weight = next(slot for slot in run.layout.slots if slot.name == "0.weight")
    start, end = (run.layout.view(torch.from_numpy(row), weight) for row in (run.start().models[0], watches[0]))
    torch.testing.assert_close(start[:, 2:], end[:, 2:], rtol=0, atol=1e-6)  # a watch has channels 0 and 1 only
    assert (start[:, :2] != end[:, :2]).all()
    assert record.mixed is not None


def test_alone_nothing_of_another_kind_is_learnt():
    run = unlike_run(mix="alone", rule="fedavg")
    with run.experiment() as experiment:
        *_, (state, _) = play(run.start(), experiment)
    assert (state.models[0] == state.models[4]).all()
    assert (state.models[0] != state.models[1]).any()


def test_a_device_of_a_kind_joins_with_its_kinds_encoder():
    run = unlike_run(events=[{"round": 3, "join": 4}], rule="fedavg")
    with run.experiment() as experiment:
        for state, _ in play(run.start(), experiment):
            if state.round == 2:
                break
        begun = sure(run.events).begin(state, experiment)
    encoder = Kinds().private(run.layout)
    np.testing.assert_allclose(begun.models[4, encoder], state.models[0, encoder], rtol=1e-5)
    np.testing.assert_allclose(begun.models[4, ~encoder], state.models[1, ~encoder], rtol=1e-5)
    assert Timeline([Event(round=2, leave=0)], run.graph, 3).at(2).among.kinds == KINDS[1:]
