"""A device as one small resident process: it waits for orders, trains or tests in the native core, answers, goes on.

It reads `device.toml`, its key and its samples from its own folder, keeps its model and what it has not sent yet there,
and comes back by itself after any failure. It runs no code that the server sends.
"""

import logging
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Error, Message
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedfilt import _parts
from fedfilt._types import Table
from fedfilt.engines.flower._compat import Fleet, Refused, short
from fedfilt.engines.flower.device import Holdings, test_reply, train_reply
from fedfilt.engines.flower.messages import BadMessage
from fedfilt.training.sgd import Diverged, Training
from fedfilt.training.trainer import Trainer
from fedfilt.training.work import Desk

log = logging.getLogger("fedfilt")

BUSY, IDLE = 0.2, 3.0  # seconds between two looks for an order: soon after one, and after a long time without
PATIENCE = 20.0  # seconds before the next attempt to connect, at most
AHEAD = 5.0  # seconds by which Flower lets a clock be ahead
NOT_ACTIVATED = "412"  # HTTP status with which Flower refuses a device
CRASHED = 2  # Flower's code for an app that failed


class Device(NamedTuple):
    """A device as its folder says."""

    name: str
    address: str
    folder: Path
    desk: Desk
    authority: bytes | None
    key: bytes | None

    @classmethod
    def read(cls, folder: Path) -> "Device":
        """Read device.toml, the key and the certificate of a folder that `deploy write` made."""
        try:
            table = tomllib.loads((folder / "device.toml").read_text(encoding="utf-8"))
            secure = table["authentication"]
            authority = (folder / "ca.crt").read_bytes() if secure else None
            key = (folder / "key").read_bytes() if secure else None
            return cls(table["name"], table["address"], folder, desk_of(table["experiment"]), authority, key)
        except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(
                f"{folder} is not the folder of a device, as fedfilt deploy write makes it: {error}"
            ) from None

    def samples(self, number: int) -> Holdings:
        """The device's samples, from its own disk."""
        try:
            return load_file(self.folder / "state" / "samples.safetensors")
        except (OSError, SafetensorError) as error:
            raise BadMessage(f"this device cannot read its samples: {error}") from None


def desk_of(table: Table) -> Desk:
    """How a device trains, from the part of the experiment that its folder holds."""
    model, sparsifier = dict(table["model"]), dict(table["sparsifier"])
    kind = _parts.find("models", model.pop("name"))
    shape, classes = tuple(table["shape"]), int(table["classes"])
    trainer = Trainer(kind(shape=shape, classes=classes, **model), Training(**table["training"]), shape)
    cut = _parts.find("sparsifiers", sparsifier.pop("name"))(**sparsifier)
    outputs = trainer.outputs(np.zeros((1, *shape), np.float32))
    return Desk(trainer, cut, int(table["seed"]), outputs)


def stay(folder: Path) -> None:
    """Be a device until this process is told to stop."""
    device = Device.read(folder)
    pause = 1.0
    while True:
        try:
            fleet = Fleet(device.address, device.authority, device.key)
            with fleet:
                log.info(
                    "%s is connected to %s, training in %s", device.name, device.address, device.desk.trainer.backend
                )
                pause = 1.0
                _serve(device, fleet)
        except Refused as error:
            log.warning("%s; the next attempt is in %g s", _reason(fleet, error), pause)
        time.sleep(pause)
        pause = min(2 * pause, PATIENCE)


def _serve(device: Device, fleet: Fleet) -> None:
    """Answer orders for as long as the connection holds."""
    last = time.monotonic()
    while True:
        order = fleet.receive()
        if order is None:
            waited = time.monotonic() - last
            time.sleep(min(IDLE, max(BUSY, waited / 20)))  # the longer nothing came, the more seldom
            continue
        start = time.perf_counter()
        reply = answer(device, order)
        fleet.send(reply, time.perf_counter() - start)
        last = time.monotonic()


def answer(device: Device, order: Any) -> Any:
    """Do what an order says; what goes wrong is said in the reply, and the device stays as it was."""
    work = {"train": train_reply, "evaluate": test_reply}.get(order.metadata.message_type)
    try:
        if work is None:
            raise BadMessage(f"this device does not know orders to {order.metadata.message_type}")
        return Message(work(order.content, device.desk, device.samples, device.folder / "state"), reply_to=order)
    except (ValueError, Diverged, OSError, MemoryError) as error:
        log.warning("an order could not be carried out: %s", error)
        return Message(Error(CRASHED, short(str(error))), reply_to=order)


def _reason(fleet: Fleet, error: Refused) -> str:
    """Why the server does not let the device in; Flower says nothing about a clock that is ahead."""
    ahead = fleet.clock_ahead()
    if ahead is not None and abs(ahead) > AHEAD:
        side = "ahead of" if ahead > 0 else "behind"
        return f"the clock of this device is {abs(ahead):.0f} s {side} the edge server's: set it right ({error})"
    if str(error).startswith(NOT_ACTIVATED):
        return "the edge server does not know this key, or still counts an earlier process as online (for a minute)"
    return str(error)
