"""The edge server on a bus in memory: votes, corrections, what is refused, what it writes."""

import json
import threading
import time

import pytest

from fedfilt.home import assistant, outbox
from fedfilt.home import edge as edges
from fedfilt.home.bus import Memory
from fedfilt.home.clock import HOUR, Clock
from fedfilt.home.edge import OFFLINE, ONLINE, SETTLE, Edge
from fedfilt.home.rooms import FORGET, UNKNOWN, Voting
from fedfilt.home.topics import MOST_BYTES, Correction, Decision, Status, Topics, correction, room_state, written

LABELS = ("rest", "walk", "cook")
TOPICS = Topics("villa")
DEVICES = {"watch": "kitchen", "phone": "kitchen", "band": "bath"}


class Hand(Clock):
    """A clock that is moved by hand."""

    def __init__(self):
        super().__init__()
        self.time = 1000.0

    def now(self):
        return self.time


class Home:
    """An edge server on a bus in memory, and what others hear."""

    def __init__(self, folder=None, devices=DEVICES, bus=None, **options):
        self.bus, self.clock, self.heard = bus or Memory(), Hand(), []
        self.bus.subscribe("#", lambda topic, content: self.heard.append((topic, content)))
        self.answers = True
        self.bus.subscribe(TOPICS.correction("+"), self.answer)
        voting = options.pop("voting", Voting(gather_seconds=0.0))
        options = {"moving": ["band"] if devices is DEVICES else (), "rooms": ["garden"]} | options
        member = self.bus.member((TOPICS.edge, OFFLINE))
        self.edge = Edge(member, self.clock, TOPICS, LABELS, devices, voting=voting, folder=folder, **options)

    def answer(self, topic, content):
        if self.answers:
            self.bus.publish(TOPICS.kept(topic.split("/")[3]), content)

    def online(self, *names, **about):
        for name in names:
            self.bus.publish(TOPICS.status(name), written(Status(online=True, **about)), retain=True)
        self.edge.step()

    def says(self, name, *probabilities, at=None):
        said = Decision(self.clock.time if at is None else at, 1, probabilities)
        self.bus.publish(TOPICS.decision(name), written(said))
        self.edge.step()

    def last(self, topic):
        return next((content for heard, content in reversed(self.heard) if heard == topic), None)

    def room(self, room):
        return room_state(self.last(TOPICS.state(room)))

    def corrections(self):
        return {
            topic.split("/")[3]: correction(content, LABELS) for topic, content in self.heard if "correction" in topic
        }


def test_a_room_follows_its_devices():
    home = Home()
    home.online("watch", "phone", "band")
    assert home.last(TOPICS.edge) == ONLINE
    home.says("watch", 0.1, 0.9, 0.0)
    home.says("phone", 0.2, 0.7, 0.1)
    assert home.room("kitchen") == (1000.0, "walk", 0.8, {"rest": 0.15, "walk": 0.8, "cook": 0.05}, 2)
    assert home.last(TOPICS.state("bath")) is None
    home.clock.time += 20
    home.edge.step()
    assert home.room("kitchen").activity == UNKNOWN
    home.says("phone", 0.4, 0.3, 0.3)
    assert home.room("kitchen")[1:3] == (UNKNOWN, 0.4)  # not sure enough


def test_a_correction_goes_to_the_devices_of_the_room_and_to_no_other(tmp_path):
    home = Home(tmp_path / "home")
    home.online("watch", "phone", "band")
    home.clock.time += 100
    home.online("band", room="kitchen")  # came ten seconds ago; it is one that moves
    home.clock.time += 10
    home.bus.publish(TOPICS.label("kitchen"), b"cook")
    home.edge.step()
    now = home.clock.time
    own = Correction("cook", now - 30, now)
    assert home.corrections() == {"watch": own, "phone": own, "band": Correction("cook", now - 10, now)}
    home.heard.clear()
    home.bus.publish(TOPICS.label("kitchen"), b'{"label": "walk", "seconds": 5}')
    home.edge.step()
    assert home.corrections() == dict.fromkeys(DEVICES, Correction("walk", now - 5, now))
    lines = [json.loads(line) for line in (tmp_path / "home" / "corrections.jsonl").read_text().splitlines()]
    assert [(line["room"], line["label"], line["devices"]) for line in lines] == [
        ("kitchen", "cook", list(DEVICES)),
        ("kitchen", "walk", list(DEVICES)),
    ]


