"""Code that a file names runs only if the user trusts it: `--trust-code`, once for a file that does not change.

An experiment or a device's settings may name code as module:Class. That code does whatever the file's author wants,
with the rights of the file's reader. Trust is remembered in the user's state folder, by a hash of the file, its place,
and the named modules as far as they lie beside it or in the current folder. What those import in turn is not checked:
trust code as you would trust a program.
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

VARIABLE = "FEDFILT_TRUST_CODE"  # environment variable, inherited by processes that a command starts
# Tables of an experiment that may be given as just the name of a part
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
KINDS = tuple(all_suffixes())  # endings of code files
Entry = dict[str, Any]  # what is remembered about a file
KEPT = 1000  # most files to remember


class Untrusted(ValueError):
    """A file names code that the user has not trusted."""


@contextmanager
def trusting(said: bool = True) -> Iterator[None]:
    """Within this block, trust the code that files name, if the user has `said` so."""
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
    """The environment for a process that trusts nothing by itself."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def code_in(value: Any, key: str = "") -> set[str]:
    """Names of outside code, module:Class, in a config's table or in a part of it.

    They appear where a part is named: as a `name`, or instead of the part's table, at any depth; or as the
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
    """Refuse a file with this content that names this code, unless the user trusts it now or has trusted it before.

    From then on, modules are also searched for in the folders `beside`, after all installed ones; see also
    `fedfilt._parts.find`, which searches the current folder.
    """
    if not code:
        return
    where = str(path.resolve())
    mark = _mark(where, content, code, [*beside, Path()])
    known = _remembered()
    if os.environ.get(VARIABLE) == "1":
        if mark not in known:
            with suppress(OSError, RuntimeError):  # if nothing can be remembered, the user must say so every time
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
    """A hash of a file, its place, and the modules it names in these folders."""
    seen: list[tuple[str, str]] = [(where, hashlib.sha256(content).hexdigest())]
    for file in files_of(code, folders):
        seen.append((str(file.resolve()), hashlib.sha256(read(file, MOST_CODE, links=True)).hexdigest()))
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def files_of(code: Iterable[str], folders: Sequence[Path]) -> list[Path]:
    """The files of named modules and packages that would be imported from these folders."""
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
        raise ValueError(f"{places[0]} holds more than {MOST_FILES} files, too many for code to be trusted")
    return sorted(path for path in inside if path.name.endswith(KINDS) and "__pycache__" not in path.parts)


def _place() -> Path:
    """Where trust is remembered: the user's state folder."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "fedfilt" / "trusted.json"


def _remembered() -> dict[str, Entry]:
    """What was trusted, by mark; {} if the file cannot be read, or others may have written it."""
    path = _place()
    try:
        about = path.lstat()
        if about.st_uid != os.getuid() or about.st_mode & 0o022:
            return {}
        table = read_json(path)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: no home folder
        return {}
    return {mark: entry for mark, entry in table.items() if isinstance(entry, dict)} if isinstance(table, dict) else {}


def _remember(entries: dict[str, Entry]) -> None:
    path = _place()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    newest = dict(list(entries.items())[-KEPT:])
    write_atomically(path, json.dumps(newest, indent=1).encode(), mode=0o600)
