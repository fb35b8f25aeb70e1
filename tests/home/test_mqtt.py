"""The bus on a real Mosquitto, with TLS and the ACL that `fedfilt home write` makes; some of it without a broker."""

import logging
import shutil
import stat
import sys
import threading
import time
import tomllib
from functools import partial

import pytest
import tomli_w

pytest.importorskip("flwr")
pytest.importorskip("paho")

from brokers import ROOMS, TOPICS, WAIT, Broker, Heard, home_written, needs_mosquitto, quiet
from deployments import free_port, own_experiment
from deployments import written as deployed
from fedfilt.data.own import Making
from fedfilt.flower.deploy.certificates import certificates, client
from fedfilt.flower.deploy.home_toml import EARS
from fedfilt.home import mqtt
from fedfilt.home.clock import Clock
from fedfilt.home.edge import OFFLINE, ONLINE, Edge
from fedfilt.home.mqtt import MOST_WAITING, Keys, Mqtt
from fedfilt.home.topics import MOST_BYTES, Decision, RoomState, Status, correction, room_state, written
from fedfilt.sources.mqtt import Mqtt as Source
from helpers import SLOW, call, command, contents, until

LABELS = ("vacuuming", "ironing", "sleeping")


@pytest.fixture(scope="module")
def building(tmp_path_factory):
    return home_written(tmp_path_factory.mktemp("home"))


@pytest.fixture
def broker(building, kept):
    return Broker(building, kept)


@pytest.mark.slow(4)
def test_home_write_makes_everything_or_nothing(building):
    for name, room in ROOMS.items():
        own = tomllib.loads((building / "devices" / name / "home.toml").read_text())
        where = f"127.0.0.1:{own['broker'].split(':')[1]}"
        assert own == {"home": "villa", "device": name, "room": room, "broker": where, "tls": True}
    keys = [*building.rglob("mqtt/*.key"), *building.rglob("broker/*.key"), *building.rglob("assistant/*.key")]
    assert len(keys) == 4 + 3 + 1 + 1
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert len({key.read_bytes() for key in keys}) == len(keys)
    assert not list(building.rglob("broker/ca.key"))
    before = contents(building)
    again = call("home", "write", building, "--home", "other")
    assert again.returncode == 1
    assert "exists already" in again.stderr
    for words, said in (
        (("--home", "a/b"), "a home must be"),
        (("--room", "device-000=x/y"), "a room must be"),
        (("--room", "nobody=bath"), "got 'nobody'"),
        (("--room", "device-000"), "--room must be NAME=VALUE"),
    ):
        done = call("home", "write", building, *words)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert contents(building) == before


@needs_mosquitto
@pytest.mark.slow(6)
def test_a_spy_and_a_spoofer_get_nothing_through(broker):
    edge, watch, spy = broker.edge(), broker.device("device-000"), broker.device("device-002")
    at_edge, at_watch, at_spy = Heard(edge, "fedfilt/villa/#"), Heard(watch, TOPICS.correction("device-000")), None
    at_spy = Heard(spy, "#")
    more = [Heard(spy, pattern) for pattern in ("fedfilt/#", TOPICS.correction("device-000"), TOPICS.decision("+"))]
    for topic in (
        *(TOPICS.decision("device-000"), TOPICS.status("device-000"), TOPICS.correction("device-000")),
        *(TOPICS.state("kitchen"), TOPICS.label("kitchen"), TOPICS.edge, "homeassistant/device/x/config", "other"),
    ):
        spy.publish(topic, b"spoof", retain=True)
        spy.publish(topic, b"spoof")
    until(lambda: spy.dropped["refused by the broker (Not authorized)"] == 8, "the broker's word on each", WAIT)
    watch.publish(TOPICS.decision("device-000"), b"true")
    edge.publish(TOPICS.correction("device-000"), b"secret")
    edge.publish(TOPICS.state("kitchen"), b"private", retain=True)
    spy.publish(TOPICS.decision("device-002"), b"own")
    edge.publish(TOPICS.correction("device-002"), b"own")
    at_watch.wait(TOPICS.correction("device-000"), b"secret")
    at_edge.wait(TOPICS.decision("device-000"), b"true")
    at_edge.wait(TOPICS.decision("device-002"), b"own")
    at_spy.wait(TOPICS.correction("device-002"), b"own")
    quiet()
    assert not [content for _, content in at_edge if content == b"spoof"]
    assert at_watch == [(TOPICS.correction("device-000"), b"secret")]
    assert {topic for heard in (at_spy, *more) for topic, _ in heard} == {TOPICS.correction("device-002")}
    late = broker.client("assistant", "homeassistant")
    at_late = Heard(late, "fedfilt/villa/#")  # nor did it leave anything behind
    at_late.wait(TOPICS.state("kitchen"), b"private")
    assert not [content for _, content in at_late if content == b"spoof"]
    for bus in (edge, watch, spy, late):
        bus.close()


