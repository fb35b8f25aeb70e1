"""A device as one small resident process: it waits for jobs, trains or tests in the native core, and replies.

It reads `device.toml`, its key and its samples from its own folder, keeps its model and unsent updates there, and
recovers by itself after any failure. It runs no code that the server sends.
"""

import ctypes
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Error, Message
from safetensors import SafetensorError

from fedfilt import _parts
from fedfilt._checks import check_count
from fedfilt._reading import MOST_TOML, read, toml_of
from fedfilt._trust import Untrusted, check_trusted, code_in
from fedfilt._types import Table
from fedfilt.data.own import BadData, Making, Sensors, Source, owner
from fedfilt.engines.flower._compat import Fleet, Refused, Unreachable, internals
from fedfilt.engines.flower.device import (
    Holdings,
    Workplace,
    check_about,
    read_samples,
    said_of,
    test_reply,
    train_reply,
)
from fedfilt.engines.flower.messages import BadMessage, who_reply
from fedfilt.system import blind
from fedfilt.system.about import about
from fedfilt.training.encoders import Encoder, behind
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer, model_named
from fedfilt.training.work import Desk, Own

log = logging.getLogger("fedfilt")

BUSY, IDLE = 0.1, 3.0  # seconds between two polls for a job, at least and at most
LONGEST = 30.0  # most seconds without a poll if the next job usually takes longer
UNHURRIED = 10.0  # seconds that a device pretends to have waited when it starts
LOOKS = 10  # polls in the usual waiting time for a job
PATIENCE = 10.0  # most seconds before the next attempt to connect
AHEAD = 5.0  # seconds that Flower allows a clock to be ahead
NOT_ACTIVATED = "412"  # HTTP status with which Flower refuses a device
GROUP_KEY = "group.key"  # in the folder of a device that hides its rows from the edge server
MARGIN = 0.05  # share of its validation samples by which a new model may be worse than the last
MOST_NUMBERS = 1 << 22  # in a sample
KINDS = {"int64": np.int64, "float32": np.float32, "bool": np.bool_}  # of inputs and targets
CRASHED = 2  # Flower's code for an app that failed
MALLOC = ((-3, 256 << 10), (-8, 1))  # M_MMAP_THRESHOLD: bytes of a large block; M_ARENA_MAX: heaps


@dataclass(frozen=True, eq=False)
class Device:
    """A device, as described by its folder."""

    name: str
    address: str
    folder: Path
    desk: Desk
    about: str  # the experiment it takes part in
    source: Source | None  # its own data; None if it was dealt its samples
    number: int  # its row, which it reports itself if there are no keys
    secure: bool  # whether it has a key
    group: blind.Group | None = None  # known to all devices but not to the edge server, to hide rows from it

    @classmethod
    def read(cls, folder: Path) -> "Device":
        """Read the device.toml of a folder that `deploy write` made."""
        try:
            path = folder / "device.toml"
            content = read(path, MOST_TOML, links=True)
            table = toml_of(content)
            known = table["experiment"]
            check_trusted(path, content, code_in(known), [folder])
            _check_owner(folder)
            own, sort = known["data"].get("name") == "own", str(table.get("kind", ""))
            source = Source(folder, making_of(known["data"]).of(sort)) if own else None
            named, identity = (table["name"], table["address"]), (table["number"], table["authentication"])
            desk, privacy = desk_of(known, sort), known.get("privacy", {})
            group = _group(folder, desk, privacy) if privacy.get("blind") else None
            return cls(*named, folder, desk, about(known), source, *identity, group)
        except Untrusted:
            raise
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{folder} is not a device's folder made by fedfilt deploy write: {error}") from None

    def connection(self) -> Fleet:
        """A new connection, with the certificate and key now in the folder."""
        if not self.secure:
            return Fleet(self.address, None, None)
        return Fleet(self.address, (self.folder / "ca.crt").read_bytes(), (self.folder / "key").read_bytes())

    def workplace(self) -> Workplace:
        """Where it works now: with its current samples, and with what its owner lets it report."""
        state = self.folder / "state"
        if self.source is None:
            return Workplace(self.desk, lambda number: self._dealt(state), state, self.about, group=self.group)
        held = self.source.held()
        if not len(held.train_y):
            _say_once("this device has no labelled samples: it does not train, but learns from its neighbours")
        parts = (held[0:2], held[2:4], held[4:6])
        train, validation, test = (Own(x, y, np.arange(len(y))) for x, y in parts)
        scaling = "" if held.scaling is None else held.scaling.to_json()
        holdings = Holdings(train, test, scaling=scaling, validation=validation)
        report = owner(self.folder).report
        return Workplace(self.desk, lambda number: holdings, state, self.about, report, margin=MARGIN, group=self.group)

    def _dealt(self, state: Path) -> Holdings:
        try:
            return read_samples(state / "samples.safetensors")
        except (OSError, SafetensorError, ValueError) as error:
            log.warning("cannot read the samples: %s", error)
            raise BadMessage("this device cannot read the samples it was dealt") from None


