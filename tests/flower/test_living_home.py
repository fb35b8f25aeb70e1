"""A whole living home: deployment, broker with TLS and ACL, edge server, devices that train and decide."""

import re
import shutil
from functools import partial

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("paho.mqtt")

from brokers import ROOMS, WAIT, Broker, Heard, home_written, needs_mosquitto
from deployments import FILE, LABELS, Devices, metrics
from fedfilt.flower.home import clock_of
from fedfilt.home.topics import room_state
from helpers import call, command, until

SOURCE = '[source]\nname = "replay"\nfile = "now.csv"\nagain = true\n'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "[clock] must say speed and origin, got 5"),
        ({"speed": 500.0}, "[clock] must say speed and origin"),
        ({"speed": 500.0, "origin": 1.7e9, "start": 1}, "unknown key of [clock] 'start'"),
        ({"speed": 0, "origin": 1.7e9}, "clock.speed must be a finite number > 0"),
        ({"speed": "fast", "origin": 1.7e9}, "clock.speed must be a finite number > 0"),
        ({"speed": 1e9, "origin": 1.7e9}, "<= 10000, got 1000000000.0"),
        ({"speed": 500.0, "origin": "today"}, "clock.origin must be a finite number"),
        ({"speed": 500.0, "origin": 0}, "clock.origin must be when the rehearsal begins"),
        ({"speed": 500.0, "origin": 1e10}, "clock.origin must be when the rehearsal begins"),
    ],
)
def test_a_clock_that_cannot_be_is_refused(given, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        clock_of({"clock": given})


@needs_mosquitto
@pytest.mark.slow(40)
def test_devices_decide_rooms_vote_people_correct_and_rounds_go_on(tmp_path, kept):
    building = home_written(tmp_path)
    for name in ROOMS:
        folder = building / "devices" / name
        shutil.copyfile(folder / "data" / FILE, folder / "now.csv")  # it senses what it has recorded before
        (folder / "own.toml").write_text(SOURCE)
    broker = Broker(building, kept)
    kept.start(command("home", "run", building / "server"), tmp_path / "home.log")
    kept.start(command("deploy", "server", building / "server"), tmp_path / "server.log")
    people = broker.client("server/mqtt", "people", "people")
    heard = {room: Heard(people, f"fedfilt/villa/rooms/{room}/state") for room in set(ROOMS.values())}
    devices = Devices(building, kept)
    for name in ROOMS:
        devices.start(name)
    until(lambda: len(metrics(building)) >= 1, "a round of training")

    def decided(room):
        states = [room_state(content) for _, content in heard[room]]
        return any(state.devices == 2 and state.activity in LABELS for state in states)

    for room in heard:
        until(partial(decided, room), f"a decision of both devices in the {room}", WAIT * 3)
    done = call("home", "label", "kitchen", LABELS[1], "--last", "5s", "--folder", building / "server")
    assert done.returncode == 0, done.stderr
    files = {name: building / "devices" / name / "data" / "corrections.npz" for name in ROOMS}
    for name in ("device-000", "device-001"):
        until(files[name].exists, f"windows that {name} keeps with their label", WAIT)
        assert set(np.load(files[name])["y"]) == {LABELS[1]}
    assert not any(files[name].exists() for name in ("device-002", "device-003"))  # it was not their room
    wrong = call("home", "label", "kitchen", "burglary", "--folder", building / "server")
    assert "unknown label 'burglary'" in wrong.stderr
    people.close()
