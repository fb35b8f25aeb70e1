"""Windows that people have labelled, in the device's own data: `corrections.npz` in its data folder.

The file holds raw windows `x`, label names `y`, `time` (n, 2) with the begin and end of each, and `part`. It is read
for training like any other file of samples, and written completely or not at all.

* The newest correction wins. It gives its label to all windows inside its span, including those corrected before;
  windows across its ends that have another label are dropped.
* There are quotas per label and in total, and windows age: the oldest go first. Windows more than a day later than what
  is being corrected were kept under a wrong clock; they go before all others.
* The split is by stretches of time: windows that overlap, or are less than a window apart, form one stretch, which
  goes to training, validation or test as a whole. The first stretch of a label is for training; a later one is for the
  test, or else for validation, if that brings these closer to their shares of the label's windows. Windows stay where
  they are, unless a new one joins two stretches; then both belong where the earlier one does.
"""

import fcntl
import io
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedfilt._checks import check_span
from fedfilt._files import write_atomically
from fedfilt._types import Array
from fedfilt.data._tables import BadData, opened, read_npz, seconds
from fedfilt.data.own import CORRECTIONS, SEEN, Decide, Making, owner
from fedfilt.data.windows import TEST, TRAIN, VALIDATION
from fedfilt.home.stream import Window
from fedfilt.home.topics import Correction

log = logging.getLogger("fedfilt")

DAMAGED = ".damaged"
FORGOTTEN = "state/forgotten"  # in a device's folder: the time since which a running device must forget
MOST_BYTES = 1 << 28  # of all windows; 256 MiB
DAY = 86_400.0


class Kept(NamedTuple):
    """Corrected windows, in order of time."""

    x: Array  # (n, channels, rows) float32, raw
    y: Array  # (n,) names
    time: Array  # (n, 2) begin and end
    part: Array  # (n,) TRAIN, VALIDATION, TEST, or -1 if undecided

    def take(self, which: Array) -> "Kept":
        """A selection of them."""
        return Kept(*(array[which] for array in self))


