"""What runs leave behind, read while it grows, drawn and reported: also when it is cut short, damaged or gone."""

import csv
import io
import json
import re
import shutil
import sys

import numpy as np
import pytest

import fedfilt
import helpers
from fedfilt._files import STOP, in_use, locked
from fedfilt.filters import Tikhonov
from fedfilt.graph import Graph
from fedfilt.graph.serial import graph_json, graph_of
from fedfilt.runs.build import Run
from fedfilt.runs.compare import compare
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import line_of, read_lines
from fedfilt.runs.play import Stopped, play_in_folder
from fedfilt.runs.records import Records, find_runs
from fedfilt.runs.rules import rule_name
from fedfilt.show import figures
from fedfilt.show.dashboard import page
from fedfilt.show.figures.drawing import svg
from fedfilt.show.figures.places import floor_plan
from fedfilt.show.report.page import all_figures
from fedfilt.show.report.page import page as report_page
from fedfilt.show.report.tables import csv_files
from fedfilt.show.shares import shares
from fedfilt.show.words import dated
from helpers import ROOT, call, config_file, process, sure

SMALL = {
    **helpers.SMALL,
    "devices": {"name": "prescribed"},
    "scheduler": {"name": "same_deadline"},
    "rounds": 4,
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A real comparison of four rules."""
    folder = tmp_path_factory.mktemp("compared")
    for _ in compare(from_table(SMALL), ["fedavg", "local", "mu=1", "mu=10"], [0], folder):
        pass
    return folder


@pytest.fixture
def one(compared, tmp_path):
    """A copy of one run's folder."""
    return shutil.copytree(compared / "mu=1" / "seed-0", tmp_path / "run")


# --- records --------------------------------------------------------------------------------------------------------


def test_records_say_what_the_run_wrote(one):
    run = Records(one)
    wrote = read_lines(one)
    assert [r["round"] for r in run.rounds] == [1, 2, 3, 4]
    assert (run.status, run.rule, run.count, run.seed, run.planned, run.notes) == ("finished", "mu=1", 20, 0, 4, [])
    assert run.columns(3) == wrote[2]["time"]["devices"]
    assert run.line() == wrote[-1]
    np.testing.assert_allclose(sure(run.accuracies("local")), wrote[3]["mixed"]["local"]["devices"], rtol=1e-6)
    np.testing.assert_allclose(sure(run.accuracies("global", 3)), wrote[1]["mixed"]["global"]["devices"], rtol=1e-6)
    assert run.accuracies("local", 1) is None
    np.testing.assert_allclose(run.spent("joules"), np.cumsum([line["time"]["joules"] for line in wrote]))
    assert sure(run.graph).hash == Graph.paper().hash == run.environment["graph_hash"]
    np.testing.assert_array_equal(run.weights(), sure(run.label_counts).sum(axis=1))


def test_records_grow_line_by_line_and_wait_for_a_line_that_is_cut(one, tmp_path):
    text = (one / "metrics.jsonl").read_bytes()
    ends = [i + 1 for i, c in enumerate(text) if c == ord("\n")]
    log = one / "metrics.jsonl"
    log.write_bytes(text[: ends[0] + 40])  # a line and a bit
    run = Records(one)
    assert [r["round"] for r in run.rounds] == [1]
    assert not any("damaged" in note for note in run.notes)
    assert not run.refresh()
    with log.open("ab") as file:
        file.write(text[ends[0] + 40 : ends[2]])
    before = run.version
    assert run.refresh()
    assert run.version == before + 1
    assert [r["round"] for r in run.rounds] == [1, 2, 3]
    assert run.line(2) == json.loads(text[ends[0] : ends[1]])


def test_records_pass_over_a_damaged_line_and_say_so(one):
    log = one / "metrics.jsonl"
    first, second, *rest = log.read_text().splitlines()
    log.write_text("\n".join([first, second[:100], *rest]) + "\n")
    run = Records(one)
    assert [r["round"] for r in run.rounds] == [1, 3, 4]
    assert run.notes == ["metrics.jsonl is damaged in line 2, which is skipped"]
    log.unlink()
    log.write_text("\n".join([first, second, *rest]) + "\n")  # repaired: a new file
    run.refresh()
    assert [r["round"] for r in run.rounds] == [1, 2, 3, 4]
    assert run.notes == []


@pytest.mark.parametrize("line", ["[]", "3", '{"round": "x"}', '{"rounds": 1}', "null", '{"round": 1, "mixed": 7}'])
def test_lines_of_another_kind_are_left_out(one, line):
    with (one / "metrics.jsonl").open("a") as log:
        log.write(line + "\n")
    run = Records(one)
    assert len(run.rounds) == 4
    assert "damaged in line 5" in run.notes[0]


def test_a_resumed_run_is_read_again_from_its_checkpoint(tmp_path):
    config = from_table({**SMALL, "rounds": 6, "checkpoint": {"every": 2}})
    playing = play_in_folder(Run(config), tmp_path / "r")
    for _ in range(3):
        next(playing)
    playing.close()  # as if killed after round 3; the checkpoint is of round 2
    run = Records(tmp_path / "r")
    assert run.rounds[-1]["round"] == 3
    assert run.status == "stopped"
    again = play_in_folder(Run(config), tmp_path / "r", resume=True)
    next(again)
    assert run.refresh()
    assert [r["round"] for r in run.rounds] == [1, 2, 3]
    for _ in again:
        pass
    run.refresh()
    assert [r["round"] for r in run.rounds] == [1, 2, 3, 4, 5, 6]
    assert run.status == "finished"


@pytest.mark.parametrize("files", [(), ("lock",), ("config.toml",), ("config.toml", "environment.json")])
def test_an_empty_or_half_written_folder_is_shown_as_such(one, tmp_path, files):
    folder = tmp_path / "half"
    folder.mkdir()
    for name in files:
        shutil.copy(one / name, folder)
    run = Records(folder)
    assert run.rounds == []
    assert run.status == ("stopped" if "config.toml" in files else "waiting")
    assert any("no run yet" in note or "no round is finished" in note for note in run.notes)
    for name in figures.__all__:
        assert hasattr(figures, name)
    for figure in all_figures([run]).values():
        assert figure.layout.annotations or figure.data  # says that there is nothing yet
    done = call("report", folder)
    assert done.returncode == 1
    assert done.stderr.startswith("error: nothing to report: ")


def test_damaged_tables_are_named_and_seen_when_repaired(one):
    good = (one / "config.toml").read_text()
    (one / "config.toml").write_text("rounds = = 3")
    (one / "partition.json").write_text("{")
    (one / "graph.json").write_text('{"count": 3, "edges": [[0, 9]]}')
    run = Records(one)
    assert any(note.startswith("config.toml cannot be read") for note in run.notes)
    assert run.graph is None
    assert run.label_counts is None
    for figure in all_figures([run]).values():
        figure.to_json()
    (one / "config.toml").write_text(good)
    (one / "graph.json").unlink()
    run.refresh()
    assert sure(run.graph).hash == Graph.paper().hash  # built again from the config, as for folders of older versions


def test_a_folder_of_another_version_is_read_as_far_as_it_is_known(one):
    environment = json.loads((one / "environment.json").read_text())
    (one / "environment.json").write_text(json.dumps({**environment, "fedfilt": "9.9.9"}))
    table = [{**json.loads(line), "new": {"deep": [1]}} for line in (one / "metrics.jsonl").read_text().splitlines()]
    for line in table:
        del line["time"]["deadline"], line["loss"], line["time"]["devices"]["outcome"]
    (one / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in table))
    run = Records(one)
    assert run.notes == [f"written by fedfilt 9.9.9, read by {fedfilt.__version__}: unknown entries are ignored"]
    page = report_page([run])
    assert "written by fedfilt 9.9.9" in page


