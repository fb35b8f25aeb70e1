"""An experiment in one TOML file: tables become dataclasses, unknown keys are errors, `key=value` overrides.

Command line beats file beats default.
"""

import dataclasses
import hashlib
import inspect
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedfilt import parts
from fedfilt.checks import Response, check_choice, check_count, check_number
from fedfilt.data import Sizes
from fedfilt.events import Event
from fedfilt.kinds import Kinds
from fedfilt.rounds import Evaluation
from fedfilt.simulated import Lateness
from fedfilt.topology import Topology
from fedfilt.train import Training

Table = dict[str, Any]

# Tables whose `name` is a file of a folder, and the file taken if none is named. `filter` stands inside others.
PARTS = {
    "data": ("datasets", "mnist"),
    "partition": ("partitions", "labels"),
    "scheduler": ("schedulers", "everything"),
    "aggregator": ("aggregators", "gfedfilt"),
    "devices": ("populations", "paper"),
    "sparsifier": ("sparsifiers", "top_k"),
    "filter": ("filters", "tikhonov"),
}


@dataclass(frozen=True)
class Model:
    """The table [model]: a file of fedfilt/models, or module:Class, and its options."""

    name: str = "paper_cnn"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """The table [engine]: where training happens, and with how many worker processes (0: one per core).

    The rest is for Flower: the longest that a round may take; whether clocks and deadlines are real instead of
    simulated; and what a real deadline allows on top for Flower's own polling and starting of processes.
    """

    name: str = "local"
    workers: int = 0
    timeout_seconds: float = 600.0
    real_time: bool = False
    grace_seconds: float = 15.0

    def __post_init__(self) -> None:
        check_choice("engine.name", self.name, parts.names("engines"))
        check_count("engine.workers", self.workers, low=0)
        check_number("engine.timeout_seconds", self.timeout_seconds, low=0, above=True)
        check_number("engine.grace_seconds", self.grace_seconds, low=0)
        if self.real_time and self.name != "flower":
            raise ValueError(f"engine.real_time needs real devices, engine.name = 'flower', got {self.name!r}")


@dataclass(frozen=True)
class Checkpoint:
    """The table [checkpoint]: how often the state of a run is saved."""

    every: int = 10

    def __post_init__(self) -> None:
        check_count("checkpoint.every", self.every)


DEFAULTS = {"model": Model().name, **{part: default for part, (_, default) in PARTS.items()}}
NAMED = (*DEFAULTS, "graph", "engine")  # tables for which a name may stand


@dataclass(frozen=True)
class Config:
    """A whole experiment."""

    seed: int = 0
    rounds: int = 200
    data: Any = None
    partition: Any = None
    samples: Sizes = Sizes()
    graph: Topology = Topology()
    model: Model = Model()
    training: Training = Training()
    devices: Any = None
    scheduler: Any = None
    sparsifier: Any = None
    late: Lateness = Lateness()
    aggregator: Any = None
    evaluation: Evaluation = Evaluation()
    engine: Place = Place()
    checkpoint: Checkpoint = Checkpoint()
    kinds: Kinds = Kinds()
    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        check_count("seed", self.seed, low=0)
        check_count("rounds", self.rounds)

    def table(self) -> Table:
        """The resolved experiment as a table: every key with its value."""
        return _table_of(self, "")

    def hash(self) -> str:
        """Hash of all that decides the result: not the number of workers, nor how often is saved."""
        table = self.table()
        del table["engine"], table["checkpoint"]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]

    def toml(self) -> str:
        """The resolved experiment as TOML."""
        return tomli_w.dumps(self.table())


def load(path: str | Path | None, overrides: Iterable[str] = ()) -> Config:
    """Read an experiment file (None: all defaults) and apply `dotted.key=value` overrides."""
    table: Table = {}
    if path is not None:
        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"no experiment file {path}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid TOML: {error}") from error
    # Names first, outer before inner: another name clears the options of the part that it replaces
    changes = [_parsed(text) for text in overrides]
    for steps, value in sorted(changes, key=lambda one: (one[0][-1] != "name", (one[0][-1] == "name") * len(one[0]))):
        _override(table, steps, value)
    return from_table(table)


def from_table(table: Mapping[str, Any]) -> Config:
    """Make an experiment of a table; see `load`."""
    filled = {**{name: {} for name in PARTS if name != "filter"}, **table}
    return typing.cast(Config, _made(Config, filled, ""))


