"""A device's own data: read from its folder, split in time and scaled on the device itself.

Needs NumPy and safetensors, and pyarrow only where there is a Parquet file. Nothing that is read here is executed,
except a `reader` that the owner names in the device's own.toml.
"""

import itertools
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfilt import _parts
from fedfilt._checks import check_choice, check_count, check_number
from fedfilt._reading import MOST_TOML, toml_of
from fedfilt._trust import Untrusted, check_trusted
from fedfilt._types import Array, Table
from fedfilt.data import _tables
from fedfilt.data._tables import BadData, Rows, opened, read_rows, read_samples, too_large
from fedfilt.data.windows import Recording, Scaling, Seen, cut_windows, part_ends

__all__ = [
    "BadData",
    "Decide",
    "Held",
    "Making",
    "Owner",
    "Public",
    "Report",
    "Scaling",
    "Sensors",
    "Source",
    "owner",
    "public",
    "read",
]

log = logging.getLogger("fedfilt")

SETTINGS = "own.toml"
READING = 60.0  # seconds that the owner's reader may take
SEEN = "state/seen.json"  # statistics of a device's sensors; see fedfilt.home.decider
CORRECTIONS = "corrections.npz"  # in the data folder: windows that people have labelled; see fedfilt.home.corrections
SAMPLES, RECORDINGS = (".npz", ".safetensors"), (".csv", ".parquet")
UNFINISHED = (".tmp", ".part")
TRIES, PAUSE = 4, 0.25  # how often to read a folder that keeps changing, and the seconds in between
GAP = 1.5  # periods without a row that end a recording
OFF = 0.1  # by how much a rate may differ from the wanted one
OTHER_SHAPE = "its data does not have the shape of the experiment's samples"
UNKNOWN_LABEL = "its data has a label that the experiment does not know"


@dataclass(frozen=True)
class Sensors:
    """A table [[data.sensors]]: the sensors of a kind of device, if inputs differ; see `Making` for its keys."""

    kind: str = ""  # name of the kind
    shape: tuple[int, ...] = ()  # of its windows
    step: int = 0  # as in [data]
    rate: float = 0.0  # as in [data]
    channels: tuple[str, ...] = ()  # as in [data]

    def __post_init__(self) -> None:
        if not self.kind or not self.shape:
            raise ValueError('data.sensors needs a kind and a shape, such as kind = "watch", shape = [3, 63]')
        Making(self.shape, (), self.step, self.rate, self.channels)