def test_a_deleted_folder_is_missing_until_it_is_back(one, tmp_path):
    run = Records(one)
    one.rename(tmp_path / "away")
    assert run.refresh()
    assert run.status == "missing"
    assert "does not exist" in run.notes[0]
    assert run.line() == {}
    assert len(run.rounds) == 4  # what was seen stays on show
    (tmp_path / "away").rename(one)
    run.refresh()
    assert run.status == "finished"
    assert run.notes == []


def test_events_of_every_form(one):
    table = [json.loads(line) for line in (one / "metrics.jsonl").read_text().splitlines()]
    table[0]["events"] = [
        {"what": "join", "device": 3},
        {"what": "leave", "device": [1]},
        {"what": "renamed"},
        "plain words",
    ]
    table[1]["time"]["late"] = [7]
    table[1]["time"]["rejected"] = [8]
    table[1]["absent"] = {"9": "offline", "10": "refused: a reply <b>of</b> another kind"}
    table[2]["time"]["devices"]["epochs"][5] = 0
    table[2]["time"]["devices"]["outcome"][5] = "infeasible_energy"
    (one / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in table))
    assert [dated(event) for event in Records(one).events] == [
        "round 1: device 3 joins",
        "round 1: leaves",
        "round 1: renamed",
        "round 1: plain words",
        "round 2: device 7 late",
        "round 2: device 8 rejected",
        "round 2: device 9 absent (offline)",
        "round 2: device 10 rejected (refused: a reply <b>of</b> another kind)",
        "round 3: device 5 left out (infeasible_energy)",
        "round 4: device 5 takes part again",
    ]
    assert sure(Records(one).weights(2))[[7, 8, 9, 10]].tolist() == [0, 0, 0, 0]
    assert "a reply &lt;b&gt;of&lt;/b&gt; another kind" in report_page([Records(one)])


