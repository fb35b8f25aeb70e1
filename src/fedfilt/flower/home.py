"""The living home of a deployment: connects the folders that `fedfilt home write` made to their broker."""

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedfilt._checks import check_choice, check_count, check_number
from fedfilt._files import locked
from fedfilt._types import Table
from fedfilt.flower.deploy.address import address
from fedfilt.flower.deploy.home_toml import EARS, EDGE, PEOPLE, listed, settings
from fedfilt.flower.deploy.pace import NEXT
from fedfilt.flower.deploy.supervise import stoppable
from fedfilt.flower.device import Device
from fedfilt.home.clock import Clock
from fedfilt.home.decider import Decider, last_will
from fedfilt.home.edge import OFFLINE, ONLINE, Edge
from fedfilt.home.mqtt import Keys, Mqtt
from fedfilt.home.rooms import Voting
from fedfilt.home.stream import LATEST
from fedfilt.home.topics import Correction, Topics, check_name, written
from fedfilt.home.topics import correction as parsed

log = logging.getLogger("fedfilt")
PATIENCE = 10.0  # seconds that a command waits for the broker or the edge server
FASTEST = 10_000.0  # times real time


def clock_of(table: Table) -> Clock:
    """The clock for a home.toml: the machine's or, with [clock], a faster one for rehearsals.

    >>> clock_of({}).speed, clock_of({"clock": {"speed": 500.0, "origin": 1.7e9}}).speed
    (1.0, 500.0)
    """
    given = table.get("clock")
    if given is None:
        return Clock()
    if not isinstance(given, dict) or not {"speed", "origin"} <= set(given):
        raise ValueError(f"[clock] must have the keys speed and origin, got {given!r}")
    for key in given:
        check_choice("key of [clock]", key, ("speed", "origin"))
    clock = Clock(
        check_number("clock.speed", given["speed"], 0, FASTEST, above=True),
        origin=check_number("clock.origin", given["origin"], 0, LATEST),
    )
    if not 0 <= clock.now() <= LATEST:
        raise ValueError(
            f"clock.origin must be the time at which the rehearsal starts, in seconds since 1970, got "
            f"{given['origin']:g}: at that speed it would be long over or far in the future"
        )
    return clock


def connect(folder: Path, name: str, file: str = "client", will: tuple[str, bytes] | None = None) -> Mqtt:
    """Join the bus of the home that a folder belongs to, with the keys in its `mqtt` folder."""
    table = settings(folder)
    where = address(table["broker"])
    keys = Keys.of(folder / "mqtt", file) if table["tls"] else None
    return Mqtt(where.host, where.port, name, keys=keys, will=will)


def keep_home(folder: Path, each: Callable[[], None] = lambda: None) -> None:
    """Be the edge server of a home until stopped; it records what happens in the folder `home` inside the given one.

    `each` is called every now and then.
    """
    each()
    table = settings(folder)
    topics, files, clock = Topics(table["home"]), folder / "home", clock_of(table)
    try:
        voting, labels = Voting(**table.get("vote", {})), list(table["labels"])
        correct_seconds = table.get("correct_seconds", 30.0)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'home.toml'} must be as fedfilt home write makes it: {error}") from None
    known, corrected = listed(table), asking(folder, table.get("round_after", 0))
    follow = _following(folder)
    files.mkdir(exist_ok=True)
    with locked(files), stoppable():
        bus, ears = connect(folder, EDGE, EDGE, (topics.edge, OFFLINE)), connect(folder, EARS, EARS)
        try:
            edge = Edge(
                bus,
                clock,
                topics,
                labels,
                **known,
                ears=ears,
                voting=voting,
                folder=files,
                correct_seconds=correct_seconds,
                corrected=corrected,
            )
            log.info("%d devices may publish in %s", len(known["devices"]), topics.home)

            def turn() -> None:
                follow(edge.enlist)
                each()

            edge.run(threading.Event(), turn)
        finally:
            ears.close()
            bus.close()


