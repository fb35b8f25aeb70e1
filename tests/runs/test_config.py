"""What users write: experiments and overrides of them, rules to compare, parts of their own, and what is none of it."""

import subprocess
import sys
import tomllib
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedfilt
from fedfilt import _parts as parts
from fedfilt._types import Table
from fedfilt.aggregators import FedAvg, GFedFilt
from fedfilt.filters import Tikhonov
from fedfilt.runs.build import Run
from fedfilt.runs.config import Config, from_table, load
from fedfilt.runs.rules import rules, with_rule
from fedfilt.runs.tables import GraphTable
from fedfilt.topologies import Complete, Homes, Nearest, Paper
from helpers import ROOT, SLOW, SMALL, config_file

EXPERIMENT = """
rounds = 3
[graph]
name = "nearest"
rooms = 2
devices = 9
[aggregator]
signal = "updates"
filter = { name = "tikhonov", mu = 7 }
[engine]
workers = 1
timeout_seconds = 60.0
"""


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(EXPERIMENT)
    return path


# --- files and overrides ------------------------------------------------------------------------------------------


def test_a_resolved_config_means_the_same(tmp_path):
    config = from_table({**SMALL, "aggregator": {"filter": {"name": "floor", "floor": 0.2}}, "graph": "nearest"})
    (tmp_path / "c.toml").write_text(config.toml())
    again = load(tmp_path / "c.toml")
    assert again == config
    assert again.hash() == config.hash()


def test_command_line_beats_file_beats_default(tmp_path):
    path = config_file(tmp_path)
    assert Config().rounds == 200
    assert load(path).rounds == 6
    assert load(path, ["rounds=9"]).rounds == 9
    assert load(path, ["aggregator.filter.name=heat", "aggregator.filter.t=3"]).aggregator.filter.t == 3.0
    assert load(path, ["aggregator=fedavg"]).table()["aggregator"] == {"name": "fedavg"}
    changed = load(
        path, ["partition.per_device=5", "partition.name=room_labels", "graph.devices=20", "graph.name=nearest"]
    )
    assert (changed.partition.per_device, changed.graph.topology) == (5, Nearest(devices=20))


def test_a_name_and_its_options_in_any_order():
    for words in (
        ["scheduler=same_deadline", "scheduler.seconds=2"],
        ["scheduler.seconds=2", "scheduler=same_deadline"],
    ):
        assert load(None, words).scheduler.seconds == 2.0


def test_the_same_name_keeps_the_options_of_the_file(experiment):
    plain = load(experiment)
    assert load(experiment, ["graph=nearest", "aggregator=gfedfilt", "engine=local"]) == plain
    assert load(experiment, ["aggregator.filter=tikhonov", "graph.name=nearest"]) == plain
    flower = load(experiment, ["engine=flower", "graph=complete"])
    assert (flower.engine.name, flower.engine.timeout_seconds) == ("flower", 60.0)
    assert flower.graph.topology == Complete(rooms=2, devices=9)


def test_another_name_clears_options_whatever_the_order(experiment):
    for words in (
        ["aggregator.filter=heat", "aggregator.filter.t=3"],
        ["aggregator.filter.t=3", "aggregator.filter=heat"],
    ):
        kind = load(experiment, words).table()["aggregator"]
        assert kind == {"name": "gfedfilt", "signal": "updates", "filter": {"name": "heat", "t": 3.0}}
    assert load(experiment, ["aggregator=fedavg"]).aggregator == FedAvg()


def test_numbers_may_begin_or_end_with_a_point(experiment):
    assert load(experiment, ["aggregator.filter.mu=.1"]).aggregator.filter == Tikhonov(0.1)
    assert load(experiment, ["aggregator.filter.mu=2."]).aggregator.filter == Tikhonov(2.0)


def test_experiment_files_load():
    paths = list((ROOT / "experiments").glob("*.toml"))
    assert paths
    for path in paths:
        assert load(path).rounds > 0


# --- hashes -------------------------------------------------------------------------------------------------------


def test_a_default_that_is_written_down_does_not_change_the_hash():
    plain = from_table({})
    assert from_table(plain.table()).hash() == plain.hash()  # with every key of every part
    written: list[Table] = [
        {"rounds": 200},
        {"training": {"learning_rate": 0.02}},
        {"partition": {"name": "labels", "per_device": 2}},
        {"graph": {"name": "paper", "devices": 20, "laplacian": "combinatorial", "shuffle": False}},
        {"aggregator": {"filter": {"name": "tikhonov", "mu": 1.0}}},
        {"model": {"name": "paper_cnn"}},
        {"events": []},
    ]
    for table in written:
        assert from_table(table).hash() == plain.hash(), table


