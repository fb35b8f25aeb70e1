"""Aggregation rules by name: how a rule is called, read, put in order, made and coloured, everywhere.

"fedavg" is a file of fedfilt/aggregators; "mu=10" is G-Fedfilt with that strength.
"""

import dataclasses
import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedfilt import _parts
from fedfilt._checks import check_choice
from fedfilt._types import Response, Table
from fedfilt.aggregators.gfedfilt import GFedFilt
from fedfilt.filters.tikhonov import Tikhonov
from fedfilt.rounds.types import Rule
from fedfilt.runs.config import Config, from_table

PAPER = ("fedavg", "local", "mu=0.1", "mu=1", "mu=10", "mu=100")
SHARED, FILTERED = "fedavg", "gfedfilt"

# --- names --------------------------------------------------------------------------------------------------------


def rules(text: str) -> list[str]:
    """Names of rules from a list with commas; "paper" is the paper's grid.

    >>> rules("fedavg,mu=10")
    ['fedavg', 'mu=10']
    >>> rules("paper,mu=1e4")[-2:]
    ['mu=100', 'mu=1e4']
    """
    names: list[str] = []
    for word in (part.strip() for part in text.split(",")):
        names += PAPER if word == "paper" else [word]
    same = {name if (mu := strength(name)) is None else mu for name in names}  # mu=.1, mu=0.1 and mu=1e-1 are one rule
    if len(same) != len(names) or "" in names:
        raise ValueError(f"rules must be different names with commas between, got {text!r}")
    return names


def strength(rule: str) -> float | None:
    """The μ of a rule by its name, None if it has none.

    >>> strength("mu=1e4"), strength("mu=10 updates"), strength("fedavg")
    (10000.0, 10.0, None)
    """
    try:
        return float(rule[3:].split()[0]) if rule.startswith("mu=") else None
    except (ValueError, IndexError):
        return None


def rule_name(table: Mapping[str, Any]) -> str:
    """Name of a config's aggregation rule.

    >>> rule_name({"aggregator": {"name": "gfedfilt", "filter": {"name": "tikhonov", "mu": 10.0}}})
    'mu=10'
    >>> rule_name({"aggregator": "fedavg"})
    'fedavg'
    """
    given = table.get("aggregator", {})
    if not isinstance(given, str | Mapping):
        return "unknown"
    given = _named(given, FILTERED)
    if given["name"] != FILTERED:
        return str(given["name"])
    kind = _named(given.get("filter"), "tikhonov")
    mu = kind.get("mu", 1.0)
    words = f"mu={mu:g}" if isinstance(mu, float) or (isinstance(mu, int) and abs(mu) < 2**1023) else FILTERED
    if kind["name"] != "tikhonov":
        words = f"{kind['name']} {words}" if "mu" in kind else str(kind["name"])
    return words + (" updates" if given.get("signal") == "updates" else "")


def rule_order(rule: str) -> tuple[int, float, str]:
    """FedAvg, Local, then strengths in rising order, then the rest."""
    mu = strength(rule)
    return {SHARED: 0, "local": 1}.get(rule, 3 if mu is None else 2), mu or 0.0, rule


# --- rules --------------------------------------------------------------------------------------------------------


def with_rule(config: Config, rule: str) -> Config:
    """The same experiment under another rule. The rule that the config names keeps its options.

    "mu=..." keeps the rest of a G-Fedfilt config: its signal, and its filter if that has a strength mu.
    """
    table = config.table()
    given = table["aggregator"]
    if rule.startswith("mu="):
        table["aggregator"] = aggregator_table(rule, given if given["name"] == FILTERED else None)
    elif rule != given["name"]:
        table["aggregator"] = aggregator_table(rule)
    return from_table(table)


def aggregator_table(rule: str, like: Mapping[str, Any] | None = None) -> Table:
    """The table [aggregator] of a rule; `like` is the table of a G-Fedfilt rule of which "mu=..." changes the strength.

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
        raise ValueError(f"rules: {rule} needs a filter with mu, the experiment's is {given['filter']['name']}")
    return {**given, "filter": {**given["filter"], "mu": mu}}


def rule_of(table: Mapping[str, Any], mu: float | None = None) -> Rule:
    """The aggregation rule of a config's table; with `mu`, G-Fedfilt of that strength and otherwise alike.

    Only rules and filters of the package: a name that points to other code is refused, not imported.

    >>> rule_of({"aggregator": {"name": "fedavg"}}, mu=3.0)
    GFedFilt(filter=Tikhonov(mu=3.0), signal='models')
    """
    given = _named(table.get("aggregator"), FILTERED)
    if "filter" in given or given["name"] == FILTERED:
        given["filter"] = filter_of(table)
    made = _packaged("aggregators", "aggregation rule", given)
    if mu is None:
        return made
    signal = made.signal if isinstance(made, GFedFilt) else "models"
    return GFedFilt(with_strength(getattr(made, "filter", None), mu), signal)


def filter_of(table: Mapping[str, Any]) -> Response:
    """The filter of a config's table; Tikhonov where its rule has none."""
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


# Colours that the colour-blind can tell apart (Okabe and Ito), marks that print in grey
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
    """The look of an aggregation rule; G-Fedfilt is blue, the darker the stronger.

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