def test_events_of_a_real_run_are_told(tmp_path):
    happen = [
        {"round": 2, "join": 3},
        {"round": 2, "offline": 1, "until": 4},
        {"round": 3, "move": 5, "links": [[5, 0]]},
        {"round": 4, "leave": 0},
    ]
    table = {**SMALL, "scheduler": {"name": "everything"}, "late": {"policy": "quorum"}, "events": happen}
    for _ in play_in_folder(Run(from_table(table)), tmp_path / "r"):
        pass
    run = Records(tmp_path / "r")
    told = [dated(event) for event in run.events]
    for words in (
        "round 2: device 3 joins from neighbours",
        "round 2: device 1 is offline until round 4",
        "round 3: device 5 moves to [0]",
        "round 4: device 1 is back online",
        "round 4: device 0 leaves",
    ):
        assert words in told
    late = [(line["round"], device) for line in read_lines(tmp_path / "r") for device in line["time"]["late"]]
    assert late
    assert all(f"round {number}: device {device} late" in told for number, device in late)
    written = report_page([run])
    assert all(f"<li>{words}</li>" in written for words in told)
    assert len(csv_files([run])["events.csv"].splitlines()) == 1 + len(told)
    assert "round 4: device 0 leaves" in page.events(run)  # the dashboard's list
    assert np.isnan(sure(run.accuracies("local"))[0])  # a device that left counts in no test
    for figure in all_figures([run]).values():
        figure.to_json()


def test_the_drawing_is_the_figure(one):
    picture = figures.building(Records(one), device=0)
    drawn = svg(picture)
    devices = next(t for t in picture.data if t.customdata is not None)
    shades = re.findall(r"stroke=\"rgb\((\d+),(\d+),(\d+)\)\"", drawn)
    assert len(shades) == len(devices.x) == 20
    best, least = int(np.argmax(devices.marker.color)), int(np.argmin(devices.marker.color))
    assert sum(map(int, shades[best])) > sum(map(int, shades[least]))  # lighter is more
    assert "<svg" in svg(figures.empty("nothing"))


def test_a_folder_is_in_use_while_its_lock_is_held(one):
    assert not in_use(one)  # the process that wrote it is this one, and it has let go
    with locked(one):
        assert in_use(one)
        assert Records(one).status == "running"
    (one / "lock").write_text("999999999")
    assert not in_use(one)
    (one / "lock").write_text("not a number")
    assert not in_use(one)