@needs_mosquitto
@pytest.mark.slow(5)
def test_nobody_enters_without_a_certificate_or_takes_anothers_place(broker, building, caplog, tmp_path):
    caplog.set_level(logging.INFO, "fedfilt")
    where = broker.where
    plain = Mqtt(where.host, where.port, "device-000")
    certificates(tmp_path / "other", where)
    client(tmp_path / "other", tmp_path / "stranger", "device-000")
    shutil.copyfile(building / "broker" / "ca.crt", tmp_path / "stranger" / "ca.crt")
    stranger = Mqtt(where.host, where.port, "device-000", keys=Keys.of(tmp_path / "stranger"))
    assert not plain.wait(1.5)
    assert not stranger.wait(1.5)
    assert caplog.text.count("hangs up before letting us in") == 2
    for bus in (plain, stranger):
        bus.close()
    # A client identifier of one's choice does not end another's session: the certificate says who it is
    watch = broker.device("device-000", will=(TOPICS.status("device-000"), b"gone"))
    edge = broker.edge()
    heard = Heard(edge, TOPICS.status("+"))
    thief = Mqtt(where.host, where.port, "device-000", keys=Keys.of(building / "devices" / "device-002" / "mqtt"))
    assert thief.wait(SLOW)
    watch.publish(TOPICS.status("device-000"), b"here", retain=True)
    heard.wait(TOPICS.status("device-000"), b"here")
    assert (TOPICS.status("device-000"), b"gone") not in heard
    for bus in (watch, edge, thief):
        bus.close()


@needs_mosquitto
@pytest.mark.slow(6)
def test_wills_expiry_and_sizes(broker):
    edge = broker.edge()
    heard = Heard(edge, TOPICS.status("+"))
    watch = broker.device("device-000", will=(TOPICS.status("device-000"), b"offline"))
    watch.publish(TOPICS.status("device-000"), b"here", retain=True)
    heard.wait(TOPICS.status("device-000"), b"here")
    watch.close()
    heard.wait(TOPICS.status("device-000"), b"offline")

    edge.publish(TOPICS.state("kitchen"), b"old", retain=True, expires=1)
    edge.publish(TOPICS.state("bath"), b"new", retain=True, expires=100)
    with pytest.raises(ValueError, match="at most"):
        edge.publish(TOPICS.state("bath"), b" " * (MOST_BYTES + 1))
    largest = Heard(edge, TOPICS.label("+"))
    edge.publish(TOPICS.label("bath"), b" " * MOST_BYTES)
    largest.wait(TOPICS.label("bath"))  # it fits, and we are still connected
    quiet(2.5)
    late = broker.client("assistant", "homeassistant")
    at_late = Heard(late, TOPICS.state("+"))
    at_late.wait(TOPICS.state("bath"), b"new")
    assert (TOPICS.state("kitchen"), b"old") not in at_late
    for bus in (edge, late):
        bus.close()