def _check_owner(folder: Path) -> None:
    """Refuse untrusted code that the owner's settings name; other mistakes can be corrected later."""
    try:
        owner(folder)
    except Untrusted:
        raise
    except BadData as error:
        log.warning("%s", error)


def _group(folder: Path, desk: Desk, privacy: Table) -> blind.Group:
    """How this device hides its rows: the keys in its folder; pieces, first model and weights from the experiment."""
    first = tuple(map(str, privacy["first"]))
    pieces = check_count("pieces", len(first), high=blind.PIECES)
    spread = check_count("spread", privacy["spread"], high=blind.SPREAD)
    keys = blind.read_keys((folder / GROUP_KEY).read_text(encoding="utf-8"))
    return blind.Group(tuple(keys), blind.Cut(desk.seed, desk.width, pieces), first, spread)


def making_of(table: Table) -> Making:
    """How samples are made, from the experiment's table [data]."""
    known = {field.name for field in fields(Making)}
    values = _as_tuples({key: table[key] for key in known & set(table)})
    values["sensors"] = tuple(Sensors(**_as_tuples(one)) for one in table.get("sensors", ()))
    making = Making(**values)
    making.check_complete()
    return making


def desk_of(table: Table, sort: str = "") -> Desk:
    """How a device trains, from the part of the experiment in its folder; `sort` is its kind if inputs differ."""
    data, model, sparsifier = table["data"], dict(table["model"]), dict(table["sparsifier"])
    shapes = {one["kind"]: _shape(one["shape"]) for one in data.get("sensors", ())} or {sort: _shape(data["shape"])}
    shape, classes = shapes[sort], data["classes"] if "classes" in data else len(data["labels"])
    encoder = Encoder(**_as_tuples(table.get("encoder", {})))
    made = model_named(model.pop("name"), model, encoder.latent or shape, classes)
    if encoder.latent:
        made = dict(zip(shapes, behind(encoder, made, list(shapes.values())), strict=True))[sort]
    (kind, *targets), given = data.get("targets", ["int64"]), KINDS[data.get("inputs", "float32")]
    trainer = Trainer(made, Training(**table["training"]), shape, np.zeros((2, *targets), KINDS[kind]))
    cut = _parts.find("sparsifiers", sparsifier.pop("name"))(**sparsifier)
    method = {"name": "plain", **table.get("client", {})}
    client = _parts.find("clients", method.pop("name"))(**_as_tuples(method))
    return Desk(trainer, cut, int(table["seed"]), trainer.outputs(np.zeros((2, *shape), given)), client)


def _shape(sizes: Sequence[object]) -> tuple[int, ...]:
    """The shape of a sample: whole numbers, because a text or a list in it, multiplied, would fill the memory."""
    shape = tuple(check_count("shape", size) for size in sizes)
    if math.prod(shape) > MOST_NUMBERS:
        raise ValueError(
            f"a sample must have at most {MOST_NUMBERS:,} numbers, got {len(shape)} sizes whose product is more"
        )
    return shape


def _as_tuples(options: Table) -> Table:
    """Options of a part with tuples, as its dataclass expects: TOML only has lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def give_memory_back() -> None:
    """Make malloc return large blocks to the system as soon as they are free, and let threads share one heap.

    A process that runs for months reads, trains and writes blocks of about a megabyte in three threads. glibc would
    keep a heap for each thread, and these would grow by tens of megabytes until free gaps fit.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        for parameter, value in MALLOC:
            libc.mallopt(parameter, value)