def _parsed(text: str) -> tuple[list[str], Any]:
    """The steps of an override's key and its value; part=name is part.name=name.

    >>> _parsed("training.learning_rate=.1"), _parsed("engine=flower")
    ((['training', 'learning_rate'], 0.1), (['engine', 'name'], 'flower'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"an override must be key=value, such as training.learning_rate=0.1, got {text!r}")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
        if re.fullmatch(r"[+-]?(\d+\.|\.\d+)", parsed):  # .1 and 1., which TOML does not have
            parsed = float(parsed)
    path = key.strip().split(".")
    names = path[-1] in NAMED and (len(path) == 1 or path[-1] == "filter") and isinstance(parsed, str)
    return [*path, "name"] if names else path, parsed


def _override(table: Table, path: Sequence[str], value: Any) -> None:
    *steps, last = path
    for step in steps:
        if isinstance(table.get(step), str):
            table[step] = {"name": table[step]}  # scheduler=same_deadline scheduler.deadline=seconds
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise ValueError(f"{'.'.join(path)}: {step} is a value, not a table")
    if last == "name" and steps and steps[-1] in DEFAULTS and table.get("name", DEFAULTS[steps[-1]]) != value:
        table.clear()  # the options of another part do not fit
    table[last] = value


def _made(kind: type, table: Any, path: str) -> Any:
    """An instance of a dataclass from a table, checked key by key."""
    where = path or "the experiment"
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table, got {table!r}")
    hints = _options(kind)
    values = {}
    for key, value in table.items():
        full = f"{path}.{key}" if path else key
        check_choice(f"key in {where}", key, hints)
        values[key] = _value(key, hints[key], value, full)
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error
    except ValueError as error:
        raise ValueError(str(error) if where.split(".")[0] in str(error) else f"{where}: {error}") from error


def _value(key: str, hint: Any, value: Any, path: str) -> Any:
    if key in PARTS and hint in (Any, Response):
        folder, default = PARTS[key]
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} must be a table or a name, got {value!r}")
        options = dict(value)
        name = options.pop("name", default)
        kind = parts.find(folder, str(name))
        if not dataclasses.is_dataclass(kind):
            raise ValueError(f"{path}: {name} must be a dataclass, so that its options can be saved with a run")
        return _made(typing.cast(type, kind), options, path)
    if hint is Model:
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} must be a table or a name, got {value!r}")
        options = dict(value)
        name = options.pop("name", Model().name)
        kind = parts.find("models", str(name))
        for option, given in options.items():
            check_choice(f"key in {path}", option, set(_options(kind)) - {"shape", "classes"})
            options[option] = _value(option, _options(kind)[option], given, f"{path}.{option}")
        return Model(str(name), options)
    if hint == tuple[Event, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path} must be a list of tables [[{path}]], got {value!r}")
        return tuple(_made(Event, entry, f"{path}[{i}]") for i, entry in enumerate(value))
    if dataclasses.is_dataclass(hint):
        if isinstance(value, str) and "name" in _options(typing.cast(type, hint)):
            value = {"name": value}
        return _made(typing.cast(type, hint), value, path)
    if not _fits(value, hint):
        raise ValueError(f"{path} must be {_words(hint)}, got {value!r}")
    if hint is float:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _options(kind: type) -> dict[str, Any]:
    """Options of a part with their types: the fields of a dataclass, or the arguments of a constructor."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    names = list(inspect.signature(kind).parameters)
    return {name: hints.get(name, Any) for name in names}


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if hint is Any or hint is inspect.Parameter.empty:
        return True
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is tuple:
        inner = typing.get_args(hint)
        if inner[-1] is Ellipsis:
            return isinstance(value, list | tuple) and all(_fits(v, inner[0]) for v in value)
        return isinstance(value, list | tuple) and len(value) == len(inner) and all(map(_fits, value, inner))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(hint, type) and isinstance(value, hint)


def _words(hint: Any) -> str:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_words(option) for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is tuple:
        return "a list of " + ", ".join(_words(option) for option in typing.get_args(hint) if option is not ...)
    known = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return known.get(hint, str(hint))


def _table_of(value: Any, key: str, part: bool = False) -> Any:
    """The table from which a value was made; what is None is left out, as TOML has no word for it."""
    if isinstance(value, Model):
        return {"name": value.name, **value.options}
    head = {"name": _name_of(value, PARTS[key][0])} if part else {}
    if dataclasses.is_dataclass(value):
        hints = _options(type(value))
        fields = {name: getattr(value, name) for name in hints}
        is_part = {name: name in PARTS and hints[name] in (Any, Response) for name in hints}
        return head | {n: _table_of(inner, n, is_part[n]) for n, inner in fields.items() if inner is not None}
    if part:
        return head
    return [_table_of(inner, "") for inner in value] if isinstance(value, tuple) else value


def _name_of(part: Any, folder: str) -> str:
    kind = type(part)
    package, _, name = kind.__module__.rpartition(".")
    return name if package == f"fedfilt.{folder}" else f"{kind.__module__}:{kind.__qualname__}"
