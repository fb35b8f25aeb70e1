"""Corrections on their way to devices, one at a time and in order, each until the device confirms it."""

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from fedfilt._files import write_atomically
from fedfilt.home.clock import Hourly
from fedfilt.home.topics import BadMessage, Correction, correction

log = logging.getLogger("fedfilt")

MOST = 200  # corrections waiting for a device; beyond that, the oldest are dropped
KEPT_SECONDS = 7 * 86_400.0  # after the end of their span; then they are dropped, within an hour


class Outbox:
    """Corrections that devices have not confirmed yet. With a file, they survive a restart.

    >>> outbox = Outbox(["rest", "walk"])
    >>> for label in ("rest", "walk"):
    ...     outbox.add("watch", Correction(label, 0.0, 9.0))
    >>> outbox.next("watch"), outbox.kept("watch", Correction("rest", 0.0, 9.0)), outbox.next("watch")
    (Correction(label='rest', begin=0.0, end=9.0), True, Correction(label='walk', begin=0.0, end=9.0))
    """

    def __init__(self, labels: Sequence[str], path: Path | None = None) -> None:
        self._labels, self._path, self._failed = labels, path, False
        self._waiting: dict[str, list[Correction]] = {}
        self._hourly = Hourly(-math.inf)
        if path is not None and path.exists():
            try:
                self._waiting = self._read(path)
            except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
                log.warning("cannot read %s, which is ignored: %s", path, error)

    @property
    def devices(self) -> list[str]:
        """The devices for which something is waiting."""
        return list(self._waiting)

    def add(self, device: str, said: Correction) -> None:
        """Add a correction for a device; it is on disk when this returns, if the disk can be written."""
        waiting = self._waiting.setdefault(device, [])
        waiting.append(said)
        if len(waiting) > MOST:
            log.warning("%d corrections are waiting for %s; the oldest is dropped", MOST, device)
            del waiting[0]
        self._write()

    def next(self, device: str) -> Correction | None:
        """The correction to send to a device now."""
        return self._waiting[device][0] if device in self._waiting else None

    def kept(self, device: str, said: Correction) -> bool:
        """Note that a device has stored a correction; False if it is not the one to send now."""
        if self.next(device) != said:
            return False
        self._keep(device, self._waiting[device][1:])
        return True

    def forget(self, now: float) -> None:
        """Drop what is too old, unless the clock was just set."""
        if not self._hourly.due(now):
            return
        for device, waiting in list(self._waiting.items()):
            young = [said for said in waiting if now - said.end <= KEPT_SECONDS]
            if young != waiting:
                log.warning("%d corrections waited too long for %s: dropped", len(waiting) - len(young), device)
                self._keep(device, young)

    def _keep(self, device: str, waiting: list[Correction]) -> None:
        """Replace what is waiting for a device."""
        self._waiting[device] = waiting
        if not waiting:
            del self._waiting[device]
        self._write()

    def _read(self, path: Path) -> dict[str, list[Correction]]:
        found: dict[str, list[Correction]] = {}
        for device, waiting in json.loads(path.read_bytes()).items():
            for one in waiting[-MOST:]:
                try:
                    found.setdefault(device, []).append(correction(json.dumps(one).encode(), self._labels))
                except BadMessage as error:  # perhaps its label no longer exists
                    log.warning("a correction waiting for %s is ignored: %s", device, error)
        return {device: waiting for device, waiting in found.items() if waiting}

    def _write(self) -> None:
        if self._path is None:
            return
        table = {device: [said._asdict() for said in waiting] for device, waiting in self._waiting.items()}
        try:
            write_atomically(self._path, json.dumps(table).encode())
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("corrections waiting for devices are only in memory: %s", error)
            self._failed = True
