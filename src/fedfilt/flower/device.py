"""A device as one small resident process: it waits for orders, trains or tests in the native core, answers, goes on.

It reads `device.toml`, its key and its samples from its own folder, keeps its model and what it has not sent yet there,
and comes back by itself after any failure. It runs no code that the server sends.
"""

import ctypes
import logging
import math
import time
from collections.abc import Callable
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

BUSY, IDLE = 0.1, 3.0  # seconds between two looks for an order, at least and at most
LONGEST = 30.0  # seconds without a look, where the next order usually takes longer
UNHURRIED = 10.0  # seconds that a device seems to have waited when it starts
LOOKS = 10  # in the time that it usually waits for an order
PATIENCE = 10.0  # seconds before the next attempt to connect, at most
AHEAD = 5.0  # seconds by which Flower lets a clock be ahead
NOT_ACTIVATED = "412"  # HTTP status with which Flower refuses a device
GROUP_KEY = "group.key"  # in the folder of a device whose edge server is not to see its rows
MARGIN = 0.05  # of its validation samples, by which a new model may be worse than the one before
KINDS = {"int64": np.int64, "float32": np.float32, "bool": np.bool_}  # of inputs and targets
CRASHED = 2  # Flower's code for an app that failed
MALLOC = ((-3, 256 << 10), (-8, 1))  # M_MMAP_THRESHOLD: bytes of a large block; M_ARENA_MAX: heaps


@dataclass(frozen=True, eq=False)
class Device:
    """A device as its folder says."""

    name: str
    address: str
    folder: Path
    desk: Desk
    about: str  # the experiment that it takes part in
    source: Source | None  # its own data; None: it was dealt its samples
    number: int  # its row, which it says itself where there are no keys
    secure: bool  # whether it has a key
    group: blind.Group | None = None  # what all devices have and the edge server has not, to hide rows from it

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
            raise ValueError(
                f"{folder} is not the folder of a device, as fedfilt deploy write makes it: {error}"
            ) from None

    def connection(self) -> Fleet:
        """A new connection, with the certificate and the key that are in the folder now."""
        if not self.secure:
            return Fleet(self.address, None, None)
        return Fleet(self.address, (self.folder / "ca.crt").read_bytes(), (self.folder / "key").read_bytes())

    def workplace(self) -> Workplace:
        """Where it works now: with the samples that it has, and what its owner lets it tell."""
        state = self.folder / "state"
        if self.source is None:
            return Workplace(self.desk, lambda number: self._dealt(state), state, self.about, group=self.group)
        held = self.source.held()
        if not len(held.train_y):
            _say_once("this device has no labelled samples: it trains nothing, and learns from its neighbours")
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
            log.warning("the samples cannot be read: %s", error)
            raise BadMessage("this device cannot read the samples that it was dealt") from None


def _check_owner(folder: Path) -> None:
    """Refuse code that the owner's settings name and nobody trusts; other faults can be put right later."""
    try:
        owner(folder)
    except Untrusted:
        raise
    except BadData as error:
        log.warning("%s", error)


def _group(folder: Path, desk: Desk, privacy: Table) -> blind.Group:
    """How this device hides its rows: the keys in its folder, and the pieces that the experiment says."""
    pieces = check_count("pieces", privacy.get("pieces", 1), high=blind.PIECES)
    keys = blind.read_keys((folder / GROUP_KEY).read_text(encoding="utf-8"))
    return blind.Group(tuple(keys), blind.Cut(desk.seed, desk.width, pieces))


def making_of(table: Table) -> Making:
    """How samples are made, from the experiment's table [data]."""
    known = {field.name for field in fields(Making)}
    values = _as_tuples({key: table[key] for key in known & set(table)})
    values["sensors"] = tuple(Sensors(**_as_tuples(one)) for one in table.get("sensors", ()))
    making = Making(**values)
    making.check_complete()
    return making


