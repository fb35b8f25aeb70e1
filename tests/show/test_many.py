"""Three rules, three learning rates, three seeds: 27 runs told apart in the report, its figures and the dashboard."""

import csv
import io
import json
import os
import re
import shutil

import numpy as np
import pytest
from scipy import stats

import helpers
from fedfilt.graph import Graph
from fedfilt.graph.serial import graph_json
from fedfilt.runs.groups import crossed, differences, experiments, groups
from fedfilt.runs.lines import read_lines
from fedfilt.runs.records import Records, find_runs
from fedfilt.show import figures
from fedfilt.show.dashboard import page
from fedfilt.show.dashboard.app import first, make_app
from fedfilt.show.dashboard.folders import Watch
from fedfilt.show.figures import curves
from fedfilt.show.figures.curves import paired
from fedfilt.show.figures.places import SOURCES
from fedfilt.show.report.page import all_figures
from fedfilt.show.report.page import page as report_page
from fedfilt.show.report.tables import csv_files
from fedfilt.show.words import unlike
from fedfilt.training.goal import METRICS
from helpers import sure

RULES, RATES, SEEDS = ("fedavg", "local", "mu=1"), (0.05, 0.2, 0.5), (0, 1, 2)
pytestmark = [pytest.mark.slow(3), pytest.mark.xdist_group("many")]  # one worker makes the runs


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The folder of 27 real runs."""
    return helpers.sweep(tmp_path_factory.mktemp("runs") / "sweep")


@pytest.fixture(scope="module")
def runs(sweep):
    return find_runs([sweep])


@pytest.fixture(scope="module")
def text(runs):
    """Their report."""
    return report_page(runs)


def place(sweep, rule, rate, seed):
    return sweep / f"learning_rate={rate}" / rule / f"seed-{seed}"


# --- names ----------------------------------------------------------------------------------------------------------


def test_every_run_has_a_name_of_its_own_and_every_rule_and_rate_a_look(runs):
    assert len({run.name for run in runs}) == 27
    names = [f"{rule}, learning_rate={rate:g}" for rule in RULES for rate in RATES]
    assert list(groups(runs)) == names  # rates rise
    assert all(len(group) == 3 for group in groups(runs).values())
    assert len({run.look.colour for run in runs}) == len({run.look.symbol for run in runs}) == 9
    assert {(run.label, run.look) for run in runs} == {
        (run.label, group[0].look) for group in groups(runs).values() for run in group
    }


def test_the_keys_that_differ_are_named_with_their_values(runs, text):
    assert list(differences(runs)) == ["training.learning_rate"]
    assert crossed(runs)
    assert unlike(runs) == "Besides rule and seed, these runs differ in training.learning_rate (0.05, 0.2, 0.5)."
    assert not crossed([run for run in runs if run.label != "local, learning_rate=0.2"])
    assert "<h1>Comparison of fedavg, local, mu=1 with learning_rate 0.05, 0.2, 0.5</h1>" in text
    rows = list(csv.DictReader(io.StringIO(csv_files(runs)["rounds.csv"])))
    assert {row["training.learning_rate"] for row in rows} == {"0.05", "0.2", "0.5"}
    wrote = read_lines(place(runs[0].folder.parents[2], "mu=1", 0.2, 1))[-1]
    found = next(row for row in rows if (row["run"], row["round"]) == ("mu=1, learning_rate=0.2 seed 1", "2"))
    assert float(found["local_trained"]) == pytest.approx(wrote["trained"]["local"]["mean"])
    assert float(found["global_loss"]) == pytest.approx(wrote["mixed"]["global"]["loss"])


def test_a_run_alone_needs_no_key(sweep):
    alone = find_runs([place(sweep, "mu=1", 0.2, 0)])
    assert [run.name for run in alone] == ["mu=1"]
    assert "Besides rule and seed" not in report_page(alone)


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["mixed", "trained"])
def test_curves_are_means_over_seeds(sweep, runs, stage):
    drawn = {trace.legendgroup: trace for trace in figures.accuracy(runs, "local", stage=stage).data}
    assert len(drawn) == 9
    lines = [read_lines(place(sweep, "mu=1", 0.5, seed)) for seed in SEEDS]
    expected = [np.mean([own[number][stage]["local"]["mean"] for own in lines]) for number in range(2)]
    np.testing.assert_allclose(drawn["mu=1, learning_rate=0.5"].y, expected, rtol=1e-6)
    assert drawn["mu=1, learning_rate=0.5"].name == "mu=1, learning_rate=0.5 (3 seeds)"


@pytest.mark.parametrize("kind", ["training", "local", "global"])
def test_losses_are_drawn_as_they_were_recorded(sweep, runs, kind):
    drawn = {trace.legendgroup: trace for trace in figures.loss(runs, kind).data}
    lines = [read_lines(place(sweep, "local", 0.2, seed)) for seed in SEEDS]
    of = (lambda line: line["loss"]) if kind == "training" else (lambda line: line["mixed"][kind]["loss"])
    expected = [np.mean([of(own[number]) for own in lines]) for number in range(2)]
    np.testing.assert_allclose(drawn["local, learning_rate=0.2"].y, expected, rtol=1e-6)


def test_the_seeds_of_a_rule_alone_are_drawn_under_their_mean(sweep):
    alone = find_runs([sweep / "learning_rate=0.2" / "mu=1"])
    names = [trace.name for trace in figures.accuracy(alone).data]
    assert names == ["seed 0", "seed 1", "seed 2", "mu=1 (3 seeds)"]


def test_paired_differences_are_those_of_a_paired_t_test(sweep, runs):
    def scores(rule):
        return [read_lines(place(sweep, rule, 0.2, seed))[-1]["mixed"]["global"]["mean"] for seed in SEEDS]

    own, base = scores("mu=1"), scores("local")
    found = next(
        row for row in paired(runs, "local, learning_rate=0.2", "global") if row.name == "mu=1, learning_rate=0.2"
    )
    np.testing.assert_allclose(found.differences, np.subtract(own, base))
    interval = stats.ttest_rel(own, base).confidence_interval(0.95)
    np.testing.assert_allclose([found.low, found.high], [interval.low, interval.high])
    figure = figures.paired_differences(runs, "local, learning_rate=0.2", "global")
    line = next(t for t in figure.data if t.mode == "lines" and t.legendgroup == "mu=1, learning_rate=0.2")
    np.testing.assert_allclose(line.x, [100 * interval.low, 100 * interval.high])
    assert len(figure.layout.annotations) == 8  # every other rule by its name
    rows = list(csv.DictReader(io.StringIO(csv_files(runs)["differences.csv"])))
    told = next(
        r for r in rows if (r["rule"], r["baseline"], r["test"]) == (found.name, "local, learning_rate=0.2", "global")
    )
    assert float(told["low_95"]) == pytest.approx(interval.low)


def test_one_seed_has_a_difference_and_no_interval(sweep):
    single = find_runs([place(sweep, rule, 0.2, 1) for rule in RULES])
    found = paired(single, "fedavg")
    assert len(found) == 2
    assert np.isnan([row.low for row in found]).all()
    assert "With one seed there is no interval." in report_page(single)


def test_two_rules_are_set_against_each_other_device_by_device(sweep, runs):
    alike = groups(runs)
    one, other = alike["fedavg, learning_rate=0.2"], alike["mu=1, learning_rate=0.5"]
    dots = figures.device_scatter(one, other).data[1]
    assert len(dots.x) == 60
    for rule, rate, values in (("fedavg", 0.2, dots.x), ("mu=1", 0.5, dots.y)):
        own = [read_lines(place(sweep, rule, rate, seed))[-1]["mixed"]["local"]["devices"] for seed in SEEDS]
        np.testing.assert_allclose(values, np.ravel(own), atol=1e-3)
    assert dots.text[21] == "device 1, seed 1"
    same = figures.device_scatter(one, one)
    assert "0 of 60 do better" in same.layout.title.text.replace("<br>", " ")


def test_where_less_is_better_the_better_are_counted_so(runs, monkeypatch):
    alike = list(groups(runs).values())
    more = figures.device_scatter(alike[0], alike[3]).layout.title.text
    monkeypatch.setattr(curves, "metric_of", lambda _: METRICS["rmse"])
    less = figures.device_scatter(alike[0], alike[3])
    assert "RMSE" in less.layout.title.text
    assert less.data[1].meta == "less is better"
    counts = [int(sure(re.search(r"(\d+) of 60", text)).group(1)) for text in (more, less.layout.title.text)]
    x, y = less.data[1].x, less.data[1].y
    assert counts == [int((y > x).sum()), int((y < x).sum())]


def lines_to(figure):
    """The lines to the sources of a device: each has two ends and a gap."""
    return sum(len(trace.x) // 3 for trace in figure.data if trace.name == "sources")


def test_all_sources_of_fedavg_are_drawn_or_it_is_said_that_they_are_not(runs, tmp_path):
    run = next(run for run in runs if run.rule == "fedavg")
    assert lines_to(figures.learns_from(run, 3)) == 19
    folder = shutil.copytree(run.folder, tmp_path / "large")
    graph = Graph.from_rooms(
        [number // 10 for number in range(300)], links=[(number, number + 1) for number in range(299)]
    )
    (folder / "graph.json").write_text(sure(graph_json(graph)))
    (folder / "partition.json").write_text(json.dumps({"label_counts": [[3, 4]] * 300}))
    large = figures.learns_from(Records(folder), 3)
    assert lines_to(large) == SOURCES
    assert f"lines to the {SOURCES} largest of 299 sources" in large.layout.title.text.replace("<br>", " ")


def test_no_line_of_a_title_or_legend_is_too_long_for_a_phone(runs):
    for name, figure in all_figures([run for run in runs if run.seed == 0][6:8]).items():
        lines = (figure.layout.title.text or "").split("<br>")
        lines += [line for trace in figure.data for line in (trace.name or "").split("<br>")]
        assert max(map(len, lines)) <= 45, name


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_opens_on_a_run_with_a_filter_and_repeats_no_figure(runs, text):
    chosen = sure(re.search(r"<option value='(\d+)' selected>(mu=1[^<]*)</option>", text.split("id='run'")[1]))
    assert runs[int(chosen[1])].rule == "mu=1"
    assert f"<h3 id='chosen'>{chosen[2]}</h3>" in text
    stored = json.loads(sure(re.search(r"id='stored'>(.*?)</script>", text)).group(1))
    assert len(stored["figures"]) < len(stored["names"])
    labels = {stored["names"][f"labels-{i}"] for i, run in enumerate(runs) if run.seed == 0}
    assert len(labels) == 1  # all rules of a seed hold the same labels
    again = stored["figures"][stored["names"]["pareto"]]
    assert [trace["name"] for trace in again["data"]] == [trace.name for trace in figures.pareto(runs).data]


def test_a_table_says_of_every_cell_what_it_is(text):
    table = sure(re.search(r"<table class='cards'>.*?</table>", text, re.DOTALL)).group()
    rows = re.findall(r"<tr>(<td.*?)</tr>", table)
    assert len(rows) == 9
    heads = re.findall(r"<th scope='col'>(?:<a [^>]*>)?([^<]*)", table)
    assert "fine-tuned" in heads
    for row in rows:
        assert re.findall(r"data-label='([^']*)'", row) == heads


def test_what_was_not_tested_after_training_is_said(tmp_path):
    helpers.finish(tmp_path / "run", rounds=2)
    text = report_page(find_runs([tmp_path / "run"]))
    assert "Set evaluation.trained = true to test models after local training too." in text
    assert "fine-tuned</a></th>" not in text


# --- the dashboard ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(sweep, tmp_path):
    """The sweep, an older run with two seeds, and one of another day."""
    shutil.copytree(sweep, tmp_path / "runs" / "sweep")
    for seed in (0, 1):
        shutil.copytree(place(sweep, "mu=1", 0.2, seed), tmp_path / "runs" / f"older-seed-{seed}")
    shutil.copytree(place(sweep, "local", 0.2, 0), tmp_path / "runs" / "oldest")
    for number, name in enumerate(("oldest", "older-seed-0", "older-seed-1")):
        for file in ("metrics.jsonl", "config.toml"):
            os.utime(tmp_path / "runs" / name / file, (1e9 + number, 1e9 + number))
    os.utime(tmp_path / "runs" / "sweep" / "learning_rate=0.2" / "mu=1" / "seed-1" / "metrics.jsonl", (3e9, 3e9))
    return tmp_path / "runs"


def test_runs_are_grouped_by_experiment_and_the_newest_opens(shelf):
    watch = Watch([shelf])
    assert {name: len(found) for name, found in watch.experiments.items()} == {"sweep": 27, "older": 2, "oldest": 1}
    assert sure(first(watch)).name == "mu=1, learning_rate=0.2 seed 1"
    assert [run.name for run in watch.experiments["older"]] == ["mu=1 seed 0", "mu=1 seed 1"]  # named among themselves
    assert list(experiments(watch.runs)) == list(watch.experiments)
    text = make_app(watch).server.test_client().get("/").get_data(as_text=True)
    assert "sweep, mu=1, learning_rate=0.2 seed 1: finished, round 2 of 2" in text
    options = page.options(watch.experiments)
    assert len({option["value"] for option in options}) == len({option["label"] for option in options}) == 30


def words_of(component):
    """All words in a component, in order."""
    if isinstance(component, str):
        return [component]
    children = component if isinstance(component, list) else getattr(component, "children", None)
    return (
        []
        if children is None
        else [w for c in (children if isinstance(children, list) else [children]) for w in words_of(c)]
    )


def test_the_table_folds_seeds_and_says_that_seconds_are_simulated(shelf):
    watch = Watch([shelf])
    table = page.table(watch.experiments, first(watch))
    words = words_of(table)
    assert "accuracy at the last test; seconds are simulated" in words
    for name in ("sweep", "older", "oldest", "fedavg, learning_rate=0.05", "3 seeds", "2 seeds"):
        assert name in words
    group = groups(watch.experiments["sweep"])["mu=1, learning_rate=0.2"]
    mean = np.mean([run.tested("local")[-1]["mixed"]["local"]["mean"] for run in group])
    body = next(body for body in table.children if getattr(body, "data-key", "") == "sweep mu=1, learning_rate=0.2")
    assert f"{mean:.1%}" in words_of(body.children[1])
    assert [bool(getattr(row, "hidden", False)) for row in body.children] == [False, False, True, True, True]
    assert any("time, simulated" in word for word in words_of(page.plan(group[0], 0, None)))


def test_real_seconds_are_not_called_simulated(sweep, tmp_path):
    folder = shutil.copytree(place(sweep, "mu=1", 0.2, 0), tmp_path / "real")
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(
        text.replace("[engine]\n", "[engine]\nreal_time = true\n").replace("real_time = false\n", "")
    )
    run = Records(folder)
    assert run.real_time
    assert figures.axis_of([run], "seconds") == "seconds"
    assert (
        figures.axis_of([run, Records(place(sweep, "mu=1", 0.2, 0))], "seconds") == "seconds (simulated in some runs)"
    )
    assert "seconds are real" in words_of(page.table({"real": [run]}, run))[0]
    assert "simulated seconds" not in str(figures.round_timeline(run).layout.xaxis.title.text)


def test_curves_fold_seeds_and_hold_a_run_of_another_experiment_beside(shelf):
    watch = Watch([shelf])
    chosen, other = first(watch), watch.experiments["older"][0]
    runs = page.curves(watch.experiment(chosen)[1], chosen, other)
    drawn = figures.accuracy(runs).data
    assert len(drawn) == 10
    assert len({trace.line.color for trace in drawn}) == 10


def test_names_follow_when_a_run_begins(shelf, sweep):
    watch = Watch([shelf])
    shutil.copytree(place(sweep, "mu=1", 0.5, 2), shelf / "older-seed-2")
    watch._looked = watch._searched = float("-inf")
    watch.refresh()
    names = [run.name for run in watch.experiments["older"]]
    assert names == [
        "mu=1, learning_rate=0.2 seed 0",
        "mu=1, learning_rate=0.2 seed 1",
        "mu=1, learning_rate=0.5 seed 2",
    ]
