"""Readings, and what sources share: a bounded inbox for messages, and complaints that stay few."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedfilt import _parts
from fedfilt._checks import check_choice
from fedfilt._types import Array, Table
from fedfilt.data.own import Making
from fedfilt.home.bus import Bus
from fedfilt.home.clock import Clock

log = logging.getLogger("fedfilt")

MOST_MESSAGES, MOST_BYTES = 4096, 1 << 22  # waiting to be read; 4 MiB
QUIET = 60.0  # seconds between two log lines about the same problem


class Reading(NamedTuple):
    """What a device's sensors read at one time."""

    time: float  # seconds since 1970
    values: Array  # (channels,); NaN where one is missing
    label: str = ""  # the truth, if a recording knows it; not used for decisions


class Source(Protocol):
    """Where readings come from: a part of fedfilt/sources, or module:Class."""

    def readings(self, making: Making, bus: Bus, clock: Clock, stop: threading.Event) -> Iterator[Reading]:
        """Readings as they arrive, with channels in the experiment's order, until `stop` is set."""
        ...


def source_of(table: Mapping[str, Any], folder: Path) -> Source:
    """The source named by a table such as [source] in own.toml; its paths start at the device's folder.

    >>> source_of({"name": "csv", "file": "now.csv"}, Path("/home/lamp"))
    Csv(file='/home/lamp/now.csv', time='time', whole=False)
    """
    options: Table = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    kind = _parts.find("sources", options.pop("name"))
    if is_dataclass(kind):
        for key in options:
            check_choice("key of [source]", key, [field.name for field in fields(kind)])
    if isinstance(options.get("file"), str):
        options["file"] = str(folder / options["file"])
    try:
        made: Source = kind(**options)
    except TypeError as error:
        raise ValueError(f"[source] {table['name']}: {error}") from None
    return made


class Complaints:
    """Counts problems by kind, and logs each kind at most once a minute.

    >>> complaints = Complaints("lamp")
    >>> for _ in range(1000):
    ...     complaints("gap", "readings pause")  # one line in the log
    >>> complaints.counts
    {'gap': 1000}
    """

    def __init__(self, who: str) -> None:
        self.who = who
        self.counts: dict[str, int] = {}
        self._said: dict[str, float] = {}

    def __call__(self, kind: str, said: str, *details: object) -> None:
        """Count a problem, and log it if that is due."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        now = time.monotonic()
        if now - self._said.get(kind, -QUIET) >= QUIET:
            self._said[kind] = now
            often = f" ({self.counts[kind]} times so far)" if self.counts[kind] > 1 else ""
            log.warning(f"%s: {said}%s", self.who, *details, often)


class Inbox:
    """Messages waiting to be read, bounded in number and size; the oldest make room for new ones.

    >>> inbox, stop = Inbox("lamp", most=2), threading.Event()
    >>> for text in (b"a", b"b", b"c"):
    ...     inbox.put(0.0, "topic", text)
    >>> [inbox.get(stop), inbox.get(stop), inbox.get(stop, 0.0)]
    [(0.0, 'topic', b'b'), (0.0, 'topic', b'c'), None]
    """

    def __init__(self, who: str, most: int = MOST_MESSAGES, most_bytes: int = MOST_BYTES) -> None:
        self.complaints = Complaints(who)
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._waiting: deque[tuple[float, str, bytes]] = deque()
        self._changed = threading.Condition()

    def put(self, time: float, topic: str, content: bytes) -> None:
        """Add a message; never waits."""
        with self._changed:
            self._waiting.append((time, topic, content))
            self._bytes += len(content)
            while len(self._waiting) > self._most or self._bytes > self._most_bytes:
                self._bytes -= len(self._waiting.popleft()[2])
                self.complaints("full", "messages arrive faster than they can be read; the oldest are dropped")
            self._changed.notify()

    def get(self, stop: threading.Event, seconds: float = 0.2) -> tuple[float, str, bytes] | None:
        """The next message, after waiting for it a while; None if there is none or `stop` is set."""
        with self._changed:
            if not self._waiting and not stop.is_set():
                self._changed.wait(seconds)
            if not self._waiting or stop.is_set():
                return None
            found = self._waiting.popleft()
            self._bytes -= len(found[2])
            return found
