"""Run folders that somebody has damaged, mixed up or left half done: what can be shown is shown, and truly."""

import copy
import csv
import io
import json
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_showing import SMALL, call

from fedfilt.runs import compare as comparing
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.groups import furthest, groups
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records, find_runs
from fedfilt.show import figures, report
from fedfilt.show import shares as sharing
from fedfilt.show.dashboard import page
from fedfilt.show.dashboard.app import make_app
from fedfilt.show.dashboard.folders import SEARCH, Watch

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
    for _ in comparing.compare(from_table(SMALL), ["fedavg", "mu=1"], [0, 1], folder):
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
    text = report.page(runs) if any(run.rounds for run in runs) else ""
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


@settings(max_examples=40)
@given(data=st.data())
def test_no_damage_to_a_run_folder_breaks_report_or_dashboard(seeds, tmp_path_factory, data):
    folder = shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path_factory.mktemp("hurt") / "run")
    name = data.draw(st.sampled_from(["metrics.jsonl"] * 4 + ["graph.json", "partition.json", "environment.json"]))
    *before, last = (folder / name).read_text().splitlines() if name.endswith("l") else [(folder / name).read_text()]
    table = json.loads(last)
    path = data.draw(st.sampled_from(sorted(places(table), key=str)))
    new = damaged(table, path, data.draw(st.sampled_from(ODD)))
    (folder / name).write_text("".join(f"{text}\n" for text in [*before, json.dumps(new)]))
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
    assert "metrics.jsonl is damaged in line 4, which is left out" in text


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


def test_only_runs_that_differ_in_the_seed_alone_are_averaged(seeds, tmp_path):
    runs = find_runs([seeds])
    assert {name: len(group) for name, group in groups(runs).items()} == {"fedavg": 2, "mu=1": 2}
    other = shutil.copytree(seeds / "mu=1" / "seed-0", tmp_path / "other")
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace("learning_rate = 0.1", "learning_rate = 0.2"))
    mixed = find_runs([seeds, other])
    assert sorted(map(len, groups(mixed).values())) == [1, 2, 2]
    text = report.page(mixed)
    assert "differ in more than rule and seed (training)" in text
    assert "saw the same data" not in text
    assert "saw the same data" in report.page(runs)
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
    words = f"{best} ({np.mean(means[best]):.1%} ± {np.std(means[best], ddof=1):.1%})"
    assert words in report.sentence(runs)
    text = report.page(runs)
    assert "mean ± standard deviation over seeds" in text
    assert "<summary>Every seed</summary>" in text


def test_who_learns_from_whom_follows_the_events(tmp_path):
    happen = [{"round": 2, "leave": 0}, {"round": 3, "move": 5, "links": [[5, 2]]}]
    table = {**SMALL, "scheduler": {"name": "everything"}, "events": happen}
    for _ in play_in_folder(Run(from_table(table)), tmp_path / "r"):
        pass
    run = Records(tmp_path / "r")
    before, after = sharing.shares(run, None, 1), sharing.shares(run)
    assert before[1, 0] > 0
    assert not after[1:, 0].any()
    assert after[0].tolist() == [1.0, *[0.0] * 19]  # its row waits
    np.testing.assert_allclose(after.sum(axis=1), 1)
    assert run.moment().graph.adjacency[[5]].indices.tolist() == [2]
    assert run.moment(2).graph.adjacency[[5]].nnz > 1
    assert "not there in this round" in str(page.neighbours(run, 0, None))
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
    rows = csv.reader(io.StringIO(report.csv_files([Records(folder)])["devices.csv"]))
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


def test_the_demo_goes_on_without_a_network(tmp_path):
    nowhere = {"https_proxy": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1", "FEDFILT_CACHE": str(tmp_path)}
    env = {key: value for key, value in os.environ.items() if key != "FEDFILT_DATA"}
    done = call("demo", "--out", tmp_path / "demo", env={**env, **nowhere, "PIP_INDEX_URL": "http://127.0.0.1:1/"})
    assert done.returncode == 0, done.stderr
    assert "Going on with the 8 x 8 digits" in done.stderr
    assert (tmp_path / "demo" / "report.html").exists()
