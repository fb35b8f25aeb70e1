"""Sources: every shape of message and file, what is wrong with them, and that nothing grows or stays for ever."""

import json
import os
import sys
import threading
import time
from datetime import UTC, datetime
from itertools import islice

import numpy as np
import pytest

from fedfilt.data.own import BadData, Making
from fedfilt.home.bus import Memory
from fedfilt.home.clock import Clock
from fedfilt.home.readings import source_of
from fedfilt.sources import Csv, Mqtt, Replay
from helpers import SLOW, until

MAKING = Making(shape=(2, 4), labels=("walk", "rest"), channels=("x", "y"), rate=10.0)


class Reader:
    """A source that is read in a thread of its own."""

    def __init__(self, source, making=MAKING, clock=None):
        self.bus, self.stop, self.got = Memory(), threading.Event(), []
        self.listens = len(dict(source.places(making.channels))) if isinstance(source, Mqtt) else 0  # topics
        readings = source.readings(making, self.bus, clock or Clock(), self.stop)
        self.thread = threading.Thread(target=self.read, args=(readings,), daemon=True)

    def read(self, readings):
        for reading in readings:
            self.got.append(reading)

    def __enter__(self):
        self.thread.start()
        until(lambda: not self.listens or len(self.bus._handlers) == self.listens, "a subscription")
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(SLOW)
        assert not self.thread.is_alive()

    def send(self, topic, content):
        self.bus.publish(topic, content if isinstance(content, bytes) else json.dumps(content).encode())

    def wait(self, count):
        until(lambda: len(self.got) >= count, f"{count} readings")
        return [[one.time, *one.values] for one in self.got]


def same(found, wanted):
    np.testing.assert_allclose(np.array(found, float), np.array(wanted, float))


# --- MQTT ---------------------------------------------------------------------------------------------------------


def test_a_message_is_a_sample_or_a_list_of_them():
    with Reader(Mqtt(topic="watch")) as reader:
        reader.send("watch", {"time": 1, "x": 1, "y": 2, "z": 9})
        reader.send("watch", [{"time": 2, "x": 3, "y": 4}, {"time": "1970-01-01T00:00:03", "x": True, "y": "5.5"}])
        reader.send("watch", {"time": 1_700_000_000_000, "x": 6, "y": 7})  # milliseconds
        reader.send("other", {"time": 5, "x": 0, "y": 0})
        same(reader.wait(4), [[1, 1, 2], [2, 3, 4], [3, 1, 5.5], [1.7e9, 6, 7]])


def test_keys_may_be_inside_others_and_named_otherwise():
    source = Mqtt(topic="watch", channels=("acceleration.x", "values.1"), time="at")
    with Reader(source) as reader:
        reader.send("watch", {"at": 1, "acceleration": {"x": 5}, "values": [0, 6]})
        same(reader.wait(1), [[1, 5, 6]])


def test_messages_in_cbor():
    cbor2 = pytest.importorskip("cbor2")
    moment = datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    with Reader(Mqtt(topic="watch", format="cbor")) as reader:
        for said in ({"time": 1.0, "x": 2, "y": 3}, [{"time": cbor2.CBORTag(1, 2.5), "x": 4.5, "y": True}]):
            reader.send("watch", cbor2.dumps(said))
        reader.send("watch", cbor2.dumps({"time": moment, "x": 5, "y": None}))
        same(reader.wait(3), [[1, 2, 3], [2.5, 4.5, 1], [3, 5, np.nan]])


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"ON", b"\xff", b"\xa2\x61x\x01", b"\x81" * 16_000, b"\xc1" * 16_000),
        *(bytes.fromhex(text) for text in ("9bffffffffffffffff", "5b7fffffffffffffff", "d81d05", "a1818000", "c074")),
    ],
)
def test_a_message_in_cbor_that_is_damaged_ends_nothing(content):
    cbor2 = pytest.importorskip("cbor2")
    with Reader(Mqtt(topic="watch", format="cbor")) as reader:
        reader.send("watch", content)
        reader.send("watch", cbor2.dumps({"time": 1, "x": 2, "y": 3}))
        same(reader.wait(1), [[1, 2, 3]])


def test_cbor_needs_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "cbor2", None)
    with pytest.raises(ValueError, match="need cbor2"):
        next(iter(Mqtt(topic="watch", format="cbor").readings(MAKING, Memory(), Clock(), threading.Event())))