@needs_mosquitto
@pytest.mark.slow(12)
def test_a_broker_that_is_killed_and_comes_back(broker, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "fedfilt")
    edge, watch = broker.edge(will=(TOPICS.edge, OFFLINE)), broker.device("device-000")
    edge.publish(TOPICS.edge, ONLINE, retain=True)
    at_edge, at_watch = Heard(edge, TOPICS.decision("+")), Heard(watch, TOPICS.correction("device-000"))
    watch.publish(TOPICS.decision("device-000"), b"0")
    at_edge.wait(TOPICS.decision("device-000"), b"0")

    def away(sender, heard):
        """Kill the broker, and give what is sent meanwhile to those who are back before the sender is."""

        def not_yet():
            raise OSError("not yet")

        with monkeypatch.context() as patch:
            patch.setattr(sender._client, "reconnect", not_yet)
            broker.kill()
            until(lambda: not (edge.wait(0) or watch.wait(0)), "both notice")
            heard.listens.clear()
            yield
            broker.start()
            assert heard.listens.wait(SLOW)
        yield

    until(lambda: watch._last.is_published(), "the broker has acknowledged it")
    broker.freeze()
    watch.publish(TOPICS.decision("device-000"), b"unacknowledged")  # is sent again, besides all that waits
    gone = away(watch, at_edge)
    next(gone)
    for number in range(1, MOST_WAITING + 11):
        watch.publish(TOPICS.decision("device-000"), b"%d" % number)
    next(gone)
    at_edge.wait(TOPICS.decision("device-000"), b"%d" % (MOST_WAITING + 10))
    at_edge.wait(TOPICS.decision("device-000"), b"unacknowledged")
    assert watch.dropped == {"too many were waiting for the broker": 10}
    gone = away(edge, at_watch)
    next(gone)
    edge.publish(TOPICS.correction("device-000"), b"old", expires=0.01)
    edge.publish(TOPICS.correction("device-000"), b"kept", expires=600)
    next(gone)
    at_watch.wait(TOPICS.correction("device-000"), b"kept")
    assert edge.dropped == {"expired before the broker was back": 1}
    assert (TOPICS.correction("device-000"), b"old") not in at_watch
    person = broker.client("server/mqtt", "people", "people")
    seen = Heard(person, TOPICS.edge)
    until(lambda: seen and seen[-1][1] == ONLINE, "the edge server is online again")
    for line, count in (
        ("lost the connection to the broker", 4),
        ("messages were dropped: 1 ", 2),
    ):  # by both clients, twice and once
        assert caplog.text.count(line) == count, caplog.text
    for bus in (edge, watch, person):
        bus.close()


@needs_mosquitto
@pytest.mark.slow(2)
def test_a_handler_that_has_unsubscribed_hears_nothing_more(broker):
    edge, watch, first = broker.edge(), broker.device("device-000"), []
    second = Heard(watch, TOPICS.correction("device-000"))

    def handler(topic, content):
        first.append(content)

    watch.subscribe(TOPICS.correction("device-000"), handler)
    watch.unsubscribe(handler)
    edge.publish(TOPICS.correction("device-000"), b"a")
    second.wait(TOPICS.correction("device-000"), b"a")  # the other one still listens
    told = threading.Event()
    watch._client.on_unsubscribe = lambda *_: told.set()
    watch.unsubscribe(watch._handlers[0][1])
    assert told.wait(WAIT), "and the broker knows that nobody does now"
    assert not first
    assert not watch._handlers
    for bus in (edge, watch):
        bus.close()


@needs_mosquitto
@pytest.mark.slow(5)
def test_a_flood_of_decisions_crowds_out_no_label(broker):
    bus, ears = broker.edge(), broker.client("server/mqtt", EARS, EARS)
    devices = {name: broker.device(name) for name in ROOMS}
    told = Heard(devices["device-000"], TOPICS.correction("device-000"))
    edge = Edge(bus, Clock(), TOPICS, LABELS, ROOMS, ears=ears)
    for name, device in devices.items():
        device.publish(TOPICS.status(name), written(Status(online=True)), retain=True)
    until(lambda: edge.received == len(ROOMS), "the edge server hears")
    person = broker.client("server/mqtt", "people", "people")
    with edge._lock:  # it is busy; the broker keeps 1,000 messages for a client
        for name, device in devices.items():
            for _ in range(MOST_WAITING - 100):
                device.publish(TOPICS.decision(name), b"x" * 100)
        for device in devices.values():
            device._last.wait_for_publish(WAIT)
            assert not device.dropped
        person.publish(TOPICS.label("kitchen"), b"sleeping")
        person._last.wait_for_publish(WAIT)
    until(lambda: edge.step() and told, "the label has become a correction", WAIT)
    for one in (bus, ears, person, *devices.values()):
        one.close()