def test_a_correction_may_say_from_when_to_when_and_is_answered(tmp_path):
    home = Home(tmp_path / "home")
    home.online(*DEVICES)
    said = Correction("cook", 400.25, 410.5)
    home.bus.publish(TOPICS.label("kitchen"), written(said))
    home.edge.step()
    assert home.corrections() == {"watch": said, "phone": said}
    assert json.loads(home.last(TOPICS.corrected("kitchen"))) == {**said._asdict(), "devices": ["watch", "phone"]}
    home.heard.clear()
    home.clock.time += 100
    home.online("band", room="kitchen")
    home.bus.publish(TOPICS.label("kitchen"), written(said))
    home.edge.step()
    assert set(home.corrections()) == {"watch", "phone"}, "the band was elsewhere then"
    home.bus.publish(TOPICS.label("bath"), written(said))
    home.edge.step()
    assert json.loads(home.last(TOPICS.corrected("bath")))["devices"] == []


def test_a_device_that_moved_while_the_clock_was_ahead_is_corrected_with_its_room(tmp_path):
    home = Home(tmp_path / "home")
    home.online(*DEVICES)
    home.clock.time += 1e6
    home.edge.step()
    home.online("band", room="kitchen")
    home.clock.time -= 1e6
    home.bus.publish(TOPICS.label("kitchen"), b"cook")
    home.edge.step()
    assert home.corrections()["band"] == Correction("cook", 1000.0, 1000.0)  # nobody knows since when it is there
    home.clock.time += 60
    home.bus.publish(TOPICS.label("kitchen"), b"cook")
    home.edge.step()
    assert home.corrections() == dict.fromkeys(DEVICES, Correction("cook", 1030.0, 1060.0))


def test_a_correction_is_said_until_it_is_kept_and_one_after_the_other(tmp_path, monkeypatch):
    home = Home(tmp_path)
    home.online(*DEVICES)
    home.answers = False
    said = [Correction(label, 990.0, 995.0) for label in ("walk", "cook")]
    for one in said:
        home.bus.publish(TOPICS.label("bath"), written(one))
    home.edge.step()
    home.edge.step()
    told = [content for topic, content in home.heard if topic == TOPICS.correction("band")]
    assert told == [written(said[0])], "once, and nothing else before it is kept"
    for other in (Correction("rest", 990.0, 995.0), said[1]):
        home.bus.publish(TOPICS.kept("band"), written(other))  # not what it was told
        home.edge.step()
    assert home.corrections() == {"band": said[0]}
    home.heard.clear()
    home.online("band")  # it has come back
    assert home.corrections() == {"band": said[0]}
    home.heard.clear()
    monkeypatch.setattr(edges, "SEND_AGAIN", -1.0)
    home.edge.step()  # a while later
    assert home.corrections() == {"band": said[0]}
    monkeypatch.undo()
    home.heard.clear()
    again = Home(tmp_path)  # the edge server was killed, and the device answers
    again.edge.step()
    again.edge.step()
    told = [content for topic, content in again.heard if topic == TOPICS.correction("band")]
    assert told == [written(one) for one in said]
    assert json.loads((tmp_path / "waiting.json").read_text()) == {}


