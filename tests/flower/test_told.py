"""What people say arrives whatever is killed in between, and a rehearsal has a clock that makes sense."""

import json
import os
import re
import shutil
import signal
import time

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("paho.mqtt")

from brokers import WAIT, Broker, home_written, needs_mosquitto
from deployments import FILE, LABELS, Devices
from fedfilt.flower.home import clock_of
from fedfilt.flower.home import label as label_room
from fedfilt.home.topics import Correction
from helpers import command, until

SOURCE = '[source]\nname = "replay"\nfile = "now.csv"\nagain = true\n'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "[clock] must have the keys speed and origin, got 5"),
        ({"speed": 500.0}, "[clock] must have the keys speed and origin"),
        ({"speed": 500.0, "origin": 1.7e9, "start": 1}, "unknown key of [clock] 'start'"),
        ({"speed": 0, "origin": 1.7e9}, "clock.speed must be a finite number > 0"),
        ({"speed": "fast", "origin": 1.7e9}, "clock.speed must be a finite number > 0"),
        ({"speed": 1e9, "origin": 1.7e9}, "<= 10000, got 1000000000.0"),
        ({"speed": 500.0, "origin": "today"}, "clock.origin must be a finite number"),
        ({"speed": 500.0, "origin": 0}, "clock.origin must be the time at which the rehearsal starts"),
        ({"speed": 500.0, "origin": 1e10}, "clock.origin must be the time at which the rehearsal starts"),
    ],
)
def test_a_clock_that_cannot_be_is_refused(given, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        clock_of({"clock": given})


@needs_mosquitto
@pytest.mark.slow(30)
def test_what_was_answered_is_kept_whatever_is_killed_in_between(tmp_path, kept):
    building = home_written(tmp_path)
    folders = {name: building / "devices" / name for name in ("device-000", "device-001")}
    for folder in folders.values():
        shutil.copyfile(folder / "data" / FILE, folder / "now.csv")
        (folder / "own.toml").write_text(SOURCE)
    broker, devices = Broker(building, kept), Devices(building, kept)
    edge = kept.start(command("home", "run", building / "server"), tmp_path / "home.log")
    for name in folders:
        devices.start(name)

    def says(label, begin, end):
        """Whether somebody was there to be told."""
        try:
            return label_room(building / "server", "kitchen", Correction(label, begin, end)) == list(folders)
        except ValueError:
            return False

    def on_disk(name):
        path = folders[name] / "data" / "corrections.npz"
        if not path.exists():
            return {}
        with np.load(path) as held:
            return dict(zip(map(tuple, held["time"].tolist()), held["y"].tolist(), strict=True))

    def both_keep():
        return says(LABELS[0], time.time() - 20, time.time()) and all(on_disk(name) for name in folders)

    until(both_keep, "windows that both keep", WAIT * 3)
    begin, end = min(min(on_disk(name)) for name in folders)[0], time.time()
    os.kill(devices.processes["device-000"].pid, signal.SIGSTOP)
    for label in (LABELS[1], LABELS[2]):  # the second word counts
        assert says(label, begin - 1, end)
    until(lambda: set(on_disk("device-001").values()) == {LABELS[2]}, "the other device keeps both", WAIT)
    assert LABELS[2] not in on_disk("device-000").values()
    edge.kill()
    edge.wait()
    broker.kill()
    for file in (building / "broker" / "data").iterdir():
        file.unlink()  # it has forgotten everything
    broker.start()
    kept.start(command("home", "run", building / "server"), tmp_path / "home.log")
    os.kill(devices.processes["device-000"].pid, signal.SIGCONT)
    until(lambda: set(on_disk("device-000").values()) == {LABELS[2]}, "it hears both, in their order", WAIT * 3)
    waiting = building / "server" / "home" / "waiting.json"
    until(lambda: json.loads(waiting.read_text()) == {}, "the edge server knows", WAIT)

    before = on_disk("device-001")
    devices.kill("device-001")
    until(lambda: says(LABELS[0], begin - 1, end), "the edge server answers", WAIT)
    assert on_disk("device-001") == before
    devices.start("device-001")
    until(lambda: set(on_disk("device-001").values()) == {LABELS[0]}, "it hears what was said while it was dead", WAIT)
    assert on_disk("device-001").keys() == before.keys(), "what was in its memory is gone, what was on disk is not"
