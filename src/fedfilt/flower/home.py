"""The living home of a deployment: folders that `fedfilt home write` made, on their broker."""

import itertools
import json
import logging
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedfilt._checks import check_count
from fedfilt._files import locked
from fedfilt._types import Table
from fedfilt.flower.deploy.address import address
from fedfilt.flower.deploy.pace import NEXT
from fedfilt.flower.deploy.supervise import stoppable
from fedfilt.flower.device import Device
from fedfilt.home.clock import Clock
from fedfilt.home.decider import Decider, last_will
from fedfilt.home.edge import OFFLINE, ONLINE, Edge
from fedfilt.home.mqtt import SESSION, Keys, Mqtt
from fedfilt.home.rooms import Voting
from fedfilt.home.topics import Topics

log = logging.getLogger("fedfilt")
PATIENCE = 10.0  # seconds that a command waits for the broker or the edge server
EDGE, EARS, PEOPLE = "edge", "edge-ears", "people"


def settings(folder: Path) -> Table:
    """What the home.toml in a folder says."""
    try:
        table = tomllib.loads((folder / "home.toml").read_text(encoding="utf-8"))
    except OSError:
        raise ValueError(f"{folder} must hold home.toml, as fedfilt home write makes it") from None
    missing = [key for key in ("home", "broker", "tls") if key not in table]
    if missing:
        raise ValueError(f"{folder / 'home.toml'} must say {', '.join(missing)}")
    return table


def connect(
    folder: Path, name: str, file: str = "client", will: tuple[str, bytes] | None = None, session: int = 0
) -> Mqtt:
    """Join the bus of the home that a folder belongs to, with the keys in its `mqtt` folder."""
    table = settings(folder)
    where = address(table["broker"])
    keys = Keys.of(folder / "mqtt", file) if table["tls"] else None
    return Mqtt(where.host, where.port, name, keys=keys, will=will, session=session)


def keep_home(folder: Path) -> None:
    """Be the edge server of a home until told to stop; what happens goes to the folder `home` in the given one."""
    table = settings(folder)
    topics, files = Topics(table["home"]), folder / "home"
    try:
        voting = Voting(**table.get("vote", {}))
        labels, devices = list(table["labels"]), dict(table["devices"])
        correct_seconds = table.get("correct_seconds", 30.0)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'home.toml'} is not what fedfilt home write makes: {error}") from None
    files.mkdir(exist_ok=True)
    with locked(files), stoppable():
        bus, ears = connect(folder, EDGE, EDGE, (topics.edge, OFFLINE)), connect(folder, EARS, EARS)
        try:
            edge = Edge(
                bus,
                Clock(),
                topics,
                labels,
                devices,
                ears=ears,
                voting=voting,
                folder=files,
                correct_seconds=correct_seconds,
                corrected=asking(folder, table.get("round_after", 0)),
            )
            log.info("%d devices may speak in %s", len(devices), topics.home)
            edge.run(threading.Event())
        finally:
            ears.close()
            bus.close()


def asking(folder: Path, corrections: int) -> Callable[[], None]:
    """To be called for every correction: asks for a round of training after so many of them; 0: never."""
    check_count("round_after", corrections, low=0)
    given = itertools.count(1)

    def corrected() -> None:
        if corrections and not next(given) % corrections:
            (folder / NEXT).touch()

    return corrected


@contextmanager
def deciding(folder: Path) -> Iterator[None]:
    """Let the device of a folder decide on what it senses, beside whatever is inside, if it belongs to a home."""
    if not (folder / "home.toml").exists():
        yield
        return
    table, device = settings(folder), Device.read(folder)
    if device.source is None:
        raise ValueError("a device decides on what it senses only with own data")
    name, topics, stop = table["device"], Topics(table["home"]), threading.Event()
    bus = connect(folder, name, will=last_will(topics, name), session=SESSION)
    try:
        making = device.source.making
        trainer = Device.read(folder).desk.trainer  # of its own: it decides while the other one trains
        decider = Decider(folder, making, trainer, bus, topics, name, table["room"])
        thread = threading.Thread(target=decider.live, args=(stop,), daemon=True)
        if decider.settings.source:
            thread.start()
        else:
            log.warning("%s senses nothing: its own.toml has no [source]", name)
        yield
    finally:
        stop.set()
        bus.close()


def label(folder: Path, room: str, name: str, seconds: float) -> None:
    """Tell the edge server of a home what a room was doing."""
    table = settings(folder)
    rooms = sorted(set(table.get("devices", {}).values()))
    if name not in table.get("labels", ()):
        raise ValueError(f"unknown label {name!r} (allowed: {', '.join(table.get('labels', ()))})")
    topics = Topics(table["home"])
    if topics.parsed(topics.label(room)) is None:
        raise ValueError(f"unknown room {room!r}; there are {', '.join(rooms)}")
    bus, there = connect(folder, PEOPLE, PEOPLE), threading.Event()
    try:
        bus.subscribe(topics.edge, lambda _, content: there.set() if content == ONLINE else None)
        end = time.monotonic() + PATIENCE
        if not bus.wait(PATIENCE):
            raise ValueError(f"the broker at {table['broker']} cannot be reached")
        if not there.wait(end - time.monotonic()):
            raise ValueError("the edge server of the home does not run: fedfilt home run")
        bus.publish(topics.label(room), json.dumps({"label": name, "seconds": seconds}).encode())
    finally:
        bus.close()
