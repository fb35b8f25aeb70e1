import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any

import numpy as np

from fedfilt._checks import check_choice, check_number
from fedfilt.data._tables import seconds
from fedfilt.data.own import Making
from fedfilt.home.bus import Bus
from fedfilt.home.clock import Clock
from fedfilt.home.readings import Complaints, Inbox, Reading
from fedfilt.home.topics import MOST_BYTES

WORDS = {"on": 1.0, "off": 0.0, "true": 1.0, "false": 0.0, "open": 1.0, "closed": 0.0}
MILLISECONDS = 1e11  # a later time is in milliseconds
BEHIND = 1000  # readings that may be made up for after a pause
MISSING = object()  # what a message says under a key that it has not


@dataclass(frozen=True)
class Mqtt:
    """Messages on topics: each a sample, a list of samples (JSON or CBOR), or the state of one sensor.

    With a `topic`, `channels` are keys in its messages, nested ones as in acceleration.x; the default is the
    experiment's channels. Without a topic, each channel is TOPIC, for messages that are a value, or TOPIC#key. A sample
    from a topic that has all channels is a reading, with NaN for missing values. From several topics, a reading is
    complete when all channels have arrived; if one arrives again before that, the missing ones are NaN. Sensors that
    report only changes need `every`: at this interval in seconds, a reading has the newest value of each channel.

    >>> Mqtt(topic="zigbee2mqtt/hall", channels=("occupancy", "illuminance"), every=1.0).places(())
    [('zigbee2mqtt/hall', 'occupancy'), ('zigbee2mqtt/hall', 'illuminance')]
    """

    topic: str = ""  # of messages that have all channels
    channels: tuple[str, ...] = ()  # keys in a message, or TOPIC or TOPIC#key each; none: the experiment's
    time: str = "time"  # key of the time in a message; without it, a message is of the time when it comes
    every: float = 0.0  # seconds; 0: when messages come
    hold: float = 3600.0  # seconds for which a value counts from its time on, with `every`
    format: str = "json"  # "json", or "cbor", which needs cbor2

    def __post_init__(self) -> None:
        check_choice("format", self.format, ["json", "cbor"])
        check_number("every", self.every, low=0)
        check_number("hold", self.hold, low=0)
        if not self.topic and not self.channels:
            raise ValueError("mqtt needs a topic, or channels that name their topics")
        for topic, _ in self.places(("",)):
            if not topic or "+" in topic or "#" in topic:
                raise ValueError(f"a channel must have a topic without + and #, got {topic!r}")

    def places(self, names: tuple[str, ...]) -> list[tuple[str, str]]:
        """(topic, key) of every channel."""
        if self.topic:
            return [(self.topic, key) for key in self.channels or names]
        split = [channel.partition("#") for channel in self.channels]
        return [(topic, key) for topic, _, key in split]

    def readings(self, making: Making, bus: Bus, clock: Clock, stop: threading.Event) -> Iterator[Reading]:
        """Readings from the messages that come."""
        places = self.places(making.channels)
        if len(places) != making.shape[0]:
            raise ValueError(f"mqtt must have {making.shape[0]} channels, got {len(places)}; name them in [source]")
        inbox, decode = Inbox("mqtt"), _Decoder(self, places)

        def take(topic: str, content: bytes) -> None:
            if len(content) > MOST_BYTES:
                inbox.complaints("large", "messages of more than %d bytes are dropped", MOST_BYTES)
            else:
                inbox.put(clock.now(), topic, content)

        try:
            for topic in decode.topics:
                bus.subscribe(topic, take)
            yield from self._held(inbox, decode, clock, stop) if self.every else _whole(inbox, decode, stop)
        finally:  # it may be started again, with another handler
            bus.unsubscribe(take)

    def _held(self, inbox: Inbox, decode: "_Decoder", clock: Clock, stop: threading.Event) -> Iterator[Reading]:
        """A reading at every interval, with the newest value of each channel."""
        values, since = np.full(decode.count, np.nan), np.full(decode.count, -np.inf)
        due = math.ceil(clock.now() / self.every) * self.every
        while not stop.is_set():
            ahead = due - clock.now()
            if not -BEHIND * self.every <= ahead <= 2 * self.every:  # the clock was set, or this process slept
                due -= ahead
            elif ahead > 0:
                message = inbox.get(stop, ahead / clock.speed)
                for when, found in () if message is None else decode(*message, inbox.complaints):
                    values[list(found)], since[list(found)] = list(found.values()), min(clock.now(), when)
            else:
                yield Reading(due, np.where(due - since <= self.hold, values, np.nan))
                due += self.every


