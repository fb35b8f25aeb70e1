import csv
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from fedfilt._checks import check_choice
from fedfilt.data._tables import seconds
from fedfilt.data.own import Making
from fedfilt.home.bus import Bus
from fedfilt.home.clock import Clock
from fedfilt.home.readings import Complaints, Reading

PAUSE = 0.1  # seconds between two looks at a file
LONGEST = 1 << 16  # bytes of a line


@dataclass(frozen=True)
class Csv:
    """A CSV file that another program appends to: a column of times, and the channels. It may be rotated or emptied.

    A line counts once it is complete. What is in the file at the start is skipped, unless `whole` is set.

    >>> Csv(file="now.csv")
    Csv(file='now.csv', time='time', whole=False)
    """

    file: str  # that another program appends to
    time: str = "time"  # its column
    whole: bool = False  # also what is in the file at the start

    def readings(self, making: Making, bus: Bus, clock: Clock, stop: threading.Event) -> Iterator[Reading]:
        """The lines that are appended."""
        complaints, whole = Complaints(self.file), self.whole
        while not stop.is_set():
            try:
                with open(self.file, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                    yield from self._rows(file, making, complaints, stop, whole)
            except (OSError, ValueError, csv.Error) as error:
                complaints("file", "the file cannot be read: %s", getattr(error, "strerror", None) or error)
            whole = True  # a file that comes later is new
            stop.wait(PAUSE)

    def _rows(
        self, file: IO[bytes], making: Making, complaints: Complaints, stop: threading.Event, whole: bool
    ) -> Iterator[Reading]:
        """The rows of one file, until another takes its place or it is emptied."""
        names: list[str] = []
        for line in _lines(Path(self.file), file, stop):
            cells = next(csv.reader([line]), [])
            if not names:
                names = [name.strip() for name in cells]
                wanted = making.channels or [name for name in names if name not in (self.time, "label")]
                at = [names.index(check_choice("column", name, names)) for name in (self.time, *wanted)]
                if not whole:
                    file.seek(-1, os.SEEK_END)  # the end of a line, or amid one, of which the rest is passed over too
                    while not stop.is_set() and not file.readline(LONGEST).endswith(b"\n"):
                        stop.wait(PAUSE)
                continue
            try:
                if len(cells) != len(names):
                    raise ValueError(f"there must be {len(names)} cells, got {len(cells)}")
                time, *values = (cells[i] for i in at)
                yield Reading(seconds(time), np.array([float(text or "nan") for text in values]))
            except ValueError as error:
                complaints("line", "lines that cannot be read are skipped: %s", error)


def _lines(path: Path, file: IO[bytes], stop: threading.Event) -> Iterator[str]:
    """The lines of a file that have ended, as it grows."""
    begun, ended = b"", False
    while not stop.is_set():
        piece = file.readline(LONGEST)
        begun += piece
        if len(begun) > LONGEST:
            raise ValueError(f"a line is longer than {LONGEST} bytes")
        if piece.endswith(b"\n"):
            yield begun.decode("utf-8-sig", "replace").rstrip("\r\n")
            begun = b""
        elif not piece:
            if ended:
                return
            ended = _replaced(path, file)  # what was written to it before that is still read
            if not ended:
                stop.wait(PAUSE)


def _replaced(path: Path, file: IO[bytes]) -> bool:
    """Whether a file is no longer the one of that name, or shorter than what was read of it."""
    try:
        there, here = path.stat(), os.fstat(file.fileno())
    except FileNotFoundError:
        return False  # its writer is about to create it again
    return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev) or here.st_size < file.tell()