@dataclass(frozen=True)
class Making:
    """How samples are made from a device's own data: the same on all devices of an experiment, or of a kind.

    >>> Making(shape=(6, 100), labels=("walk", "rest")).stride
    50
    """

    shape: tuple[int, ...] = ()  # of a sample; of a window (channels, rows)
    labels: tuple[str, ...] = ()  # names
    step: int = 0  # rows between the starts of two windows; 0 is half a window
    rate: float = 0.0  # rows a second; 0 is any
    channels: tuple[str, ...] = ()  # columns, in this order; none are all, in the order of the file
    validation_share: float = 0.1  # share of a device's samples to choose by, taken in the order of time
    test_share: float = 0.2  # share of a device's samples to test on: the last ones
    soft: float = 0.0  # draws loud motions together: asinh(soft · x); 0 leaves all as it is
    scale: bool = True  # each channel by the device's own training samples
    sensors: tuple[Sensors, ...] = ()  # of every kind of device, where shape, step, rate and channels are unlike

    def __post_init__(self) -> None:
        names = [one.kind for one in self.sensors]
        if len(set(names)) < len(names):
            raise ValueError(f"data.sensors must have different kinds, got {names}")
        if self.sensors and (self.shape or self.step or self.rate or self.channels):
            raise ValueError("data.shape, step, rate and channels belong in data.sensors if kinds differ")
        for side in self.shape:
            check_count("data.shape", side)
        if len(set(self.labels)) < len(self.labels) or any(not name or name != name.strip() for name in self.labels):
            raise ValueError(f"data.labels must be different names, got {list(self.labels)}")
        if len(set(self.channels)) < len(self.channels):
            raise ValueError(f"data.channels must be different names, got {list(self.channels)}")
        if self.channels and self.shape and self.shape[0] != len(self.channels):
            raise ValueError(f"data.channels must name {self.shape[0]} columns, like data.shape, got {self.channels}")
        check_count("data.step", self.step, low=0)
        check_number("data.rate", self.rate, low=0)
        for name in ("validation_share", "test_share"):
            check_number(f"data.{name}", getattr(self, name), low=0, high=0.9)
        if self.validation_share + self.test_share > 0.9:
            raise ValueError("data.validation_share and data.test_share must leave at least 0.1 for training")
        if check_number("data.soft", self.soft, low=0) and not self.scale:
            raise ValueError("data.soft needs data.scale = true")

    @property
    def stride(self) -> int:
        """Rows between the starts of two windows."""
        return self.step or max(self.shape[-1] // 2, 1)

    def of(self, kind: str) -> "Making":
        """How a kind of device makes its samples; ValueError for an unknown kind."""
        if not self.sensors:
            return self
        known = {one.kind: one for one in self.sensors}
        own = known[check_choice("data.kinds", kind, known)]
        return Making(
            **{one.name: getattr(own, one.name, getattr(self, one.name)) for one in fields(Making)} | {"sensors": ()}
        )

    def check_complete(self) -> None:
        """Refuse settings that do not define what a sample is."""
        if not (self.shape or self.sensors) or not self.labels:
            raise ValueError(
                'data.name = "own" needs the shape and labels of the samples, such as '
                'data.shape = [6, 100] and data.labels = ["walk", "rest"]'
            )


@dataclass(frozen=True)
class Public:
    """The server's own samples for a global test: a .npz or .safetensors file with x and y."""

    file: str = ""  # a .npz or .safetensors file with x and y


class Held(NamedTuple):
    """What a device holds, ready for training: x (n, *shape) uint8 or float32, y (n,) labels from 0."""

    train_x: Array
    train_y: Array
    validation_x: Array
    validation_y: Array
    test_x: Array
    test_y: Array
    scaling: Scaling | None  # None: samples are used as they are


class Chunk(NamedTuple):
    """Samples in order of time, not yet scaled."""

    x: Array
    y: Array
    part: Array  # (n,) TRAIN, VALIDATION or TEST; -1 if undecided


# --- the owner's settings -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What a device reports to the server besides its update; the owner may switch off each item."""

    samples: bool = True  # how many it trained on
    loss: bool = True
    test: bool = True  # how well its model does on its own test


@dataclass(frozen=True)
class Decide:
    """How a device decides while reading its sensors, and what it keeps."""

    hop: int = 0  # rows between two decisions; 0: as in training
    keep_minutes: float = 10.0  # how long windows stay in memory for corrections
    per_label: int = 200  # most corrected windows kept per label
    in_all: int = 2000  # most corrected windows kept in total
    days: float = 90.0  # after which they are removed

    def __post_init__(self) -> None:
        check_count("hop", self.hop, low=0)
        check_number("keep_minutes", self.keep_minutes, low=0, high=24 * 60)
        check_count("per_label", self.per_label)
        check_count("in_all", self.in_all, high=100_000)
        check_number("days", self.days, low=0, above=True)


@dataclass(frozen=True)
class Owner:
    """The owner's settings: own.toml in the device's folder."""

    data: str = "data"  # folder of the files, relative to the device's folder
    reader: str = ""  # module:Class
    time: str = "time"  # column
    label: str = "label"  # column
    report: Report = Report()
    decide: Decide = Decide()
    source: Mapping[str, Any] = field(default_factory=dict)  # name and options of a part of fedfilt/sources


def owner(folder: Path) -> Owner:
    """The settings in a device's folder; the defaults if it has none."""
    path = folder / SETTINGS
    try:
        if not os.path.lexists(path):
            return Owner()
        with opened(path) as file:
            content = file.read(MOST_TOML)
            settings = _settings(toml_of(content))
        code = {name for name in (settings.reader, settings.source.get("name", "")) if ":" in name}
        check_trusted(path, content, code, [folder])
        return settings
    except Untrusted as error:
        raise UntrustedData(str(error), "its settings name code that its owner has not trusted") from None
    except ValueError as error:
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise BadData(message, "its settings are wrong or cannot be read") from None


class UntrustedData(BadData, Untrusted):
    """The owner's settings name code that the owner has not trusted."""


def _settings(table: Table) -> Owner:
    report, decide, source = (table.pop(name, {}) for name in ("report", "decide", "source"))
    kinds: tuple[tuple[Any, Any, Any, str], ...] = (
        (Owner, table, str, "a text"),
        (Report, report, bool, "true or false"),
        (Decide, decide, int | float, "a number"),
    )
    for kind, given, allowed, said in kinds:
        if not isinstance(given, dict):
            raise ValueError(f"{kind.__name__.lower()} must be a table, got {given!r}")
        for key, value in given.items():
            check_choice("key", key, [one.name for one in fields(kind)])
            if not isinstance(value, allowed):
                raise ValueError(f"{key} must be {said}, got {value!r}")
    if table.get("reader") and ":" not in table["reader"]:
        raise ValueError(f"reader must be module:Class, got {table['reader']!r}")
    if not isinstance(source, dict) or (source and not isinstance(source.get("name"), str)):
        raise ValueError(f'source must be a table with a name, such as name = "mqtt", got {source!r}')
    return Owner(**table, report=Report(**report), decide=Decide(**decide), source=source)


# --- a device's folder --------------------------------------------------------------------------------------------


class Source:
    """The data in a device's folder, read again only when it has changed."""

    def __init__(self, folder: Path, making: Making) -> None:
        making.check_complete()
        self.folder, self.making = folder, making
        self._seen: Any = None
        self._held: Held | None = None

    def held(self) -> Held:
        """The device's current data; the same object as before if nothing has changed. Raises `BadData`."""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE)
            settings = owner(self.folder)
            place = self.folder / settings.data
            reader = _reader(settings, self.folder, place)
            seen = _fingerprint(self.folder, place, reader)
            if self._held is not None and seen == self._seen:
                return self._held
            try:
                chunks = list(_chunks(place, settings, reader, self.making))
                held = _made(chunks, self.making, seen_by(self.folder, self.making))
            except BadData:
                if _fingerprint(self.folder, place, reader) == seen:
                    raise
                continue
            if _fingerprint(self.folder, place, reader) == seen:
                self._seen, self._held = seen, held
                return held
        raise BadData(f"{place} keeps changing while it is read", "its data changes while it is read")