@needs_mosquitto
@pytest.mark.slow(5)
def test_the_command_runs_a_home(broker, building, kept, tmp_path):
    log = tmp_path / "home.log"
    process = kept.start(command("home", building / "server"), log)
    watch, band = (broker.device(name) for name in ("device-000", "device-002"))
    at_watch, at_band = (
        Heard(bus, TOPICS.correction(name)) for bus, name in ((watch, "device-000"), (band, "device-002"))
    )
    person = broker.client("assistant", "homeassistant")
    rooms, edge = Heard(person, TOPICS.state("+")), Heard(person, TOPICS.edge)
    edge.wait(TOPICS.edge, ONLINE)
    watch.subscribe(TOPICS.correction("device-000"), lambda _, said: watch.publish(TOPICS.kept("device-000"), said))
    watch.publish(TOPICS.status("device-000"), written(Status(online=True)), retain=True)
    watch.publish(TOPICS.decision("device-000"), written(Decision(time.time(), 3, (0.1, 0.8, 0.1))))
    rooms.wait(TOPICS.state("kitchen"))
    state = room_state(rooms[-1][1])
    assert state == RoomState(state.at, "ironing", 0.8, {"vacuuming": 0.1, "ironing": 0.8, "sleeping": 0.1}, 1)

    done = call("home", "label", "kitchen", "sleeping", "--last", "1min", "--folder", building / "server")
    assert done.returncode == 0, done.stderr
    at_watch.wait(TOPICS.correction("device-000"))
    told = correction(at_watch[0][1], LABELS)
    assert (told.label, round(told.end - told.begin)) == ("sleeping", 60)
    assert "told device-000, device-001" in done.stdout
    done = call("home", "label", "kitchen", "ironing", "--last", "5s", "--ago", "1h", "--folder", building / "server")
    assert done.returncode == 0, done.stderr
    until(lambda: len(at_watch) == 2, "another correction")
    earlier = correction(at_watch[1][1], LABELS)
    assert round(earlier.end - earlier.begin) == 5
    assert 3500 < told.end - earlier.end <= 3600
    assert not at_band
    for words, said in (
        (("kitchen", "flying"), "unknown label 'flying'"),
        (("kitchen", "sleeping", "--last", "soon"), "--last must be a time"),
        (("a/b", "sleeping"), "unknown room"),
        (("attic", "sleeping"), "no device was in 'attic' at that time; the rooms are bath, kitchen"),
        (("kitchen", "sleeping", "--ago", "2d"), "--ago must be a time of at most 86400 s"),
    ):
        done = call("home", "label", *words, "--folder", building / "server")
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    second = call("home", "run", building / "server")
    assert "in use by process" in second.stderr
    process.terminate()
    assert process.wait(SLOW) == 0, log.read_text()
    edge.wait(TOPICS.edge, OFFLINE)
    assert (building / "server" / "home" / "corrections.jsonl").read_text().count("\n") == 2
    for bus in (watch, band, person):
        bus.close()


