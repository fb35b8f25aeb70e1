"""An experiment in one TOML file: tables become dataclasses, unknown keys are errors, `key=value` overrides.

The command line overrides the file, and the file overrides the defaults.
"""

import copy
import dataclasses
import hashlib
import inspect
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from fedfilt import _parts
from fedfilt._brief import lines_of, said
from fedfilt._checks import check_choice, check_count
from fedfilt._reading import MOST_TOML, read, toml_of
from fedfilt._trust import NAMED, check_trusted, code_in
from fedfilt._types import Response, Table
from fedfilt.data.deal import Sizes
from fedfilt.rounds.guard import Guard
from fedfilt.rounds.kinds import Kinds
from fedfilt.rounds.participation import Participation
from fedfilt.rounds.privacy import Privacy
from fedfilt.rounds.timeline import Event
from fedfilt.rounds.types import WEIGHTS, Evaluation
from fedfilt.runs.tables import CheckpointTable, EngineTable, GraphTable, ModelTable
from fedfilt.system.lateness import Lateness
from fedfilt.topologies.paper import Paper
from fedfilt.training.encoders import Encoder
from fedfilt.training.sgd import Training

# Tables whose `name` is a file in a folder, and the default file. `filter` appears inside other tables.
PARTS = {
    "data": ("datasets", "mnist"),
    "partition": ("partitions", "labels"),
    "scheduler": ("schedulers", "everything"),
    "aggregator": ("aggregators", "gfedfilt"),
    "client": ("clients", "plain"),
    "devices": ("populations", "paper"),
    "sparsifier": ("sparsifiers", "top_k"),
    "filter": ("filters", "tikhonov"),
    "graph": ("topologies", "paper"),
    "model": ("models", "paper_cnn"),
}
DEFAULTS = {part: default for part, (_, default) in PARTS.items()}
# Defaults that older versions had instead, by (table, name): the old ones do not count in a hash, the new ones do
EARLIER = {("graph", "distance"): {"reach": 6.0}}
ADDED = ("client",)  # parts that older versions did not have: their defaults do not count in a hash
# Options that stay when another part is named: they describe the place, not how its devices are linked
KEPT = {"graph": ("rooms", "devices", "building", "laplacian", "shuffle", "control")}
PLACE = ("engine", "checkpoint")  # tables that say where and how a run is made, without affecting its result
# Keys that [graph] had, whatever its name, before topologies were parts
OLD_GRAPHS = ("paper", "distance", "nearest", "rooms", "complete", "empty", "edges", "homes")
OLD_GRAPH: Table = {
    "rooms": 4,
    "building": "",
    "reach": 6.0,
    "k": 4,
    "file": "",
    "inside": True,
    "between": "none",
    "weight": 1.0,
    "reweigh": False,
}


@dataclass(frozen=True, repr=False)
class Config:
    """A whole experiment.

    >>> config = from_table({"rounds": 5, "aggregator": {"filter": {"mu": 10.0}}})
    >>> config.rounds, config.aggregator.filter
    (5, Tikhonov(mu=10.0))
    >>> config.table(changed=True)["rounds"]
    5
    """

    seed: int = 0  # everything that is drawn depends on it
    rounds: int = 200  # how many, counted from 1
    # what a device counts for when models are mixed: the samples it "trained" on in the round, or all it "held"
    weights: str = "trained"
    data: Any = None  # a data set
    partition: Any = None  # how its samples are dealt to the devices
    samples: Sizes = Sizes()
    graph: GraphTable = GraphTable(Paper())  # how devices are linked
    model: ModelTable = ModelTable()  # what every device trains
    training: Training = Training()
    devices: Any = None  # hardware: a population
    scheduler: Any = None  # what each device is to do in a round
    sparsifier: Any = None  # what of an update is sent
    late: Lateness = Lateness()
    aggregator: Any = None  # the rule
    client: Any = None  # what a device does in a round
    evaluation: Evaluation = Evaluation()
    engine: EngineTable = EngineTable()
    checkpoint: CheckpointTable = CheckpointTable()
    kinds: Kinds = Kinds()
    encoder: Encoder = Encoder()
    guard: Guard = Guard()
    privacy: Privacy = Privacy()
    participation: Participation = Participation()
    events: tuple[Event, ...] = ()  # devices that join, leave, move or go offline

    def __post_init__(self) -> None:
        check_count("seed", self.seed, low=0)
        check_count("rounds", self.rounds)
        check_choice("weights", self.weights, WEIGHTS)

    def table(self, changed: bool = False) -> Table:
        """The resolved experiment as a table: every key, or only keys that differ from their defaults."""
        return _table_of(self, only_changed=changed)

    def hash(self) -> str:
        """Hash of everything that affects the result; workers and checkpoint interval do not.

        A key at its default does not count, so that an experiment keeps its hash when a version adds keys. A guard
        counts with all its keys, or not at all if it is off, because older versions had none.
        """
        return hash_of(self.counted())

    def counted(self) -> Table:
        """The keys that count in the hash."""
        table = {key: value for key, value in self.table(changed=True).items() if key not in (*PLACE, "guard")}
        for (part, name), earlier in EARLIER.items():
            if part in table and table[part]["name"] == name:
                options = {**dict.fromkeys(earlier, "default"), **table[part]}
                table[part] = {key: value for key, value in options.items() if earlier.get(key) != value}
        return table | {"guard": _table_of(self.guard)} if self.guard.on else table

    def toml(self) -> str:
        """The resolved experiment as TOML."""
        return tomli_w.dumps(self.table())

    def __repr__(self) -> str:
        changed = ", ".join(f"{key}={said(value)}" for key, value in _flat(self.table(changed=True)))
        return lines_of(f"Config {self.hash()}: {self.rounds} rounds, seed {self.seed}", f"  {changed}")


