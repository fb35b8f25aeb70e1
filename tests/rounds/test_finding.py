"""Graphs that are found from what devices learn: their links, number of neighbours and clusters, and in whole runs."""

import json
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fedfilt import Evaluation, Experiment, Graph, Records, State, Updates
from fedfilt.aggregators import FedAdam, GFedFilt
from fedfilt.graph.similarity import clusters, linked_by_updates, neighbours
from fedfilt.populations import Paper as Hardware
from fedfilt.rounds import types
from fedfilt.rounds.finding import LINKS, Finding
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.schedulers import Everything
from fedfilt.show.dashboard import page as dashboard
from fedfilt.show.figures import building
from fedfilt.show.report.page import page
from fedfilt.show.words import found_in_words
from fedfilt.topologies import Found
from helpers import ROOM, SMALL, finish

FOUND = {"graph": {"name": "found", "every": 2}, "partition": {"name": "rotated"}}


# --- links ------------------------------------------------------------------------------------------------------------


@given(st.integers(3, 12), st.integers(1, 12), st.integers(0, 10_000))
def test_links_are_the_nearest_by_cosine(count, k, seed):
    rows = np.random.default_rng(seed).standard_normal((count, 5))
    links = linked_by_updates(rows, k)
    away = rows - rows.mean(axis=0)
    wanted = np.zeros((count, count))
    for i in range(count):
        cosine = {
            j: away[i] @ away[j] / np.linalg.norm(away[i]) / np.linalg.norm(away[j]) for j in range(count) if j != i
        }
        for j in sorted(cosine, key=cosine.__getitem__)[-min(k, count - 1) :]:
            wanted[i, j] = wanted[j, i] = max(cosine[j], 0)
    np.testing.assert_allclose(links, wanted, atol=1e-12)


def test_rules_for_updates_that_say_little():
    rows = np.random.default_rng(0).standard_normal((5, 4))
    assert not linked_by_updates(rows[:1], 2).any(), "a device alone"
    two = linked_by_updates(np.array([[1.0, 0.0], [1.0, 1.0]]), 2)
    np.testing.assert_allclose(two, [[0, 0.5**0.5], [0.5**0.5, 0]])
    assert not linked_by_updates(np.array([[1.0], [-1.0]]), 2).any(), "two devices that learn the opposite"
    np.testing.assert_array_equal(linked_by_updates(np.tile(rows[0], (4, 1)), 1), 1 - np.eye(4))
    silent = rows.copy()
    silent[[1, 3]] = 0
    links = linked_by_updates(silent, 2)
    assert not links[[1, 3]].any()
    np.testing.assert_array_equal(links[np.ix_([0, 2, 4], [0, 2, 4])], linked_by_updates(rows[[0, 2, 4]], 2))
    assert not linked_by_updates(np.zeros((4, 3)), 2).any(), "nobody has learnt anything"
    with pytest.raises(ValueError, match="updates must be finite"):
        linked_by_updates(np.full((3, 2), np.nan), 1)


@pytest.mark.parametrize("each", [2, 4, 6])
def test_halves_speak_for_the_size_of_groups(each):
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        groups = np.repeat(rng.standard_normal((4, 200)), each, axis=0)
        found.append(neighbours(groups + 1.5 * rng.standard_normal((2, 4 * each, 200))))
    assert np.mean(np.array(found) == each - 1) >= 0.7, found


def test_halves_of_few_devices():
    rows = np.random.default_rng(0).standard_normal((2, 5, 3))
    assert neighbours(rows[:, :1]) == neighbours(rows[:, :2]) == neighbours(0 * rows) == 1
    rows[0, 1] = 0  # one that has a single sample
    assert 1 <= neighbours(rows) <= 3


# --- clusters ---------------------------------------------------------------------------------------------------------


def modularity_of(graph, member):
    groups = [set(np.flatnonzero(member == group).tolist()) for group in range(member.max() + 1)]
    return nx.community.modularity(nx.from_numpy_array(graph.adjacency.toarray()), groups)


@given(st.integers(2, 15), st.floats(0.05, 0.9), st.integers(0, 10_000))
def test_clusters_have_the_modularity_that_they_say(count, share, seed):
    rng = np.random.default_rng(seed)
    links = np.triu(rng.random((count, count)) * (rng.random((count, count)) < share), 1)
    graph = Graph.from_adjacency(links + links.T)
    member, modularity = clusters(graph)
    assert sorted(set(member.tolist())) == list(range(member.max() + 1))
    if not links.any():
        assert (member.max() + 1, modularity) == (count, 0.0)
        return
    np.testing.assert_allclose(modularity, modularity_of(graph, member), atol=1e-9)
    whole = modularity_of(graph, np.zeros(count, int))
    assert modularity >= whole - 1e-9
    assert all(
        graph.components[i] == graph.components[j] for i, j in zip(*np.nonzero(member[:, None] == member), strict=True)
    )