def test_what_waits_for_a_device_is_bounded(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(outbox, "MOST", 3)
    home = Home(tmp_path)
    home.online(*DEVICES)
    home.answers = False
    for number in range(5):
        home.bus.publish(TOPICS.label("bath"), written(Correction("walk", 990.0, 991.0 + number)))
        home.edge.step()
    waiting = json.loads((tmp_path / "waiting.json").read_text())["band"]
    assert [one["end"] for one in waiting] == [993.0, 994.0, 995.0]
    assert "3 corrections are waiting for band; the oldest is dropped" in caplog.text
    for passed in (outbox.KEPT_SECONDS + 10, 60.0, -outbox.KEPT_SECONDS, 60.0):  # the clock jumps there and back
        home.clock.time += passed
        home.edge.step()
    assert json.loads((tmp_path / "waiting.json").read_text())["band"] == waiting
    for _ in range(int(outbox.KEPT_SECONDS / HOUR) + 2):
        home.clock.time += HOUR
        home.edge.step()
    assert json.loads((tmp_path / "waiting.json").read_text()) == {}
    assert "3 corrections waited too long for band" in caplog.text


def test_what_waits_is_used_but_for_labels_that_are_no_more(tmp_path, caplog):
    said = [Correction(label, 990.0, 995.0) for label in ("dance", "walk", "dance", "cook")]
    waiting = {"band": [one._asdict() for one in said], "watch": [said[0]._asdict()]}
    (tmp_path / "waiting.json").write_text(json.dumps(waiting))
    home = Home(tmp_path)
    home.edge.step()
    home.edge.step()
    told = [(topic, content) for topic, content in home.heard if topic.endswith("/correction")]
    assert told == [(TOPICS.correction("band"), written(one)) for one in (said[1], said[3])]
    assert caplog.text.count("is ignored: label must be one of rest, walk, cook") == 3


@pytest.mark.parametrize("text", ["", "[]", '{"band": 5}', '{"band": {"label": "walk"}}', "\0"])
def test_what_waits_is_not_used_if_it_is_damaged(tmp_path, text, caplog):
    (tmp_path / "waiting.json").write_text(text)
    home = Home(tmp_path)
    home.online(*DEVICES)
    assert not home.corrections()
    assert "which is ignored" in caplog.text


@pytest.mark.parametrize(
    ("room", "content"),
    [
        ("kitchen", b"flying"),
        ("kitchen", b"unknown"),
        ("kitchen", b""),
        ("kitchen", b"\xff\xfe"),
        ("kitchen", b"[" * 5000),
        ("kitchen", b'{"label": "walk", "seconds": -1}'),
        ("kitchen", b'{"label": "walk", "seconds": 1e9}'),
        ("kitchen", b'{"label": ["walk"]}'),
        ("kitchen", b'{"label": "walk", "begin": 990, "end": "now"}'),
        ("kitchen", b'{"label": "walk", "begin": 990, "end": 980}'),
        ("kitchen", b'{"label": "walk", "begin": 990, "end": 1010}'),
        ("kitchen", b'{"label": "walk", "begin": -9000, "end": 990}'),
        ("kitchen", b'{"label": "walk", "begin": -99010, "end": -99000}'),
        ("attic", b"walk"),
    ],
)
def test_labels_that_cannot_be_are_refused(room, content, caplog):
    home = Home()
    home.online(*DEVICES)
    home.bus.publish(TOPICS.label(room), content)
    home.edge.step()
    assert not home.corrections()
    assert f"a label for {room} was refused" in caplog.text
    assert home.edge.dropped["bad label"] == 1


def test_old_retained_messages_are_not_taken_for_new():
    bus = Memory()
    bus.publish(TOPICS.label("kitchen"), b"walk", retain=True)
    bus.publish(TOPICS.decision("watch"), written(Decision(1000.0, 1, (0.0, 1.0, 0.0))), retain=True)
    home = Home(bus=bus)
    home.heard.clear()
    home.online("watch")
    assert not home.corrections()
    assert home.last(TOPICS.state("kitchen")) is None


def test_a_device_is_who_its_topic_says_and_bad_messages_are_counted():
    home = Home()
    home.online(*DEVICES)
    claims = b'{"at": 1000.0, "round": 1, "probabilities": [0, 1, 0], "device": "band", "room": "bath"}'
    home.bus.publish(TOPICS.decision("watch"), claims)
    home.edge.step()
    assert home.room("kitchen").activity == "walk"
    assert home.last(TOPICS.state("bath")) is None
    bad = [b"", b"{", b"[]", b'{"at": 1, "probabilities": [1, 0]}', b'{"at": "x", "probabilities": [1, 0, 0]}', b"\xff"]
    bad += [b'{"at": %s, "probabilities": [1, 0, 0]}' % at for at in (b"1" * 400, b"1e400", b"NaN")]
    for content in bad:
        home.bus.publish(TOPICS.decision("watch"), content)
        home.edge.step()
    assert home.edge.dropped["bad message"] == len(bad)
    home.bus.publish(TOPICS.decision("stranger"), claims)
    assert home.edge.dropped["unknown device"] == 1
    home.bus.publish("fedfilt/other/devices/watch/decision", claims)
    with pytest.raises(ValueError, match="at most"):
        home.bus.publish(TOPICS.decision("watch"), b" " * (MOST_BYTES + 1))


def test_a_flood_crowds_nobody_out():
    home = Home()
    home.online(*DEVICES)
    home.bus.publish(TOPICS.decision("band"), written(Decision(1000.0, 1, (1.0, 0.0, 0.0))))
    home.bus.publish(TOPICS.label("kitchen"), b"walk")
    for number in range(20_000):
        home.bus.publish(TOPICS.decision("watch"), written(Decision(1000 + number / 1e5, 1, (0.0, 1.0, 0.0))))
    for _ in range(200):
        home.bus.publish(TOPICS.label("bath"), b"walk")
    home.edge.step()
    assert home.room("bath").activity == "rest"
    assert home.room("kitchen").activity == "walk"
    assert set(home.corrections()) == set(DEVICES)
    assert home.edge.dropped == {"replaced by a newer one": 19_999, "too many labels at once": 101}


def test_files_for_those_who_look(tmp_path, monkeypatch):
    monkeypatch.setattr(edges, "MOST_FILE", 2000)
    monkeypatch.setattr(edges, "STATE_EVERY", 0.0)
    home = Home(tmp_path)
    home.online("watch", accuracy=0.9, battery=0.5)
    for number in range(40):
        home.clock.time += 1
        home.says("watch", *((0.0, 1.0, 0.0) if number % 2 else (1.0, 0.0, 0.0)))
        home.says("watch", *((0.0, 1.0, 0.0) if number % 2 else (1.0, 0.0, 0.0)))
    lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert lines[-1]["room"] == "kitchen"
    assert lines[-1]["says"] == {"watch": {"label": "walk", "share": 1.0, "at": home.clock.time}}
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"decisions.jsonl", "decisions.1.jsonl", "devices.jsonl", "state.json"}
    assert max(sizes.values()) < 4000
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["rooms"]["kitchen"]["activity"] == "walk"
    assert state["rooms"]["bath"]["activity"] == UNKNOWN
    watch = state["devices"]["watch"]
    assert (watch["online"], watch["room"], watch["accuracy"], watch["battery"]) == (True, "kitchen", 0.9, 0.5)
    home.bus.publish(TOPICS.status("watch"), written(Status(online=False)))
    home.edge.step()
    online = [json.loads(line)["online"] for line in (tmp_path / "devices.jsonl").read_text().splitlines()]
    assert online == [True, False]