def _flat(table: Table, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of a table with their values; the name of a part may replace its table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield (path.removesuffix(".") if key == "name" else f"{path}{key}"), value


def hash_of(counted: Table) -> str:
    """The hash of an experiment, from the table of keys that count; see `Config.hash`."""
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]


def load(
    path: str | Path | None, overrides: Iterable[str] | Mapping[str, Any] = (), trust_code: bool = False
) -> Config:
    """Read an experiment file (None: all defaults) and apply `dotted.key=value` overrides or, in Python, a table.

    A file that names code as module:Class is refused unless `trust_code` is set, or the user has trusted this very file
    before. Code that an override names is trusted: whoever passes it has written it.
    """
    content = b"" if path is None else _content(Path(path))
    changes = _changes(overrides)
    table = _changed(_parsed_file(path, content), changes)
    typed = {name for steps, value in changes for name in code_in({steps[-1]: value})}
    if path is not None and not trust_code:
        check_trusted(Path(path), content, code_in(table) - typed)
    return from_table(table)


def changed(config: Config, overrides: Iterable[str]) -> Config:
    """The same experiment with `dotted.key=value` overrides.

    >>> changed(load(None), ["training.learning_rate=0.5"]).training.learning_rate
    0.5
    """
    return from_table(_changed(config.table(), _changes(overrides)))


def config_of(
    given: Config | Mapping[str, Any] | str | Path | None, changes: Mapping[str, Any], trust_code: bool = False
) -> Config:
    """The experiment of a config, a table or a file (None: all defaults), with some keys changed.

    A change names a key of the experiment, with dots for a key inside a table; a table changes only the keys it has. As
    on the command line, naming another part clears the options of the part it replaces.

    >>> config_of({"rounds": 5}, {"seed": 3, "aggregator": {"filter": {"mu": 10}}, "engine.workers": 1}).seed
    3
    """
    if given is None or isinstance(given, str | Path):
        return load(given, changes, trust_code)
    if isinstance(given, Config) and not changes:
        return given
    if not isinstance(given, Config | Mapping):
        raise ValueError(f"config must be a Config, a table or the path of a file, got {type(given).__name__}")
    table = given.table() if isinstance(given, Config) else copy.deepcopy(dict(given))
    return from_table(_changed(table, _changes(changes)))


def _changes(overrides: Iterable[str] | Mapping[str, Any]) -> list[tuple[list[str], Any]]:
    """Overrides, each as the steps of its key and its value."""
    if isinstance(overrides, Mapping):
        return [step for key, value in overrides.items() for step in _steps(key.split("."), value)]
    return [parsed(text) for text in overrides]