def desk_of(table: Table, sort: str = "") -> Desk:
    """How a device, of a kind if inputs are unlike, trains, from the part of the experiment that its folder holds."""
    data, model, sparsifier = table["data"], dict(table["model"]), dict(table["sparsifier"])
    shapes = {one["kind"]: tuple(one["shape"]) for one in data.get("sensors", ())} or {sort: tuple(data["shape"])}
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


def _as_tuples(options: Table) -> Table:
    """Options of a part as its dataclass has them: TOML has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def give_memory_back() -> None:
    """Let malloc give large blocks back to the system as soon as they are free, and threads share one heap.

    A process that stays for months reads, trains and writes blocks of a megabyte or so in three threads. glibc would
    keep them in a heap for each, which grow by tens of megabytes until holes fit.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        for parameter, value in MALLOC:
            libc.mallopt(parameter, value)


def stay(folder: Path) -> None:
    """Be a device until this process is told to stop."""
    internals("fleet")  # a Flower that we do not know is named at once
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
            log.warning("%s; the next attempt is in %g s", _reason(fleet, error), delay)
        time.sleep(delay)
        delay = min(2 * delay, PATIENCE)


def _serve(device: Device, fleet: Fleet) -> None:
    """Answer orders for as long as the connection holds."""
    last, waits = time.monotonic() - UNHURRIED, (0.0, 0.0)  # for the last two orders: one to train, one to test
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
    """Seconds until the next look for an order, after a wait of `waited`; the usual one ends after `usual`.

    The first look is after half of the usual wait, and then there are ten in the time of one. So looking costs no more
    than working, with however many devices, and a round gets no longer than by a tenth.

    >>> pause(0, usual=8), pause(4, usual=8), pause(20, usual=8), pause(0, usual=0)
    (4.0, 0.8, 2.0, 0.1)
    """
    soon = min(IDLE, max(BUSY, max(waited, usual) / LOOKS))
    return max(soon, min(LONGEST, usual / 2 - waited))


def _persist(ask: Callable[[], Any]) -> Any:
    """Ask until the edge server can be reached; it keeps a device that was online for a while, and so do we."""
    delay = 1.0
    while True:
        try:
            found = ask()
            if delay > 1.0:
                log.info("the edge server can be reached again")
            return found
        except Unreachable as error:
            if delay == 1.0:
                log.warning("the edge server cannot be reached (%s); this device goes on trying", error)
        time.sleep(delay)
        delay = min(2 * delay, PATIENCE)


def answer(device: Device, order: Any, ahead: float = math.nan) -> Any:
    """Do what an order says; what goes wrong is said in the reply, and the device stays as it was."""
    work = {"train": train_reply, "evaluate": test_reply}.get(order.metadata.message_type)
    try:
        if order.metadata.message_type == "query" and not device.secure:
            return Message(who_reply(device.number), reply_to=order)
        if work is None:
            raise BadMessage(f"this device does not know orders to {order.metadata.message_type}")
        check_about(order.content, device.about)  # before its data, which may be made for another experiment
        return Message(work(order.content, device.workplace()._replace(ahead=ahead)), reply_to=order)
    except Exception as error:  # whatever it is, the device stays as it was, and goes on
        log.warning("an order could not be carried out: %s", error or type(error).__name__)
        return Message(Error(CRASHED, said_of(error)), reply_to=order)


@cache
def _say_once(text: str) -> None:
    log.warning(text)


def _reason(fleet: Fleet | None, error: Exception) -> str:
    """Why the device is not connected; Flower says nothing about a clock that is ahead."""
    if fleet is None:
        return f"the key or the certificate cannot be read: {error}"  # it may be being replaced
    if not isinstance(error, Refused):
        return f"the connection was given up: {error or type(error).__name__}"
    ahead = fleet.clock_ahead()
    if ahead is not None and abs(ahead) > AHEAD:
        side = "ahead of" if ahead > 0 else "behind"
        return f"the clock of this device is {abs(ahead):.0f} s {side} the edge server's: set it right ({error})"
    if str(error).startswith(NOT_ACTIVATED):
        return "the edge server does not know this key, or still counts an earlier process as online (for a minute)"
    return str(error)