def test_the_graph_is_kept_with_the_run():
    rng = np.random.default_rng(0)
    for graph in (
        Graph.paper().with_laplacian("random_walk"),
        Graph.nearest(rng.random((30, 3)), 4, rooms=["a"] * 10 + ["b"] * 20),
        Graph.from_similarity(rng.random((12, 5)), 3),
        Graph.from_edges(3, []),
    ):
        back = graph_of(json.loads(sure(graph_json(graph))))
        assert back.hash == graph.hash
        assert back.positions is None or (back.positions == graph.positions).all()


def test_names_of_rules():
    heat = {"aggregator": {"name": "gfedfilt", "signal": "updates", "filter": {"name": "heat"}}}
    assert rule_name(heat) == "heat updates"
    assert rule_name({}) == "mu=1"
    assert rule_name({"aggregator": 3}) == "unknown"


def test_runs_of_a_comparison_are_found_in_order_and_told_apart(compared, one):
    assert [run.name for run in find_runs([compared])] == ["fedavg", "local", "mu=1", "mu=10"]
    twice = find_runs([compared / "mu=1", one])
    assert [run.name for run in twice] == [f"mu=1 ({run.folder})" for run in twice]


# --- stopping -----------------------------------------------------------------------------------------------------


def test_a_stop_file_ends_the_run_after_its_round_and_the_bits_stay_the_same(tmp_path):
    config = from_table({**SMALL, "checkpoint": {"every": 100}})
    whole = list(play_in_folder(Run(config), tmp_path / "whole"))
    playing = play_in_folder(Run(config), tmp_path / "r")
    next(playing)
    (tmp_path / "r" / STOP).touch()
    next(playing)
    with pytest.raises(Stopped, match="asked to stop after round 2"):
        next(playing)
    assert not (tmp_path / "r" / STOP).exists()
    assert [r["round"] for r in Records(tmp_path / "r").rounds] == [1, 2]
    (tmp_path / "r" / STOP).touch()  # left over: meant for a run that has ended
    rest = list(play_in_folder(Run(config), tmp_path / "r", resume=True))
    assert [line["mixed"] for line in [*rest] if "mixed" in line] == [whole[3]["mixed"]]
    results = [json.loads((tmp_path / name / "result.json").read_text())["models_sha256"] for name in ("whole", "r")]
    assert results[0] == results[1]


def test_the_command_ends_in_plain_words_when_it_is_stopped(tmp_path, monkeypatch):
    def asked(run, record, before):
        (tmp_path / "r" / STOP).touch()  # while the first round is being played
        return line_of(run, record, before)

    monkeypatch.setattr("fedfilt.runs.play.line_of", asked)
    done = call("run", config_file(tmp_path), "--out", tmp_path / "r")
    assert done.returncode == 130
    assert "stopped;" in done.stderr
    assert "--resume" in done.stderr
    run = Records(tmp_path / "r")
    assert (run.status, len(run.rounds)) == ("stopped", 1)


# --- sharing and figures ----------------------------------------------------------------------------------------------


def test_shares_are_what_the_rules_do(compared):
    runs = {run.name: run for run in find_runs([compared])}
    weights = sure(runs["mu=1"].weights())
    expected = fedfilt.mixing_matrix(Graph.paper(), Tikhonov(1.0), weights)
    np.testing.assert_allclose(shares(runs["mu=1"]), expected, atol=1e-12)
    np.testing.assert_allclose(shares(runs["local"]), np.eye(20))
    np.testing.assert_allclose(shares(runs["fedavg"]), np.tile(weights / weights.sum(), (20, 1)))
    what_if = fedfilt.mixing_matrix(Graph.paper(), Tikhonov(30.0), weights)
    np.testing.assert_allclose(shares(runs["local"], mu=30.0), what_if, atol=1e-12)