@needs_mosquitto
@pytest.mark.slow(12)
def test_a_home_grows_and_shrinks_with_its_deployment_while_it_runs(tmp_path, kept):
    building = home_written(tmp_path)
    broker = Broker(building, kept)
    kept.start(command("home", building / "server"), tmp_path / "home.log")
    person = broker.client("assistant", "homeassistant")
    rooms, edge = Heard(person, TOPICS.state("+")), Heard(person, TOPICS.edge)
    edge.wait(TOPICS.edge, ONLINE)
    assert "nothing has changed" in call("home", "update", building).stdout
    listed = building / "server" / "home.toml"
    listed.write_text(f'moving = ["device-002", "device-003"]\n{listed.read_text()}')
    for words in (("add", "lamp", "--room", "room-0"), ("remove", "device-003")):
        done = call("deploy", *words, "--building", building)
        assert done.returncode == 0, done.stderr
    before = contents(building)
    wrong = call("home", "update", building, "--room", "lamp=a/b")
    assert (wrong.returncode, "a room must be" in wrong.stderr, contents(building)) == (1, True, before)
    done = call("home", "update", building, "--room", "lamp=bath", "--room", "device-001=attic")
    said = ["lamp takes part in bath", "device-001 is now in attic", "device-003 is no longer admitted"]
    assert done.stdout.splitlines() == said, done.stderr
    assert tomllib.loads((building / "devices" / "device-001" / "home.toml").read_text())["room"] == "attic"
    assert tomllib.loads(listed.read_text())["moving"] == ["device-002"]
    now = "may publish now: device-000, device-001, device-002, lamp"
    until(lambda: now in (tmp_path / "home.log").read_text(), "the edge server's word")
    lamp = broker.device("lamp")
    gone = Mqtt(broker.where.host, broker.where.port, "x", keys=Keys.of(building / "devices" / "device-003" / "mqtt"))
    lamp.publish(TOPICS.decision("lamp"), written(Decision(time.time(), 3, (0.7, 0.3, 0.0))))
    rooms.wait(TOPICS.state("bath"))
    state = room_state(rooms[-1][1])
    assert (state.devices, state.confidence) == (1, 0.7)
    assert not gone.wait(2)
    shutil.move(building / "devices" / "device-001", tmp_path / "elsewhere")
    done = call("home", "update", building, "--room", "device-001=kitchen")
    assert "device-001 is now in kitchen; its folder is not here: change its home.toml too" in done.stdout, done.stderr
    right = listed.read_text()

    def logged(line):
        return line in (tmp_path / "home.log").read_text()

    for old, new, line in (
        ('device-000 = "kitchen"', 'device-000 = "a+b"', "a room must be up to 40 letters"),
        ('moving = [\n    "device-002"', 'moving = [\n    "nobody"', "moving must name listed devices"),
        ("[devices]", "[gadgets]", "must list the devices with their rooms"),
    ):
        assert old in right
        listed.write_text(right.replace(old, new))
        until(partial(logged, line), f"{line} in the log")
    assert (tmp_path / "home.log").read_text().count("the devices stay as they were") == 3
    listed.write_text(right)
    lamp.publish(TOPICS.decision("lamp"), written(Decision(time.time(), 3, (0.2, 0.8, 0.0))))
    until(lambda: room_state(rooms[-1][1]).confidence == 0.8, "the home goes on")
    for bus in (lamp, gone, person):
        bus.close()


@needs_mosquitto
@pytest.mark.slow(10)
def test_a_device_that_was_stolen_and_replaced_has_new_keys_and_the_thief_none(tmp_path, kept):
    building = home_written(tmp_path)
    broker, folder = Broker(building, kept), building / "devices" / "device-001"
    shutil.copytree(folder / "mqtt", tmp_path / "stolen")
    done = call("deploy", "replace", "device-001", "--building", building)
    assert done.returncode == 0, done.stderr
    assert call("home", "update", building).stdout.splitlines() == ["device-001 has new keys"]
    assert call("home", "update", building).stdout.splitlines() == ["nothing has changed"]
    assert (folder / "mqtt" / "client.key").read_bytes() != (tmp_path / "stolen" / "client.key").read_bytes()
    assert tomllib.loads((folder / "home.toml").read_text())["room"] == "kitchen"
    edge = broker.edge()
    heard = Heard(edge, TOPICS.decision("device-001"))
    thief = Mqtt(broker.where.host, broker.where.port, "device-001", keys=Keys.of(tmp_path / "stolen"))
    thief.publish(TOPICS.decision("device-001"), b"stolen")
    new, other = broker.device("device-001"), broker.device("device-000")
    new.publish(TOPICS.decision("device-001"), b"new")
    heard.wait(TOPICS.decision("device-001"), b"new")
    assert not thief.wait(2)
    assert (TOPICS.decision("device-001"), b"stolen") not in heard
    for bus in (edge, thief, new, other):
        bus.close()


