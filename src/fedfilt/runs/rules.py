"""Rules by name: how methods are named, parsed, sorted, made and coloured, everywhere.

"fedavg" is a file of fedfilt/aggregators; "mu=10" is G-Fedfilt with that strength; "ditto" is a file of
fedfilt/clients, with the aggregation rule that belongs to it; "ditto+mu=10" is the same with another rule. Options
follow after colons: "fedprox:proximal=0.1", "fedadam:rate=0.1:beta1=0.5".
"""

import dataclasses
import inspect
import math
import re
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedfilt import _parts
from fedfilt._checks import check_choice
from fedfilt._types import Response, Table
from fedfilt.aggregators.gfedfilt import GFedFilt
from fedfilt.filters.tikhonov import Tikhonov
from fedfilt.rounds.types import Rule
from fedfilt.runs.config import Config, from_table, lists_of, parsed_value

EXPONENT = re.compile(r"([=|][-+]?[\d.]+[eE])\+(?=\d)")  # the plus sign in 1e+06 does not start an aggregation rule
PAPER = ("fedavg", "local", "mu=0.1", "mu=1", "mu=10", "mu=100")
SHARED, FILTERED, PLAIN = "fedavg", "gfedfilt", "plain"

# --- names --------------------------------------------------------------------------------------------------------


def rules(text: str) -> list[str]:
    """Names of rules from a comma-separated list; "paper" is the paper's grid.

    >>> rules("fedavg,mu=10")
    ['fedavg', 'mu=10']
    >>> rules("paper,mu=1e4")[-2:]
    ['mu=100', 'mu=1e4']
    """
    names: list[str] = []
    for word in (part.strip() for part in text.split(",")):
        names += PAPER if word == "paper" else [word]
    same = {
        name if (mu := strength(name)) is None else mu for name in names
    }  # mu=.1, mu=0.1 and mu=1e-1 are the same rule
    if len(same) != len(names) or "" in names:
        raise ValueError(f"rules must be different names separated by commas, got {text!r}")
    if "/" in text:
        raise ValueError(f"rules must not contain /, because each names a folder, got {text!r}")
    return names


def strength(rule: str) -> float | None:
    """The μ in a rule's name, None if it has none.

    >>> strength("mu=1e4"), strength("mu=10 updates"), strength("fedavg")
    (10000.0, 10.0, None)
    """
    try:
        return float(rule[3:].split()[0]) if rule.startswith("mu=") else None
    except (ValueError, IndexError):
        return None


def rule_name(table: Mapping[str, Any]) -> str:
    """Name of a config's rule: its client's, unless that is the plain one, and its aggregation rule's.

    >>> rule_name({"aggregator": {"name": "gfedfilt", "filter": {"name": "tikhonov", "mu": 10.0}}})
    'mu=10'
    >>> rule_name({"aggregator": "fedavg"})
    'fedavg'
    >>> rule_name({"aggregator": "fedavg", "client": {"name": "ditto", "weight": 2.0}})
    'ditto:weight=2'
    >>> rule_name({"client": "fedper"})
    'fedper+mu=1'
    """
    given, client = table.get("aggregator", {}), table.get("client", PLAIN)
    if not isinstance(given, str | Mapping) or not isinstance(client, str | Mapping):
        return "unknown"
    client, aggregation = _named(client, PLAIN), _named(given, FILTERED)
    rule = _aggregation_name(aggregation)
    if client["name"] == PLAIN:
        return rule
    named = _with_options("clients", client)
    return named if rule == _aggregation_name(_belonging(client)) else f"{named}+{rule}"


def _belonging(client: Mapping[str, Any], kind: Any = None) -> Table:
    """The table [aggregator] that belongs to a client: the rule it names, with the options they share.

    `kind` is the class of a client from outside, which is not imported just for the name of a rule.
    """
    kind = kind or _packaged_class("clients", str(client["name"]))
    if "client" in _defaults_of(kind):  # it wraps another client and uses that client's rule
        return _belonging(_named(client.get("client", _defaults_of(kind)["client"]), PLAIN))
    defaults, name = _defaults_of(kind), getattr(kind, "rule", SHARED)
    common = set(_defaults("aggregators", name)) & {*defaults, *client} - {"name"}
    return {"name": name, **{key: client.get(key, defaults.get(key)) for key in sorted(common)}}


def _with_options(folder: str, table: Mapping[str, Any]) -> str:
    """The name of a part with the options that differ from their defaults."""
    name = str(table["name"])
    if ":" not in name and name not in _parts.names(folder):
        return name  # from another version, or unknown
    defaults = _defaults(folder, name)
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in defaults.items()}
    given = dict(table)
    for some in (plain, given):
        if isinstance(some.get("client"), str | Mapping):  # the one that it wraps
            some["client"] = _with_options("clients", _named(some["client"], PLAIN))
    changed = {k: v for k, v in given.items() if k != "name" and (k not in plain or plain[k] != v)}
    return ":".join([name, *(f"{key}={_text(value)}" for key, value in changed.items())])