def stay(folder: Path) -> None:
    """Be a device until this process is stopped."""
    internals("fleet")  # reports an unknown version of Flower at once
    device = Device.read(folder)
    delay = 1.0
    while True:
        fleet = None
        try:
            fleet = device.connection()
            with fleet:
                log.info(
                    "%s is connected to %s, training in %s", device.name, device.address, device.desk.trainer.backend
                )
                delay = 1.0
                _serve(device, fleet)
        except Exception as error:
            log.warning("%s; trying again in %g s", _reason(fleet, error), delay)
        time.sleep(delay)
        delay = min(2 * delay, PATIENCE)


def _serve(device: Device, fleet: Fleet) -> None:
    """Carry out jobs as long as the connection holds."""
    last, waits = time.monotonic() - UNHURRIED, (0.0, 0.0)  # for the last two jobs: one to train, one to test
    while True:
        order = _persist(fleet.receive)
        waited = time.monotonic() - last
        if order is None:
            time.sleep(pause(waited, min(waits)))
            continue
        start = time.perf_counter()
        ahead = fleet.clock_ahead()
        reply = answer(device, order, math.nan if ahead is None else ahead)
        _persist(partial(fleet.send, reply, time.perf_counter() - start))
        last, waits = time.monotonic(), (waits[1], waited)


def pause(waited: float, usual: float) -> float:
    """Seconds until the next poll for a job, after waiting for `waited`; the usual wait is `usual`.

    The first poll comes after half the usual wait; from then on, there are ten per usual wait. So polling costs no more
    than the work itself, with any number of devices, and makes a round at most a tenth longer.

    >>> pause(0, usual=8), pause(4, usual=8), pause(20, usual=8), pause(0, usual=0)
    (4.0, 0.8, 2.0, 0.1)
    """
    soon = min(IDLE, max(BUSY, max(waited, usual) / LOOKS))
    return max(soon, min(LONGEST, usual / 2 - waited))


def _persist(ask: Callable[[], Any]) -> Any:
    """Ask until the edge server can be reached: for a while, it remembers a device that was online, and so do we."""
    delay = 1.0
    while True:
        try:
            found = ask()
            if delay > 1.0:
                log.info("the edge server can be reached again")
            return found
        except Unreachable as error:
            if delay == 1.0:
                log.warning("the edge server cannot be reached (%s); this device keeps trying", error)
        time.sleep(delay)
        delay = min(2 * delay, PATIENCE)


def answer(device: Device, order: Any, ahead: float = math.nan) -> Any:
    """Carry out a job; if it fails, the reply says why, and the device stays as it was."""
    work = {"train": train_reply, "evaluate": test_reply}.get(order.metadata.message_type)
    try:
        if order.metadata.message_type == "query" and not device.secure:
            return Message(who_reply(device.number), reply_to=order)
        if work is None:
            raise BadMessage(f"this device does not know jobs of type {order.metadata.message_type}")
        check_about(order.content, device.about)  # before its data, which may belong to another experiment
        return Message(work(order.content, device.workplace()._replace(ahead=ahead)), reply_to=order)
    except Exception as error:  # whatever it is, the device stays as it was and carries on
        log.warning("a job could not be carried out: %s", error or type(error).__name__)
        return Message(Error(CRASHED, said_of(error)), reply_to=order)


@cache
def _say_once(text: str) -> None:
    log.warning(text)


def _reason(fleet: Fleet | None, error: Exception) -> str:
    """Why the device is not connected; Flower does not mention a clock that is ahead."""
    if fleet is None:
        return f"the key or the certificate cannot be read: {error}"  # somebody may be replacing it
    if not isinstance(error, Refused):
        return f"the connection was lost: {error or type(error).__name__}"
    ahead = fleet.clock_ahead()
    if ahead is not None and abs(ahead) > AHEAD:
        side = "ahead of" if ahead > 0 else "behind"
        return f"the clock of this device is {abs(ahead):.0f} s {side} the edge server's: please set it ({error})"
    if str(error).startswith(NOT_ACTIVATED):
        return "the edge server does not know this key, or counts an earlier process as online for up to a minute"
    return str(error)
