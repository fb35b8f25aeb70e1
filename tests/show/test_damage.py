"""Run folders that somebody has damaged, mixed up or left half done: what can be shown is shown, and truly."""

import copy
import csv
import io
import json
import os
import re
import shutil
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import helpers
from fedfilt.runs.build import Run
from fedfilt.runs.compare import compare
from fedfilt.runs.config import from_table
from fedfilt.runs.groups import furthest, groups
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records, find_runs
from fedfilt.show import figures
from fedfilt.show.dashboard import page
from fedfilt.show.dashboard.app import make_app
from fedfilt.show.dashboard.folders import SEARCH, Watch
from fedfilt.show.report.page import page as report_page
from fedfilt.show.report.tables import csv_files
from fedfilt.show.shares import shares
from fedfilt.show.words import sentence
from helpers import call, process, sure

SMALL = {
    **helpers.SMALL,
    "devices": {"name": "prescribed"},
    "scheduler": {"name": "same_deadline"},
    "rounds": 4,
}
ODD = [
    None,
    "x",
    "",
    [],
    {},
    -1,
    1.5,
    True,
    10**30,
    float("inf"),
    float("nan"),
    [[1]],
    [None] * 20,
    {"a": 1},
    ["x"] * 20,
]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """A real comparison of two rules with two seeds."""
    folder = tmp_path_factory.mktemp("seeds")
    for _ in compare(from_table(SMALL), ["fedavg", "mu=1"], [0, 1], folder):
        pass
    return folder