def test_what_changes_the_result_changes_the_hash_and_where_it_is_computed_does_not():
    changes: list[Table] = [
        {},
        {"seed": 1},
        {"rounds": 201},
        {"weights": "held"},
        {"training": {"learning_rate": 0.03}},
        {"partition": {"per_device": 3}},
        {"partition": "dirichlet"},
        {"graph": "rooms"},
        {"graph": {"name": "rooms", "rooms": 5}},
        {"graph": {"laplacian": "symmetric"}},
        {"graph": {"shuffle": True}},
        {"aggregator": {"filter": {"mu": 2.0}}},
        {"aggregator": {"filter": "heat"}},
        {"model": "mlp"},
        {"model": {"name": "mlp", "hidden": 3}},
        {"events": [{"round": 3, "leave": 1}]},
        {"events": [{"round": 3, "leave": 2}]},
    ]
    assert len({from_table(table).hash() for table in changes}) == len(changes)
    assert from_table({"engine": {"workers": 3}, "checkpoint": {"every": 3}}).hash() == from_table({}).hash()


# --- rules --------------------------------------------------------------------------------------------------------


def test_rules_by_name():
    assert rules("paper") == ["fedavg", "local", "mu=0.1", "mu=1", "mu=10", "mu=100"]
    for wrong in ("fedavg,fedavg", "", "a,,b"):
        with pytest.raises(ValueError, match="rules must be different names"):
            rules(wrong)
    with pytest.raises(ValueError, match="mu must be a number"):
        with_rule(from_table({}), "mu=x")
    updates = from_table({"aggregator": {"signal": "updates", "filter": {"name": "floor", "floor": 0.2}}})
    strong = with_rule(updates, "mu=3").aggregator
    assert (strong.signal, strong.filter.mu, strong.filter.floor) == ("updates", 3.0, 0.2)
    assert with_rule(updates, "gfedfilt") == updates
    heat = from_table({"aggregator": {"filter": "heat"}})
    with pytest.raises(ValueError, match="needs a filter with mu"):
        with_rule(heat, "mu=3")


@pytest.mark.parametrize("text", ["mu=.1,mu=0.1", "mu=1,mu=1.0", "paper,mu=10"])
def test_a_rule_is_compared_once(text):
    with pytest.raises(ValueError, match="different names"):
        rules(text)


# --- graphs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["distance", "nearest", "rooms", "complete", "empty"])
def test_every_topology(name):
    graph = from_table({"graph": {"name": name, "devices": 20}}).graph.graph(seed=0)
    assert graph.count == 20
    assert len(np.unique(graph.rooms)) == 4


def test_topology_from_files(tmp_path):
    (tmp_path / "home.csv").write_text("device,room,x,y,z\na,r,0,0,0\nb,r,1,0,0\nc,s,9,0,0\n")
    (tmp_path / "edges.csv").write_text("a,b,weight\n0,1,2.5\n1,2,\n")
    table = {"name": "edges", "building": str(tmp_path / "home.csv"), "file": str(tmp_path / "edges.csv")}
    graph = from_table({"graph": table}).graph.graph(seed=0)
    assert graph.adjacency.toarray().tolist() == [[0, 2.5, 0], [2.5, 0, 1], [0, 1, 0]]
    (tmp_path / "edges.csv").write_text("a,b\n0,x\n")
    with pytest.raises(ValueError, match="line 2: must be two device numbers"):
        from_table({"graph": table}).graph.graph(seed=0)


def test_keys_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="unknown key in graph for paper 'building'"):
        from_table({"graph": {"building": "home.csv"}})
    with pytest.raises(ValueError, match="unknown key in graph for distance 'reech'; did you mean 'reach'"):
        from_table({"graph": {"name": "distance", "reech": 3.0}})
    with pytest.raises(ValueError, match=r"graph\.file must name"):
        from_table({"graph": "edges"})


OLD = {
    "rooms": 4,
    "building": "",
    "reach": 6.0,
    "k": 4,
    "file": "",
    "inside": True,
    "between": "none",
    "weight": 1.0,
    "reweigh": False,
    "shuffle": False,
    "laplacian": "combinatorial",
}  # what a version before topologies were parts wrote of every graph