def test_a_source_that_has_ended_listens_no_more():
    reader = Reader(Mqtt(channels=("a", "b")))
    with reader:
        assert len(reader.bus._handlers) == 2
    assert not reader.bus._handlers


def test_a_sample_lacks_what_it_does_not_say():
    with Reader(Mqtt(topic="watch")) as reader:
        reader.send("watch", {"time": 1, "x": 1})
        reader.send("watch", {"time": 2, "y": 5})
        reader.send("watch", {"time": 3, "x": None, "y": 6})
        same(reader.wait(3), [[1, 1, np.nan], [2, np.nan, 5], [3, np.nan, 6]])


def test_a_topic_per_sensor_as_esphome_has_it():
    topics = ("watch/sensor/x/state", "watch/sensor/y/state")
    with Reader(Mqtt(channels=topics), clock=Clock(1000.0, 5.0)) as reader:
        for topic, text in zip(topics * 2, (b"1.5", b"2", b"3", b"ON"), strict=True):
            reader.send(topic, text)
        reader.send(topics[0], b"4")
        reader.send(topics[0], b"5")  # the other did not come
        reader.send(topics[1], b"unavailable")
        same([row[1:] for row in reader.wait(4)], [[1.5, 2], [3, 1], [4, np.nan], [5, np.nan]])


def test_sensors_that_speak_only_of_changes():
    """Zigbee2MQTT: an object per device; Home Assistant's statestream: a text per entity. The newest value counts."""
    clock = Clock(100.0, 1000.0)
    places = ("zigbee2mqtt/hall#occupancy", "homeassistant/light/lamp/state")
    with Reader(Mqtt(channels=places, every=1.0, hold=50.0), clock=clock) as reader:
        reader.send("zigbee2mqtt/hall", {"occupancy": True, "battery": 99})
        reader.send("homeassistant/light/lamp/state", b"off")
        until(lambda: reader.got and reader.got[-1].values.tolist() == [1, 0], "both are known")
        reader.send("homeassistant/light/lamp/state", b"on")
        until(lambda: reader.got[-1].values.tolist() == [1, 1], "a change")
        reader.send("zigbee2mqtt/hall", {"occupancy": None})
        until(lambda: np.isnan(reader.got[-1].values).tolist() == [True, False], "that one is not known any more")
        until(lambda: np.isnan(reader.got[-1].values).all(), "that they are too old")
        times = np.array([one.time for one in reader.got])
        np.testing.assert_allclose(np.diff(times), 1.0)
        np.testing.assert_allclose(times % 1, 0)


def test_a_held_value_is_as_old_as_its_message_says():
    clock = Clock(100.0, 1e9)
    source = Mqtt(topic="hall", channels=("occupancy", "light"), time="last_seen", every=1.0, hold=50.0)
    with Reader(source, clock=clock) as reader:
        reader.send("hall", {"occupancy": True, "light": 3, "last_seen": "2001-09-08T00:00:00Z"})  # a day ago
        reader.wait(3)
        assert np.isnan([one.values for one in reader.got]).all()
        reader.send("hall", {"occupancy": True, "last_seen": 2e9})  # a clock that is ahead does not make it last longer
        reader.send("hall", {"light": 4})
        until(lambda: reader.got[-1].values.tolist() == [1, 4], "both are known")
        until(lambda: np.isnan(reader.got[-1].values).all(), "that they are too old")


def test_what_is_wrong_with_messages_is_counted_and_said_once(caplog):
    with Reader(Mqtt(topic="watch")) as reader:
        for content in (b"\xff{", b"[" * 5000, {"z": 1}, 5, [], None, {"time": "noon", "x": 1, "y": 2}, b"9" * 5000):
            for _ in range(20):
                reader.send("watch", content)
        reader.send("watch", {"time": 1, "x": "much", "y": 10**400})
        reader.send("watch", {"time": 2, "x": 1})  # a channel is missing
        reader.send("watch", {"time": 3, "x": 2, "y": 3})
        same(reader.wait(3), [[1, np.nan, np.nan], [2, 1, np.nan], [3, 2, 3]])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert sum("contain none of the channels" in line for line in said) == 1
    assert sum("time must be seconds" in line for line in said) == 1


