"""Reads files that somebody else may have written: a run folder from a colleague, an experiment from the web.

Only regular files, so that no pipe blocks the reader; no links when a folder is read, so that it cannot expose other
places; limited size and depth, so that reading needs neither all memory nor all day. Every problem is an OSError or a
ValueError.
"""

import csv
import errno
import io
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedfilt._files import regular

MOST_TOML = 2 << 20  # bytes of an experiment; the paper's have a few hundred, one with 10,000 events a million
MOST_JSON = 32 << 20  # bytes of a JSON file, such as a run's graph with a million links
MOST_CSV = 16 << 20  # bytes of a table of links, distances or devices
DEEPEST = 40  # tables in tables
MOST_DOTS, ALL_DOTS = 100, 20_000  # in a line of TOML, and in total: Python stores every prefix of a dotted key
MOST_TABLES, MOST_LISTS = 100_000, 2_500_000  # in a JSON text: an empty one needs 20 times its letters in memory
NUMBER = re.compile(rb"(?<![\w.])\d+\.\d+(?![\w.])")


def read(path: Path, most: int, links: bool = False) -> bytes:
    """The content of a regular file of at most `most` bytes; follow a link only if the user has named it."""
    with regular(path, links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
        return file.read(size)  # not `most`: Python allocates as much memory as it is asked to read


def read_toml(path: Path, links: bool = False) -> dict[str, Any]:
    """The table of a TOML file."""
    return toml_of(read(path, MOST_TOML, links))


def read_json(path: Path, links: bool = False) -> Any:
    """The value in a JSON file."""
    return json_of(read(path, MOST_JSON, links))


@contextmanager
def csv_text(path: Path) -> Iterator[IO[str]]:
    """Open a CSV file that an experiment names."""
    with regular(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_CSV:
            raise ValueError(f"{path} has more than {MOST_CSV} bytes")
        with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            try:
                yield text
            except csv.Error as error:
                raise ValueError(f"{path}: {error}") from None


def toml_of(content: bytes) -> dict[str, Any]:
    """The table of a TOML text, within limits that no human author reaches.

    >>> toml_of(b"a.b = 1")
    {'a': {'b': 1}}
    >>> toml_of(b"a = " + 3000 * b"[" + 3000 * b"]")
    Traceback (most recent call last):
    ValueError: tables and lists are nested more than 40 deep
    """
    dots = [line.count(b".") for line in NUMBER.sub(b"", content).split(b"\n")]
    if max(dots) > MOST_DOTS:
        raise ValueError(f"line {dots.index(max(dots)) + 1} has more than {MOST_DOTS} dots")
    if sum(dots) > ALL_DOTS:
        raise ValueError(f"it has more than {ALL_DOTS} dots")
    try:
        table = tomllib.loads(content.decode())
    except RecursionError:
        raise _too_deep() from None
    _check_depth(table)
    return table


def json_of(content: bytes) -> Any:
    """The value of a JSON text, refused if it would need far more memory than its size suggests.

    >>> json_of(b'{"a": [1]}')
    {'a': [1]}
    """
    if content.count(b"{") > MOST_TABLES or content.count(b"[") > MOST_LISTS:
        raise ValueError("there are too many tables or lists in it")
    try:
        value = json.loads(content)
    except RecursionError:
        raise _too_deep() from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Refuse values too deep for recursive functions, without recursion."""
    level: Collection[Any] = _inside([value])
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise _too_deep()


def _inside(value: Any) -> Collection[Any]:
    """The tables and lists in one."""
    values: Collection[Any] = value.values() if isinstance(value, dict) else value
    kinds = set(map(type, values))
    if kinds <= {dict, list}:
        return values
    return [inner for inner in values if type(inner) in (dict, list)] if kinds & {dict, list} else ()


def _too_deep() -> ValueError:
    return ValueError(f"tables and lists are nested more than {DEEPEST} deep")
