"""Files of samples and recordings on a device: .npz, .safetensors, CSV and Parquet.

Sizes are checked before memory is allocated, and nothing in a file is ever executed.
"""

import csv
import io
import math
import os
import zipfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from safetensors.numpy import load as load_safetensors

from fedfilt._checks import check_choice
from fedfilt._files import regular
from fedfilt._types import Array

NOTHING = ("", "na", "nan", "null", "none")  # cells without a value
LIMIT = 1 << 30  # most bytes of a file, and of what is read from it
ARRAYS = ("x", "y", "part")
MOST_PACKED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}  # bytes that one byte of an archive can become
KNOWN = (*ARRAYS, "time")  # time: when a sample was taken, which is not used here


class BadData(ValueError):
    """Data that cannot be used. The message is for the device's own log; `said` may be sent to the server.

    `said` describes the problem, but never names a file, a label or a number.
    """

    def __init__(self, message: str, said: str = "its data cannot be read") -> None:
        line = " ".join(message.splitlines())
        super().__init__(line if len(line) <= 500 else f"{line[:497]}...")
        self.said = said


def too_large(what: object) -> BadData:
    """The error for data beyond the limit."""
    return BadData(f"{what} takes more than {LIMIT >> 20} MiB", "its data is too large")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file of acceptable size for reading.

    Every exception while reading counts as bad data: with damaged files, zipfile, NumPy, safetensors and pyarrow raise
    anything from SyntaxError to RuntimeError.
    """
    try:
        with regular(path) as file:
            if os.fstat(file.fileno()).st_size > LIMIT:
                raise too_large(path)
            yield file
    except BadData:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise BadData(f"{path} cannot be read: {reason}") from error


# --- samples ------------------------------------------------------------------------------------------------------


def read_samples(path: Path) -> dict[str, Array]:
    """The arrays of a .npz or .safetensors file: x, y, and optionally part and time."""
    with opened(path) as file:
        found = read_npz(file, path) if path.suffix.lower() == ".npz" else load_safetensors(file.read())
    for name in found:
        try:
            check_choice("array", name, KNOWN)
        except ValueError as error:
            raise BadData(f"{path}: {error}") from None
    for name in ("x", "y"):
        if name not in found:
            raise BadData(f"{path} must have the arrays x and y, got {', '.join(sorted(found)) or 'none'}")
    return found


def read_npz(file: IO[bytes], path: Path) -> dict[str, Array]:
    """The arrays of a .npz file; what headers claim is first compared with the actual size and with the limit."""
    found, total, size = {}, 0, file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            with archive.open(member) as content:
                version = np.lib.format.read_magic(content)
                read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                if version not in read:
                    raise ValueError(f"{member.filename} has an unknown format")
                shape, _, kind = read[version](content)
            if kind.hasobject:
                raise ValueError(f"{member.filename} holds Python objects, which are not loaded")
            promised = math.prod(shape) * kind.itemsize
            total += max(promised, member.file_size)
            if total > LIMIT:
                raise too_large(path)
            most = MOST_PACKED.get(member.compress_type, 0) * min(member.compress_size, size)
            if not promised <= member.file_size <= most:
                raise ValueError(f"{member.filename} claims more than it holds")
            with archive.open(member) as content:
                name = member.filename.removesuffix(".npy")
                found[name] = np.lib.format.read_array(content, allow_pickle=False)
    return found


# --- recordings ---------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The rows of a recording, as in its file."""

    channels: tuple[str, ...]
    times: Array  # (n,) seconds
    values: Array  # (n, channels); NaN if missing
    labels: dict[str, int]  # name -> code
    codes: Array  # (n,)
    places: Array  # (n,) position of each row in the file
    place: str  # the word for a position

    def where(self, path: Path, code: int) -> str:
        """Where a label first appears."""
        return f"{path}, {self.place} {self.places[np.argmax(self.codes == code)]}"


def read_rows(path: Path, time: str, label: str, channels: Sequence[str]) -> Rows:
    """The rows of a CSV or Parquet file with these columns; without `channels`, all others are channels."""
    with opened(path) as file:
        choose = partial(_columns, path, time, label, channels)
        if path.suffix.lower() == ".parquet":
            return _parquet(file, path, choose)
        with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            return _csv(text, path, choose)