def test_more_messages_than_are_read():
    """They come faster than they are read: the oldest are dropped, memory is bounded, and it goes on afterwards."""
    source, bus, stop = Mqtt(topic="watch"), Memory(), threading.Event()
    readings = source.readings(MAKING, bus, Clock(), stop)
    bus.publish("watch", b'{"x": 1, "y": 1}')
    first = threading.Thread(target=lambda: next(readings), daemon=True)
    first.start()
    until(lambda: bus._handlers, "a subscription")
    for number in range(30_000):  # nobody reads
        bus.publish("watch", b'{"time": %d, "x": 1, "y": 2}' % number)
    first.join(SLOW)
    times = [one.time for one in islice(readings, 4096)]
    assert times == list(range(30_000 - 4096, 30_000))
    stop.set()
    assert list(readings) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs a topic"),
        ({"channels": ("", "a")}, "must have a topic"),
        ({"topic": "a/+"}, r"without \+ and #"),
        ({"topic": "a", "format": "xml"}, "unknown format"),
        ({"topic": "a", "every": -1}, "every must be"),
    ],
)
def test_settings_of_mqtt_are_checked(options, said):
    with pytest.raises(ValueError, match=said):
        Mqtt(**options)


def test_all_channels_must_be_named():
    with pytest.raises(ValueError, match="must have 2 channels, got 3"):
        next(iter(Mqtt(topic="a", channels=("x", "y", "z")).readings(MAKING, Memory(), Clock(), threading.Event())))


# --- a file that grows --------------------------------------------------------------------------------------------


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_a_csv_file_grows(tmp_path):
    path = tmp_path / "now.csv"
    path.write_text("time,y,x\n1,2,3\n4,5")
    with Reader(Csv(str(path))) as reader:
        time.sleep(0.3)
        append(path, ",6\n7,8,9\n10,11")
        reader.wait(1)
        append(path, ".5,12\n\n13,,14\n")
        same(reader.wait(3), [[7, 9, 8], [10, 12, 11.5], [13, 14, np.nan]])


def test_a_csv_file_is_rotated_and_emptied(tmp_path):
    path = tmp_path / "now.csv"
    with Reader(Csv(str(path))) as reader:
        time.sleep(0.15)
        path.write_text("time,x,y,label\n1,2,3,walk\n")  # it comes later, so all of it is new
        reader.wait(1)
        append(path, "2,3,4,\n")
        os.replace(path, tmp_path / "old.csv")
        append(tmp_path / "old.csv", "3,4,5,\n")
        path.write_text("time,y,x,label\n4,6,5,\n")
        reader.wait(4)
        path.write_text("time,x,y\n5,6,7\n")
        same(reader.wait(5), [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 7]])


def test_bad_lines_and_bad_files_are_passed_over(tmp_path, caplog):
    path = tmp_path / "now.csv"
    path.write_text("time,x\n1,2\n")
    with Reader(Csv(str(path), whole=True)) as reader:
        until(lambda: caplog.records, "a line about a column")
        assert "unknown column 'y'" in caplog.text
        os.replace(path, tmp_path / "old.csv")
        path.write_text("time,x,y\n1,2\n2,a,b\nnoon,1,2\n3,4,5\n")
        same(reader.wait(1), [[3, 4, 5]])
        path.unlink()
        path.write_bytes(b"time,x,y\n" + b"9" * 200_000)
        time.sleep(0.3)
        path.unlink()
        path.write_text("time,x,y\n4,5,6\n")
        same(reader.wait(2)[1:], [[4, 5, 6]])
    assert len(caplog.records) == 2, "one line about the file, one about its lines"


# --- a recording --------------------------------------------------------------------------------------------------


def test_a_recording_is_replayed_with_its_labels(tmp_path):
    times = 500 + np.arange(40) / 10
    values = np.random.default_rng(0).standard_normal((40, 2))
    labels = np.repeat(["walk", "rest"], 20)
    np.savez(tmp_path / "a.npz", time=times, values=values, label=labels)
    lines = [f"{t!r},{x!r},{y!r},{k}" for t, (x, y), k in zip(times.tolist(), values.tolist(), labels, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["time,x,y,label", *lines]))
    for name in ("a.npz", "a.csv"):
        clock = Clock(20.0, 1e6)
        source = source_of({"name": "replay", "file": name}, tmp_path)
        got = []
        for reading in source.readings(MAKING, Memory(), clock, threading.Event()):
            assert 0 <= clock.now() - reading.time < 3.0, "each at its time"
            got.append(reading)
        np.testing.assert_allclose(np.diff([one.time for one in got]), 0.1, atol=1e-6)
        np.testing.assert_array_equal([one.values for one in got], values)
        assert [one.label for one in got] == labels.tolist()


