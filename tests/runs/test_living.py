"""The demo of the living home, lived through."""

import json
import time

import numpy as np
import pytest

from fedfilt.data.own import Making
from fedfilt.data.store import Store
from fedfilt.data.windows import Scaling
from fedfilt.datasets import Watch
from fedfilt.home.clock import Clock
from fedfilt.home.records import Home, home_folders
from fedfilt.models import CNN1d
from fedfilt.runs.living import PASSES, PEOPLE, RULES, Person, _live, demo
from fedfilt.training.kept import FILE, Kept, take
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer
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
    places = home_folders([tmp_path / "out"])  # as the dashboard finds them
    assert [place.parent.name for place in places] == ["home-0", "home-1"]
    given = [json.loads(line) for place in places for line in (place / "corrections.jsonl").read_text().splitlines()]
    assert len(given) == PASSES * PEOPLE * len(Watch().labels)
    assert all(len(correction["devices"]) == 2 for correction in given)  # those of the room, and no others
    assert len(told) == 1 + PASSES
    accuracies = {}
    for home in map(Home, places):
        assert home.notes == []
        times = [one.at for one in home.corrections]
        assert times == sorted(times)  # one clock for all passes
        known = {name: device.status for name, device in sure(home.now).devices.items()}
        accuracies |= {name: status.accuracy for name, status in known.items()}
        for name in known:
            own = [one.status for one in home.changes if one.device == name and one.status.accuracy is not None]
            assert [status.round for status in own] == [0, 2, 4]
    assert accuracies == lines[-len(RULES)]["devices"]


class Slow(Trainer):
    """One that cannot keep up with what it is to decide on."""

    def predict(self, row, x):
        time.sleep(0.03)
        return super().predict(row, x)


@pytest.mark.slow(5)
def test_what_people_say_is_right_however_slow_the_machine_is(tmp_path, caplog):
    making = Making((2, 20), ("walk", "rest", "cook"), 10, 10.0, validation_share=0.0, test_share=0.0)
    trainer, labels = Slow(CNN1d((2, 20), 3), Training(), (2, 20)), np.repeat([0, 1, 2], 300)
    live = np.stack([np.arange(900.0)] * 2, axis=1)  # every row says which it is
    people = []
    for name in ("anna", "bert"):
        devices = (f"{name}-left", f"{name}-right")
        people.append(Person("home", name, devices, dict.fromkeys(devices, live), labels, np.empty(0), np.empty(0)))
        for device in devices:
            (tmp_path / "devices" / device / "data").mkdir(parents=True)
            (tmp_path / "devices" / device / "state").mkdir()
            model = Kept(trainer.start(0), 0, Scaling(np.zeros(2), np.ones(2)).to_json())
            take(tmp_path / "devices" / device / "state", model, trainer.layout)
    accuracies = {device: 0.5 for person in people for device in person.devices}
    _live(people, tmp_path, making, trainer, Clock(100.0), accuracies)
    for device in accuracies:
        kept = np.load(tmp_path / "devices" / device / "data" / "corrections.npz")
        rows = kept["x"][:, 0].astype(int)
        assert [set(labels[row]) for row in rows] == [{making.labels.index(label)} for label in kept["y"]]
        assert {label: (kept["y"] == label).sum() >= 2 for label in making.labels} == dict.fromkeys(making.labels, True)
    assert "s behind: this machine is too slow for it" in caplog.text