Choose = Callable[[list[str]], list[str]]


def _columns(path: Path, time: str, label: str, channels: Sequence[str], names: list[str]) -> list[str]:
    """Time, label and channels among the columns of a file."""
    try:
        if len(set(names)) < len(names):
            raise ValueError("its columns must have different names")
        wanted = [time, label, *(channels or [name for name in names if name not in (time, label)])]
        if len(names) == 1 and any(sign in names[0] for sign in ";\t|"):
            raise ValueError(f"its columns must be separated by commas, got {names[0]!r}")
        return [check_choice("column", name, names) for name in wanted]
    except ValueError as error:
        raise BadData(f"{path}: {error}", "its recordings lack a column, or have one twice") from None


def _csv(file: IO[str], path: Path, choose: Choose) -> Rows:
    times, values, codes, lines, labels = array("d"), array("d"), array("q"), array("q"), dict[str, int]()
    rows = csv.reader(file, strict=True)
    try:
        names = [name.strip() for name in next(rows, [])]
        chosen = choose(names)
        time, label, *at = (names.index(name) for name in chosen)
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                raise ValueError(f"it must have {len(names)} cells, got {len(row)}")
            times.append(seconds(row[time]))
            values.extend([_value(row[i]) for i in at])
            codes.append(labels.setdefault(row[label].strip(), len(labels)))
            lines.append(rows.line_num)
    except BadData:
        raise
    except (ValueError, csv.Error) as error:
        raise BadData(f"{path}, line {rows.line_num}: {error}") from None
    held = np.array(values).reshape(len(times), len(at))
    return Rows(tuple(chosen[2:]), np.array(times), held, labels, np.array(codes, np.int64), np.array(lines), "line")


def _value(text: str) -> float:
    """The number in a cell; NaN for an empty one.

    >>> _value(" 1.5 "), _value("NA")
    (1.5, nan)
    """
    text = text.strip()
    if text.lower() in NOTHING:
        return math.nan
    if "_" in text:  # Python would read 1_0 as 10
        raise ValueError(f"a value must be a number, got {text!r}")
    return float(text)


def seconds(text: str) -> float:
    """A time in seconds: a number, or a date and time, in UTC unless it says otherwise.

    >>> seconds("1.5"), seconds("1970-01-01T00:01"), seconds("1970-01-01 01:00:00.5+01:00")
    (1.5, 60.0, 0.5)
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"time must be seconds or an ISO 8601 date and time, got {text!r}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _parquet(file: IO[bytes], path: Path, choose: Choose) -> Rows:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        missing = "its data needs a package that is not installed"
        raise BadData(f"{path} needs pyarrow: pip install 'fedfilt[parquet]'", missing) from None
    table = ParquetFile(file)
    time, label, *channels = choose(list(table.schema_arrow.names))
    about = table.metadata
    unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    if max(unpacked, 8 * about.num_rows * (len(channels) + 8)) > LIMIT:
        raise too_large(path)
    held = table.read(columns=[time, label, *channels], use_threads=False)
    labels: dict[str, int] = {}
    names = [(name or "").strip() for name in held[label].cast(pyarrow.string()).to_pylist()]
    codes = np.array([labels.setdefault(name, len(labels)) for name in names], np.int64)
    values = [held[name].cast(pyarrow.float64()).to_numpy() for name in channels]
    matrix = np.stack(values, axis=1) if values else np.empty((len(codes), 0))
    return Rows(tuple(channels), _moments(held[time]), matrix, labels, codes, 1 + np.arange(len(codes)), "row")


def _moments(column: Any) -> Array:
    """Seconds from a Parquet column of numbers, texts or timestamps."""
    values: Array = column.to_numpy()
    if values.dtype.kind == "M":
        return np.where(np.isnat(values), np.nan, values.astype("datetime64[us]").astype(np.int64) / 1e6)
    return np.array([seconds(str(value)) for value in values]) if values.dtype.kind == "O" else values.astype(float)
