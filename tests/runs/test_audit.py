"""`fedfilt audit`: the paper's graph, a chain with leaves, pairs; what it proposes mends what it finds."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedfilt import Graph, Privacy
from fedfilt.aggregators import FedAvg, GFedFilt, Local
from fedfilt.filters import Heat
from fedfilt.runs.audit import Audit, Stage, audit
from fedfilt.runs.records import Records
from fedfilt.show.words import spent
from helpers import call, config_file, finish

CHAIN = Graph.from_edges(6, [(i, i + 1) for i in range(5)])
PAIRS = Graph.from_edges(6, [(0, 1), (2, 3), (4, 5)])
LEAF = Graph.from_edges(7, [(0, 1), (0, 2), (1, 2), (2, 3), (4, 3), (5, 3), (4, 5), (0, 6)])


def audited(graph, rule=None, privacy=None, weights=None):
    there = np.ones(graph.count, bool)
    stage = Stage(1, graph, there, np.ones(graph.count) if weights is None else weights)
    return Audit("", GFedFilt() if rule is None else rule, privacy or Privacy(), 200, [stage])


def verdicts(made):
    return [one.verdict for one in made.found()]


def test_on_the_papers_graph_nobody_reads_another():
    made = audited(Graph.paper())
    assert verdicts(made) == ["sum"] * 20
    assert made.by_strength() == {"mu=0.1": 0, "mu=1": 0, "mu=10": 0, "mu=100": 0}
    found = made.found()
    assert [one.links for one in found] == np.diff(Graph.paper().adjacency.indptr).tolist()
    assert min(one.error for one in found) == pytest.approx(0.77, abs=0.01)


def test_the_leaves_of_a_chain_read_their_neighbours():
    made = audited(CHAIN)
    found = made.found()
    assert [one.device for one in found if one.exposed] == [0, 5]
    assert (found[0].reads_mixed, found[0].nearest, found[0].verdict) == ((1,), 1, "mostly")
    assert set(made.by_strength().values()) == {2}  # whatever mu is
    assert verdicts(audited(LEAF)) == ["sum"] * 6 + ["mixed"]


def test_pairs_read_each_other_exactly():
    found = audited(PAIRS).found()
    assert [one.verdict for one in found] == ["exact"] * 6
    assert [one.nearest for one in found] == [1, 0, 3, 2, 5, 4]
    assert set(audited(PAIRS).by_strength().values()) == {6}


def test_what_is_shared_by_design_is_not_exposed_and_nothing_is_nothing():
    assert verdicts(audited(LEAF, FedAvg())) == ["sum"] * 7
    assert verdicts(audited(LEAF, Local())) == ["nothing"] * 7
    assert verdicts(audited(PAIRS, FedAvg())) == ["sum"] * 6
    assert verdicts(audited(PAIRS, GFedFilt(Heat(1.0)))) == ["exact"] * 6


@pytest.mark.parametrize("graph", [CHAIN, PAIRS, LEAF])
def test_what_is_proposed_mends_it(graph):
    made = audited(graph)
    links, left = made.links()
    assert left == 0
    adjacency = graph.adjacency.toarray()
    for a, b in links:
        assert not adjacency[a, b]
        adjacency[a, b] = adjacency[b, a] = 1
    assert not any(one.exposed for one in audited(Graph(adjacency)).found())
    least, kept = made.least_others()
    found = audited(graph, privacy=Privacy(least_others=least)).found()
    assert not any(one.exposed for one in found)
    assert sum(one.kept_back for one in found) == kept
    assert made.noise() == pytest.approx(8.49, abs=0.01)


def test_devices_that_pool_read_more():
    made = audited(CHAIN)
    alone = made.found()[1]
    assert alone.error > 0.5
    pooled = replace(made, together=(1, 3)).found()[1]
    assert pooled.error < alone.error
    assert pooled.nearest not in (1, 3)


def test_noise_in_a_single_row_is_told():
    found = audited(PAIRS, privacy=Privacy(clip=1.0, noise=5.0)).found()
    assert all(0 < one.row_epsilon < 1 for one in found)  # of one row; both rows of both devices say more


def test_a_device_that_is_away_hides_nobody():
    trio = Graph.from_rooms([0, 0, 0])
    assert verdicts(audited(trio)) == ["sum"] * 3
    assert verdicts(audited(trio, weights=np.array([1.0, 1.0, 0.0])))[:2] == ["exact"] * 2


def test_a_run_is_audited_round_by_round(tmp_path):
    homes = {"name": "homes", "rooms": 5, "devices": 15}
    events = [{"round": 3, "offline": 4, "until": 4}]
    finish(tmp_path / "run", graph=homes, partition={"name": "labels", "per_device": 2}, events=events, rounds=4)
    found = audit(tmp_path / "run").found()
    assert [one.device for one in found if one.exposed] == [3, 5]
    assert {one.round for one in found if one.exposed} == {3}
    assert [one.round for one in found if not one.exposed][:3] == [1, 1, 1]


def test_the_command(tmp_path):
    path = config_file(tmp_path)
    done = call("audit", path, "--strict")
    assert done.returncode == 0, done.stderr
    assert "0 of 20 devices can read another's update or model" in done.stdout
    assert "the sum of 6" in done.stdout
    pairs = ["graph=homes", "graph.rooms=10", "graph.devices=20"]
    done = call("audit", path, *pairs, "--json", "--strict")
    assert done.returncode == 2
    table = json.loads(done.stdout)
    assert table["exposed"] == list(range(20))
    assert {one["verdict"] for one in table["devices"]} == {"exact"}
    assert table["links"]["exposed"] == 0
    assert table["by_strength"]["mu=100"] == 20
    words = call("audit", path, *pairs)
    assert words.returncode == 0
    assert "through their only link: 0, 1," in words.stdout
    assert "Adding the links" in words.stdout
    done = call("audit", path, *pairs, "privacy.clip=1", "privacy.noise=2", "--strict")
    assert done.returncode == 0
    assert "6 rounds: epsilon" in done.stdout
    kept = call("audit", path, *pairs, "privacy.least_others=2", "--strict")
    assert kept.returncode == 0
    assert "row withheld" in " ".join(kept.stdout.split())


def test_what_cannot_be_audited_is_said(tmp_path):
    path = config_file(tmp_path, graph={"name": "homes", "rooms": 10, "devices": 20, "between": "updates"})
    assert "run the experiment, then audit its folder" in call("audit", path).stderr
    (tmp_path / "empty").mkdir()
    assert "must hold a run" in call("audit", tmp_path / "empty").stderr
    path = config_file(tmp_path)
    assert "together must name devices from 0 to 19, got 20" in call("audit", path, "--together", "3,20").stderr
    assert "together must be device numbers" in call("audit", path, "--together", "a").stderr


def test_the_report_says_what_was_spent(tmp_path):
    finish(tmp_path / "run", rounds=2, privacy={"clip": 1.0, "noise": 5.0})
    assert "epsilon 1.06 at delta 1e-05 after 2 rounds" in spent(Records(tmp_path / "run"))
    finish(tmp_path / "plain", rounds=1)
    assert spent(Records(tmp_path / "plain")) == ""
    assert "promise any" in spent(_little(tmp_path))
    assert call("report", tmp_path / "run").returncode == 0
    assert "epsilon 1.06 at delta 1e-05" in (tmp_path / "run" / "report.html").read_text()


def _little(tmp_path):
    finish(tmp_path / "little", rounds=1, privacy={"clip": 1.0, "noise": 0.005})
    return Records(tmp_path / "little")


def test_too_many_devices_are_refused_before_memory_is_taken(tmp_path):
    (tmp_path / "many.toml").write_text('graph = {name = "nearest", rooms = 4000}')
    with pytest.raises(ValueError, match=r"at most 10000; .*many\.toml has 2"):
        audit(tmp_path / "many.toml")