def test_a_disk_that_is_full_is_one_line_in_the_log(tmp_path, caplog):
    home = Home(tmp_path / "home")
    (tmp_path / "home" / "decisions.jsonl").mkdir()
    home.online("watch")
    for _ in range(3):
        home.clock.time += 100
        home.says("watch", 0.0, 1.0, 0.0)
    assert home.room("kitchen").activity == "walk"
    assert caplog.text.count("cannot write what happens") == 1


def test_home_assistant_is_told_what_there_is_again_and_what_is_gone():
    bus = Memory()
    room, device = (f"homeassistant/device/fedfilt-villa-{kind}/config" for kind in ("room-attic", "device-old"))
    for topic in (room, device, "homeassistant/device/somebody-else/config"):
        bus.publish(topic, b"{}", retain=True)
    home = Home(bus=bus)
    configs = {topic for topic, content in home.heard if topic.endswith("/config") and len(content) > 2}
    assert {topic.split("/")[2] for topic in configs} == {
        *("fedfilt-villa-room-kitchen", "fedfilt-villa-room-bath"),
        *(f"fedfilt-villa-device-{name}" for name in DEVICES),
    }
    home.heard.clear()
    home.online("watch", battery=0.7)
    assert "battery" in json.loads(home.last(assistant.found_at("fedfilt-villa-device-watch")))["components"]
    home.heard.clear()
    home.clock.time += SETTLE + 1
    home.edge.step()
    assert sorted(home.heard) == [(device, b""), (room, b"")]
    home.heard.clear()
    home.bus.publish(assistant.BIRTH, b"online")
    home.edge.step()
    assert {topic for topic, content in home.heard if content and topic.endswith("/config")} == configs
    home.heard.clear()
    home.online("band", room="garden")
    home.online("band")
    for _ in range(3):
        home.clock.time += FORGET
        home.edge.step()
    garden = assistant.found_at("fedfilt-villa-room-garden")
    assert [content == b"" for topic, content in home.heard if topic == garden] == [False, True]