def _following(folder: Path) -> Callable[[Callable[..., None]], None]:
    """A function to call every now and then, with one that enlists the devices of a changed home.toml."""

    known = (folder / "home.toml").stat().st_mtime_ns

    def look(enlist: Callable[..., None]) -> None:
        nonlocal known
        try:
            found = (folder / "home.toml").stat().st_mtime_ns
        except OSError:
            return
        if found == known:
            return
        known = found
        try:
            known_now = listed(settings(folder))
            enlist(**known_now)
        except ValueError as error:
            log.warning("%s; the devices stay as they were", error)
        else:
            log.info("devices that may publish now: %s", ", ".join(sorted(known_now["devices"])) or "none")

    return look


def asking(folder: Path, corrections: int) -> Callable[[], None]:
    """A function to call for every correction; it requests a training round after that many of them (0: never)."""
    check_count("round_after", corrections, low=0)
    given = itertools.count(1)

    def corrected() -> None:
        if corrections and not next(given) % corrections:
            (folder / NEXT).touch()

    return corrected


@contextmanager
def deciding(folder: Path) -> Iterator[None]:
    """If a folder's device belongs to a home, let it decide on what it senses while the block runs."""
    if not (folder / "home.toml").exists():
        yield
        return
    table, device = settings(folder), Device.read(folder)
    if device.source is None:
        raise ValueError("a device can decide on what it senses only if it has own data")
    name, topics, clock, stop = table["device"], Topics(table["home"]), clock_of(table), threading.Event()
    room = check_name("room", table.get("room"))
    bus = connect(folder, name, will=last_will(topics, name))
    try:
        making = device.source.making
        trainer = Device.read(folder).desk.trainer  # a separate one: it decides while the other trains
        decider = Decider(folder, making, trainer, bus, topics, name, room, clock)
        threading.Thread(target=decider.watch, args=(stop,), daemon=True).start()
        if decider.settings.source:
            threading.Thread(target=decider.live, args=(stop,), daemon=True).start()
        else:
            log.warning("%s has no readings: its own.toml has no [source]", name)
        yield
    finally:
        stop.set()
        bus.close()


def label(folder: Path, room: str, said: Correction) -> list[str]:
    """Tell a home's edge server what a room was doing; returns the devices that it sent this to."""
    table = settings(folder)
    known = listed(table)
    rooms = sorted({*known["devices"].values(), *known["rooms"]})
    if said.label not in table.get("labels", ()):
        raise ValueError(f"unknown label {said.label!r} (allowed: {', '.join(table.get('labels', ()))})")
    topics = Topics(table["home"])
    if topics.parsed(topics.label(room)) is None:
        raise ValueError(f"unknown room {room!r} (allowed: {', '.join(rooms)})")
    bus, there, answered = connect(folder, PEOPLE, PEOPLE), threading.Event(), threading.Event()
    told: list[str] = []

    def answer(_: str, content: bytes) -> None:
        if parsed(content, table["labels"]) == said:
            told.extend(map(str, json.loads(content)["devices"]))
            answered.set()

    try:
        bus.subscribe(topics.corrected(room), answer, retained=False)
        bus.subscribe(topics.edge, lambda _, content: there.set() if content == ONLINE else None)
        end = time.monotonic() + PATIENCE
        if not bus.wait(PATIENCE):
            raise ValueError(f"the broker at {table['broker']} cannot be reached")
        if not there.wait(end - time.monotonic()):
            raise ValueError("the edge server of the home is not running: start it with fedfilt home run")
        bus.publish(topics.label(room), written(said))
        if not answered.wait(PATIENCE):
            raise ValueError("the edge server of the home does not answer; try again")
        if not told:
            raise ValueError(f"no device was in {room!r} at that time; the rooms are {', '.join(rooms)}")
        return told
    finally:
        bus.close()
