"""What users write: overrides of experiments, rules to compare, parts of their own, and arguments that are none."""

import subprocess
import sys

import numpy as np
import pytest
from test_showing import SMALL, call
from torch import nn

import fedfilt
from fedfilt import _parts as parts
from fedfilt.aggregators import FedAvg, GFedFilt
from fedfilt.filters import Tikhonov
from fedfilt.runs import compare as comparing
from fedfilt.runs.config import load

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


def test_the_same_name_keeps_the_options_of_the_file(experiment):
    plain = load(experiment)
    assert load(experiment, ["graph=nearest", "aggregator=gfedfilt", "engine=local"]) == plain
    assert load(experiment, ["aggregator.filter=tikhonov", "graph.name=nearest"]) == plain
    flower = load(experiment, ["engine=flower", "graph=complete"])
    assert (flower.engine.name, flower.engine.timeout_seconds) == ("flower", 60.0)
    assert (flower.graph.name, flower.graph.devices) == ("complete", 9)


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


@pytest.mark.parametrize("text", ["mu=.1,mu=0.1", "mu=1,mu=1.0", "paper,mu=10"])
def test_a_rule_is_compared_once(text):
    with pytest.raises(ValueError, match="different names"):
        comparing.rules(text)


def test_a_comparison_is_refused_before_anything_is_trained(tmp_path):
    config = fedfilt.config.from_table(SMALL)
    list(comparing.compare(config, ["mu=1"], [0], tmp_path / "c"))
    longer = fedfilt.config.from_table({**SMALL, "rounds": 6})
    for resume, words in ((False, "holds a run already"), (True, "rounds was 4, is 6")):
        with pytest.raises(ValueError, match=words):
            next(comparing.compare(longer, ["fedavg", "mu=1"], [0], tmp_path / "c", resume))
    assert not (tmp_path / "c" / "fedavg").exists()


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
from fedfilt import parts
for kind, name in (("datasets", "zz"), ("filters", "two")):
    try:
        parts.find(kind, name)
    except ValueError as error:
        print(error)
from fedfilt.cli import app
sys.argv = ["fedfilt", "data", "list"]
app()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "fedfilt/datasets/zz.py cannot be loaded: No module named 'no_such_module'" in done.stdout
    assert "must define exactly one public class, found 2" in done.stdout
    assert "blobs" in done.stdout
    assert "mnist" in done.stdout


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
    with pytest.raises(ValueError, match="graph must be a Graph, such as"):
        fedfilt.mix(np.eye(6), Tikhonov(1.0), np.ones((6, 2)))
    with pytest.raises(ValueError, match="as many moments and labels for every device"):
        fedfilt.vote([[[0.5, 0.5]], [[0.5, 0.5], [0.1, 0.9]]])


def test_no_page_is_made_of_no_results(tmp_path):
    done = call("paper", "all", "--page-only", "--store", tmp_path / "typo", "--out", tmp_path / "docs")
    assert done.returncode == 1
    assert "there are no results in" in done.stderr
    assert not (tmp_path / "docs").exists()
