"""More rounds for a run that has ended: as if it had had them from the start."""

import json

import pytest

from fedfilt.runs import checkpoint
from fedfilt.runs import compare as comparing
from fedfilt.runs import play as playing
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records
from helpers import SMALL, call, config_file, contents, finish


def without_seconds(folder):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_lines(folder)]


CASES = {
    "plain": {},
    "drawn": {"participation": {"fraction": 0.3, "absent": "kept"}},
    "unsent": {"scheduler": {"name": "everything", "epochs": 1, "density": 0.2}, "training": {"decay": 0.9}},
    "remembering": {"client": "ditto", "aggregator": "fedavgm", "participation": {"fraction": 0.5}},
    "noise": {"privacy": {"clip": 1.0, "noise": 2.0}},
    "events": {"events": [{"round": 2, "offline": 3}, {"round": 3, "leave": 5}]},
}


@pytest.mark.parametrize("case", CASES)
def test_a_finished_run_goes_on_as_if_it_had_been_longer_from_the_start(tmp_path, case):
    changes = CASES[case]
    finish(tmp_path / "run", **changes, rounds=3)
    again = finish(tmp_path / "run", resume=True, **changes, rounds=7)
    whole = finish(tmp_path / "whole", **changes, rounds=7)
    for result in (again, whole):
        del result["wall_seconds"]
        assert [result[test].pop("best") for test in ("local", "global")]
    assert again == whole
    lines, wanted = without_seconds(tmp_path / "run"), without_seconds(tmp_path / "whole")
    assert lines[2].pop("mixed")  # the old last round was tested; a longer run tests every second one
    assert lines == wanted
    for part in ("models", "devices.csv", "config.toml", "partition.json"):
        path = tmp_path / "run" / part
        other = tmp_path / "whole" / part
        assert contents(path) == contents(other) if path.is_dir() else path.read_bytes() == other.read_bytes()
    assert Records(tmp_path / "run").status == "finished"


def test_the_command_line_goes_on_in_either_form(tmp_path):
    file, folder = config_file(tmp_path, rounds=2), tmp_path / "run"
    assert call("run", file, "--out", folder).returncode == 0
    assert call("run", file, "--out", folder, "--resume", "--rounds", 3).returncode == 0
    assert len(read_lines(folder)) == 3
    assert call("run", folder, "--rounds", 5).returncode == 0
    assert len(read_lines(folder)) == 5
    before = (folder / "result.json").read_bytes()
    assert call("run", folder).returncode == 0  # finished: left as it is
    assert (folder / "result.json").read_bytes() == before
    assert "rounds was 5, is 4" in call("run", folder, "--rounds", 4).stderr
    done = call("run", folder, "--rounds", 4, "--out", tmp_path / "anew")  # another folder: from the start
    assert done.returncode == 0
    assert len(read_lines(tmp_path / "anew")) == 4
    assert "holds a run already" in call("run", file, "--out", folder, "--rounds", 9).stderr


def test_a_comparison_goes_on_too(tmp_path):
    words = ["--rules", "fedavg,local", "--out", tmp_path / "c", "--json"]
    call("compare", config_file(tmp_path, rounds=2), *words)
    again = json.loads(call("compare", config_file(tmp_path, rounds=4), *words, "--resume").stdout)
    words[3] = tmp_path / "d"
    assert json.loads(call("compare", config_file(tmp_path, rounds=4), *words).stdout)["rules"] == again["rules"]


def test_an_epsilon_that_was_spent_is_not_spent_again(tmp_path):
    changes = {"privacy": {"clip": 1.0, "epsilon": 8.0}}
    finish(tmp_path / "run", **changes, rounds=2)
    before = contents(tmp_path / "run")
    with pytest.raises(ValueError, match=r"has spent privacy.epsilon = 8 on 2 rounds; 3 rounds need more noise"):
        finish(tmp_path / "run", resume=True, **changes, rounds=3)
    assert contents(tmp_path / "run") == before


def test_events_may_come_with_the_new_rounds(tmp_path):
    events = [{"round": 4, "leave": 3}]
    finish(tmp_path / "run", rounds=3)
    again = finish(tmp_path / "run", resume=True, rounds=6, events=events)
    assert again["models_sha256"] == finish(tmp_path / "whole", rounds=6, events=events)["models_sha256"]
    late = [*events, {"round": 2, "leave": 5}]
    with pytest.raises(ValueError, match="too late for the event"):
        finish(tmp_path / "run", resume=True, rounds=8, events=late)


class Killed(BaseException):
    """The end of a process, wherever it was."""


@pytest.mark.parametrize("place", ["checkpoint", "config.toml", "environment.json", "metrics.jsonl", "result.json"])
def test_killed_wherever_it_writes_a_run_still_goes_on(tmp_path, monkeypatch, place):
    """Going on once more gives the bits of a run that was never killed."""
    whole = finish(tmp_path / "whole", rounds=6)
    folder = tmp_path / "run"
    finish(folder, rounds=3)
    if place == "environment.json":
        (folder / place).unlink()
    write, save = playing.write_atomically, checkpoint.save_state

    def write_or_die(path, content, *rest, **more):
        if path.name == place:
            raise Killed
        write(path, content, *rest, **more)

    def save_and_die(*words):
        save(*words)
        if place == "checkpoint":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(playing, "write_atomically", write_or_die)
        patched.setattr(checkpoint, "save_state", save_and_die)
        with pytest.raises(Killed):
            finish(folder, resume=True, rounds=6)
    assert not comparing.finished(folder, from_table({**SMALL, "rounds": 6}))
    assert finish(folder, resume=True, rounds=6)["models_sha256"] == whole["models_sha256"]
    assert len(read_lines(folder)) == 6


def test_an_unfinished_run_may_be_lengthened(tmp_path):
    run = Run(from_table({**SMALL, "rounds": 4}))
    for line in play_in_folder(run, tmp_path / "run"):
        if line["round"] == 2:
            break
    again = finish(tmp_path / "run", resume=True, rounds=6)
    assert again["models_sha256"] == finish(tmp_path / "whole", rounds=6)["models_sha256"]
    with pytest.raises(ValueError, match="rounds was 6, is 5"):
        finish(tmp_path / "run", resume=True, rounds=5)
    with pytest.raises(ValueError, match=r"training.learning_rate was 0.1, is 0.2"):
        finish(tmp_path / "run", resume=True, rounds=8, training={"learning_rate": 0.2})