def test_home_assistant_that_starts_over_and_over_is_told_once_a_step():
    home = Home()
    home.online("watch")
    for _ in range(10_000):
        home.bus.publish(assistant.BIRTH, b"online")
    home.heard.clear()
    home.edge.step()
    configs = [topic for topic, _ in home.heard if topic.endswith("/config")]
    assert len(configs) == len(set(configs)) == 5
    assert not home.edge._commands


def test_a_device_that_names_another_room_gets_nothing_of_it():
    """One that is listed in the bath claims to be in the kitchen, and never wrong."""
    home = Home(moving=())
    home.online("watch", "phone", accuracy=0.8)
    home.online("band", room="kitchen", accuracy=1.0)
    for name, shares in (("watch", (0.9, 0.05, 0.05)), ("phone", (0.9, 0.05, 0.05)), ("band", (0.0, 1.0, 0.0))):
        home.says(name, *shares)
    assert (home.room("kitchen").activity, home.room("kitchen").devices) == ("rest", 2)
    home.bus.publish(TOPICS.label("kitchen"), b"cook")
    home.edge.step()
    assert set(home.corrections()) == {"watch", "phone"}
    assert home.edge._table()["dropped"] == {"another room": 1}


def test_a_message_that_cannot_be_sent_ends_nothing():
    labels = [f"label {number} {'x' * 80}" for number in range(200)]  # Home Assistant would be told too much
    bus = Memory()
    edge = Edge(bus.member(), Hand(), TOPICS, labels, DEVICES)
    assert edge._table()["dropped"]["cannot be sent"] == 5
    bus.publish(TOPICS.status("watch"), written(Status(online=True, room="kitchen")))
    edge.step()
    assert edge.household.devices["watch"].status.online


def test_a_correction_after_a_restart_is_about_the_whole_time(tmp_path):
    bus = Memory()
    Home(tmp_path, bus=bus).online(*DEVICES)
    bus.publish(TOPICS.status("band"), written(Status(online=True, room="kitchen")), retain=True)
    home = Home(tmp_path, bus=bus)  # hears what is retained
    home.heard.clear()
    bus.publish(TOPICS.label("kitchen"), b'{"label": "cook", "seconds": 600}')
    home.edge.step()
    assert home.corrections() == dict.fromkeys(DEVICES, Correction("cook", 400.0, 1000.0))


def test_it_runs_until_it_is_stopped_and_its_will_is_kept():
    bus, got, stop = Memory(), threading.Event(), threading.Event()
    bus.subscribe(TOPICS.state("kitchen"), lambda _, content: got.set())
    member = bus.member((TOPICS.edge, OFFLINE))
    edge = Edge(member, Clock(), TOPICS, LABELS, DEVICES)
    running = threading.Thread(target=edge.run, args=(stop,))
    running.start()
    try:
        bus.publish(TOPICS.decision("watch"), written(Decision(time.time(), 1, (0.0, 1.0, 0.0))))
        assert got.wait(60)
    finally:
        stop.set()
        running.join(60)
        member.close()
    assert not running.is_alive()
    said = []
    bus.subscribe(TOPICS.edge, lambda _, content: said.append(content))
    assert said == [OFFLINE]
