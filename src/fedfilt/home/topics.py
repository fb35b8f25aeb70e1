"""The messages of a home, their topics, and what they must look like.

    fedfilt/HOME/devices/DEVICE/decision     a device's decision: Decision
    fedfilt/HOME/devices/DEVICE/status       a device's status, retained, with a last will: Status
    fedfilt/HOME/devices/DEVICE/correction   the edge server tells a device what was right: Correction
    fedfilt/HOME/devices/DEVICE/kept         the device confirms that it has kept it: the same Correction
    fedfilt/HOME/rooms/ROOM/state            the edge server publishes what the room decided: RoomState
    fedfilt/HOME/rooms/ROOM/label            somebody corrects the room's activity: the name of a label, or Correction
    fedfilt/HOME/rooms/ROOM/corrected        the edge server answers: Correction, and the devices that received it
    fedfilt/HOME/edge/status                 the edge server: online or offline, retained, with a last will

Messages are JSON objects. All of them come from outside: sizes and types are checked before anything is used.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from fedfilt._types import Table

MOST_BYTES = 16_384  # of a message
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


def check_name(what: str, name: object) -> str:
    """Return the name of a home, a device or a room if it is allowed in a topic."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"a {what} must be up to 40 letters, digits, dots, dashes and underscores, got {name!r}")
    return name


class BadMessage(ValueError):
    """An invalid message."""


class Decision(NamedTuple):
    """A device's opinion on what its person is doing."""

    at: float  # when the last sample of the window was taken, in seconds since 1970
    round: int  # of the model
    probabilities: tuple[float, ...]  # by label


class Status(NamedTuple):
    """A device's status."""

    online: bool
    room: str = ""
    round: int = 0  # of its model
    accuracy: float | None = None  # on its own validation windows
    battery: float | None = None  # 0 to 1, if it knows


class Correction(NamedTuple):
    """The true activity of a room during a time span."""

    label: str
    begin: float
    end: float


class RoomState(NamedTuple):
    """A room's decision."""

    at: float
    activity: str  # the name of a label, or "unknown"
    confidence: float
    probabilities: dict[str, float]  # by the name of the label
    devices: int  # that voted


class Topics(NamedTuple):
    """The topics of a home.

    >>> Topics("villa").decision("lamp"), Topics("villa").parsed("fedfilt/villa/rooms/hall/label")
    ('fedfilt/villa/devices/lamp/decision', ('rooms', 'hall', 'label'))
    """

    home: str

    def decision(self, device: str) -> str:
        """A device's decisions; "+" for all devices."""
        return f"fedfilt/{self.home}/devices/{device}/decision"

    def status(self, device: str) -> str:
        """A device's status."""
        return f"fedfilt/{self.home}/devices/{device}/status"

    def correction(self, device: str) -> str:
        """Corrections for a device."""
        return f"fedfilt/{self.home}/devices/{device}/correction"

    def kept(self, device: str) -> str:
        """Corrections that a device has kept."""
        return f"fedfilt/{self.home}/devices/{device}/kept"

    def state(self, room: str) -> str:
        """What a room has decided."""
        return f"fedfilt/{self.home}/rooms/{room}/state"

    def label(self, room: str) -> str:
        """Corrections of a room's activity."""
        return f"fedfilt/{self.home}/rooms/{room}/label"

    def corrected(self, room: str) -> str:
        """The edge server's answer to a correction."""
        return f"fedfilt/{self.home}/rooms/{room}/corrected"

    @property
    def edge(self) -> str:
        """Whether the edge server is online."""
        return f"fedfilt/{self.home}/edge/status"

    def parsed(self, topic: str) -> tuple[str, str, str] | None:
        """("devices" or "rooms", name, kind of message) for a topic of this home; None for any other."""
        parts = topic.split("/")
        if len(parts) != 5 or parts[:2] != ["fedfilt", self.home] or parts[2] not in ("devices", "rooms"):
            return None
        return (parts[2], parts[3], parts[4]) if NAME.fullmatch(parts[3]) else None


def written(message: Decision | Status | Correction | RoomState) -> bytes:
    """A message as bytes."""
    return json.dumps(message._asdict(), allow_nan=False, separators=(",", ":")).encode()


def decision(content: bytes, labels: int) -> Decision:
    """Read a decision among a number of labels."""
    table = _table(content)
    said = table.get("probabilities")
    if not isinstance(said, list) or len(said) != labels or not all(map(is_share, said)):
        raise BadMessage(f"probabilities must be {labels} numbers from 0 to 1")
    if abs(sum(said) - 1) > 0.01:
        raise BadMessage(f"probabilities must sum to 1, got {sum(said):g}")
    return Decision(time_in(table, "at"), _round(table), tuple(map(float, said)))


def status(content: bytes) -> Status:
    """Read a device's status."""
    return status_in(_table(content))


def status_in(table: Table) -> Status:
    """A device's status from a table."""
    room, online = table.get("room", ""), table.get("online")
    if not isinstance(online, bool) or not isinstance(room, str) or (room and not NAME.fullmatch(room)):
        raise BadMessage("status must say whether a device is online, and which room it is in")
    shares = [table.get(key) for key in ("accuracy", "battery")]
    if not all(share is None or is_share(share) for share in shares):
        raise BadMessage("accuracy and battery must be from 0 to 1")
    return Status(online, room, _round(table), *shares)


def correction(content: bytes, labels: Sequence[str]) -> Correction:
    """Read a correction, which must name one of the labels."""
    table = _table(content)
    label, begin, end = table.get("label"), time_in(table, "begin"), time_in(table, "end")
    if not isinstance(label, str) or label not in labels:
        raise BadMessage(f"label must be one of {', '.join(labels)}")
    if not begin <= end:
        raise BadMessage("a correction must end after it begins")
    return Correction(table["label"], begin, end)


def room_state(content: bytes) -> RoomState:
    """Read a room's decision."""
    return room_state_in(_table(content))


def room_state_in(table: Table) -> RoomState:
    """A room's decision from a table."""
    said, devices, confidence = table.get("probabilities"), table.get("devices"), table.get("confidence")
    if not isinstance(said, dict) or not all(map(is_share, [confidence, *said.values()])):
        raise BadMessage("probabilities and confidence must be from 0 to 1")
    if not isinstance(table.get("activity"), str) or type(devices) is not int or devices < 0:
        raise BadMessage("activity must be a name and devices a number of devices")
    return RoomState(time_in(table, "at"), table["activity"], float(table["confidence"]), said, devices)


def _table(content: bytes) -> Table:
    if len(content) > MOST_BYTES:
        raise BadMessage(f"message must be at most {MOST_BYTES} bytes, got {len(content)}")
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        raise BadMessage("message must be JSON") from None
    if not isinstance(table, dict):
        raise BadMessage("message must be a JSON object")
    return table


def is_share(value: object) -> bool:
    """Whether something is a number from 0 to 1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def time_in(table: Table, key: str) -> float:
    """A time from a table."""
    value = table.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= 1e11:
        raise BadMessage(f"{key} must be a time in seconds")
    return float(value)


def _round(table: Table) -> int:
    value = table.get("round", 0)
    if type(value) is not int or not 0 <= value < 2**31:
        raise BadMessage("round must be a whole number")
    return value