def read(folder: Path, making: Making) -> Held:
    """The data in a device's folder; see `Source`."""
    return Source(folder, making).held()


def public(path: Path, making: Making) -> tuple[Array, Array]:
    """(x, y) from a file of public samples, scaled by its own statistics."""
    making.check_complete()
    chunk = _checked(path, read_samples(path), making)
    return (Scaling.of(chunk.x, making.soft).apply(chunk.x) if _scales(chunk.x, making) else chunk.x), chunk.y


def _reader(settings: Owner, folder: Path, place: Path) -> Any:
    """The owner's reader, if there is one."""
    if not settings.reader:
        return None
    with _owners_code(settings.reader):
        return _parts.find(_parts.READERS, settings.reader)(place)


@contextmanager
def _owners_code(name: str) -> Iterator[None]:
    """Runs the owner's code, which may fail in any way, or never return."""

    def too_long(number: int, frame: object) -> None:
        raise TimeoutError(f"it took more than {READING:g} s")

    timed = threading.current_thread() is threading.main_thread()  # only the main thread can be interrupted
    before = signal.signal(signal.SIGALRM, too_long) if timed else None
    try:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, READING)
        yield
    except BadData:
        raise
    except (Exception, SystemExit) as error:
        raise BadData(f"the reader {name} failed: {error!r}", "the reader of its data failed") from error
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _files(place: Path) -> list[Path]:
    """The complete files in a folder, by name."""
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        raise BadData(f"there is no folder {place}", "it has no data folder") from None
    except OSError as error:
        raise BadData(f"{place} cannot be read: {error.strerror}") from None
    return [place / name for name in names if not name.startswith(".") and not name.endswith(UNFINISHED)]