def test_code_that_a_config_names_is_not_imported(one):
    text = (one / "config.toml").read_text().replace('name = "gfedfilt"', 'name = "antigravity:Nothing"')
    (one / "config.toml").write_text(text)
    run = Records(one)
    with pytest.raises(ValueError, match="unknown aggregation rule"):
        shares(run)
    assert "unknown aggregation rule" in figures.mixing(run).layout.annotations[0].text
    report_page([run])
    assert "antigravity" not in sys.modules


def test_figures_show_the_records(compared):
    runs = find_runs([compared])
    run = runs[2]
    last = read_lines(run.folder)[-1]
    devices = next(t for t in figures.building(run).data if t.customdata is not None)
    np.testing.assert_allclose(devices.marker.color, last["mixed"]["local"]["devices"], rtol=1e-6)
    assert list(devices.customdata) == list(range(20))
    sent = next(t for t in figures.building(run, "bytes", 2).data if t.customdata is not None)
    assert list(sent.marker.color) == read_lines(run.folder)[1]["time"]["devices"]["bytes"]
    curve = {t.name: t for t in figures.accuracy(runs, "global", "joules").data}["mu=10"]
    np.testing.assert_allclose(curve.x, runs[3].spent("joules")[[1, 3]], rtol=1e-6)
    bars = figures.device_bars(run)
    worst = last["mixed"]["local"]["worst_device"]
    assert f"device {worst}" in bars.layout.annotations[0].text
    assert figures.round_timeline(run, 3).data[0].x == pytest.approx(
        read_lines(run.folder)[2]["time"]["devices"]["compute_seconds"]
    )
    confusion = np.array(figures.confusion(run).data[0].z)
    np.testing.assert_allclose(confusion.sum(axis=1)[confusion.sum(axis=1) > 0], 1)
    path = next(t for t in figures.pareto(runs).data if t.mode == "lines")
    assert path.x[0] == pytest.approx(runs[1].tested("global")[-1]["mixed"]["global"]["mean"])  # from Local ...
    assert path.x[-1] == pytest.approx(runs[0].tested("global")[-1]["mixed"]["global"]["mean"])  # ... to FedAvg
    known = figures.response(run, mu=10.0).data[3]
    np.testing.assert_allclose(known.y, 1 / (1 + 10 * Graph.paper().frequencies))


def test_algorithms_keep_their_colour_and_differ_in_more_than_colour():
    rules = ["fedavg", "local", "mu=0.1", "mu=1", "mu=10", "mu=100", "room_average", "self_blend", "fedu", "sfl"]
    looks = [figures.look(rule) for rule in rules]
    assert len({look.colour for look in looks}) == len(rules)
    assert len({look.symbol for look in looks}) == len(rules)  # tells them apart in grey
    assert figures.look("my:Rule") == figures.look("my:Rule")
    curve = figures.accuracy_curves({"local": np.array([[1, 0.5]])}, "t").data[0]
    assert curve.line.color == figures.look("local").colour


def test_old_names_of_figures_still_work():
    building = fedfilt.Building.generate(rooms=2, devices=10, seed=0)
    panels = figures.graph_signals(building, building.graph(6.0), {"a": np.arange(10.0), "b": np.ones(10)})
    assert len(panels.data) == 4
    assert figures.label_counts(np.eye(3, dtype=int)).data[0].z.shape == (3, 3)
    columns = {key: np.ones(2) for key in ("compute_seconds", "send_seconds", "idle_seconds")}
    assert len(figures.timeline(columns, 2.0, ["a", "b"], "t").data) == 3


def test_floors_lie_side_by_side():
    rng = np.random.default_rng(0)
    places = rng.random((40, 3)) * [10, 10, 2]
    rooms = np.repeat([0, 1], 20)
    places[rooms == 1, 2] += 3  # upstairs
    drawn = floor_plan(Graph.nearest(places, 3, rooms=rooms)).places
    assert drawn[rooms == 0, 0].max() < drawn[rooms == 1, 0].min()
    beside = places.copy()
    beside[rooms == 1] += [10, 0, -3]
    drawn = floor_plan(Graph.nearest(beside, 3, rooms=rooms)).places
    np.testing.assert_allclose(drawn, beside[:, :2])


