"""Run folders of an older version: they are read, shown and gone on with.

tests/fixtures/before_rooms was written by the last version before the source was put into packages. `finished` is a run
of eight devices in two rooms, one of which joins, one is offline for two rounds and one moves; `stopped` is the same
run, ended after round 5, whose last checkpoint is of round 4. Its lines say what happened in plain words.
"""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table, load, load_begun
from fedfilt.runs.folder import environment
from fedfilt.runs.groups import differences, groups
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records, find_runs
from fedfilt.show.dashboard import page
from fedfilt.show.dashboard.app import make_app
from fedfilt.show.dashboard.folders import Watch
from fedfilt.show.words import dated
from helpers import ROOT, call, contents, sure

BEFORE = ROOT / "tests" / "fixtures" / "before_rooms"
TOLD = [
    "round 2: device 3 joins from neighbours",
    "round 2: device 3 takes part again",
    "round 3: device 1 is offline until round 5",
    "round 4: device 0 moves to [7] in room 1",
    "round 5: device 1 is back online",
    "round 5: device 1 takes part again",
]


@pytest.fixture
def before(tmp_path):
    """A copy of both folders."""
    return shutil.copytree(BEFORE, tmp_path / "before_rooms")


@pytest.mark.parametrize(("name", "rounds", "tested"), [("finished", 6, 6), ("stopped", 5, 4)])
def test_a_folder_of_an_older_version_is_read(name, rounds, tested):
    run = Records(BEFORE / name)
    assert (run.status, run.count, run.rule, run.planned) == (name, 8, "mu=1", 6)
    assert [line["round"] for line in run.rounds] == list(range(1, rounds + 1))
    assert all(note.startswith("written by fedfilt 0.1.0") for note in run.notes)
    assert [dated(event) for event in run.events] == TOLD
    assert (
        sure(run.graph).hash == run.environment["graph_hash"] == load(BEFORE / name / "config.toml").graph.graph(0).hash
    )
    wrote = next(line for line in read_lines(BEFORE / name) if line["round"] == tested)
    for test in ("local", "global"):
        np.testing.assert_allclose(sure(run.accuracies(test)), wrote["mixed"][test]["devices"], rtol=1e-6)


def test_the_script_of_an_older_version_is_replayed():
    run = Records(BEFORE / "finished")
    moments = [sure(run.moment(number)) for number in range(1, 7)]
    assert [np.flatnonzero(~now.online).tolist() for now in moments] == [[3], [], [1], [1], [], []]
    assert [np.flatnonzero(~now.present).tolist() for now in moments] == [[3], [], [], [], [], []]
    assert [now.graph.adjacency[[0]].indices.tolist() == [7] for now in moments] == [False] * 3 + [True] * 3
    assert [now.graph.rooms[0] for now in moments[2:4]] == [0, 1]


def test_the_words_are_those_of_today(before):
    """A run that is played today says the same as the older version did, now as data."""
    today = before.parent / "today"
    for _ in play_in_folder(Run(load(BEFORE / "finished" / "config.toml")), today):
        pass
    assert read_lines(BEFORE / "finished")[1]["events"] == ["device 3 joins from neighbours"]
    assert read_lines(today)[1]["events"] == [{"what": "join", "device": 3, "start": "neighbours"}]
    assert [dated(event) for event in Records(today).events] == TOLD


@pytest.mark.parametrize("name", ["finished", "stopped"])
def test_a_folder_of_an_older_version_is_reported(before, name):
    done = call("report", before / name)
    assert done.returncode == 0, done.stderr
    text = (before / name / "report.html").read_text()
    assert all(f"<li>{words}</li>" in text for words in TOLD)
    own = Records(before / name).tested("local")[-1]["mixed"]["local"]["mean"]
    assert f"{own:.1%}" in text


def test_a_folder_of_an_older_version_is_on_the_dashboard(before):
    client = make_app(Watch([before])).server.test_client()
    for address in ("/", "/_dash-layout"):
        assert client.get(address).status_code == 200, address
    shown = {run.folder.name: run for run in Watch([before]).runs}
    assert set(shown) == {"finished", "stopped"}
    for name, words in (("finished", "finished, round 6 of 6"), ("stopped", "stopped, round 5 of 6")):
        assert words in page.progress(shown[name])["words"]
        assert TOLD[3] in page.events(shown[name])


def test_a_stopped_run_of_an_older_version_goes_on_with_the_same_bits(before):
    stopped = before / "stopped"
    run = Run(load(stopped / "config.toml"))
    made = json.loads((stopped / "environment.json").read_text())
    same = all(made[key] == environment(run)[key] for key in ("torch", "native", "native_sources"))
    assert [line["round"] for line in play_in_folder(run, stopped, resume=True)] == [5, 6]
    assert Records(stopped).status == "finished"
    assert [
        dated(event) for event in Records(stopped).events
    ] == TOLD  # the first four rounds in words, the rest as data
    results = [json.loads((folder / "result.json").read_text()) for folder in (stopped, BEFORE / "finished")]
    if same:  # another machine or core may add up in another order
        assert results[0]["models_sha256"] == results[1]["models_sha256"]
    for device in range(8):
        one, other = (
            load_file(place / "models" / f"device-{device:03d}.safetensors") for place in (stopped, BEFORE / "finished")
        )
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_allclose(one[key], other[key], rtol=1e-4, atol=1e-5)


def test_a_finished_run_of_an_older_version_is_left_as_it_is(before):
    kept = contents(before / "finished")
    assert list(play_in_folder(Run(load(before / "finished" / "config.toml")), before / "finished", resume=True)) == []
    now = contents(before / "finished")
    for name in ("result.json", "environment.json", "checkpoint/state.safetensors", "devices.csv"):
        assert {str(path): data for path, data in now.items()}[name] == {str(p): d for p, d in kept.items()}[name]


def test_seeds_of_both_versions_belong_together(tmp_path):
    """A comparison that an earlier version began and this one went on with is one group, without differences."""
    shutil.copytree(BEFORE / "finished", tmp_path / "one")
    table = from_table(load_begun(BEFORE / "finished" / "config.toml", load(None)).table() | {"seed": 1})
    for _ in play_in_folder(Run(table), tmp_path / "two"):
        pass
    runs = find_runs([tmp_path])
    assert [len(found) for found in groups(runs).values()] == [2]
    assert differences(runs) == {}
