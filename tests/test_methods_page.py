"""docs/methods.md is made from the results that are kept, by experiments/methods.py."""

import json
import runpy
import shutil

import numpy as np
import pytest

from fedfilt.clients.averaged import Averaged
from fedfilt.clients.finetune import FineTune
from fedfilt.clients.per_fedavg import PerFedAvg
from fedfilt.clients.plain import Plain
from fedfilt.clients.two_level import TwoLevel
from helpers import MINE, ROOT

SMALL = """
rounds = 12
[data]
name = "digits"
[partition]
name = "labels"
per_device = 4
[samples]
train = 12
local_test = 12
global_test = 50
[graph]
name = "nearest"
rooms = 2
devices = 8
k = 1
[model]
name = "logistic"
"""


@pytest.fixture
def script():
    return runpy.run_path(str(ROOT / "experiments" / "methods.py"), run_name="script")


def made(rule, own, others, graph="", control="", epochs=90.0):
    scores = {str(seed): {"own": own + seed / 100, "worst": own - 0.1, "others": others} for seed in range(2)}
    costs = {"epochs": epochs, "up_bytes": 2000, "down_bytes": 2000, "forward_passes": 1, "wall_seconds": 1.0}
    about = {"settings": {"training.learning_rate": 0.1}, "environment": {"fedfilt": "1"}}
    return {"rule": rule, "graph": graph, "control": control, "scores": scores, **costs, **about}


def result(script, *rows):
    """A result file of watch in which all methods are there: some with these rows, the others refused."""
    methods = []
    for rule, graph in script["planned"]("watch", script["RULES"]):
        mine = [row for row in rows if row["rule"] == rule and row["graph"] in ("", graph)]
        method = {"rule": rule, "graph": graph, "hash": "", "rows": mine}
        methods.append(method if mine else method | {"refused": "no normalisation"})
    return {"kind": "watch", "seeds": [0, 1], "budget": 6, "rounds": 30, "methods": methods}


def test_the_page_is_that_of_the_results(script):
    text = (ROOT / "docs" / "methods.md").read_text()
    between = text.split(script["BEGIN"])[1].split(script["END"])[0]
    assert between.strip() == script["page"](ROOT / "results" / "methods")
    for name, found in script["read"](ROOT / "results" / "methods").items():
        assert (len(found["seeds"]), found["budget"]) == (script["SEEDS"], script["BUDGET"])
        assert max(found["seeds"]) < found["tuning_seed"]
        assert (ROOT / "docs" / "methods" / f"{name}.svg").exists() == bool(found["rows"])
        hashes = {(one["rule"], one["graph"]): one["hash"] for one in found["methods"]}
        assert hashes == {(rule, graph): script["ruled"](name, graph, rule).hash() for rule, graph in hashes}


def test_what_is_missing_is_said_with_the_command_that_computes_it(script, tmp_path):
    text = script["page"](tmp_path)
    for name, kind in script["KINDS"].items():
        assert f"## {kind.title}\n" in text
        assert f"Not computed yet: `python experiments/methods.py {name} --jobs 2`" in text


