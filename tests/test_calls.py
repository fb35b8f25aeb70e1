"""Experiments from Python: the same as on the command line, and results that say what they are in a few words."""

import io
import json
import sys
import tomllib

import numpy as np
import pytest

import fedfilt
from fedfilt import _brief, _progress
from fedfilt.runs.config import config_of, from_table, load
from fedfilt.show.report import write
from helpers import ROOT, SMALL, call, config_file


def test_run_gives_the_bits_of_the_command_line(tmp_path):
    call("run", config_file(tmp_path), "--out", tmp_path / "shell", "rounds=3")
    found = fedfilt.run(SMALL, tmp_path / "python", rounds=3)
    assert found.status == "finished"
    assert found.result["models_sha256"] == fedfilt.load(tmp_path / "shell").result["models_sha256"]
    assert found.history()["round"].tolist() == [1, 2, 3]
    assert (tmp_path / "python" / "figures" / "local.html").exists()
    with pytest.raises(ValueError, match="holds a run already"):
        fedfilt.run(SMALL, tmp_path / "python", rounds=3)
    again = fedfilt.run(SMALL, tmp_path / "python", rounds=3, resume=True)
    assert again.result == found.result


def test_folders_are_named_by_the_experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = config_file(tmp_path, rounds=1, seed=4)
    assert str(fedfilt.run(str(path)).folder) == "runs/small-seed-4"
    table = {**SMALL, "rounds": 1}
    assert fedfilt.run(table).folder.name == f"experiment-{from_table(table).hash()[:8]}-seed-0"


def test_overrides_in_python_are_those_of_the_command_line(tmp_path):
    path = config_file(tmp_path)
    words = ["rounds=7", "aggregator=fedavg", "training.learning_rate=0.5", "graph=rooms", "graph.rooms=2"]
    table = {
        "rounds": 7,
        "aggregator": "fedavg",
        "training": {"learning_rate": 0.5},
        "graph.rooms": 2,
        "graph": "rooms",
    }
    wanted = load(path, words)
    assert (
        config_of(path, table)
        == config_of(from_table(SMALL), table)
        == config_of(tomllib.loads(path.read_text()), table)
    )
    assert config_of(path, table) == wanted
    assert config_of(wanted, {}) is wanted
    assert config_of(None, {}) == from_table({})
    with pytest.raises(ValueError, match="did you mean 'rounds'"):
        fedfilt.run(SMALL, tmp_path / "x", round=7)
    with pytest.raises(ValueError, match="config must be a Config, a table or the path of a file, got list"):
        fedfilt.run(["small"], tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_compare_and_report_from_python(tmp_path):
    found = fedfilt.compare(SMALL, ["fedavg", "mu=1"], 2, tmp_path / "python", rounds=2)
    call(
        "compare",
        config_file(tmp_path),
        "--rules",
        "fedavg,mu=1",
        "--seeds",
        2,
        "--out",
        tmp_path / "shell",
        "rounds=2",
    )
    tables = [json.loads((tmp_path / name / "comparison.json").read_text())["rules"] for name in ("python", "shell")]
    assert tables[0] == tables[1]
    assert len(found) == 4
    assert {run.rule for run in found} == {"fedavg", "mu=1"}
    last = found.table()
    assert last.groupby("rule")["local_mean"].mean()["mu=1"] == pytest.approx(tables[0][1]["local"])
    history = found.history()
    assert list(history)[:4] == ["run", "rule", "seed", "round"]
    assert len(history) == 8
    assert len(found.plot().data) == 2
    page = fedfilt.report(found, tmp_path / "page.html")
    assert page.read_text().replace(str(page), "") == write([tmp_path / "python"], page).read_text().replace(
        str(page), ""
    )
    assert fedfilt.report([*found][:2], tmp_path / "two.html").exists()
    loaded = fedfilt.load(tmp_path / "python")
    assert [run.folder for run in loaded] == [run.folder for run in found]


def test_load_gives_what_is_there(tmp_path):
    assert fedfilt.load(None) == from_table({})
    assert fedfilt.load(config_file(tmp_path), ["rounds=9"]).rounds == 9
    assert fedfilt.load(config_file(tmp_path), {"rounds": 9}).rounds == 9
    with pytest.raises(ValueError, match="path must be a run folder or an experiment file; there is no nowhere"):
        fedfilt.load("nowhere")
    with pytest.raises(ValueError, match="holds no run"):
        fedfilt.load(ROOT / "docs")
    with pytest.raises(ValueError, match="overrides change an experiment"):
        fedfilt.load(ROOT / "docs", ["rounds=9"])


# --- in a few words -----------------------------------------------------------------------------------------------


def test_every_result_says_what_it_is_in_five_lines(tmp_path):
    rng = np.random.default_rng(0)
    train = [(x, rng.integers(0, 10, 60)) for x in rng.standard_normal((20, 60, 1, 28, 28)).astype(np.float32)]
    fitted = fedfilt.fit(train, fedfilt.models.MLP((1, 28, 28), 10, 8), fedfilt.Graph.paper(), rounds=2)
    saved = fitted.save(tmp_path / "runs" / "first")
    with fitted.run.experiment() as experiment:
        state, record = fedfilt.play_round(fitted.run.start(), experiment)
    results = [
        fitted,
        saved,
        fedfilt.load(tmp_path / "runs"),
        fitted.run,
        fitted.run.config,
        fitted.run.graph,
        fitted.run.hardware,
        fitted.data,
        experiment,
        state,
        record,
        record.schedule,
        fedfilt.Updates(state.models, record.samples),
        fedfilt.Building.generate(rooms=4, devices=20, seed=0),
        fedfilt.Store(),
        fedfilt.Training(),
        fedfilt.load(None),
    ]
    for result in results:
        text = repr(result)
        assert text.startswith(type(result).__name__)
        assert len(text.splitlines()) <= 5, text
        assert len(text) < 700, text
    assert repr(fitted).splitlines()[0].startswith("Fitted: 20 devices, 2 rounds of Plain(), GFedFilt(")
    assert "finished, round 2 of 2, 20 devices, rule mu=1, seed 0" in " ".join(repr(saved).split())
    assert "rounds" in repr(fedfilt.load(None, ["training.learning_rate=0.5"]))
    assert "training.learning_rate=0.5" in repr(fedfilt.load(None, ["training.learning_rate=0.5"]))


def test_a_history_without_pandas_is_one_of_polars_or_a_clear_error(monkeypatch):
    there = {"polars"}
    monkeypatch.setattr(_brief, "find_spec", lambda name: name in there or None)
    monkeypatch.setattr(
        _brief, "import_module", lambda name: type("Module", (), {"DataFrame": lambda given: (name, given)})
    )
    assert _brief.frame({"round": [1]}) == ("polars", {"round": [1]})
    there.clear()
    with pytest.raises(ImportError, match=r"pandas or polars; install one: pip install 'fedfilt\[pandas\]'"):
        _brief.frame({"round": [1]})


def test_a_bar_is_drawn_where_somebody_looks(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, wanted, shown in ((io.StringIO(), None, False), (Terminal(), None, True), (Terminal(), False, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with _progress.progress_bar(wanted) as bar:
            bar.update(bar.add_task("a [bold] run", total=3), completed=3)
        assert ("100%" in stream.getvalue()) == shown
