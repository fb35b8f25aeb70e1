"""MQTT discovery: messages from which Home Assistant finds rooms and devices by itself.

Each of our rooms and devices is a device in Home Assistant, with one message under `homeassistant/device/`. Every
component names its own topic: a `state_topic` for the whole device would also apply to the `select`.
"""

import json
from collections.abc import Sequence
from typing import Any

from fedfilt._version import __version__
from fedfilt.home.rooms import UNKNOWN
from fedfilt.home.topics import Topics

PREFIX = "homeassistant"
BIRTH = f"{PREFIX}/status"  # where Home Assistant announces that it has started
ORIGIN = {"name": "fedfilt", "sw_version": __version__}
PERCENT: dict[str, Any] = {"unit_of_measurement": "%", "state_class": "measurement"}


def slug(*names: str) -> str:
    """Names joined into one that Home Assistant accepts in a topic; different names never become the same.

    >>> slug("fedfilt", "villa", "living.room"), slug("a_b"), slug("a", "b"), slug("a-b")
    ('fedfilt-villa-living_2eroom', 'a_5fb', 'a-b', 'a_2db')
    """

    def safe(letter: str) -> str:
        if letter.isascii() and letter.isalnum():
            return letter
        return "".join(f"_{byte:02x}" for byte in letter.encode())

    return "-".join("".join(map(safe, name)) for name in names)


def found_at(identity: str) -> str:
    """The topic on which a room or a device is announced."""
    return f"{PREFIX}/device/{identity}/config"


def room_identity(topics: Topics, room: str) -> str:
    """Home Assistant's identifier for a room."""
    return slug("fedfilt", topics.home, "room", room)


def device_identity(topics: Topics, device: str) -> str:
    """Home Assistant's identifier for a device."""
    return slug("fedfilt", topics.home, "device", device)


def is_ours(topics: Topics, topic: str) -> bool:
    """Whether something of this home is announced on a topic."""
    begin = f"{PREFIX}/device/{slug('fedfilt', topics.home)}-"
    return topic.startswith((f"{begin}room-", f"{begin}device-")) and topic.endswith("/config")


def room_config(topics: Topics, room: str, labels: Sequence[str], expires: float) -> bytes:
    """Announce a room: its activity, its confidence, and a drop-down to correct it."""
    identity, state = room_identity(topics, room), topics.state(room)
    said: dict[str, Any] = {"state_topic": state, "expire_after": max(1, round(expires))}
    components = {
        "activity": {
            **_sensor(identity, "activity", "Activity", "{{ value_json.activity }}"),
            **said,
            "device_class": "enum",
            "options": [*labels, UNKNOWN],
            "json_attributes_topic": state,
            "json_attributes_template": (
                "{{ {'probabilities': value_json.probabilities, 'devices': value_json.devices} | tojson }}"
            ),
            "icon": "mdi:account-eye",
        },
        "confidence": {
            **_sensor(identity, "confidence", "Confidence", "{{ (100 * value_json.confidence) | round(1) }}"),
            **said,
            **PERCENT,
            "entity_category": "diagnostic",
        },
        "label": {
            "platform": "select",
            "unique_id": f"{identity}-label",
            "name": "Correct activity",
            "options": list(labels),
            "command_topic": topics.label(room),
            "entity_category": "config",
            "icon": "mdi:account-check",
        },
    }
    about = {"name": room, "model": "room", "suggested_area": room}
    return _config(identity, about, [{"topic": topics.edge}], components)


def device_config(topics: Topics, device: str, labels: Sequence[str], expires: float, battery: bool) -> bytes:
    """Announce a device: its own decision, its accuracy, the round of its model, and its battery if it has one."""
    identity, status = device_identity(topics, device), topics.status(device)
    decided = "{% set p = value_json.probabilities %}{{ " + json.dumps(list(labels)) + "[p.index(p | max)] }}"
    components: dict[str, dict[str, Any]] = {
        "activity": {
            **_sensor(identity, "activity", "Own decision", decided),
            "state_topic": topics.decision(device),
            "expire_after": max(1, round(expires)),
            "device_class": "enum",
            "options": list(labels),
        },
        "accuracy": {
            **_sensor(identity, "accuracy", "Accuracy", _share("accuracy")),
            **PERCENT,
            "state_topic": status,
            "entity_category": "diagnostic",
        },
        "round": {
            **_sensor(identity, "round", "Last round", "{{ value_json.round }}"),
            "state_topic": status,
            "entity_category": "diagnostic",
        },
    }
    if battery:
        components["battery"] = {
            **_sensor(identity, "battery", "Battery", _share("battery")),
            **PERCENT,
            "state_topic": status,
            "device_class": "battery",
            "entity_category": "diagnostic",
        }
    there = {"topic": status, "value_template": "{{ 'online' if value_json.online else 'offline' }}"}
    return _config(identity, {"name": device, "model": "device"}, [{"topic": topics.edge}, there], components)


def _sensor(identity: str, what: str, name: str, template: str) -> dict[str, Any]:
    return {"platform": "sensor", "unique_id": f"{identity}-{what}", "name": name, "value_template": template}


def _share(key: str) -> str:
    """A share as a percentage; if missing, None, which Home Assistant shows as unknown."""
    return f"{{{{ None if value_json.{key} is none else (100 * value_json.{key}) | round(1) }}}}"


def _config(identity: str, about: dict[str, Any], availability: list[dict[str, str]], components: Any) -> bytes:
    table = {
        "device": {"identifiers": [identity], "manufacturer": "fedfilt", "sw_version": __version__, **about},
        "origin": ORIGIN,
        "availability": availability,
        "availability_mode": "all",
        "qos": 1,
        "components": components,
    }
    return json.dumps(table, separators=(",", ":")).encode()