def places(value, path=()):
    """Paths to everything in a JSON value; of a list only the first."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def damaged(value, path, new):
    if not path:
        return new
    value = copy.deepcopy(value)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = new
    return value


def shown(folder):
    """Everything that report and dashboard make of a folder; its words."""
    runs = find_runs([folder])
    text = report_page(runs) if any(run.rounds for run in runs) else ""
    client = make_app(Watch([folder])).server.test_client()
    for address in ("/", "/_dash-layout", "/_pulse"):
        assert client.get(address).status_code == 200, address
    for run in runs:
        for number in (None, 2):
            page.plan(run, 3, number)
            page.neighbours(run, 3, number)
        page.lower(runs, run)
        figures.learns_from(run, 3, 2.0)
        figures.mixing(run, 2.0)
        figures.response(run, 2.0)
    return text


def known(run, name):
    """All that is read of a file of a run, and so all that pictures are made of."""
    if name == "metrics.jsonl":
        last = run.rounds[-1]
        return repr((last, run.events, run.columns(), run.weights(last["round"])))
    if name == "graph.json":
        return None if run.graph is None else run.graph.hash
    return repr(run.label_counts if name == "partition.json" else run.environment)


@pytest.fixture(scope="module")
def damages(seeds, tmp_path_factory):
    """Of all damages to the files of a run those that are read otherwise than the whole, each kind once: (file, text).

    Reading must survive every one of them, and say so of a line that it leaves out.
    """
    folder = shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path_factory.mktemp("damages") / "run")
    found: dict[Any, tuple[str, str]] = {}
    tried = 0
    for name in ("metrics.jsonl", "graph.json", "partition.json", "environment.json"):
        text = (folder / name).read_text()
        *before, last = text.splitlines() if name.endswith("l") else [text]
        table, whole = json.loads(last), known(Records(folder), name)
        for path in places(table):
            for odd in ODD:
                new = "".join(f"{line}\n" for line in [*before, json.dumps(damaged(table, path, odd))])
                (folder / name).write_text(new)
                run = Records(folder)
                left_out = name.endswith("l") and len(run.rounds) == 3
                assert left_out == ("metrics.jsonl is damaged in line 4, which is skipped" in run.notes), (path, odd)
                if (key := known(run, name)) != whole:
                    found.setdefault((name, key), (name, new))
                tried += 1
        (folder / name).write_text(text)
    assert tried > 1000
    assert len(found) > 100
    return list(found.values())


@pytest.mark.slow(12)
@settings(max_examples=12)
@given(data=st.data())
def test_no_damage_to_a_run_folder_breaks_report_or_dashboard(seeds, damages, tmp_path_factory, data):
    folder = shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path_factory.mktemp("hurt") / "run")
    name, text = data.draw(st.sampled_from(damages))
    (folder / name).write_text(text)
    shown(folder)


@pytest.mark.parametrize(
    "words",
    [
        "aggregator = 3",
        'aggregator = { name = "gfedfilt", filter = 3 }',
        'aggregator = { name = "gfedfilt", filter = [1] }',
        "aggregator = { name = 3 }",
        'aggregator = { name = "gfedfilt", filter = { mu = inf } }',
        'aggregator = { name = "gfedfilt", filter = { mu = "x" } }',
        'seed = "a"\nrounds = "b"\ndata = [1]\ngraph = 3',
        "events = 3",
        "[[events]]\nround = 1\nleave = 99",
    ],
)
def test_no_config_breaks_report_or_dashboard(seeds, tmp_path, words):
    folder = shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "run")
    (folder / "config.toml").write_text(words)
    shown(folder)


def test_a_damaged_run_leaves_the_others_alone(seeds, tmp_path):
    for name in ("good", "bad"):
        shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "runs" / name)
    log = tmp_path / "runs" / "bad" / "metrics.jsonl"
    *before, last = log.read_text().splitlines()
    line = json.loads(last)
    del line["mixed"]["local"]["mean"]
    log.write_text("\n".join([*before, json.dumps(line), ""]))
    text = shown(tmp_path / "runs")
    assert "metrics.jsonl is damaged in line 4, which is skipped" in text


def test_a_graph_of_absurd_size_takes_no_memory(seeds, tmp_path):
    folder = shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "run")
    (folder / "graph.json").write_text('{"count": 1000000000000, "edges": []}')
    run = Records(folder)
    assert run.graph is None
    assert "the graph of this run is not in its folder" in " ".join(run.notes)


def test_comparisons_are_found_where_compare_writes_them(seeds, tmp_path):
    shutil.copytree(seeds, tmp_path / "runs" / "small-compare")
    shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "runs" / "alone")
    assert len(find_runs([tmp_path / "runs"])) == 5
    assert len(Watch([tmp_path / "runs"]).runs) == 5


@pytest.mark.slow(2)
def test_only_runs_that_differ_in_the_seed_alone_are_averaged(seeds, tmp_path):
    runs = find_runs([seeds])
    assert {name: len(group) for name, group in groups(runs).items()} == {"fedavg": 2, "mu=1": 2}
    other = shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "other")
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace("learning_rate = 0.1", "learning_rate = 0.2"))
    mixed = find_runs([seeds, other])
    assert sorted(map(len, groups(mixed).values())) == [1, 2, 2]
    text = report_page(mixed)
    assert "differ in training.learning_rate (0.1, 0.2). Not every rule has every combination" in text
    assert {run.label for run in mixed} == {
        "fedavg, learning_rate=0.1",
        "mu=1, learning_rate=0.1",
        "mu=1, learning_rate=0.2",
    }
    assert "saw the same data" not in text
    assert "saw the same data" in report_page(runs)
    twice = find_runs([seeds / "mu=1" / "seed-0", shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "again")])
    assert sorted(map(len, groups(twice).values())) == [1, 1]


def test_a_seed_that_still_trains_does_not_hide_its_rule(seeds, tmp_path):
    folder = shutil.copytree(seeds, tmp_path / "part")
    log = folder / "fedavg" / "seed-1" / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    runs = find_runs([folder])
    assert [run.seed for run in furthest(groups(runs)["fedavg"], "local")] == [0]
    names = {trace.name for trace in figures.accuracy(runs, "local").data}
    assert names == {"fedavg (1 of 2 seeds)", "mu=1 (2 seeds)"}
    done = [run for run in runs if run.seed == 0 and run.rule == "fedavg"]
    point = next(trace for trace in figures.pareto(runs).data if trace.name == "fedavg")
    assert point.y[0] == pytest.approx(done[0].tested("local")[-1]["mixed"]["local"]["mean"])


def test_the_report_says_means_over_seeds(seeds):
    runs = find_runs([seeds])
    means = {
        rule: [run.tested("local")[-1]["mixed"]["local"]["mean"] for run in runs if run.rule == rule]
        for rule in ("fedavg", "mu=1")
    }
    best = max(means, key=lambda rule: np.mean(means[rule]))
    words = f"({np.mean(means[best]):.1%} ±\N{NO-BREAK SPACE}{np.std(means[best], ddof=1):.1%})"
    assert re.search(rf"best with {best}\b[^.]*{re.escape(words)}", sentence(runs))
    text = report_page(runs)
    assert "mean ± standard deviation over seeds" in text
    assert "<summary>Every seed</summary>" in text


def test_who_learns_from_whom_follows_the_events(tmp_path):
    happen = [{"round": 2, "leave": 0}, {"round": 3, "move": 5, "links": [[5, 2]]}]
    table = {**SMALL, "scheduler": {"name": "everything"}, "events": happen}
    for _ in play_in_folder(Run(from_table(table)), tmp_path / "r"):
        pass
    run = Records(tmp_path / "r")
    before, after = shares(run, None, 1), shares(run)
    assert before[1, 0] > 0
    assert not after[1:, 0].any()
    assert after[0].tolist() == [1.0, *[0.0] * 19]  # it keeps its own model
    np.testing.assert_allclose(after.sum(axis=1), 1)
    assert sure(run.moment()).graph.adjacency[[5]].indices.tolist() == [2]
    assert sure(run.moment(2)).graph.adjacency[[5]].nnz > 1
    assert "away in this round" in str(page.neighbours(run, 0, None))
    assert "device 0'" not in str(page.neighbours(run, 1, None))


def test_a_run_that_is_deleted_stays_on_the_list_and_says_so(seeds, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "runs" / name)
    watch = Watch([tmp_path / "runs"])
    shutil.move(tmp_path / "runs" / "a", tmp_path / "elsewhere")
    watch._looked = watch._searched = watch._looked - SEARCH - 1
    watch.refresh()
    assert {run.folder.name: run.status for run in watch.runs} == {"a": "missing", "b": "finished"}
    shutil.move(tmp_path / "elsewhere", tmp_path / "runs" / "a")
    watch._looked = watch._searched = watch._looked - SEARCH - 1
    watch.refresh()
    assert {run.status for run in watch.runs} == {"finished"}


def test_no_cell_of_a_csv_file_is_a_formula(seeds, tmp_path):
    folder = shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "run")
    graph = json.loads((folder / "graph.json").read_text())
    graph["rooms"] = ["=cmd|calc!A0", "@SUM(1)"] * 10
    (folder / "graph.json").write_text(json.dumps(graph))
    rows = csv.reader(io.StringIO(csv_files([Records(folder)])["devices.csv"]))
    cells = [cell for row in rows for cell in row]
    assert "'=cmd|calc!A0" in cells
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "+")]


def test_a_report_is_written_only_where_a_report_belongs(seeds, tmp_path):
    run = shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "run")
    before = (run / "metrics.jsonl").read_bytes()
    for target in (run / "metrics.jsonl", tmp_path / "pipe"):
        done = call("report", run, "--out", target)
        assert done.returncode == 1
        assert "--out must end in .html" in done.stderr
    assert (run / "metrics.jsonl").read_bytes() == before
    os.symlink(tmp_path / "real.html", tmp_path / "link.html")
    assert call("report", run, "--out", tmp_path / "link.html").returncode == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").stat().st_size > 100_000


@pytest.mark.slow(12)
def test_the_demo_goes_on_without_a_network(tmp_path):
    env = {key: value for key, value in os.environ.items() if key != "FEDFILT_DATA"}
    done = process("demo", "--out", tmp_path / "demo", env={**env, **_nowhere(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "Using the 8 x 8 digits" in done.stderr
    assert (tmp_path / "demo" / "report.html").exists()


@pytest.mark.slow(3)
def test_the_demo_says_how_to_get_data_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delenv("FEDFILT_DATA", raising=False)
    done = call("demo", "--out", tmp_path / "demo", env=_nowhere(tmp_path))
    assert done.returncode == 1
    assert "error: cannot get train-images-idx3-ubyte of mnist; tried" in done.stderr
    assert "--data-dir or FEDFILT_DATA" in done.stderr
    assert "pip install 'fedfilt[digits]'" in done.stderr
    assert "Going on" not in done.stderr
    assert not (tmp_path / "demo").exists()


def _nowhere(cache):
    """Settings with which nothing can be fetched, and an empty cache."""
    no = "http://127.0.0.1:1"
    return {"https_proxy": no, "http_proxy": no, "PIP_INDEX_URL": no, "PIP_RETRIES": "0", "FEDFILT_CACHE": str(cache)}