def _steps(path: list[str], value: Any) -> Iterator[tuple[list[str], Any]]:
    """A change as changes of single keys; the name of a part may replace its table."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _steps([*path, str(key)], inner)
    else:
        yield ([*path, "name"] if _names_a_part(path, value) else path), value


def _names_a_part(path: Sequence[str], value: Any) -> bool:
    return path[-1] in NAMED and (len(path) == 1 or path[-1] == "filter") and isinstance(value, str)


def _changed(table: Table, changes: Iterable[tuple[list[str], Any]]) -> Table:
    """The table with some keys changed. Names come first, outer before inner: they clear options of the old part."""
    for steps, value in sorted(changes, key=lambda one: (one[0][-1] != "name", (one[0][-1] == "name") * len(one[0]))):
        _override(table, steps, value)
    return table


def load_begun(path: Path, config: Config) -> Config:
    """Read the experiment a run folder was started with; it may name only code that the trusted `config` names."""
    table = _parsed_file(path, _content(path))
    if other := code_in(table) - code_in(config.table()):
        raise ValueError(f"{path} names other code, {', '.join(sorted(other))}")
    return from_table(unguarded(table))


def _content(path: Path) -> bytes:
    try:
        return read(path, MOST_TOML, links=True)
    except FileNotFoundError:
        raise ValueError(f"there is no experiment file {path}") from None
    except OSError as error:
        if path.is_dir():
            raise ValueError(_folder_given(path)) from None
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error


def _folder_given(path: Path) -> str:
    """Tells what to use instead of a folder where an experiment file is expected."""
    if (path / "config.toml").exists():
        return (
            f"{path} is the folder of a run. To resume it: fedfilt run {path}/config.toml --out {path} --resume; "
            f"to see it: fedfilt report {path}; to run it again: fedfilt run {path}/config.toml --out NEW_FOLDER"
        )
    found = sorted(one.name for one in path.glob("*.toml"))[:5]
    return f"{path} is a folder; name an experiment file" + (f" in it, such as {', '.join(found)}" if found else "")


def _parsed_file(path: str | Path | None, content: bytes) -> Table:
    try:
        return toml_of(content)
    except ValueError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def from_table(table: Mapping[str, Any]) -> Config:
    """Make an experiment from a table; see `load`.

    >>> from_table({"training": {"learning_rate": 0.1}}).training.learning_rate
    0.1
    """
    filled = {**{name: {} for name in PARTS if name not in ("filter", "graph", "model")}, **table}
    return typing.cast(Config, _made(Config, filled, ""))


def parsed(text: str) -> tuple[list[str], Any]:
    """The steps of an override's key, and its value; part=name means part.name=name.

    >>> parsed("training.learning_rate=.1"), parsed("engine=flower")
    ((['training', 'learning_rate'], 0.1), (['engine', 'name'], 'flower'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"an override must be key=value, such as training.learning_rate=0.1, got {text!r}")
    found = parsed_value(value)
    path = key.strip().split(".")
    return [*path, "name"] if _names_a_part(path, found) else path, found


def written(changes: Mapping[str, Any]) -> list[str]:
    """Changes as overrides on the command line.

    >>> written({"rounds": 5, "graph": {"name": "rooms", "shuffle": True}, "privacy.noise": 0.5})
    ['rounds=5', 'graph.name="rooms"', 'graph.shuffle=true', 'privacy.noise=0.5']
    """
    return [f"{'.'.join(steps)}={json.dumps(value)}" for steps, value in _changes(changes)]


def parsed_value(text: str) -> Any:
    """A value as written on the command line: TOML, or a single word.

    >>> parsed_value("1e-3"), parsed_value(".1"), parsed_value("flower")
    (0.001, 0.1, 'flower')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        word = text.strip()
        return float(word) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)", word) else word  # .1 and 1., which are not TOML


def _override(table: Table, path: Sequence[str], value: Any) -> None:
    *steps, last = path
    for step in steps:
        if isinstance(table.get(step), str):
            table[step] = {"name": table[step]}  # scheduler=same_deadline scheduler.deadline=seconds
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise ValueError(f"{'.'.join(path)}: {step} is a value, not a table")
    if last == "name" and steps and steps[-1] in DEFAULTS and table.get("name", DEFAULTS[steps[-1]]) != value:
        kept = _kept(steps[-1], str(value))
        for option in [key for key in table if key not in kept]:
            del table[option]  # options of the old part do not fit
    table[last] = value


def _kept(part: str, name: str) -> set[str]:
    """Options of a part that stay when another part, which has them too, replaces it."""
    if part not in KEPT:
        return set()
    try:
        known = _options(_parts.find(PARTS[part][0], name))
    except ValueError:
        return set()  # the name is refused later
    return set(KEPT[part]) & {*known, *_options(GraphTable)}


def _made(kind: type, table: Any, path: str) -> Any:
    """An instance of a dataclass, made from a table and checked key by key."""
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
        options = _named(value, path)
        return _made(_part(key, options.pop("name", DEFAULTS[key])), options, path)
    if hint is GraphTable:
        return graph_table(_named(value, path), path)
    if hint is ModelTable:
        options = _named(value, path)
        name = options.pop("name", DEFAULTS["model"])
        kind = _part("model", name)
        for option, given in options.items():
            check_choice(f"key in {path}", option, set(_options(kind)) - {"shape", "classes"})
            options[option] = _value(option, _options(kind)[option], given, f"{path}.{option}")
        return ModelTable(name, options)
    if typing.get_origin(hint) is tuple and dataclasses.is_dataclass(entry_kind := typing.get_args(hint)[0]):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path} must be a list of tables [[{path}]], got {value!r}")
        return tuple(_made(typing.cast(type, entry_kind), entry, f"{path}[{i}]") for i, entry in enumerate(value))
    if dataclasses.is_dataclass(hint):
        if isinstance(value, str) and "name" in _options(typing.cast(type, hint)):
            value = {"name": value}
        if isinstance(value, bool) and "on" in _options(typing.cast(type, hint)):
            value = {"on": value}
        return _made(typing.cast(type, hint), value, path)
    if not _fits(value, hint):
        raise ValueError(f"{path} must be {_words(hint)}, got {value!r}")
    return _converted(value, hint)


def _named(value: Any, path: str) -> Table:
    """The table of a part, which may be given as just its name."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"{path} must be a table or a name, got {value!r}")
    return dict(value)


def graph_table(table: Table, path: str = "graph") -> GraphTable:
    """The table [graph]: the options of its topology, and those of every graph."""
    name = table.get("name", DEFAULTS["graph"])
    kind = _part("graph", name)
    own, common = _options(kind), set(_options(GraphTable)) - {"topology"}
    options = {key: value for key, value in table.items() if key != "name"}
    for key in [key for key in options if key not in own and key not in common]:
        if name in OLD_GRAPHS and key in OLD_GRAPH and options[key] == OLD_GRAPH[key]:
            del options[key]
        else:
            check_choice(f"key in {path} for {name}", key, [*own, *common])
    topology = _made(kind, {k: v for k, v in options.items() if k not in common}, path)
    hints = _options(GraphTable)
    return GraphTable(topology, **{k: _value(k, hints[k], options[k], f"{path}.{k}") for k in common & set(options)})


def current(table: Mapping[str, Any]) -> Table:
    """A config's table as this version writes it; unchanged if it cannot be read or names outside code."""
    try:
        return dict(table) if code_in(table) else from_table(unguarded(table)).table()
    except (KeyError, AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        return dict(table)


def unguarded(table: Mapping[str, Any]) -> Table:
    """The table of a run folder: one without [guard] comes from a version that had no guard."""
    return {"guard": {"on": False}, **table}


def _part(key: str, name: Any) -> type:
    """The class of a part."""
    return typing.cast(type, _parts.find(PARTS[key][0], name))


def _converted(value: Any, hint: Any) -> Any:
    """A value converted to fit a hint: whole numbers become floats, and lists become tuples, where needed."""
    if hint is float:
        return float(value)
    if isinstance(value, list | tuple):
        kinds = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
        fitting = (typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is tuple and _fits(value, kind))
        inner = next(fitting, (Any, ...))
        each = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_converted(one, kind) for one, kind in zip(value, each, strict=True))
    return value


@cache
def _options(kind: type) -> dict[str, Any]:
    """Options of a part with their types: the fields of a dataclass, or a constructor's arguments."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    names = list(inspect.signature(kind).parameters)
    return {name: hints.get(name, Any) for name in names}


def lists_of(kind: type) -> dict[str, Any]:
    """Options of a part that are lists, with the types of their entries."""
    hints = {name: hint for name, hint in _options(kind).items() if typing.get_origin(hint) is tuple}
    return {name: typing.get_args(hint)[0] for name, hint in hints.items()}


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
    if hint is float:  # a whole number may be too large for a float
        return isinstance(value, float) or (type(value) is int and abs(value) < 2**1023)
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


def _table_of(value: Any, part: str = "", only_changed: bool = False) -> Any:
    """The table a value was made from, or only what differs from defaults; without None, which TOML lacks."""
    if isinstance(value, ModelTable):
        plain = inspect.signature(_parts.find("models", value.name)).parameters if only_changed else {}
        changed = {
            key: given for key, given in value.options.items() if key not in plain or given != plain[key].default
        }
        return {"name": value.name, **changed}
    if isinstance(value, GraphTable):
        common = {key: getattr(value, key) for key in _options(GraphTable) if key != "topology"}
        if only_changed:
            common = {key: given for key, given in common.items() if given != getattr(GraphTable, key)}
        return {**_table_of(value.topology, "graph", only_changed), **common}
    head = {"name": _parts.name_of(value, PARTS[part][0])} if part else {}
    if dataclasses.is_dataclass(value):
        hints = _options(typing.cast(type, type(value)))
        defaults = {field.name: field.default for field in dataclasses.fields(value)}
        table = {}
        for name, hint in hints.items():
            inner = getattr(value, name)
            is_part = name in PARTS and hint in (Any, Response)
            if inner is None or (only_changed and not is_part and inner == defaults[name]):
                continue
            made = _table_of(inner, name if is_part else "", only_changed)
            if not (only_changed and name in ADDED and made == {"name": DEFAULTS[name]}):
                table[name] = made
        return head | table
    if part:
        return head
    return [_table_of(inner, "", only_changed) for inner in value] if isinstance(value, tuple) else value
