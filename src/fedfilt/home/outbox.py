"""Corrections on their way to devices: one at a time and in order, until the device says that it has kept it."""

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from fedfilt._files import write_atomically
from fedfilt.home.clock import Hourly
from fedfilt.home.topics import BadMessage, Correction, correction

log = logging.getLogger("fedfilt")

MOST = 200  # corrections that wait for a device; then the oldest are dropped
KEPT_SECONDS = 7 * 86_400.0  # after the end of what they are about; then they are dropped, within an hour


class Outbox:
    """What devices have not been told yet. With a file it outlives its process.

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
                log.warning("%s cannot be read, and is not used: %s", path, error)

    @property
    def devices(self) -> list[str]:
        """For whom something waits."""
        return list(self._waiting)

    def add(self, device: str, said: Correction) -> None:
        """Have a device told; this is on disk when it returns, if that can be written."""
        waiting = self._waiting.setdefault(device, [])
        waiting.append(said)
        if len(waiting) > MOST:
            log.warning("%d corrections wait for %s; the oldest is dropped", MOST, device)
            del waiting[0]
        self._write()

    def next(self, device: str) -> Correction | None:
        """What a device is to be told now."""
        return self._waiting[device][0] if device in self._waiting else None

    def kept(self, device: str, said: Correction) -> bool:
        """A device has kept a correction; False if it is not what it was to be told now."""
        if self.next(device) != said:
            return False
        self._keep(device, self._waiting[device][1:])
        return True

    def forget(self, now: float) -> None:
        """Let go of what is too old, unless the clock was just set."""
        if not self._hourly.due(now):
            return
        for device, waiting in list(self._waiting.items()):
            young = [said for said in waiting if now - said.end <= KEPT_SECONDS]
            if young != waiting:
                log.warning("%d corrections waited too long for %s: dropped", len(waiting) - len(young), device)
                self._keep(device, young)

    def _keep(self, device: str, waiting: list[Correction]) -> None:
        """From now on only this waits for a device."""
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
                except BadMessage as error:  # of a label that is no more, perhaps
                    log.warning("a correction that waits for %s is not used: %s", device, error)
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
                log.warning("corrections that wait for devices are only in memory: %s", error)
            self._failed = True
