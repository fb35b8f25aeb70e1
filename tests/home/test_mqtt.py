"""The bus on a real Mosquitto, with TLS and the ACL that `fedfilt home write` makes; some of it without a broker."""

import logging
import shutil
import stat
import time
import tomllib

import pytest

pytest.importorskip("flwr")
pytest.importorskip("paho")

from brokers import ROOMS, TOPICS, WAIT, Broker, Heard, home_written, needs_mosquitto, quiet
from deployments import free_port
from fedfilt.flower.deploy.certificates import certificates, client
from fedfilt.flower.home import EARS
from fedfilt.home import mqtt
from fedfilt.home.clock import Clock
from fedfilt.home.edge import OFFLINE, ONLINE, Edge
from fedfilt.home.mqtt import MOST_WAITING, Keys, Mqtt
from fedfilt.home.topics import MOST_BYTES, Decision, RoomState, Status, correction, room_state, written
from helpers import call, command, contents, until

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
    assert "is there already" in again.stderr
    for words, said in (
        (("--home", "a/b"), "a home must be"),
        (("--room", "device-000=x/y"), "a room must be"),
        (("--room", "nobody=bath"), "got 'nobody'"),
        (("--room", "device-000"), "DEVICE=ROOM"),
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
    assert caplog.text.count("hangs up before it lets us in") == 2
    for bus in (plain, stranger):
        bus.close()
    # A client identifier of one's choice does not end another's session: the certificate says who it is
    watch = broker.device("device-000", will=(TOPICS.status("device-000"), b"gone"))
    edge = broker.edge()
    heard = Heard(edge, TOPICS.status("+"))
    thief = Mqtt(where.host, where.port, "device-000", keys=Keys.of(building / "devices" / "device-002" / "mqtt"))
    assert thief.wait(60)
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
@pytest.mark.slow(6)
def test_a_broker_that_is_killed_and_comes_back(broker, caplog):
    caplog.set_level(logging.INFO, "fedfilt")
    edge = broker.edge(will=(TOPICS.edge, OFFLINE), session=3600)
    watch = broker.device("device-000", session=3600)
    edge.publish(TOPICS.edge, ONLINE, retain=True)
    at_edge, at_watch = Heard(edge, TOPICS.decision("+")), Heard(watch, TOPICS.correction("device-000"))
    watch.publish(TOPICS.decision("device-000"), b"0")
    at_edge.wait(TOPICS.decision("device-000"), b"0")
    broker.save()
    broker.kill()
    until(lambda: not (edge.wait(0) or watch.wait(0)), "both notice")
    for number in range(1, MOST_WAITING + 11):
        watch.publish(TOPICS.decision("device-000"), b"%d" % number)
    edge.publish(TOPICS.correction("device-000"), b"old", expires=0.01)
    edge.publish(TOPICS.correction("device-000"), b"kept", expires=600)
    broker.start()
    at_edge.wait(TOPICS.decision("device-000"), b"%d" % (MOST_WAITING + 10))
    at_watch.wait(TOPICS.correction("device-000"), b"kept")
    assert watch.dropped == {"too many waited for the broker": 10}
    assert edge.dropped == {"expired before the broker was there": 1}
    assert (TOPICS.correction("device-000"), b"old") not in at_watch
    person = broker.client("server/mqtt", "people", "people")
    seen = Heard(person, TOPICS.edge)
    until(lambda: seen and seen[-1][1] == ONLINE, "the edge server is online again")
    for line in ("is gone", "messages were dropped: 1 "):
        assert caplog.text.count(line) == 2, caplog.text  # one of each of the two clients
    for bus in (edge, watch, person):
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
@pytest.mark.slow(4)
def test_a_device_gets_what_it_missed(broker):
    edge, watch = broker.edge(), broker.device("device-000", session=3600)
    Heard(watch, TOPICS.correction("device-000"))
    watch.close()
    edge.publish(TOPICS.correction("device-000"), b"while away", expires=600)
    back = broker.device("device-000", session=3600)
    quiet(0.5)  # it has come, before anybody here could take it
    heard = Heard(back, TOPICS.correction("device-000"))
    heard.wait(TOPICS.correction("device-000"), b"while away")
    for bus in (edge, back):
        bus.close()


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
    assert not at_band
    for words, said in (
        (("kitchen", "flying"), "unknown label 'flying'"),
        (("kitchen", "sleeping", "--last", "soon"), "--last must be a time"),
        (("a/b", "sleeping"), "unknown room"),
    ):
        done = call("home", "label", *words, "--folder", building / "server")
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    second = call("home", "run", building / "server")
    assert "in use by process" in second.stderr
    process.terminate()
    assert process.wait(60) == 0, log.read_text()
    edge.wait(TOPICS.edge, OFFLINE)
    assert (building / "server" / "home" / "corrections.jsonl").read_text().count("\n") == 1
    for bus in (watch, band, person):
        bus.close()


@pytest.mark.slow(3)
def test_without_a_broker_it_waits_and_says_so_once(caplog, monkeypatch):
    monkeypatch.setattr(mqtt, "LATEST", 1)
    bus = Mqtt("127.0.0.1", free_port(), "watch")
    bus.subscribe("a", lambda *_: None)
    for number in range(MOST_WAITING + 5):
        bus.publish("a", b"x")
        bus.publish(f"kept/{number}", b"y", retain=True)
    assert bus.dropped.total() == 10
    assert not bus.wait(2.5)
    bus.close()
    assert caplog.text.count("cannot be reached") == 1


def test_a_folder_without_a_home_is_named(tmp_path):
    done = call("home", tmp_path)
    assert (done.returncode, "must hold home.toml" in done.stderr) == (1, True)
    (tmp_path / "home.toml").write_text('home = "villa"\n')
    assert "must say broker, tls" in call("home", "run", tmp_path).stderr
