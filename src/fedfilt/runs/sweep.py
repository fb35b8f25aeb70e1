"""The runs of a comparison: rules, and settings to try with each of them."""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedfilt.graph import Graph
from fedfilt.rounds.remembering import mixed
from fedfilt.rounds.types import Rule, State, Updates
from fedfilt.runs.config import Config, changed, parsed
from fedfilt.runs.rules import with_rule
from fedfilt.runs.tables import CONTROLS


class Variant(NamedTuple):
    """One of the runs of a comparison, for any seed."""

    name: str  # of its folder: the rule and its settings
    rule: str
    settings: tuple[str, ...]  # overrides
    config: Config


def variants(config: Config, rules: Sequence[str], over: Iterable[str] = (), controls: bool = False) -> list[Variant]:
    """Every rule with every combination of the values in `over`, such as "training.learning_rate=0.01,0.05".

    With `controls`, a rule that uses the graph also appears with the links shuffled among devices, with all links, and
    with none.

    >>> from fedfilt.runs.config import load
    >>> [one.name for one in variants(load(None), ["fedavg", "mu=1"], ["training.learning_rate=.1,.2"])]
    ['fedavg learning_rate=0.1', 'fedavg learning_rate=0.2', 'mu=1 learning_rate=0.1', 'mu=1 learning_rate=0.2']
    >>> [one.name for one in variants(load(None), ["fedavg", "mu=1"], controls=True)]
    ['fedavg', 'mu=1', 'mu=1 graph=shuffled', 'mu=1 graph=complete', 'mu=1 graph=empty']
    """
    grid = combinations(over)
    keys = [text.partition("=")[0] for text in grid[0]]
    found = []
    for rule in rules:
        ruled = with_rule(config, rule)
        for settings in grid:
            words = [f"{_short(key, keys)}={_value(text)}" for key, text in zip(keys, settings, strict=True)]
            one = changed(ruled, settings) if settings else ruled
            found.append(Variant(" ".join([rule, *words]), rule, settings, one))
    if keys:
        _check_different(found)
    return with_controls(found) if controls else found


def with_controls(found: Iterable[Variant]) -> list[Variant]:
    """The runs, each followed by the same on other graphs if its rule uses the graph."""
    every = []
    for one in found:
        every.append(one)
        for control in CONTROLS if uses_graph(one.config.aggregator) else ():
            words, setting = f" graph={control}", f"graph.control={control}"
            other = changed(one.config, [setting])
            every.append(Variant(one.name + words, one.rule + words, (*one.settings, setting), other))
    _check_different(every)
    return every


def uses_graph(rule: Rule) -> bool:
    """Whether the links of the graph change what a rule does; rooms alone are not links.

    >>> from fedfilt.aggregators import FedAvg, GFedFilt, RoomAverage
    >>> [uses_graph(rule) for rule in (FedAvg(), GFedFilt(), RoomAverage())]
    [False, True, False]
    >>> from fedfilt.aggregators.empirical_bayes import EmpiricalBayes
    >>> [uses_graph(EmpiricalBayes(links=links)) for links in (False, True)]
    [False, True]
    """
    models, rows = np.random.default_rng(0).standard_normal((2, 4, 120))
    given, updates = State(0, models), Updates(rows, np.ones(4))
    path = np.diag([0.1] * 3, 1)  # some pairs, not all: otherwise rules that average over links would see no difference
    graphs = [Graph.from_adjacency(links, rooms=[0, 0, 1, 1]) for links in (np.zeros((4, 4)), path + path.T)]
    try:
        without, linked = (mixed(rule, given, updates, graph)[0] for graph in graphs)
    except ValueError:
        return True  # it uses links: these are too many for its step size
    return not np.allclose(without, linked, rtol=0, atol=1e-9)


def combinations(over: Iterable[str]) -> list[tuple[str, ...]]:
    """Every combination of values, as overrides.

    >>> combinations(["scheduler.epochs=1,3", "graph=rooms"])
    [('scheduler.epochs=1', 'graph=rooms'), ('scheduler.epochs=3', 'graph=rooms')]
    """
    axes: dict[str, list[str]] = {}
    for text in over:
        key, equals, given = text.partition("=")
        key, values = key.strip(), [value.strip() for value in _split(given)]
        if not key or not equals or "" in values:
            raise ValueError(
                f"over must be a key with its values, such as training.learning_rate=0.01,0.05,0.2, got {text!r}"
            )
        if key in axes:
            raise ValueError(f"over must name each key once, with all its values, got {key!r} twice")
        if key in ("seed", "rounds"):
            raise ValueError(f"over must be a setting, got {key!r}, which is the same for all runs of a comparison")
        axes[key] = [f"{key}={value}" for value in values]
    return list(itertools.product(*axes.values()))


def _split(text: str) -> list[str]:
    """Comma-separated values, which may be lists, tables or texts that contain commas.

    >>> _split("[1, 3],[1, 5]")
    ['[1, 3]', '[1, 5]']
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote or letter in "'\"":
            quote = letter if not quote else quote * (letter != quote)
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _short(key: str, keys: Sequence[str]) -> str:
    """The last word of a key, with as many words before it as distinguish it from the others."""
    words = key.split(".")
    ends = (".".join(words[start:]) for start in range(len(words) - 1, 0, -1))
    return next(
        (end for end in ends if not any(other != key and f".{other}".endswith(f".{end}") for other in keys)), key
    )


def _value(text: str) -> str:
    """The value of an override as part of a folder's name."""
    value = parsed(text)[1]
    words = value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"[^\w.,+-]+", "_", words)


def _check_different(found: Sequence[Variant]) -> None:
    """Refuse runs of a rule that differ only in their names, or have the same name.

    Two rules may come to the same: those that are tuned do now and then.
    """
    seen: dict[str, Variant] = {}
    for one in found:
        for key in (f"{one.rule.partition(' graph=')[0]} {one.config.hash()}", one.name):
            if (other := seen.setdefault(key, one)) is not one:
                raise ValueError(f"runs of a comparison must differ, but {other.name!r} and {one.name!r} are the same")
