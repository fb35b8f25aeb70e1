"""The demo of the living home, lived through."""

import json

import numpy as np
import pytest

from fedfilt.data.store import Store
from fedfilt.datasets import Watch
from fedfilt.home.records import Home
from fedfilt.runs.living import PASSES, PEOPLE, RULES, demo
from fedfilt.training.kept import FILE
from helpers import real, sure


@pytest.mark.slow(40)
def test_people_live_correct_and_are_learnt_from(tmp_path):
    """How much is right depends on what the machine can keep up with; what comes of it is checked, not how good."""
    real("watch")

    told = []
    lines = demo(tmp_path / "out", Store(), speed=20.0, rounds=2, tell=told.append)
    assert [(line["corrections"], line["rule"]) for line in lines] == [
        (count, rule) for count in range(PASSES + 1) for rule in RULES
    ]
    assert all(0 <= line[what] <= 1 for line in lines for what in ("device", "room"))
    assert len({line["device"] for line in lines if line["corrections"] == 0}) == 1  # all start from the same model
    assert json.loads((tmp_path / "out" / "accuracy.json").read_text()) == lines
    folders = sorted((tmp_path / "out" / "devices").iterdir())
    assert len(folders) == 2 * PEOPLE
    for folder in folders:
        kept = np.load(folder / "data" / "corrections.npz")
        assert set(kept["y"]) <= set(Watch().labels)
        assert kept["x"].shape[1:] == (6, 100)
        assert (folder / "state" / FILE).exists()
    given = [json.loads(line) for line in (tmp_path / "out" / "home" / "corrections.jsonl").read_text().splitlines()]
    assert len(given) == PASSES * PEOPLE * len(Watch().labels)
    assert all(len(correction["devices"]) == 2 for correction in given)  # those of the room, and no others
    assert len(told) == 1 + PASSES
    home = Home(tmp_path / "out" / "home")  # as the dashboard shows it
    assert home.notes == []
    times = [one.at for one in home.corrections]
    assert times == sorted(times)  # one clock for all passes
    known = {name: device.status for name, device in sure(home.now).devices.items()}
    assert {name: status.accuracy for name, status in known.items()} == lines[-len(RULES)]["devices"]
    for name in known:
        own = [one.status for one in home.changes if one.device == name and one.status.accuracy is not None]
        assert [status.round for status in own] == [0, 2, 4]