def _fingerprint(folder: Path, place: Path, reader: Any) -> Any:
    """A value that changes with the files in a folder; the owner's reader may add the result of its `version()`."""
    looked_at = [] if reader is not None and not place.exists() else _files(place)
    found: list[Any] = []
    if hasattr(reader, "version"):
        with _owners_code(type(reader).__name__):
            found.append(repr(reader.version()))
    for path in [folder / SETTINGS, folder / SEEN, *looked_at]:
        try:
            status = path.stat()
            found.append((path.name, status.st_size, status.st_mtime_ns, status.st_ino))
        except OSError:
            found.append((path.name, None))
    return found


def _chunks(place: Path, settings: Owner, reader: Any, making: Making) -> Iterable[Chunk]:
    """All samples in a folder, those from recordings last."""
    if reader is not None:
        yield from _from_reader(settings.reader, reader, making)
        if (place / CORRECTIONS).exists():
            yield _checked(place / CORRECTIONS, read_samples(place / CORRECTIONS), making)
        return
    tables, total = [], 0
    for path in _files(place):
        if path.suffix.lower() in SAMPLES:
            chunk = _checked(path, read_samples(path), making)
            total += chunk.x.nbytes
            if total > _tables.LIMIT:
                raise too_large(place)
            yield chunk
        elif path.suffix.lower() in RECORDINGS:
            tables.append((path, read_rows(path, settings.time, settings.label, making.channels)))
            total += tables[-1][1].values.nbytes
            if total > _tables.LIMIT:
                raise too_large(place)
        else:
            log.warning("%s is ignored: only %s files are read", path, ", ".join((*SAMPLES, *RECORDINGS)))
    if tables:
        yield _windows(str(place), _recordings(tables, making), making)


def _from_reader(name: str, reader: Any, making: Making) -> Iterable[Chunk]:
    with _owners_code(name):
        found = reader(making)
        if isinstance(found, list) and all(isinstance(one, Recording) for one in found):
            given: Any = [one._replace(device=0, person=0, signal=np.asarray(one.signal)) for one in found]
        else:
            given = {key: np.asarray(value) for key, value in zip(_tables.ARRAYS, found, strict=False)}
        chunk = _windows(name, given, making) if isinstance(given, list) else _checked(name, given, making)
    yield chunk


# --- samples ------------------------------------------------------------------------------------------------------


def _checked(where: object, arrays: dict[str, Array], making: Making) -> Chunk:
    """Samples checked against the experiment, without those that are not finite."""
    x, y = arrays.get("x"), arrays.get("y")
    if x is None or y is None:
        raise BadData(f"{where} must have x and y")
    if x.shape[1:] != making.shape or x.ndim != 1 + len(making.shape):
        raise BadData(f"{where}: x must have shape (n, {str(making.shape)[1:]}, got {x.shape}", OTHER_SHAPE)
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise BadData(f"{where}: x must be uint8 or floating-point numbers, got {x.dtype}", OTHER_SHAPE)
    part = arrays.get("part", np.full(len(x), -1))
    for name, values in (("y", y), ("part", part)):
        if values.shape != (len(x),):
            raise BadData(f"{where}: {name} must have shape ({len(x)},) like x, got {values.shape}", OTHER_SHAPE)
    if part.dtype.kind not in "iu" or ("part" in arrays and not np.isin(part, (0, 1, 2)).all()):
        raise BadData(f"{where}: part must be 0 (train), 1 (validation) or 2 (test)")
    if len(arrays.get("time", x)) != len(x):
        raise BadData(f"{where}: time must have {len(x)} rows like x, got {len(arrays['time'])}", OTHER_SHAPE)
    y = _label_numbers(where, y, making)
    if x.dtype == np.uint8:
        return Chunk(x, y, part.astype(np.int64))
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    good = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    if not good.all():
        log.warning("%s: %d samples that are not finite are skipped", where, (~good).sum())
    return Chunk(x[good], y[good], part[good].astype(np.int64))