def test_clusters_are_groups_that_were_put_in():
    blocks = np.kron(np.eye(3), np.ones((5, 5))) - np.eye(15)
    blocks[4, 5] = blocks[5, 4] = blocks[9, 10] = blocks[10, 9] = 1  # a bridge each
    member, modularity = clusters(Graph.from_adjacency(blocks))
    np.testing.assert_array_equal(member, np.arange(15) // 5)
    assert modularity > 0.5
    many = Graph.from_rooms(np.arange(600) // 3)
    np.testing.assert_array_equal(clusters(many)[0], np.arange(600) // 3)


# --- the topology -----------------------------------------------------------------------------------------------------


def test_a_graph_is_found_around_the_devices_of_another():
    topology = Found(k=1)
    assert (topology(0).count, len(topology(0).edges)) == (20, 0)
    np.testing.assert_array_equal(topology(0).rooms, Graph.paper().rooms)
    rows = np.random.default_rng(0).standard_normal((20, 6))
    plain = replace(topology, weighted=False).learn(0, rows)
    np.testing.assert_array_equal(plain.adjacency.toarray(), np.sign(topology.learn(0, rows).adjacency.toarray()))
    with pytest.raises(ValueError, match=r"graph.graph must be a fixed graph"):
        Found(graph=Found())
    for option in ("k", "every"):
        with pytest.raises(ValueError, match=f"graph.{option} must be a whole number >= 0, got -1"):
            Found(**{option: -1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"events": [{"round": 2, "offline": 3}]}, "graph.every = 2 cannot be combined with events"),
        ({"privacy": {"clip": 1.0}}, r"graph.every = 2 cannot be combined with \[privacy\]"),
        ({"privacy": {"blind": True}}, "cannot learn a graph"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Run(from_table({**SMALL, **FOUND, **changes}))


# --- in rounds --------------------------------------------------------------------------------------------------------


class Fixed:
    """An engine whose devices send what they are told, by round."""

    def __init__(self, updates):
        self.updates = updates

    def train(self, jobs, deadline):
        for job in jobs:
            row = self.updates[job.round - 1][job.device]
            absent = "" if np.isfinite(row).all() else "asleep"
            yield types.Reply(job.device, np.nan_to_num(row).astype(np.float32), 1, 1.0, absent=absent)

    def test(self, state):
        return types.Tests(None, np.zeros((len(state.models), 2, 2), np.int64))


@pytest.mark.parametrize("rule", [GFedFilt(), FedAdam(aggregator=GFedFilt())], ids=["plain", "remembering"])
def test_the_rounds_mix_over_the_graph_of_their_trained_models(rule):
    """Against a loop that is written down here: found in rounds 2 and 4, with a device that sleeps in round 4."""
    count, size, rng = 6, 8, np.random.default_rng(0)
    updates = rng.standard_normal((5, count, size)).astype(np.float32)
    updates[3, 2] = np.nan
    first = Graph.from_edges(count, [(0, 1), (2, 3), (4, 5)])

    def found(rows):
        return Graph.from_adjacency(linked_by_updates(rows, 2))

    hardware = Hardware().draw(np.ones(count, int), 8, rng)
    experiment = Experiment(first, rule, Everything(1), Fixed(updates), hardware, 5, 8, Evaluation(5), 0)
    finding, state = Finding(2, found, size), State(0, np.zeros((count, size), np.float32))
    models, graph, memory, seen = state.models, first, None, []
    for round in range(1, 6):
        state, record = finding.play_round(state, experiment)
        rows, weights = np.nan_to_num(updates[round - 1]), np.ones(count)
        weights[~np.isfinite(updates[round - 1]).all(axis=1)] = 0
        if round % 2 == 0:
            new = linked_by_updates(np.where(weights[:, None] > 0, models + rows, 0), 2)
            old, both = graph.adjacency.toarray(), np.outer(weights, weights) > 0
            graph = Graph.from_adjacency(np.where(both, new, old))
            assert record.graph.hash == graph.hash
            seen.append(graph.hash)
        else:
            assert record.graph is None
        given = models, Updates(rows, weights), graph
        if isinstance(rule, FedAdam):
            models, memory = rule(*given, memory or rule.start(models))
        else:
            models = rule(*given)
        np.testing.assert_array_equal(state.models, models)
        assert (LINKS in state.memory) == (round >= 2)
    assert len(set(seen)) == 2
    assert graph.adjacency[[2]].toarray().any(), "who sleeps keeps its links"


@pytest.mark.parametrize("more", [{}, {"participation": {"fraction": 0.5}}, {"guard": False, "client": "ditto"}])
def test_a_run_whose_graph_is_found_again_survives_a_kill(tmp_path, more):
    table = {**SMALL, **FOUND, **more}
    whole = finish(tmp_path / "whole", **table)
    for line in play_in_folder(Run(from_table(table)), tmp_path / "parts"):
        if line["round"] == 4:
            break
    parts = finish(tmp_path / "parts", resume=True, **table)
    assert parts["models_sha256"] == whole["models_sha256"]
    lines = [[line.get("graph") for line in read_lines(tmp_path / name)] for name in ("whole", "parts")]
    assert lines[0] == lines[1]
    assert [line is not None for line in lines[0]] == [False, True] * 3
    assert finish(tmp_path / "fixed", **{**table, "graph": "found"})["models_sha256"] != whole["models_sha256"]
    two = finish(tmp_path / "two", **{**table, "engine": {"workers": 2}})
    assert two["models_sha256"] == whole["models_sha256"]


@pytest.mark.slow(10)
def test_a_simulation_over_flower_finds_the_same_graphs(tmp_path):
    table = {
        **ROOM,
        "graph": {"name": "found", "every": 2, "graph": ROOM["graph"]},
        "rounds": 4,
        "checkpoint": {"every": 2},
    }
    here = finish(tmp_path / "here", **table)
    there = finish(tmp_path / "there", **{**table, "engine": {"name": "flower"}})
    assert there["models_sha256"] == here["models_sha256"]
    lines = [[line.get("graph") for line in read_lines(tmp_path / name)] for name in ("here", "there")]
    assert lines[0] == lines[1]
    assert lines[0][1] is not None


def test_what_was_found_is_recorded_and_shown(tmp_path):
    finish(tmp_path / "run", **SMALL, **FOUND)
    run = Records(tmp_path / "run")
    last = read_lines(tmp_path / "run")[-1]["graph"]
    assert run.moment().round == 6
    assert run.moment(1).graph.hash == run.graph.hash
    assert run.moment(3).graph.hash != run.moment(6).graph.hash
    np.testing.assert_array_equal(run.moment().graph.edges, last["edges"])
    member, modularity = clusters(run.moment().graph)
    assert (member.tolist(), round(modularity, 6)) == (last["clusters"], last["modularity"])
    words = found_in_words(run)
    assert words.startswith("The graph was found in round 6 from what devices had learnt: ")
    assert f"modularity {modularity:.2f}" in words
    picture = building(run, "cluster")
    assert f"modularity {modularity:.2f}" in picture.layout.title.text
    named = {trace.name: len(trace.x) for trace in picture.data if trace.name and trace.name.startswith("cluster")}
    assert sorted(named.values()) == sorted(np.bincount(member).tolist())
    assert words.removesuffix(".") in page([run])
    assert "cluster of the graph" in str(dashboard.layout({"run": [run]}, run, {}))
    damaged = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in damaged.read_text().splitlines()]
    for odd in ({"edges": [[0, 99]]}, {"edges": 3}, {"edges": [[0, 1]], "weights": ["a"]}, {"count": 10**9}):
        lines[-1]["graph"] = odd
        damaged.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert Records(tmp_path / "run").moment().graph.hash == run.graph.hash
    assert found_in_words(Records(tmp_path / "none")) == ""


def test_the_number_of_neighbours_is_chosen_and_kept(tmp_path):
    run = Run(from_table({**SMALL, "partition": "rotated", "graph": {"name": "found", "k": 0, "every": 3}}))
    with pytest.raises(ValueError, match=r"graph\.k = 0 needs the devices' samples here"):
        run.learn_graph(Fixed([]))
    run.learn_graph()
    k = run.links.topology.k
    assert k >= 1
    halves = run._halves(None)
    assert neighbours(halves) == k
    assert (halves[0] != halves[1]).any(axis=1).all()
    same = Run(from_table({**SMALL, "partition": "rotated", "graph": {"name": "found", "k": k}}))
    same.learn_graph()
    assert same.graph.hash == run.graph.hash
    assert run.config.graph.topology.k == 0, "its config is the one that was asked for"


# --- controls ---------------------------------------------------------------------------------------------------------


def test_controls_have_the_same_devices_and_other_links():
    for table in ({"name": "paper"}, {"name": "homes", "rooms": 4, "devices": 8}):
        plain = from_table({"graph": table}).graph.graph(3)
        made = {
            name: from_table({"graph": {**table, "control": name}}).graph for name in ("shuffled", "complete", "empty")
        }
        graphs = {name: one.graph(3) for name, one in made.items()}
        for graph in graphs.values():
            np.testing.assert_array_equal(graph.rooms, plain.rooms)
        assert len(graphs["empty"].edges) == 0
        assert len(graphs["complete"].edges) == plain.count * (plain.count - 1) // 2
        weights = [np.sort(csr_array(graph.adjacency).data) for graph in (plain, graphs["shuffled"])]
        np.testing.assert_array_equal(*weights)
        assert graphs["shuffled"].hash == from_table({"graph": {**table, "shuffle": True}}).graph.graph(3).hash
    found = {"name": "found", "control": "empty"}
    assert not from_table({"graph": found}).graph.learned, "it takes no epoch"
    assert from_table({"graph": {**found, "control": "shuffled"}}).graph.learned
    with pytest.raises(ValueError, match=r"unknown graph\.control 'shuffle'; did you mean 'shuffled'"):
        from_table({"graph": {"control": "shuffle"}})