def test_a_recording_again_and_again_until_it_is_stopped(tmp_path):
    np.savez(tmp_path / "a.npz", time=np.arange(5), values=np.zeros((5, 2)))
    stop = threading.Event()
    readings = Replay(str(tmp_path / "a.npz"), again=True).readings(MAKING, Memory(), Clock(1e6), stop)
    times = [one.time for one in islice(readings, 12)]
    np.testing.assert_allclose(np.diff(times), 1.0)
    stop.set()
    assert list(readings) == []
    slow = Replay(str(tmp_path / "a.npz")).readings(MAKING, Memory(), Clock(0.001), stop)
    assert list(slow) == []


class Hand(Clock):
    """A clock on which only waiting takes time."""

    def __init__(self, time):
        super().__init__(2.0)
        self.time = time

    def now(self):
        return self.time

    def sleep(self, seconds, stop=None):
        self.time += seconds
        return stop is None or not stop.is_set()


def test_a_recording_at_its_own_times_goes_on_where_it_should_be(tmp_path):
    times = 1e9 + np.concatenate([np.arange(10), 5000 + np.arange(10)]) / 10
    values = np.arange(40.0).reshape(20, 2)
    np.savez(tmp_path / "a.npz", time=times, values=values)
    source = source_of({"name": "replay", "file": "a.npz", "at": "time"}, tmp_path)
    for start, first in ((1e9 - 60, 0), (1e9, 0), (times[3], 3), (times[3] + 0.01, 4), (1e9 + 9, 10), (1e9 + 501, 20)):
        clock = Hand(float(start))
        got = list(source.readings(MAKING, Memory(), clock, threading.Event()))
        assert [one.time for one in got] == times[first:].tolist(), "to the last bit"
        assert [one.values.tolist() for one in got] == values[first:].tolist(), "what is past is passed over"
        assert clock.time == pytest.approx(max(times[-1], start))


def test_a_recording_from_a_time_on_leaves_nothing_out_and_says_how_late_it_is(tmp_path, caplog):
    np.savez(tmp_path / "a.npz", time=500 + np.arange(20.0), values=np.zeros((20, 2)))
    for now, behind in ((990.0, 0), (1005.0, 0), (1100.0, 1)):
        clock = Hand(now)
        source = source_of({"name": "replay", "file": "a.npz", "at": 1000.0}, tmp_path)
        times = [one.time for one in source.readings(MAKING, Memory(), clock, threading.Event())]
        assert times == (1000 + np.arange(20.0)).tolist()
        assert caplog.text.count("is 100 s behind") == behind
    with pytest.raises(ValueError, match="at must be"):
        Replay("a.npz", at=-1.0)


def test_a_recording_at_its_own_times_is_not_played_again():
    with pytest.raises(ValueError, match="unknown at 'noon'"):
        Replay("a.npz", at="noon")
    with pytest.raises(ValueError, match="cannot be played again"):
        Replay("a.npz", at="time", again=True)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"time": np.arange(3)}, "must have the arrays time and values"),
        ({"time": np.arange(3), "values": np.zeros((3, 1))}, "must have 2 channels"),
        ({"time": np.zeros(3), "values": np.zeros((3, 2))}, "times in seconds that increase"),
        ({"time": np.arange(3), "values": np.full((3, 2), "a")}, "numbers as values"),
    ],
)
def test_recordings_are_checked(tmp_path, arrays, said):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(BadData, match=said):
        list(Replay(str(tmp_path / "a.npz")).readings(MAKING, Memory(), Clock(1e6), threading.Event()))


# --- of one's own -------------------------------------------------------------------------------------------------


def test_a_source_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_sensors_here.py").write_text(
        "class Mine:\n    def __init__(self, pin=1):\n        self.pin = pin\n"
        "    def readings(self, making, bus, clock, stop):\n        yield from ()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source_of({"name": "my_sensors_here:Mine", "pin": 4}, tmp_path).pin == 4  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="unexpected keyword argument 'pni'"):
        source_of({"name": "my_sensors_here:Mine", "pni": 4}, tmp_path)
    with pytest.raises(ValueError, match="did you mean 'mqtt'"):
        source_of({"name": "mqt"}, tmp_path)