def _whole(inbox: Inbox, decode: "_Decoder", stop: threading.Event) -> Iterator[Reading]:
    """A reading when all channels have come, one comes again, or no other topic has any."""
    begun: dict[int, float] = {}
    time = math.nan
    while not stop.is_set():
        message = inbox.get(stop)
        for when, found in () if message is None else decode(*message, inbox.complaints):
            if begun.keys() & found.keys():
                yield decode.reading(time, begun)
                begun = {}
            begun |= found
            time = when
            if len(begun) == decode.count or len(decode.topics) == 1:
                yield decode.reading(time, begun)
                begun = {}


class _Decoder:
    """What messages say of which channel."""

    def __init__(self, source: Mqtt, places: list[tuple[str, str]]) -> None:
        self.count = len(places)
        self._time = source.time
        self._at: dict[str, list[tuple[int, str]]] = {}
        for channel, (topic, key) in enumerate(places):
            self._at.setdefault(topic, []).append((channel, key))
        self.topics = list(self._at)
        self._load: Callable[[bytes], Any] = json.loads
        if source.format == "cbor":
            try:
                self._load = import_module("cbor2").loads
            except ImportError:
                raise ValueError("messages in CBOR need cbor2: pip install 'fedfilt[mqtt]'") from None

    def __call__(
        self, came: float, topic: str, content: bytes, complaints: Complaints
    ) -> Iterator[tuple[float, dict[int, float]]]:
        """(time, values by channel) of every sample in a message."""
        try:
            said = self._load(content)
        except Exception:  # cbor2 raises what it likes, by version and by message
            said = content.decode("utf-8", "replace")  # the state of a sensor, such as ON
        for sample in said if isinstance(said, list) else [said]:
            found = {
                channel: _value(value)
                for channel, key in self._at[topic]
                if (value := _inner(sample, key)) is not MISSING
            }
            if not found:
                complaints("keys", "messages on %s contain none of the channels; they are dropped", topic)
                continue
            try:
                yield _moment(_inner(sample, self._time), came), found
            except ValueError as error:
                complaints("time", "messages on %s are dropped: %s", topic, error)

    def reading(self, time: float, values: dict[int, float]) -> Reading:
        """A reading; channels without a value are NaN."""
        return Reading(time, np.array([values.get(channel, math.nan) for channel in range(self.count)]))


def _inner(value: Any, key: str) -> Any:
    """What a message says under a key such as acceleration.x or values.0, or that it says nothing.

    >>> _inner({"acceleration": {"x": 1}}, "acceleration.x"), _inner({"v": [5, None]}, "v.1"), _inner(3, "x") is MISSING
    (1, None, True)
    """
    for level in key.split(".") if key else ():
        if isinstance(value, list):
            value = value[int(level)] if level.isdecimal() and int(level) < len(value) else MISSING
        else:
            value = value.get(level, MISSING) if isinstance(value, dict) else MISSING
    return value


def _value(value: Any) -> float:
    """A number, a switch, or a text that is one of them; NaN for anything else, such as "unavailable".

    >>> _value(True), _value("OFF"), _value("2.5"), _value("unavailable"), _value([1])
    (1.0, 0.0, 2.5, nan, nan)
    """
    if isinstance(value, str) and value.strip().lower() in WORDS:
        return WORDS[value.strip().lower()]
    try:
        return float(value) if isinstance(value, bool | int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _moment(value: Any, came: float) -> float:
    """The time that a message says, in seconds or milliseconds or as a date; if it says none, when it came."""
    if value is None or value is MISSING:
        return came
    time = seconds(str(value)) if isinstance(value, str | datetime) else _value(value)
    return time / 1000 if time > MILLISECONDS else time