def _text(value: Any) -> str:
    """An option as written in the name of a rule; layers are joined by vertical bars."""
    if isinstance(value, Mapping):
        return str(value.get("name", "?"))
    if isinstance(value, list | tuple):
        return "|".join(map(_text, value))
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else str(value)


def _defaults(folder: str, name: str) -> Table:
    """Default options of a part of the package; {} for code from outside, which is not imported here."""
    return _defaults_of(_packaged_class(folder, name))


def _defaults_of(kind: Any) -> Table:
    """Default options of a class."""
    fields = dataclasses.fields(kind) if kind is not None and dataclasses.is_dataclass(kind) else ()
    return {field.name: _default(field.default) for field in fields if field.default is not dataclasses.MISSING}


def _default(value: Any) -> Any:
    """A default as it appears in a table; a part inside another becomes its table."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    options = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    options = {key: list(option) if isinstance(option, tuple) else option for key, option in options.items()}
    return {"name": type(value).__module__.rpartition(".")[2], **options}


def _packaged_class(folder: str, name: str) -> Any:
    return _parts.find(folder, name) if ":" not in name and name in _parts.names(folder) else None


def _aggregation_name(given: Table) -> str:
    """Name of an aggregation rule from its table."""
    if given["name"] != FILTERED:
        return _with_options("aggregators", given)
    kind = _named(given.get("filter"), "tikhonov")
    mu = kind.get("mu", 1.0)
    words = f"mu={mu:g}" if isinstance(mu, float) or (isinstance(mu, int) and abs(mu) < 2**1023) else FILTERED
    if kind["name"] != "tikhonov":
        words = f"{kind['name']} {words}" if "mu" in kind else str(kind["name"])
    return words + (" updates" if given.get("signal") == "updates" else "")


def rule_order(rule: str) -> tuple[int, float, str]:
    """Sort key: FedAvg, Local, then strengths in rising order, then the rest."""
    mu = strength(rule)
    return {SHARED: 0, "local": 1}.get(rule, 3 if mu is None else 2), mu or 0.0, rule


# --- rules --------------------------------------------------------------------------------------------------------


def with_rule(config: Config, rule: str) -> Config:
    """The same experiment under another rule. A rule that the config names itself keeps its options.

    "mu=..." keeps the rest of a G-Fedfilt config: its signal, and its filter if that has a strength mu. A name without
    a client means the plain one.
    """
    table = config.table()
    first, plus, second = EXPONENT.sub(r"\1", rule).partition("+")
    if plus or (not first.startswith("mu=") and _is_client(_part_of(first)["name"])):
        client = _options_of("clients", first, table["client"])
        aggregation = second if plus else None
        table["client"] = client
        if aggregation is None:
            table["aggregator"] = _belonging(client, _parts.find("clients", client["name"]))
            return from_table(table)
    else:
        table["client"], aggregation = {"name": PLAIN}, first
    given = table["aggregator"]
    if aggregation.startswith("mu="):
        table["aggregator"] = aggregator_table(aggregation, given if given["name"] == FILTERED else None)
    else:
        table["aggregator"] = _options_of("aggregators", aggregation, given)
    return from_table(table)


def _is_client(name: str) -> bool:
    """Whether a name is a client's: it takes only a task; an aggregation rule takes models, updates and graph."""
    if ":" not in name:
        clients, rules = _parts.names("clients"), _parts.names("aggregators")
        return check_choice("rule", name, [*rules, *clients, "mu=..."]) in clients and name != PLAIN
    return len(inspect.signature(_parts.find("clients", name).__call__).parameters) == 2


def _options_of(folder: str, text: str, given: Table) -> Table:
    """The table of a part in a folder; a part that the config names itself keeps its options."""
    name = _part_of(text)["name"]
    if ":" not in name:
        check_choice(f"name in {folder}", name, _parts.names(folder))
    part = _part_of(text, lists_of(_parts.find(folder, name)))
    return {**given, **part} if given["name"] == part["name"] else part


def _part_of(text: str, lists: Mapping[str, Any] = MappingProxyType({})) -> Table:
    """The table of a part from its name with options; `lists` has the options that are lists, with entry types.

    >>> _part_of("fedprox:proximal=0.1"), _part_of("mine:Method:depth=2")
    ({'name': 'fedprox', 'proximal': 0.1}, {'name': 'mine:Method', 'depth': 2})
    >>> _part_of("fedper:keep=head|0")
    {'name': 'fedper', 'keep': ['head', '0']}
    >>> _part_of("fedper:keep=head", {"keep": str})
    {'name': 'fedper', 'keep': ['head']}
    >>> _part_of("averaged:client=finetune:epochs=30")
    {'name': 'averaged', 'client': {'name': 'finetune', 'epochs': 30}}
    """
    text, around, inner = text.partition(":client=")
    if around:
        return {**_part_of(text, lists), "client": _options_of("clients", inner, {"name": ""})}
    name, *options = text.split(":")
    if options and "=" not in options[0] and name not in (*_parts.names("aggregators"), *_parts.names("clients")):
        name = f"{name}:{options.pop(0)}"
    table: Table = {"name": name}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key or key in table:
            raise ValueError(f"rules: options must be name:option=value, each once, got {text!r}")
        if "|" in value or key in lists:
            words = value.split("|")
            table[key] = words if lists.get(key, str) is str else [parsed_value(word) for word in words]
        else:
            table[key] = parsed_value(value)
    return table