# --- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.slow(3)
def test_report_has_all_numbers_config_versions_and_no_address_to_load_from(compared, tmp_path):
    out = tmp_path / "deep" / "r.html"
    done = process("report", compared, "--out", out)
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout
    page = out.read_text()
    runs = find_runs([compared])
    for run in runs:
        assert f"{run.tested('local')[-1]['mixed']['local']['mean']:.1%}" in page
        assert run.environment["torch"] in page
        assert "[aggregator]" in page
    assert page.count("Content-Security-Policy") == 1
    assert " src=" not in page.split("<script>")[0]  # nothing is loaded: no script, image or style from elsewhere
    rows = list(csv.DictReader(io.StringIO(csv_files(runs)["rounds.csv"])))
    assert len(rows) == 16
    wrote = read_lines(compared / "mu=10" / "seed-0")[-1]
    assert float(rows[-1]["local"]) == pytest.approx(wrote["mixed"]["local"]["mean"], rel=1e-5)
    assert float(rows[-1]["joules"]) == pytest.approx(wrote["time"]["joules"], rel=1e-5)
    per_device = list(csv.DictReader(io.StringIO(csv_files(runs)["devices.csv"])))
    assert len(per_device) == 80
    assert per_device[-1]["last_round_outcome"] == wrote["time"]["devices"]["outcome"][-1]


@pytest.mark.slow(4)
def test_a_report_of_200_rounds_and_three_seeds_is_small(compared, tmp_path):
    """Four rules, three seeds, tested in every round: more than any comparison of the paper."""
    rng = np.random.default_rng(0)
    last = read_lines(compared / "mu=1" / "seed-0")[-1]
    for rule in ("fedavg", "local", "mu=1", "mu=10"):
        for seed in range(3):
            folder = shutil.copytree(compared / rule / "seed-0", tmp_path / rule / f"seed-{seed}")
            text = (folder / "config.toml").read_text().replace("seed = 0", f"seed = {seed}", 1)
            (folder / "config.toml").write_text(text.replace("rounds = 4", "rounds = 200", 1))
            with (folder / "metrics.jsonl").open("w") as log:
                for number in range(1, 201):
                    last["mixed"]["local"]["mean"] = rng.random()
                    log.write(json.dumps({**last, "round": number}) + "\n")
    done = call("report", tmp_path, "--out", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.html").stat().st_size < 6_000_000


def test_text_from_a_run_cannot_become_code_in_the_report(one):
    (one / "config.toml").write_text(
        (one / "config.toml").read_text() + "\n# </pre></script><script>alert(1)</script>\n"
    )
    environment = json.loads((one / "environment.json").read_text())
    (one / "environment.json").write_text(json.dumps({**environment, "torch": "<img src=x onerror=alert(1)>"}))
    run = Records(one, name="</script><script>alert(2)</script>")
    page = report_page([run])
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_errors_of_the_report_are_plain_and_nothing_is_written(compared, tmp_path):
    for words, message in (
        ([tmp_path / "none"], "no run folder"),
        ([compared, "--out", tmp_path], "must be a file"),
        ([compared, "--out", tmp_path / "r.html", "--images", "gif"], "unknown image format 'gif'"),
    ):
        done = call("report", *words)
        assert done.returncode == 1
        assert message in done.stderr


def test_images_without_a_browser_are_refused_in_plain_words(compared, tmp_path):
    nowhere = {"BROWSER_PATH": str(tmp_path / "none")}
    done = call("report", compared / "local", "--out", tmp_path / "r.html", "--images", "png", env=nowhere)
    assert done.returncode == 1
    assert "need Chrome or Chromium, and none was found" in done.stderr
    assert (tmp_path / "r.html").exists()  # the report itself needs none
    assert not (tmp_path / "r-figures").exists()


def test_the_helpful_words_stay_in_the_docs():
    text = (ROOT / "docs" / "seeing.md").read_text()
    for word in ("fedfilt report", "fedfilt dashboard", "--token", "stop"):
        assert word in text
