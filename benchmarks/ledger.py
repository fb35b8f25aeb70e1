"""What must be on the disks of a home's devices, computed from what people did and said and when devices were on.

It shares no code with fedfilt: windows are cut and corrections applied by loops of its own.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

RATE, ROWS, HOP = 25, 125, 62  # readings a second; of a window; from one window to the next
PER_LABEL, IN_ALL = 100, 400  # corrected windows that a device keeps
FOREVER = float("inf")


class Bout(NamedTuple):
    """Somebody does something in a room; times are those at home."""

    begin: float
    room: str
    label: str
    start: int  # row of a recording, and how many are played
    rows: int

    @property
    def times(self):
        return self.begin + np.arange(self.rows) / RATE

    @property
    def end(self):
        return float(self.times[-1])


class Entry(NamedTuple):
    """A correction that was given, and confirmed."""

    room: str
    label: str
    begin: float  # of what it is about, at home
    end: float
    said: float  # when it was first said, and when confirmed, by the machine's clock
    confirmed: float
    tries: int


class Life(NamedTuple):
    """A process of a device, by the machine's clock."""

    pid: int
    begin: float
    end: float = FOREVER


class Verdict(NamedTuple):
    """What is true of a device's disk."""

    exact: bool  # at the end of every life its disk held what it must, and all corrections came
    lives: int
    kept: int  # windows at the end
    given: int  # windows that it sensed and people spoke of
    gone: int  # of these, how many were only in the memory of a process that was killed before it heard
    unheard: list  # seconds by which corrections that were confirmed came too late for a process that was killed
    wrong: list


def disk(folder):
    """{(begin, end): label} of the corrected windows in a device's folder; one that is there twice is an error."""
    path = folder / "data" / "corrections.npz"
    if not path.exists():
        return {}
    with np.load(path) as held:
        found = dict(zip(map(tuple, held["time"].tolist()), held["y"].tolist(), strict=True))
        assert len(found) == len(held["y"]), "a window is there twice"
    return found


def same_values(folder, times, values):
    """Whether every window on disk is, bit by bit, the recording of its time."""
    path = folder / "data" / "corrections.npz"
    if not path.exists():
        return True
    with np.load(path) as held:
        starts = np.searchsorted(times, held["time"][:, 0])
        wanted = np.stack([values[start : start + ROWS].T for start in starts])
        return np.array_equal(held["x"], wanted) and np.array_equal(held["time"][:, 1], times[starts + ROWS - 1])


def cut(bouts, first, last):
    """(begin, end) of all windows of a process that reads from a time on, up to another."""
    found = []
    for bout in bouts:
        times = bout.times[bout.times >= first]
        for start in range(0, len(times) - ROWS + 1, HOP):
            found.append((float(times[start]), float(times[start + ROWS - 1])))
    return [one for one in found if one[1] <= last]


def inside(window, entry):
    return entry.begin <= window[0] and window[1] <= entry.end


def corrected(before, sensed, entry):
    """What a disk holds after a correction, of what it held and of the windows that the process has sensed."""
    after = {}
    for window, name in before.items():
        apart = window[1] < entry.begin or entry.end < window[0]
        if inside(window, entry):
            after[window] = entry.label
        elif apart or name == entry.label:
            after[window] = name
    after |= {window: entry.label for window in sensed if inside(window, entry)}
    few, counts = [], Counter()
    for window in sorted(after, reverse=True):
        counts[after[window]] += 1
        if counts[after[window]] <= PER_LABEL:
            few.append(window)
    return {window: after[window] for window in few[:IN_ALL]}


def judged(lives, disks, bouts, entries, first, at_home):
    """Whether a device's disk was right at the end of every life.

    `bouts` and `entries` are those of its room, `first` gives the first reading of a process, `at_home` the time there.

    A process hears all corrections in their order, up to one that is the last before it is killed; the next process
    hears the others, but has none of the windows that were only in memory.
    """
    now, heard, given, gone, unheard, wrong = {}, 0, set(), set(), [], []
    for life, found in zip(lives, disks, strict=True):
        sensed = cut(bouts, first.get(life.pid, FOREVER), at_home(life.end))
        states = [now]
        for entry in entries[heard:]:
            if entry.said > life.end:
                break
            states.append(corrected(states[-1], sensed, entry))
        fits = [number for number, state in enumerate(states) if state == found]
        if not fits:
            wrong.append(difference(states[-1], found) | {"life": lives.index(life)})
        could, heard = heard + len(states) - 1, heard + (fits[-1] if fits else len(states) - 1)
        unheard += [
            round(life.end - entry.confirmed, 2) for entry in entries[heard:could] if entry.confirmed < life.end
        ]
        spoken = {window for window in sensed if any(inside(window, entry) for entry in entries)}
        late = {window for window in spoken if any(inside(window, entry) for entry in entries[heard:])}
        given |= spoken
        gone |= late - found.keys()
        now = found
    return Verdict(not wrong and heard == len(entries), len(lives), len(now), len(given), len(gone), unheard, wrong)


def difference(wanted, found):
    """How a disk differs from what it must hold."""
    return {
        "missing": sorted(wanted.keys() - found.keys())[:20],
        "extra": sorted(found.keys() - wanted.keys())[:20],
        "other_label": sorted(one for one in wanted.keys() & found.keys() if wanted[one] != found[one])[:20],
        "of": len(wanted),
    }