def aggregator_table(rule: str, like: Mapping[str, Any] | None = None) -> Table:
    """The table [aggregator] of a rule; `like` is a G-Fedfilt table in which "mu=..." changes the strength.

    >>> aggregator_table("mu=10")
    {'name': 'gfedfilt', 'filter': {'name': 'tikhonov', 'mu': 10.0}}
    """
    if not rule.startswith("mu="):
        return {"name": rule}
    mu = strength(rule)
    if mu is None:
        raise ValueError(f"rules: mu must be a number, got {rule!r}")
    given: Mapping[str, Any] = like or {"name": FILTERED, "filter": {"name": "tikhonov", "mu": mu}}
    if "mu" not in given["filter"]:
        raise ValueError(f"rules: {rule} needs a filter with mu, but the experiment has {given['filter']['name']}")
    return {**given, "filter": {**given["filter"], "mu": mu}}


def rule_of(table: Mapping[str, Any], mu: float | None = None) -> Rule:
    """The aggregation rule of a config's table; with `mu`, the same G-Fedfilt at that strength.

    Only rules and filters of the package: a name that points to other code is refused and not imported.

    >>> rule_of({"aggregator": {"name": "fedavg"}}, mu=3.0)
    GFedFilt(filter=Tikhonov(mu=3.0), signal='models')
    """
    given = _named(table.get("aggregator"), FILTERED)
    if "filter" in given or given["name"] == FILTERED:
        given["filter"] = filter_of(table)
    if "aggregator" in given:  # that of a server optimizer
        given["aggregator"] = rule_of(given)
    made = _packaged("aggregators", "aggregation rule", given)
    if mu is None:
        return made
    signal = made.signal if isinstance(made, GFedFilt) else "models"
    return GFedFilt(with_strength(getattr(made, "filter", None), mu), signal)


def filter_of(table: Mapping[str, Any]) -> Response:
    """The filter of a config's table; Tikhonov if its rule has none."""
    given = _named(_named(table.get("aggregator"), FILTERED).get("filter"), "tikhonov")
    return _packaged("filters", "filter", given)


def with_strength(kind: Response | None, mu: float) -> Response:
    """The same filter at another μ; Tikhonov if it has none."""
    if dataclasses.is_dataclass(kind) and not isinstance(kind, type) and hasattr(kind, "mu"):
        return dataclasses.replace(kind, mu=mu)
    return Tikhonov(mu)


def _packaged(folder: str, what: str, options: Table) -> Any:
    """A part of the package made from its table; code from outside is refused."""
    name = check_choice(what, options.pop("name"), _parts.names(folder))
    try:
        return _parts.find(folder, name)(**options)
    except TypeError as error:
        raise ValueError(f"{what} {name}: {error}") from None


def _named(value: Any, default: str) -> Table:
    table = {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    return {"name": default, **table}


# --- looks --------------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """Colour, dash and mark of a rule, the same in every figure."""

    colour: str
    dash: str
    symbol: str


# Colours for colour-blind readers (Okabe and Ito), and marks that work in grey
ORANGE, GREEN, RED, PINK = "#E69F00", "#009E73", "#D55E00", "#CC79A7"
LOOKS = {
    "fedavg": Look(RED, "dash", "square"),
    "local": Look(GREEN, "dot", "diamond"),
    "room_average": Look(PINK, "dashdot", "triangle-up"),
    "self_blend": Look(ORANGE, "longdash", "triangle-left"),
    "fedu": Look("#7A5195", "longdashdot", "triangle-right"),
    "sfl": Look("#6B5B00", "dashdot", "pentagon"),
    "paper_literal": Look("#000000", "dot", "x"),
}
BLUES = ("#5AA5DC", "#2B86C9", "#0067AE", "#004780", "#002A52")  # G-Fedfilt, from weak to strong mixing
MARKS = ("star", "triangle-down", "circle", "hexagon", "cross")


def look(rule: str) -> Look:
    """The look of an aggregation rule; G-Fedfilt is blue, darker for stronger mixing.

    >>> look("fedavg").colour, look("mu=10").symbol, look("mu=10 seed 3") == look("mu=10")
    ('#D55E00', 'circle', True)
    """
    rule = rule.split(" seed ")[0].split(" (")[0]
    if rule in LOOKS:
        return LOOKS[rule]
    if rule.startswith("mu="):
        mu = strength(rule)
        place = 2 if mu is None or not math.isfinite(mu) else round(math.log10(max(mu, 1e-9))) + 1
        place = min(max(place, 0), len(BLUES) - 1)  # 0.1 -> 0, 1 -> 1, 10 -> 2, ...
        return Look(BLUES[place], "solid", MARKS[place])
    other = list(LOOKS.values())
    return other[zlib.crc32(rule.encode()) % len(other)]._replace(dash="solid", symbol="circle-open")
