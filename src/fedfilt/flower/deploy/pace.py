"""When the rounds of a deployment are played: back to back, at intervals, at night, or on request."""

import re
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from fedfilt._checks import check_span

NEXT = "next"  # a file of this name in the server's folder asks for a round now


class Pace(NamedTuple):
    """When rounds start."""

    every: float = 0.0  # least seconds from the end of one round to the next; 0: no pause
    between: tuple[int, int] | None = (
        None  # minutes of the day between which rounds may start; the second may be past midnight
    )

    def due(self, last: float | None, now: float) -> bool:
        """Whether a round may start, after one that ended at `last` (None: none yet), in seconds since 1970.

        >>> Pace(every=3600.0).due(last=0.0, now=3599.0), Pace(every=3600.0).due(last=None, now=0.0)
        (False, True)
        """
        if last is not None and now - last < self.every:
            return False
        if self.between is None:
            return True
        moment = datetime.fromtimestamp(now).astimezone()
        minute, (begin, end) = 60 * moment.hour + moment.minute, self.between
        return begin <= minute < end if begin <= end else minute >= begin or minute < end


def pace(every: str = "", between: tuple[str, ...] = ()) -> Pace:
    """Parse a pace.

    >>> pace("6h"), pace(between=("23:00", "05:30"))
    (Pace(every=21600.0, between=None), Pace(every=0.0, between=(1380, 330)))
    """
    if between and len(between) != 2:
        raise ValueError(f'engine.between must be two times of day, such as ["23:00", "05:00"], got {list(between)}')
    return Pace(check_span("engine.every", every) if every else 0.0, _minutes(between) if between else None)


def _minutes(between: tuple[str, ...]) -> tuple[int, int]:
    found = [re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", text) for text in between]
    if not all(found):
        raise ValueError(f'engine.between must be times of day, such as ["23:00", "05:00"], got {list(between)}')
    begin, end = (60 * int(one[1]) + int(one[2]) for one in found if one)
    return begin, end


def asked(folder: Path) -> bool:
    """Whether somebody has asked for a round now."""
    return (folder / NEXT).exists()


def wait_turn(folder: Path, how: Pace, last: float | None, look: float = 1.0) -> bool:
    """Wait a moment if no round is due and nobody has asked for one; True if the next may start."""
    if how.due(last, time.time()) or asked(folder):
        (folder / NEXT).unlink(missing_ok=True)
        return True
    time.sleep(look)
    return False