def test_the_page_says_who_is_on_the_front_and_how_the_recipe_does(script, tmp_path):
    rows = [
        made("fedavg", 0.8, 0.9),
        made("finetune", 0.9, 0.7, epochs=99.0),
        made(script["RECIPE"], 0.88, 0.8),
        made("local", 0.7, 0.3),
        made("mu=1", 0.884, 0.85, graph="given"),
        made("mu=1", 0.8, 0.85, graph="given", control="shuffled"),
    ]
    (tmp_path / "watch.json").write_text(json.dumps(result(script, *rows)))
    text = script["page"](tmp_path)
    assert "On the front: `fedavg`, `finetune`, `mu=1, given graph`." in text
    assert (
        "`mu=1, given graph` beats its shuffled control: own +8.4 (+8.4 to +8.4), others +0.0 (+0.0 to +0.0)." in text
    )
    assert "**Yes**: against the best of them, `mu=1, given graph`, own +0.4 (+0.4 to +0.4) and others +5.0" in text
    assert "own test: better on Watches." in text
    assert f"`{script['RECIPE']}` against `finetune`, own: worse on Watches." in text
    assert "| **finetune** ★ | 90.5 | 80.0 | 70.0 | - | - | 1.10 | 2 / 2 | 1 |" in text
    assert "| ↳ shuffled | 80.5 | 70.0 | 85.0 | -10.0 (-10.0 to -10.0) | +15.0 (+15.0 to +15.0) |" in text
    assert "Not possible here, or not to the end: `fedprox` (no normalisation); " in text
    worse = [made(script["RECIPE"], 0.878, 0.8), *rows[:2], *rows[3:]]
    (tmp_path / "watch.json").write_text(json.dumps(result(script, *worse)))
    assert "**No**: against the best of them, `mu=1, given graph`, own +0.6 (" in script["page"](tmp_path)
    unsure = [made(script["RECIPE"], 0.878, 0.8), *rows[:2], *rows[3:]]
    unsure[0]["scores"]["0"]["own"] -= 0.02
    (tmp_path / "watch.json").write_text(json.dumps(result(script, *unsure)))
    assert "**Cannot be told**: against the best" in script["page"](tmp_path)


def test_a_kind_of_which_methods_are_missing_says_how_many_and_which(script, tmp_path):
    every = result(
        script, made("fedavg", 0.8, 0.9), made(script["RECIPE"], 0.88, 0.8), made("mu=1", 0.9, 0.7, graph="given")
    )
    some = {**every, "methods": [one for one in every["methods"] if one["rows"]]}
    (tmp_path / "watch.json").write_text(json.dumps(some))
    text = script["page"](tmp_path)
    assert "| Watches | - | - | - | - | 3 of 37 methods so far |" in text
    assert "**3 of 37 methods so far**: what follows may change with the others." in text
    assert "`python experiments/methods.py watch --jobs 2` goes on with `fedprox`, `local`, `finetune`," in text
    assert " `mu=1` (found graph), " in text
    assert f"On the front (3 of 37 methods so far): `fedavg`, `{script['RECIPE']}`, `mu=1, given graph`." in text
    assert "within 0.5 points of the best" not in text  # which is not known yet
    assert (
        f"| **{script['RECIPE']}** ★ | 88.5 | 78.0 | 80.0 | - | - | 1.00 | 2 / 2 | 1 |" in text
    )  # no fine-tuning to compare to
    (tmp_path / "watch.json").write_text(json.dumps({**every, "methods": every["methods"][2:3]}))  # refused
    assert "1 of 37 methods so far" in script["page"](tmp_path)


def test_the_front_is_that_of_all_pairs(script):
    rng = np.random.default_rng(0)
    rows = [made(f"rule {n}", *rng.integers(0, 6, 2) / 10) for n in range(40)]
    found = [one["rule"] for one in script["on_front"](rows)]
    places = {one["rule"]: np.array([one["scores"]["0"]["own"], one["scores"]["0"]["others"]]) for one in rows}
    better = {
        a: [b for b in places if (places[b] >= places[a]).all() and (places[b] > places[a]).any()] for a in places
    }
    assert found == [name for name in places if not better[name]]


def test_what_a_device_trains_and_asks_before_it_decides(script):
    clients = Plain(), FineTune(epochs=30), PerFedAvg(adapt=3), Averaged(FineTune(epochs=7)), TwoLevel()
    assert [script["asked"](client) for client in clients] == [(0, 1), (30, 1), (3, 1), (7, 2), (0, 2)]


