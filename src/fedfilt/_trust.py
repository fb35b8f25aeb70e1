"""Code that a file names runs only if the user has said so: `--trust-code`, once for a file that stays as it is.

An experiment or the settings of a device may name code as module:Class. Whoever wrote the file decides what that code
does, with the rights of whoever reads it. What was trusted is remembered in the user's own state folder, by a hash of
the file, of where it is, and of the named modules as far as they lie beside it or in the current folder. What those
import in turn is not looked at: trust code as you would trust a program.
"""

import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import invalidate_caches
from importlib.machinery import PathFinder, all_suffixes
from itertools import islice
from pathlib import Path
from typing import Any

from fedfilt._files import write_atomically
from fedfilt._reading import read, read_json

VARIABLE = "FEDFILT_TRUST_CODE"  # of the environment; processes that a command starts inherit it
# Tables of an experiment for which the name of a part may stand
NAMED = (
    "aggregator",
    "client",
    "data",
    "devices",
    "engine",
    "filter",
    "graph",
    "model",
    "partition",
    "scheduler",
    "sparsifier",
)
FUNCTIONS = ("loss", "metric")  # keys of [training] that may name a function
MOST_CODE = 10 << 20  # bytes of a module
MOST_FILES = 10_000  # in the folder of a package
KINDS = tuple(all_suffixes())  # how the name of a file of code ends
Entry = dict[str, Any]  # what is remembered of a file
KEPT = 1000  # files that are remembered


class Untrusted(ValueError):
    """A file names code that the user has not trusted."""


@contextmanager
def trusting(said: bool = True) -> Iterator[None]:
    """Trust the code that files name, as long as this lasts, if the user has `said` so."""
    before = os.environ.get(VARIABLE)
    if said:
        os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def without_trust() -> dict[str, str]:
    """The environment for a process that is to trust nothing by itself."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def code_in(value: Any, key: str = "") -> set[str]:
    """Names of code from outside the package, module:Class, in a config's table or in a part of it.

    They stand where a part is named: as a `name`, or in the place of the part's table, however deep; or as the
    module:function of a loss or metric.

    >>> sorted(code_in({"aggregator": {"name": "gfedfilt", "filter": "mine:Low"}, "model": {"name": "mine:Net"}}))
    ['mine:Low', 'mine:Net']
    """
    if isinstance(value, Mapping):
        return {name for inner, one in value.items() for name in code_in(one, str(inner))}
    if isinstance(value, list | tuple):
        return {name for one in value for name in code_in(one, key)}
    return {value} if isinstance(value, str) and ":" in value and key in ("name", *NAMED, *FUNCTIONS) else set()


def check_trusted(path: Path, content: bytes, code: Collection[str], beside: Sequence[Path] = ()) -> None:
    """Refuse a file with this content that names this code, unless the user trusts it, now or since earlier.

    From then on modules are looked for in the folders `beside` too, after everything that is installed; see also
    `fedfilt._parts.find`, which looks into the current one.
    """
    if not code:
        return
    where = str(path.resolve())
    mark = _mark(where, content, code, [*beside, Path()])
    known = _remembered()
    if os.environ.get(VARIABLE) == "1":
        if mark not in known:
            with suppress(OSError, RuntimeError):  # where nothing can be remembered, it is said every time
                _remember({**known, mark: {"file": where, "code": sorted(code)}})
    elif mark not in known:
        changed = any(entry.get("file") == where for entry in known.values())
        raise Untrusted(
            f"{path} names code, {', '.join(sorted(code))}, which would run with your rights"
            f"{', and it has changed since you trusted it' if changed else ''}; if you trust it, say so once with "
            f"--trust-code (in Python: load(..., trust_code=True), or {VARIABLE}=1 in the environment)"
        )
    sys.path += [place for folder in beside if (place := str(folder.absolute())) not in sys.path]


def _mark(where: str, content: bytes, code: Iterable[str], folders: Sequence[Path]) -> str:
    """A hash of a file, its place, and the modules in these folders that it names."""
    seen: list[tuple[str, str]] = [(where, hashlib.sha256(content).hexdigest())]
    for file in files_of(code, folders):
        seen.append((str(file.resolve()), hashlib.sha256(read(file, MOST_CODE, links=True)).hexdigest()))
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def files_of(code: Iterable[str], folders: Sequence[Path]) -> list[Path]:
    """The files of the modules and packages that are named, of those that would be imported from these folders."""
    modules = sorted({name.partition(":")[0].partition(".")[0] for name in code})
    return [file for module in modules for file in _files_of(module, folders)]


def _files_of(module: str, folders: Sequence[Path]) -> list[Path]:
    invalidate_caches()  # it may just have been written
    spec = PathFinder.find_spec(module, [*sys.path, *(str(folder.absolute()) for folder in folders)])
    if spec is None:
        return []
    found = [spec.origin] if spec.submodule_search_locations is None else spec.submodule_search_locations
    own = {folder.resolve() for folder in folders}
    places = [place for place in map(Path, filter(None, found)) if place.parent.resolve() in own]
    inside = list(islice((path for place in places for path in [place, *place.rglob("*")]), MOST_FILES + 1))
    if len(inside) > MOST_FILES:
        raise ValueError(f"{places[0]} holds more than {MOST_FILES} files: too many for code of a file")
    return sorted(path for path in inside if path.name.endswith(KINDS) and "__pycache__" not in path.parts)


def _place() -> Path:
    """Where it is remembered: the user's own state folder."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "fedfilt" / "trusted.json"


def _remembered() -> dict[str, Entry]:
    """By mark, what was trusted; nothing if that cannot be read, or may have been written by others."""
    path = _place()
    try:
        about = path.lstat()
        if about.st_uid != os.getuid() or about.st_mode & 0o022:
            return {}
        table = read_json(path)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: no home
        return {}
    return {mark: entry for mark, entry in table.items() if isinstance(entry, dict)} if isinstance(table, dict) else {}


def _remember(entries: dict[str, Entry]) -> None:
    path = _place()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    newest = dict(list(entries.items())[-KEPT:])
    write_atomically(path, json.dumps(newest, indent=1).encode(), mode=0o600)