def _label_numbers(where: object, y: Array, making: Making) -> Array:
    """Labels as numbers from 0, given as numbers or names."""
    if y.dtype.kind == "U":
        if y.dtype.itemsize and (y.astype(y.dtype.newbyteorder("=")).view(np.uint32) > sys.maxunicode).any():
            raise BadData(f"{where}: y must be names, got invalid letters", UNKNOWN_LABEL)
        names, at = np.unique(y, return_inverse=True)
        return np.array([_number(where, str(name), making) for name in names], np.int64)[at]
    if y.dtype.kind not in "iu":
        raise BadData(f"{where}: y must be whole numbers or names, got {y.dtype}", UNKNOWN_LABEL)
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(making.labels):
        highest = len(making.labels) - 1
        raise BadData(f"{where}: y must be labels from 0 to {highest}, got {y.min()} to {y.max()}", UNKNOWN_LABEL)
    return y.astype(np.int64)


def _number(where: object, name: str, making: Making) -> int:
    try:
        return making.labels.index(check_choice("label", name, making.labels))
    except ValueError as error:
        raise BadData(f"{where}: {error}", UNKNOWN_LABEL) from None


def _scales(x: Array, making: Making) -> bool:
    return making.scale and x.dtype != np.uint8


def seen_by(folder: Path, making: Making) -> Seen | None:
    """The statistics of a device's sensors, if it keeps them."""
    if not (folder / SEEN).exists():
        return None
    try:
        with opened(folder / SEEN) as file:
            seen = Seen.from_json(file.read().decode())
        if len(seen.mean) != making.shape[0]:
            raise ValueError(f"{folder / SEEN} must have {making.shape[0]} channels, got {len(seen.mean)}")
        return seen
    except ValueError as error:
        log.warning("%s; it is ignored", error)
        return None