@pytest.mark.parametrize("name", ["paper", "nearest", "rooms", "complete", "empty", "homes"])
def test_a_config_of_an_older_version_loads_with_all_its_keys(name):
    new = from_table({"graph": name})
    old = from_table({"graph": {"name": name, **OLD}})
    assert isinstance(old.graph, GraphTable)
    assert old == new
    assert old.hash() == new.hash()


def test_a_default_that_has_changed_leaves_old_hashes_their_meaning():
    """Until version 0.1 the default reach was 6 m; run folders name it, as they name every key."""
    of_then = from_table({"graph": {"name": "distance", **OLD}})
    assert of_then.graph.topology.reach == 6.0
    assert of_then.hash() == "7f4ba6eb41ef0156"  # as that version had it
    assert from_table({"graph": "distance"}).hash() != of_then.hash()
    other = {"graph": {"name": "distance", "reach": 7.5}}
    assert from_table(other).hash() == "329476f5128e707b"
    again = from_table(tomllib.loads(from_table({"graph": "distance"}).toml()))
    assert again == from_table({"graph": "distance"})


def test_keys_of_an_older_version_that_meant_something_keep_their_meaning():
    homes = from_table({"graph": {"name": "homes", **OLD, "rooms": 2, "devices": 4, "between": "everyone"}}).graph
    assert homes.topology == Homes(rooms=2, devices=4, between="everyone")
    assert not homes.learned
    shuffled = from_table({"graph": {"name": "paper", **OLD, "shuffle": True, "laplacian": "symmetric"}}).graph
    assert shuffled == GraphTable(Paper(), laplacian="symmetric", shuffle=True)
    assert from_table({"graph": {"name": "homes", **OLD, "reweigh": True}}).graph.learned
    for key, value in {"rooms": 5, "k": 3, "between": "everyone", "reach": 2.0}.items():
        with pytest.raises(ValueError, match=f"unknown key in graph for paper '{key}'"):
            from_table({"graph": {"name": "paper", **OLD, key: value}})


# --- models and parts of the user's own ---------------------------------------------------------------------------