@needs_mosquitto
@pytest.mark.slow(8)
def test_sensors_send_and_only_the_devices_that_may_read_them_hear(tmp_path, kept):
    building = home_written(tmp_path)
    broker = Broker(building, kept)
    before = contents(building)
    for words, wanted in (
        (("--sensor", "device-000=z/#"), "a sensor must not be called 'device-000'"),
        (("--sensor", "bridge=fedfilt/villa/#"), "or begin with fedfilt"),
        (("--sensor", "bridge=#"), "or begin with"),
        (("--sensor", "bridge=a b"), "must not contain spaces"),
        (("--reads", "nobody=z/hall"), "got 'nobody'"),
        (("--reads", "device-000"), "--reads must be NAME=VALUE"),
    ):
        wrong = call("home", "update", building, *words)
        assert (wrong.returncode, wanted in wrong.stderr, contents(building) == before) == (1, True, True), wrong.stderr
    reads = "--reads", "device-000=z/hall", "--reads", "device-000=statestream/stove/state"
    done = call("home", "update", building, "--sensor", "bridge=z/#", *reads)
    said = ["bridge may publish on z/#", "device-000 may read z/hall, statestream/stove/state"]
    assert done.stdout.splitlines() == said, done.stderr
    bridge, assistant = broker.client("sensors/bridge", "bridge"), broker.client("assistant", "homeassistant")
    watch, other = broker.device("device-000"), broker.device("device-002")
    source = Source(channels=("z/hall#occupancy", "statestream/stove/state"), every=0.05)
    making, stop = Making(shape=(2, 4), rate=20.0, channels=("occupancy", "power")), threading.Event()
    readings = source.readings(making, watch, Clock(), stop)
    at_other = Heard(other, "z/#")
    bridge.publish("z/hall", b'{"occupancy": true}', retain=True)
    assistant.publish("statestream/stove/state", b"120.5", retain=True)
    until(lambda: next(readings).values.tolist() == [1.0, 120.5], "the sensors' values", WAIT)
    stop.set()
    bridge.publish(TOPICS.decision("device-000"), b"spoof")
    until(lambda: bridge.dropped.total() == 1, "the broker's word", WAIT)
    assert not at_other
    for bus in (bridge, assistant, watch, other):
        bus.close()


def test_more_labels_than_home_assistant_can_be_told_of_are_refused(tmp_path):
    table = tomllib.loads(own_experiment(tmp_path / "homes"))
    table["data"]["labels"] += [f"{number:040d}" for number in range(200)]
    building = deployed(tmp_path, experiment=tomli_w.dumps(table))
    done = call("home", "write", building)
    assert (done.returncode, "labels are too many or too long" in done.stderr) == (1, True), done.stderr
    assert not (building / "broker").exists()


@pytest.mark.slow(3)
def test_without_a_broker_it_waits_and_says_so_once(caplog, monkeypatch):
    monkeypatch.setattr(mqtt, "LATEST", 1)
    port = free_port()
    bus = Mqtt("127.0.0.1", port, "watch")
    bus.subscribe("a", lambda *_: None)
    for number in range(MOST_WAITING + 5):
        bus.publish("a", b"x")
        bus.publish(f"kept/{number}", b"y", retain=True)
    assert bus.dropped.total() == 10
    assert not bus.wait(2.5)
    bus.close()
    assert caplog.text.count(f"{port} cannot be reached") == 1


def test_a_device_of_a_home_says_what_is_missing_or_wrong(tmp_path, monkeypatch):
    building = home_written(tmp_path)
    folder = building / "devices" / "device-000"
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "paho", None)
        done = call("device", "run", folder)
    assert (done.returncode, "needs paho-mqtt" in done.stderr) == (1, True), done.stderr
    about = (folder / "home.toml").read_text()
    (folder / "home.toml").write_text(about.replace('room = "kitchen"', 'room = "living room"'))
    done = call("device", "run", folder)
    assert (done.returncode, "got 'living room'" in done.stderr) == (1, True), done.stderr


def test_a_folder_without_a_home_is_named(tmp_path):
    done = call("home", tmp_path)
    assert (done.returncode, "must hold home.toml" in done.stderr) == (1, True)
    (tmp_path / "home.toml").write_text('home = "villa"\n')
    assert "must have the keys broker, tls" in call("home", "run", tmp_path).stderr