def _made(chunks: Sequence[Chunk], making: Making, seen: Seen | None = None) -> Held:
    """Samples, split and scaled."""
    chunks = [chunk for chunk in chunks if len(chunk.y)] or [
        Chunk(np.empty((0, *making.shape), np.float32), *np.empty((2, 0), np.int64))
    ]
    if len({chunk.x.dtype for chunk in chunks}) > 1:
        raise BadData("the files of a device must be all uint8 or all floating-point numbers", OTHER_SHAPE)
    x, y, part = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
    for label in range(len(making.labels)):
        rows = np.flatnonzero((part < 0) & (y == label))
        ends = part_ends(len(rows), making.validation_share, making.test_share)
        part[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    train, validation, test = (np.flatnonzero(part == which) for which in range(3))
    scaling = Scaling.of(x[train], making.soft) if _scales(x, making) else None
    if scaling is not None and seen is not None and seen.windows > len(train):
        scaling = seen.scaling(making.soft)
    split = [(x[rows] if scaling is None else scaling.apply(x[rows]), y[rows]) for rows in (train, validation, test)]
    return Held(*split[0], *split[1], *split[2], scaling)


# --- recordings ---------------------------------------------------------------------------------------------------


def _recordings(tables: Sequence[tuple[Path, Rows]], making: Making) -> list[Recording]:
    """Stretches of rows without a gap and with a single label; rows without a label are dropped."""
    found: list[Recording] = []
    rate = making.rate
    for path, rows in _in_time(tables):
        if rows.channels != tables[0][1].channels:
            raise BadData(f"{path} must have the channels of {tables[0][0].name}, got {rows.channels}", OTHER_SHAPE)
        if len(making.shape) == 2 and len(rows.channels) != making.shape[0]:
            got = ", ".join(rows.channels) or "none"
            raise BadData(f"{path} must have {making.shape[0]} channels, got {got}", OTHER_SHAPE)
        numbers = [_number(rows.where(path, code), name, making) if name else -1 for name, code in rows.labels.items()]
        labels = np.array(numbers, np.int64)[rows.codes]
        if len(rows.times) < 2:
            continue
        steps = _steps(path, rows)
        period = float(np.median(steps))
        rate = rate or 1 / period
        if abs(1 / period / rate - 1) > OFF:
            off = "its recordings do not have the rate that the experiment needs"
            raise BadData(f"{path} must have about {rate:g} rows per second, got {1 / period:g}", off)
        ends = np.flatnonzero((steps > GAP * period) | (np.diff(labels) != 0)) + 1
        for part in np.split(np.arange(len(labels)), ends):
            if labels[part[0]] >= 0:
                found.append(Recording(0, 0, int(labels[part[0]]), rows.values[part], rate))
    return found


def _in_time(tables: Sequence[tuple[Path, Rows]]) -> Sequence[tuple[Path, Rows]]:
    """Files in order of time, or of their names if their times overlap. Copies are skipped."""
    known: list[tuple[Path, Rows]] = []
    for path, rows in tables:
        copied = [other for other, seen in known if len(rows.times) and _same_rows(rows, seen)]
        if copied:
            log.warning("%s is skipped: it is a copy of %s", path, copied[0].name)
        else:
            known.append((path, rows))
    ordered = sorted((one for one in known if len(one[1].times)), key=lambda one: float(one[1].times[0]))
    if any(before.times[-1] >= after.times[0] for (_, before), (_, after) in itertools.pairwise(ordered)):
        log.warning("the times of files in %s overlap: they are used in order of their names", tables[0][0].parent)
        return known
    return ordered


def _same_rows(one: Rows, other: Rows) -> bool:
    values = np.array_equal(one.values, other.values, equal_nan=True)
    return values and one.channels == other.channels and np.array_equal(one.times, other.times)


def _steps(path: Path, rows: Rows) -> Array:
    """Seconds between rows, whose times must increase."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.diff(rows.times)
    wrong = np.flatnonzero(~(np.isfinite(steps) & (steps > 0)))
    if len(wrong):
        where = f"{path}, {rows.place} {rows.places[wrong[0] + 1]}"
        raise BadData(f"{where}: time must increase", "its recordings are not in order of time")
    return steps


def _windows(where: str, recordings: Sequence[Recording], making: Making) -> Chunk:
    """The windows of recordings; see `fedfilt.data.windows`."""
    if len(making.shape) != 2 or making.shape[1] < 2:
        raise BadData(f"{where}: recordings need data.shape = [channels, rows of a window]", OTHER_SHAPE)
    rows = 0
    for recording in recordings:
        if recording.signal.ndim != 2 or recording.signal.shape[1] != making.shape[0]:
            got = recording.signal.shape[1:]
            raise BadData(f"{where}: recordings must have {making.shape[0]} channels, got {got}", OTHER_SHAPE)
        if recording.label not in range(len(making.labels)):
            raise BadData(f"{where}: a recording has the label {recording.label}", UNKNOWN_LABEL)
        rows += len(recording.signal)
    if rows // making.stride * math.prod(making.shape) * 8 > _tables.LIMIT:
        raise too_large(f"{where}, cut into windows,")
    cuts = cut_windows(where, recordings, making.shape[1], making.stride, making.test_share, making.validation_share)
    if recordings and not cuts:
        log.warning("%s: no recording is as long as a window of %d rows", where, making.shape[1])
    arrays = {
        "x": np.stack([cut.window for cut in cuts]) if cuts else np.empty((0, *making.shape)),
        "y": np.array([cut.recording.label for cut in cuts], np.int64),
        "part": np.array([cut.part for cut in cuts], np.int64),
    }
    return _checked(where, arrays, making)