@pytest.mark.slow(10)
def test_methods_are_tuned_played_with_their_controls_and_kept(script, tmp_path, monkeypatch):
    (tmp_path / "small.toml").write_text(SMALL)
    script["KINDS"]["small"] = script["Kind"]("Small", "small", str(tmp_path / "small"), 0.01)
    names = ["fedavg", "finetune:epochs=10", "two_level", "mu=1", "fedbn"]
    jobs = script["jobs_of"]("small", names, 2, 1, tmp_path / "runs")
    places = [(rule, job.graph) for job in jobs for rule in job.rules]
    assert sorted(places) == sorted(script["planned"]("small", names))
    assert places.count(("mu=1", "found")) == places.count(("mu=1", "given")) == 1
    for job in reversed(jobs):  # whatever the order, the file has that of the page
        script["keep"](job, script["work"](job), tmp_path)
    found = json.loads((tmp_path / "small.json").read_text())
    methods = {(one["rule"], one["graph"]): one for one in found["methods"]}
    assert list(methods) == [
        ("fedavg", "given"),
        ("finetune:epochs=10", "given"),
        ("fedbn", "given"),
        ("two_level", "given"),
        ("mu=1", "given"),
        ("mu=1", "found"),
    ]
    rows = {(row["rule"], row["graph"], row["control"]): row for one in found["methods"] for row in one["rows"]}
    controls = [("given", "shuffled"), ("given", "complete"), ("given", "empty"), ("found", ""), ("found", "shuffled")]
    assert list(rows) == [
        *((rule, "", "") for rule in names[:3]),
        ("mu=1", "given", ""),
        *(("mu=1", *control) for control in controls),
    ]
    assert "normalisation" in methods["fedbn", "given"]["refused"]
    shared, tuned, recipe = (rows[rule, "", ""] for rule in names[:3])
    planned = shared["epochs"]
    assert tuned["epochs"] == planned + 10
    assert recipe["epochs"] == planned + 20  # ten epochs on all samples, and on two halves
    assert rows["mu=1", "found", ""]["epochs"] == planned + 1  # before round 1
    assert (shared["forward_passes"], recipe["forward_passes"]) == (1, 2)
    assert shared["up_bytes"] == shared["down_bytes"]
    # in round 3 the model and three changes go up, from round 4 to 12 the personal model too comes down
    assert recipe["up_bytes"] == pytest.approx(shared["up_bytes"] * (1 + 3 / 12), rel=0.02)
    assert recipe["down_bytes"] == pytest.approx(shared["down_bytes"] * (1 + 9 / 12), rel=0.02)
    assert set(shared["scores"]) == {"30", "31"}
    shutil.rmtree(tmp_path / "runs")  # as on another machine: what is in the result file is not computed again
    more = script["jobs_of"]("small", [*names, "local"], 2, 1, tmp_path / "runs")
    left = [job for job in (job.left(tmp_path) for job in more) if job.rules]
    assert [job.rules for job in left] == [("local",)]
    script["keep"](left[0], script["work"](left[0]), tmp_path)
    after = json.loads((tmp_path / "small.json").read_text())
    local = after["methods"].pop(1)
    assert after == found
    assert (local["rule"], local["rows"][0]["up_bytes"]) == ("local", 0)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rival_shown.py").write_text(MINE)  # a method of one's own, and a name that is in no list
    for rule in ("rival_shown:Halfway", "two_level:mu=10"):
        for job in script["jobs_of"]("small", [rule], 2, 1, tmp_path / "runs"):
            script["keep"](job, script["work"](job), tmp_path)
        assert f"| {rule}" in script["page"](tmp_path)
    every = json.loads((tmp_path / "small.json").read_text())["methods"]
    third = next(one for one in every if (one["rule"], one["graph"]) == ("two_level:mu=10", "given"))["rows"][0]
    assert third["epochs"] == 2 * planned + 20
    assert third["forward_passes"] == 3
    # the filtered model goes both ways in every round
    assert third["up_bytes"] == pytest.approx(shared["up_bytes"] * (2 + 3 / 12), rel=0.02)
    assert third["down_bytes"] == pytest.approx(shared["down_bytes"] * (2 + 9 / 12), rel=0.02)
    other = script["jobs_of"]("small", ["local"], 1, 1, tmp_path / "runs")
    with pytest.raises(ValueError, match=r"seeds = \[30, 31\], these are \[30\]"):
        other[0].left(tmp_path)