class Corrections:
    """The corrected windows of a device's folder. They are read from the file whenever they are needed."""

    def __init__(self, folder: Path, making: Making, decide: Decide) -> None:
        self.folder, self.making, self.decide = folder, making, decide

    def read(self) -> Kept:
        """All windows in the file. Raises `BadData` if it is damaged or belongs to another experiment."""
        path = _path(self.folder)
        if not path.exists():
            return Kept(
                np.empty((0, *self.making.shape), np.float32), np.empty(0, "U1"), np.empty((0, 2)), np.empty(0, int)
            )
        kept = _read(path)
        if kept.x.shape[1:] != self.making.shape:
            raise BadData(f"{path}: x must have shape (n, {str(self.making.shape)[1:]}, got {kept.x.shape}")
        return kept

    def add(self, correction: Correction, windows: Sequence[Window]) -> int:
        """Keep the windows inside a correction's span, under its label; returns their number, with those on disk."""
        inside = [one for one in windows if correction.begin <= one.begin and one.end <= correction.end]
        count = 0

        def changed(kept: Kept) -> Kept:
            nonlocal count
            begin, end = kept.time.T
            within = (correction.begin <= begin) & (end <= correction.end)
            across = ~within & (begin <= correction.end) & (correction.begin <= end)
            y = np.where(within, correction.label, kept.y)
            kept = kept._replace(y=y).take(~across | (y == correction.label))
            more = _with(kept, inside, correction.label)
            count = int(within.sum()) + len(more.y) - len(kept.y)
            return self._within_limits(more, now=correction.end)

        self._change(changed)
        return count

    def add_late(self, window: Window, label: Callable[[], str]) -> int:
        """Keep a window that is cut after its time was corrected, unless `label` returns no label for it.

        `label` is called while no correction is being written. Returns the number of windows there are then.
        """

        def changed(kept: Kept) -> Kept:
            given = label()
            return self._within_limits(_with(kept, [window], given), now=window.end) if given else kept

        return self._change(changed)

    def tidy(self, now: float) -> int:
        """Remove windows that are too old; returns how many are left."""
        if not _path(self.folder).exists():
            return 0
        return self._change(lambda kept: self._within_limits(kept, now - self.decide.days * DAY))

    def _within_limits(self, kept: Kept, oldest: float = -math.inf, now: float = math.inf) -> Kept:
        """The windows in order of time, without those over age or quota, assigned to the parts."""
        kept = kept.take(np.argsort(kept.time[:, 0], kind="stable"))
        kept = kept.take(kept.time[:, 1] >= oldest)
        leaving = np.argsort(kept.time[:, 1] <= now + DAY, kind="stable")  # the first go first
        over = [leaving[kept.y[leaving] == label][: -self.decide.per_label] for label in np.unique(kept.y)]
        leaving = leaving[~np.isin(leaving, np.concatenate(over))] if over else leaving
        most = min(self.decide.in_all, max(MOST_BYTES // (4 * math.prod(self.making.shape)), 1))
        kept = kept.take(np.sort(leaving[-most:]))
        return kept._replace(part=parts(kept, self.making))

    def _change(self, change: Callable[[Kept], Kept]) -> int:
        """Change the file, or leave it as it was and raise OSError; returns how many windows it then has."""
        with _alone(self.folder):
            try:
                before = self.read()
            except BadData as error:
                aside = _path(self.folder).with_suffix(DAMAGED)
                log.warning("%s; the file was renamed to %s, and corrections start over", error, aside.name)
                os.replace(_path(self.folder), aside)
                before = self.read()
            after = change(before)
            if any(not np.array_equal(one, other) for one, other in zip(before, after, strict=True)):
                _write(_path(self.folder), after)
            return len(after.y)


class Forgotten(NamedTuple):
    """What was removed."""

    windows: int  # that could be read
    damaged: int  # files that could not: all of what they held


def forget(folder: Path, since: float | None = None) -> Forgotten:
    """Remove the corrected windows that ended after a time, or all; returns how many there were.

    A file that is damaged, or was put aside because it was, is removed: nobody can tell what in it is older.
    A running device drops such windows from its memory too. If it is to forget everything, it also forgets the mean and
    spread of what it has sensed. Models trained on the windows stay as they are, and so does what it has sent.
    """
    path = _path(folder)
    with _alone(folder):
        write_atomically(folder / FORGOTTEN, b"" if since is None else f"{since!r}".encode())
        if since is None:
            (folder / SEEN).unlink(missing_ok=True)
        damaged = [one for one in (path.with_suffix(DAMAGED), path.with_name(f".{path.name}.tmp")) if one.exists()]
        count = 0
        if path.exists():
            try:
                kept = _read(path)
            except BadData:
                damaged.append(path)
            else:
                earlier = np.zeros(len(kept.y), bool) if since is None else kept.time[:, 1] <= since
                _write(path, kept.take(earlier))
                count = int((~earlier).sum())
        for one in damaged:
            one.unlink(missing_ok=True)  # writing has removed the temporary one
        return Forgotten(count, len(damaged))


def forgotten_since(folder: Path) -> float:
    """The time since which the owner last told the device to forget; minus infinity means everything."""
    try:
        return float((folder / FORGOTTEN).read_text()[:30])
    except (OSError, ValueError):
        return -math.inf


def since_of(text: str, now: float) -> float:
    """The time meant by 2d, 6h, 30min or 45s (ago), or by a date and time.

    >>> since_of("2d", now=1e6), since_of("1.5h", now=1e6), since_of("1970-01-02", now=1e6)
    (827200.0, 994600.0, 86400.0)
    """
    try:
        return seconds(text)
    except ValueError:
        pass
    try:
        return now - check_span("since", text)
    except ValueError:
        raise ValueError(f"since must be a time such as 2d, 6h or 2026-05-01T12:00, got {text!r}") from None


def label_of(window: Window, said: Iterable[Correction]) -> str:
    """A window's label after all corrections (newest last), as if it had been there; "" if none applies.

    >>> said = [Correction("walk", 0, 9), Correction("rest", 5, 7)]
    >>> [label_of(Window(begin, begin + 2, np.empty(0)), said) for begin in (2, 4, 5, 8)]
    ['walk', '', 'rest', '']
    """
    label = ""
    for one in said:
        if one.begin <= window.begin and window.end <= one.end:
            label = one.label
        elif window.begin <= one.end and one.begin <= window.end and one.label != label:
            label = ""
    return label


def _with(kept: Kept, windows: Sequence[Window], label: str) -> Kept:
    """The windows with new ones added; known ones are skipped."""
    known = {(begin, end) for begin, end in kept.time.tolist()}
    new = [one for one in windows if (one.begin, one.end) not in known]
    if not new:
        return kept
    more = Kept(
        np.stack([one.values for one in new]),
        np.full(len(new), label),
        np.array([(one.begin, one.end) for one in new]),
        np.full(len(new), -1),
    )
    return Kept(*(np.concatenate(pair) for pair in zip(kept, more, strict=True)))


def parts(kept: Kept, making: Making) -> Array:
    """(n,) TRAIN, VALIDATION or TEST for windows in order of time; see the module's docstring."""
    found = kept.part.copy()
    begin, end = kept.time.T
    reach = np.maximum.accumulate(2 * end - begin) if len(found) else end
    starts = np.flatnonzero(begin[1:] > reach[:-1]) + 1
    stretches = [stretch for stretch in np.split(np.arange(len(found)), starts) if len(stretch)]
    for stretch in stretches:
        if len(known := found[stretch][found[stretch] >= 0]):
            found[stretch] = known[0]
    for stretch in stretches:
        if found[stretch[0]] < 0:
            same = (kept.y == kept.y[stretch[0]]) & (found >= 0)
            total = same.sum() + len(stretch)
            found[stretch] = TRAIN
            for part, share in ((TEST, making.test_share), (VALIDATION, making.validation_share)):
                if (same & (found == part)).sum() + len(stretch) / 2 <= share * total:
                    found[stretch] = part
                    break
    return found


# --- the file -----------------------------------------------------------------------------------------------------


def _path(folder: Path) -> Path:
    return folder / owner(folder).data / CORRECTIONS


def _read(path: Path) -> Kept:
    with opened(path) as file:
        found = read_npz(file, path)
    try:
        kept = Kept(*(found[name] for name in Kept._fields))
    except KeyError as error:
        raise BadData(f"{path} lacks the array {error}") from None
    kinds, count = [array.dtype.kind for array in kept], len(kept.x)
    if kinds != ["f", "U", "f", "i"] or [kept.y.shape, kept.time.shape, kept.part.shape] != [
        (count,),
        (count, 2),
        (count,),
    ]:
        raise BadData(f"{path} does not hold corrections")
    return kept


def _write(path: Path, kept: Kept) -> None:
    if not len(kept.y):
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, **kept._asdict())
    write_atomically(path, content.getvalue())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps other processes and threads from changing the file."""
    state = folder / "state"
    state.mkdir(parents=True, exist_ok=True)
    with (state / "corrections.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
