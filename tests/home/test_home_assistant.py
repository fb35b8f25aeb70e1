"""A home in a real Home Assistant, on a real Mosquitto with TLS and the ACL; see tests/home_assistant.py."""

import json
import time
from functools import partial

import pytest

pytest.importorskip("flwr")
pytest.importorskip("paho")

from brokers import Broker, Heard, home_written, needs_mosquitto
from deployments import free_port
from fedfilt.home import edge as edges
from fedfilt.home.topics import Decision, Status, Topics, correction, written
from helpers import command, until
from home_assistant import INTERPRETER, VARIABLE, Assistant

LABELS = ("vacuuming", "ironing", "sleeping")
TOPICS = Topics("villa")
ACTIVITY, CONFIDENCE = "sensor.kitchen_activity", "sensor.kitchen_confidence"
LABEL = "select.kitchen_correct_activity"


@needs_mosquitto
@pytest.mark.skipif(INTERPRETER is None, reason=f"{VARIABLE} names no interpreter with Home Assistant")
@pytest.mark.slow(120)
def test_home_assistant_follows_corrects_and_notices_silence(tmp_path, kept):
    building = home_written(tmp_path)
    broker = Broker(building, kept)
    assistant = Assistant(tmp_path / "assistant", free_port(), broker.where, building / "assistant", kept.start)
    home = kept.start(command("home", "run", building / "server"), tmp_path / "home.log")
    devices = {}
    for name in ("device-000", "device-001", "device-002"):
        devices[name] = broker.device(name, will=(TOPICS.status(name), written(Status(online=False))))
        status = Status(online=True, round=4, accuracy=0.9, battery=0.5 if name == "device-000" else None)
        devices[name].publish(TOPICS.status(name), written(status), retain=True)
    told = {name: Heard(bus, TOPICS.correction(name)) for name, bus in devices.items()}
    until(assistant.up, "Home Assistant answers", 300)
    until(lambda: LABEL in assistant.states(), "it has found the kitchen", 120)

    def state(entity):
        return assistant.states().get(entity, ("missing", {}))[0]

    def shows(entity, value):
        return state(entity) == value

    def say(*names, label):
        shares = tuple(0.8 if one == label else 0.1 for one in LABELS)
        for name in names:
            devices[name].publish(TOPICS.decision(name), written(Decision(time.time(), 4, shares)))

    for label in ("ironing", "sleeping", "vacuuming"):
        say("device-000", "device-001", label=label)
        until(partial(shows, ACTIVITY, label), f"the kitchen is {label}", 30)
    states = assistant.states()
    assert states[ACTIVITY][1]["probabilities"] == {"vacuuming": 0.8, "ironing": 0.1, "sleeping": 0.1}
    assert states[ACTIVITY][1]["devices"] == 2
    assert states[ACTIVITY][1]["options"] == [*LABELS, "unknown"]
    assert states[CONFIDENCE][0] == "80.0"
    own = {entity: value for entity, (value, _) in states.items() if "device_000" in entity}
    assert own == {
        "sensor.device_000_own_decision": "vacuuming",
        "sensor.device_000_accuracy": "90.0",
        "sensor.device_000_last_round": "4",
        "sensor.device_000_battery": "50.0",
    }
    assert "sensor.device_001_battery" not in states

    assistant.choose(LABEL, "ironing")
    for name in ("device-000", "device-001"):
        told[name].wait(TOPICS.correction(name))
        assert correction(told[name][0][1], LABELS).label == "ironing"
    assert not told["device-002"]

    devices["device-000"].close()
    until(lambda: state("sensor.device_000_accuracy") == "unavailable", "a device that left is shown as such", 30)
    assert state("sensor.device_001_accuracy") == "90.0"
    until(lambda: state(ACTIVITY) == "unknown", "a room without a fresh say does not know", 30)
    until(lambda: state(ACTIVITY) == "unavailable", "its last word expires", 60 + edges.EXPIRE_SECONDS)
    say("device-001", label="sleeping")
    until(lambda: state(ACTIVITY) == "sleeping", "it is back", 30)
    home.kill()
    until(lambda: state(LABEL) == "unavailable", "the edge server's last will", 90)
    assert state(ACTIVITY) == "unavailable"
    for bus in devices.values():
        bus.close()
    assert "Error" not in json.dumps(
        [line for line in (tmp_path / "assistant" / "log").read_text().splitlines() if "mqtt" in line]
    )