def test_a_start_is_seeded_for_every_kind_of_layer(tmp_path, monkeypatch):
    (tmp_path / "recurrent.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.gru = nn.GRU(8, 4, batch_first=True)\n        self.out = nn.Linear(4, 10)\n"
        "    def forward(self, x):\n        return self.out(self.gru(x.squeeze(1))[0][:, -1])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = [Run(from_table({**SMALL, "model": "recurrent:Net", "seed": seed})).start().models[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])


def test_a_part_that_cannot_be_saved_is_refused(tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("class Rule:\n    def __init__(self, x: int = 1):\n        self.x = x\n")
    monkeypatch.syspath_prepend(tmp_path)
    for part in ("aggregator", "graph"):
        with pytest.raises(ValueError, match="must be a dataclass"):
            from_table({part: "plain:Rule"})


def test_code_outside_the_package_is_reached_by_module_and_class(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom torch import nn\nfrom fedfilt import Graph\n"
        "@dataclass(frozen=True)\nclass Half:\n    share: float = 0.5\n"
        "    def __call__(self, models, updates, graph):\n        return models + self.share * updates.rows\n"
        "class Net(nn.Sequential):\n    def __init__(self, width: int = 8):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))\n"
        "@dataclass(frozen=True)\nclass Ring:\n    size: int = 5\n"
        "    def __call__(self, seed):\n"
        "        return Graph.from_edges(self.size, [(i, (i + 1) % self.size) for i in range(self.size)])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    table = {**SMALL, "aggregator": {"name": "mine:Half", "share": 0.25}, "model": {"name": "mine:Net", "width": 4}}
    config = from_table({**table, "graph": {"name": "mine:Ring", "size": 8, "laplacian": "symmetric"}})
    assert config.table()["aggregator"] == {"name": "mine:Half", "share": 0.25}
    common = {"laplacian": "symmetric", "shuffle": False, "control": ""}
    assert config.table()["graph"] == {"name": "mine:Ring", "size": 8, **common}
    assert from_table(config.table()) == config
    run = Run(config)
    assert run.layout.size == 64 * 4 + 4 + 4 * 10 + 10
    assert run.graph.count == len(run.graph.edges) == 8
    assert run.graph.laplacian_kind == "symmetric"


@pytest.mark.slow(4)
def test_a_wrong_part_is_named_and_leaves_the_others_alone(tmp_path):
    """In a copy of the package: a data set without files, one that cannot be imported, a filter file of two classes."""
    code = f"""
import shutil, sys
shutil.copytree({str(next(iter(fedfilt.__path__)))!r}, {str(tmp_path / "fedfilt")!r})
sys.path.insert(0, {str(tmp_path)!r})
from pathlib import Path
home = Path({str(tmp_path / "fedfilt")!r})
(home / "datasets" / "blobs.py").write_text("class Blobs:\\n    pass\\n")
(home / "datasets" / "zz.py").write_text("import no_such_module\\n")
(home / "filters" / "two.py").write_text("class A: pass\\nclass B: pass\\n")
import fedfilt
assert fedfilt.__file__.startswith(str(home)), fedfilt.__file__
from fedfilt.filters import Tikhonov
from fedfilt import _parts
for kind, name in (("datasets", "zz"), ("filters", "two")):
    try:
        _parts.find(kind, name)
    except ValueError as error:
        print(error)
from fedfilt.cli import app
sys.argv = ["fedfilt", "data", "list"]
app()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SLOW, check=False)
    assert done.returncode == 0, done.stderr
    assert "fedfilt/datasets/zz.py cannot be loaded: No module named 'no_such_module'" in done.stdout
    assert "must define exactly one public class, found 2" in done.stdout
    assert "blobs" in done.stdout
    assert "mnist" in done.stdout


# --- what is none -------------------------------------------------------------------------------------------------


def test_measured_devices_need_a_table():
    with pytest.raises(ValueError, match=r"devices\.table must name a CSV file"):
        parts.find("populations", "measured")().draw(np.ones(2), 10, np.random.default_rng(0))


@pytest.mark.parametrize("rule", ["fedavg", GFedFilt, Tikhonov(1.0), None])
def test_what_is_no_rule_is_named(rule):
    graph = fedfilt.Graph.from_edges(2, [(0, 1)])
    data = [(np.eye(4, dtype=np.float32), [0, 1, 0, 1])] * 2
    with pytest.raises(ValueError, match="aggregator must be a rule such as GFedFilt"):
        fedfilt.fit(data, nn.Linear(4, 2), graph, rule)


def test_what_is_no_graph_and_no_vote_is_named():
    matrix: Any = np.eye(6)
    with pytest.raises(ValueError, match="adjacency must have a zero diagonal"):
        fedfilt.mix(matrix, Tikhonov(1.0), np.ones((6, 2)))
    with pytest.raises(ValueError, match="the same moments and labels for every device"):
        fedfilt.vote([[[0.5, 0.5]], [[0.5, 0.5], [0.1, 0.9]]])


# --- corner cases -------------------------------------------------------------------------------------------------


def test_whole_numbers_where_floats_are_meant_change_nothing():
    one, other = ({"scheduler": {"name": "same_deadline", "importance": x}} for x in ([1, 0, 0], [1.0, 0.0, 0.0]))
    assert from_table(one).hash() == from_table(other).hash()
    events = [{"round": 2, "join": 3, "links": links} for links in ([[3, 1]], [[3.0, 1.0]])]
    assert len({from_table({"events": [event]}).hash() for event in events}) == 1


def test_a_graph_that_is_no_topology_is_named():
    with pytest.raises(ValueError, match="math:pi cannot be one of the topologies: it must be a class, got float"):
        from_table({"graph": "math:pi"})


def test_another_graph_keeps_only_what_it_knows(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text("[graph]\nname = 'distance'\nrooms = 3\nreach = 9.0\n")
    assert load(path, ["graph=nearest"]).table()["graph"]["rooms"] == 3
    assert load(path, ["graph=paper"]).table()["graph"] == from_table({}).table()["graph"]


def test_old_keys_are_dropped_for_graphs_of_the_package_only(tmp_path, monkeypatch):
    (tmp_path / "own_graph.py").write_text(
        "from dataclasses import dataclass\nfrom fedfilt import Graph\n"
        "@dataclass(frozen=True)\nclass Ring:\n    n: int = 4\n"
        "    def __call__(self, seed):\n        return Graph.from_edges(self.n, [(0, 1)])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert from_table({"graph": "own_graph:Ring"}).graph.graph(0).count == 4
    with pytest.raises(ValueError, match="unknown key in graph for own_graph:Ring 'k'"):
        from_table({"graph": {"name": "own_graph:Ring", "k": 4}})
