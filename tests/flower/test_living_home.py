"""A whole living home: deployment, broker with TLS and ACL, edge server, devices that train and decide, sensors.

People look at it in a real Home Assistant, where there is one (`make test-home-assistant`), and with its certificate on
the broker.
"""

import csv
import itertools
import json
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("paho.mqtt")

from brokers import ROOMS, TOPICS, WAIT, Broker, Heard, Screen, home_written, needs_mosquitto
from deployments import FILE, LABELS, PLACE, Devices, free_port, metrics, record
from fedfilt.flower.deploy.pace import NEXT
from fedfilt.home import assistant
from fedfilt.home.edge import EXPIRE_SECONDS, OFFLINE
from fedfilt.home.topics import Correction, Decision, RoomState, Status, room_state, written
from helpers import command, contents, until
from home_assistant import INTERPRETER, VARIABLE, Assistant

KITCHEN, KILLED, STOLEN = ("device-000", "device-001"), "device-002", "device-003"
WRONG, _, DOING = LABELS
RATE, BEFORE = 10.0, 360  # readings a second; rows that were recorded before, and are trained on
CORRECTED = 15.0  # seconds that a correction is about


class Sensors:
    """What devices recorded later on, replayed into files that grow, on one clock; a test says what a room does."""

    def __init__(self, building):
        self.doing, self.since = {}, 0.0  # by room; otherwise one activity follows another
        self.fed = defaultdict(dict)  # by device and time, the values
        self._rows, self._files = {}, {}
        for number, name in enumerate(ROOMS):
            record(later := building.parent / "later" / name, number, rows=6000)
            with (later / "data" / FILE).open() as file:
                rows = list(csv.DictReader(file))[BEFORE:]
            self._rows[name] = {
                label: itertools.cycle([(row["left"], row["right"]) for row in rows if row["label"] == label])
                for label in LABELS
            }
            folder = building / "devices" / name
            (folder / "own.toml").write_text('[source]\nname = "csv"\nfile = "now.csv"\n')
            self._files[name] = folder / "now.csv"
            self._files[name].write_text("time,left,right\n")

    def do(self, **doing):
        self.doing, self.since = doing, time.time()

    @contextmanager
    def playing(self):
        stop = threading.Event()
        thread = threading.Thread(target=self._play, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _play(self, stop):
        start = time.time()
        for tick in itertools.count():
            if stop.wait(max(0.0, (when := start + tick / RATE) - time.time())):
                return
            for name, room in ROOMS.items():
                row = next(self._rows[name][self.doing.get(room, LABELS[tick // 30 % 3])])
                self.fed[name][when] = row
                with self._files[name].open("a") as file:
                    file.write(f"{when!r},{','.join(row)}\n")


class Home:
    """All that runs, and those who look."""

    def __init__(self, folder, kept, real):
        changes = {"engine": {**PLACE, "every": "6h"}, "scheduler": {"name": "everything", "epochs": 5}}
        self.folder, self.building = folder, home_written(folder, rounds=100, **changes)
        self.server, self.devices = self.building / "server", self.building / "devices"
        settings = (self.server / "home.toml").read_text()
        settings = settings.replace("correct_seconds = 30.0", f"correct_seconds = {CORRECTED}")
        (self.server / "home.toml").write_text(f"round_after = 1\n{settings}")
        self.corrections = {name: self.devices / name / "data" / "corrections.npz" for name in ROOMS}
        self.sensors, self.broker = Sensors(self.building), Broker(self.building, kept)
        seat = folder / "assistant", free_port(), self.broker.where, self.building / "assistant", kept.start
        self.screen = Assistant(*seat) if real else Screen(self.broker)
        self.edge = kept.start(command("home", "run", self.server), folder / "home.log")
        kept.start(command("deploy", "server", self.server), folder / "server.log")
        self.people = self.broker.client("server/mqtt", "people", "people")
        self.states = {room: Heard(self.people, TOPICS.state(room)) for room in set(ROOMS.values())}
        self.processes = Devices(self.building, kept)
        for name in ROOMS:
            self.processes.start(name)

    def trained(self, rounds):
        until(lambda: len(metrics(self.building)) >= rounds, f"{rounds} rounds of training")

    def said(self, room, since):
        """What a room does, and how many devices say so: all that it said since a place in what was heard of it."""
        states = [room_state(content) for _, content in self.states[room][since:]]
        return {(state.activity, state.devices) for state in states}

    def holding(self, pieces):
        """Files of anybody that have any of these bytes in them; what sensors will say is nobody's yet."""
        found = contents(self.folder).items()
        return {path for path, content in found if path.parts[0] != "later" and any(one in content for one in pieces)}


@pytest.fixture(params=["broker", "assistant"])
def home(request, tmp_path, kept):
    real = request.param == "assistant"
    if real and INTERPRETER is None:
        pytest.skip(f"no Home Assistant here: make test-home-assistant, or {VARIABLE}")
    home = Home(tmp_path, kept, real)
    with home.sensors.playing():
        until(home.screen.up, "there is a screen")
        yield home


@needs_mosquitto
@pytest.mark.slow(60)
def test_devices_decide_rooms_vote_people_correct_and_strangers_get_nothing_through(home):
    for number in (1, 2):
        home.trained(number)
        (home.server / NEXT).touch()
    home.trained(3)
    follow_the_truth(home)
    spy, overheard = spoof(home)
    correct(home)
    assert {topic for heard in overheard for topic, _ in heard} == {TOPICS.status(STOLEN)}  # its own
    vanish(home)
    spy.close()
    home.people.close()


def follow_the_truth(home):
    def shown(room, label):
        return home.screen.activity(room) == label and home.said(room, since=-5) == {(label, 2)}

    for kitchen, bath in zip(LABELS, (*LABELS[1:], LABELS[0]), strict=True):
        home.sensors.do(kitchen=kitchen, bath=bath)
        for room, label in home.sensors.doing.items():
            until(partial(shown, room, label), f"{label} in the {room}", WAIT)


def spoof(home):
    """Somebody with the keys of a device listens to everything, and claims to be everybody."""
    home.processes.processes[STOLEN].terminate()
    until(lambda: not home.screen.online(STOLEN), "a device that has left is shown as such", WAIT)
    spy = home.broker.device(STOLEN)
    patterns = "#", "fedfilt/#", TOPICS.decision("+"), TOPICS.correction(KITCHEN[0]), TOPICS.state("+")
    overheard = [Heard(spy, pattern) for pattern in (*patterns, TOPICS.label("+"), "homeassistant/#")]
    since = len(home.states["kitchen"])
    disks = {name: contents(home.devices / name / "data") for name in ROOMS}
    now, shares = time.time(), {label: float(label == WRONG) for label in LABELS}
    for topic, content in {
        TOPICS.decision(KITCHEN[0]): written(Decision(now, 9, tuple(shares.values()))),
        TOPICS.status(KITCHEN[0]): written(Status(online=False)),
        TOPICS.correction(KITCHEN[0]): written(Correction(WRONG, now - 20, now)),
        TOPICS.state("kitchen"): written(RoomState(now, WRONG, 1.0, shares, 2)),
        TOPICS.label("kitchen"): WRONG.encode(),
        TOPICS.edge: OFFLINE,
        assistant.BIRTH: OFFLINE,
        assistant.found_at(assistant.room_identity(TOPICS, "kitchen")): b"",
    }.items():
        spy.publish(topic, content)
        spy.publish(topic, content, retain=True)
    claims = Status(online=True, room="kitchen", accuracy=1.0, battery=0.5)  # it is listed in the bath
    spy.publish(TOPICS.status(STOLEN), written(claims), retain=True)
    until(lambda: home.screen.online(STOLEN), "what it may say, and said last, has arrived", WAIT)
    shown = home.server / "home" / "state.json"
    until(lambda: "another room" in json.loads(shown.read_text())["dropped"], "and was seen through", WAIT)
    heard = len(home.states["kitchen"])

    def goes_on():
        spy.publish(TOPICS.decision(STOLEN), written(Decision(time.time(), 9, tuple(shares.values()))))
        return len(home.states["kitchen"]) > heard + 5

    until(goes_on, "the kitchen goes on", WAIT)
    assert home.said("kitchen", since) == {(DOING, 2)}
    assert home.screen.activity("kitchen") == DOING
    assert home.screen.online(KITCHEN[0])
    assert {name: contents(home.devices / name / "data") for name in ROOMS} == disks
    assert not (home.server / "home" / "corrections.jsonl").exists()
    return spy, overheard


def correct(home):
    """The windows of that time are on the devices of the room with their label, and on no other disk."""
    until(lambda: time.time() > home.sensors.since + CORRECTED, f"the kitchen was {DOING} long enough", WAIT)
    home.screen.choose("kitchen", DOING)
    for name in KITCHEN:
        until(home.corrections[name].exists, f"windows that {name} keeps with their label", WAIT)
    home.trained(4)  # a correction asks for a round
    home.broker.save()
    for name in KITCHEN:
        fed = dict(home.sensors.fed[name])
        kept = np.load(path := home.corrections[name])
        assert set(kept["y"]) == {DOING}
        assert len(kept["y"]) > 10
        for window, (begin, end) in zip(kept["x"], kept["time"], strict=True):
            rows = [row for when, row in fed.items() if begin <= when <= end]
            np.testing.assert_array_equal(window, np.array(rows, np.float32).T)
        pieces = [piece.tobytes() for x in kept["x"] for piece in (x, x.T, x.astype(float), x.T.astype(float))]
        assert home.holding(pieces) == {path.relative_to(home.folder)}
        lines = [",".join(row).encode() for when, row in fed.items() if kept["time"].min() <= when]
        assert home.holding(lines) == {(home.devices / name / "now.csv").relative_to(home.folder)}
    assert [path.exists() for path in home.corrections.values()] == [name in KITCHEN for name in ROOMS]
    first, last = (metrics(home.building)[place]["time"]["devices"]["samples"] for place in (0, 3))
    assert [last[row] > first[row] for row in range(3)] == [True, True, False]


def vanish(home):
    """What is gone is shown as such."""
    screen = home.screen
    home.processes.kill(KILLED)
    until(lambda: not screen.online(KILLED), "the last will of a device that was killed", WAIT)
    until(lambda: screen.activity("bath") == "unknown", "a room without a fresh say does not know", WAIT)
    if isinstance(screen, Assistant):
        look_closely(home)
        until(lambda: screen.activity("bath") == "unavailable", "its last word expires", WAIT + EXPIRE_SECONDS)
    assert screen.activity("kitchen") == DOING
    assert screen.online(KITCHEN[0])
    home.edge.kill()
    until(lambda: not screen.online(KITCHEN[0]), "the last will of the edge server", WAIT)


def look_closely(home):
    """What else Home Assistant shows."""

    def accurate():
        told = json.loads((home.server / "home" / "state.json").read_text())["devices"]["device-000"]["accuracy"]
        return home.screen.states()["sensor.device_000_accuracy"][0] == f"{100 * told:.1f}"

    until(accurate, "the accuracy is what the device says it is", WAIT)
    states = home.screen.states()
    activity, about = states["sensor.kitchen_activity"]
    assert (activity, about["options"], about["devices"]) == (DOING, [*LABELS, "unknown"], 2)
    assert max(about["probabilities"], key=about["probabilities"].get) == DOING
    assert float(states["sensor.kitchen_confidence"][0]) > 50
    own = {entity: value for entity, (value, _) in states.items() if "device_000" in entity}
    assert own.pop("sensor.device_000_own_decision") == DOING
    assert float(own.pop("sensor.device_000_accuracy")) > 50
    assert int(own.pop("sensor.device_000_last_round")) >= 3
    assert not own  # a device that knows of no battery shows none
    assert states["sensor.device_003_battery"][0] == "50.0"
    log = (home.screen.folder / "log").read_text().splitlines()
    assert not [line for line in log if "mqtt" in line and "Error" in line]
