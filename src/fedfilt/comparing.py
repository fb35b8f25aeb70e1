"""Several aggregation rules on the same data, start and batches, over several seeds."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfilt import runs
from fedfilt.config import Config, from_table, load
from fedfilt.runs import Run, lines, play_in_folder
from fedfilt.store import Store

PAPER = ("fedavg", "local", "mu=0.1", "mu=1", "mu=10", "mu=100")


def rules(text: str) -> list[str]:
    """Names of rules from a list with commas; "paper" is the paper's grid, "mu=10" is G-Fedfilt with that strength.

    >>> rules("fedavg,mu=10")
    ['fedavg', 'mu=10']
    >>> rules("paper,mu=1e4")[-2:]
    ['mu=100', 'mu=1e4']
    """
    names: list[str] = []
    for word in (part.strip() for part in text.split(",")):
        names += PAPER if word == "paper" else [word]
    if len({_canonical(name) for name in names}) != len(names) or "" in names:
        raise ValueError(f"rules must be different names with commas between, got {text!r}")
    return names


def _canonical(rule: str) -> str:
    """mu=.1, mu=0.1 and mu=1e-1 are one rule."""
    try:
        return f"mu={float(rule.removeprefix('mu=')):g}" if rule.startswith("mu=") else rule
    except ValueError:
        return rule


def with_rule(config: Config, rule: str) -> Config:
    """The same experiment under another rule. The rule that the config names keeps its options.

    "mu=..." keeps the rest of a G-Fedfilt config: its signal, and its filter if that has a strength mu.
    """
    table = config.table()
    given = table["aggregator"]
    if rule.startswith("mu="):
        try:
            mu = float(rule[3:])
        except ValueError:
            raise ValueError(f"rules: mu must be a number, got {rule!r}") from None
        if given["name"] != "gfedfilt":
            given = {"name": "gfedfilt", "filter": {"name": "tikhonov", "mu": mu}}
        elif "mu" not in given["filter"]:
            raise ValueError(f"rules: {rule} needs a filter with mu, the experiment's is {given['filter']['name']}")
        table["aggregator"] = {**given, "filter": {**given["filter"], "mu": mu}}
    elif rule != given["name"]:
        table["aggregator"] = {"name": rule}
    return from_table(table)


class Step(NamedTuple):
    """A round of one of the runs of a comparison."""

    rule: str
    seed: int
    line: dict[str, Any]


def compare(
    config: Config, names: list[str], seeds: list[int], folder: Path, resume: bool = False, store: Store | None = None
) -> Iterator[Step]:
    """Play every rule with every seed, each in a run folder `folder/rule/seed-n`; with resume, only what is left."""
    configs = {(name, seed): replace(with_rule(config, name), seed=seed) for seed in seeds for name in names}
    for (name, seed), one in configs.items():  # before the first round of any
        runs.check_folder(folder / name / f"seed-{seed}", one, resume)
    for seed in seeds:
        left = [n for n in names if not (resume and finished(folder / n / f"seed-{seed}", configs[n, seed]))]
        if not left:
            continue
        first = Run(configs[left[0], seed], store)
        with first.engine() as engine:  # one engine, one partition and one start for all rules of a seed
            for name in left:
                run = Run(configs[name, seed], store, first.data)
                for line in play_in_folder(run, folder / name / f"seed-{seed}", resume, engine):
                    yield Step(name, seed, line)


def finished(place: Path, config: Config) -> bool:
    """Whether a run folder holds the result of exactly this config, on the same graph."""
    try:
        result = json.loads((place / "result.json").read_text())
        environment = json.loads((place / "environment.json").read_text())
        graph = config.graph.graph(config.seed).hash
        same = config.graph.learned or environment["graph_hash"] == graph  # what is learned follows from the config
        return bool(result["config_hash"] == config.hash() and same)
    except (OSError, ValueError, KeyError):
        return False


class Row(NamedTuple):
    """Mean over seeds of a rule at the last round, and the sample standard deviation over seeds."""

    rule: str
    seeds: int
    local: float
    local_std: float  # over devices, mean over seeds
    local_worst: float
    everybody: float
    everybody_std: float
    local_between_seeds: float
    everybody_between_seeds: float


def table(folder: Path, names: list[str], seeds: list[int]) -> list[Row]:
    """The last round of every rule from the run folders of a comparison."""
    rows = []
    for name in names:
        last = [_last(folder / name / f"seed-{seed}") for seed in seeds]

        def column(test: str, key: str, last: list[Mapping[str, Any]] = last) -> list[float]:
            return [tests[test][key] if test in tests else float("nan") for tests in last]

        own, everybody = column("local", "mean"), column("global", "mean")
        rows.append(
            Row(
                name,
                len(seeds),
                float(np.mean(own)),
                float(np.mean(column("local", "std"))),
                float(np.mean(column("local", "worst"))),
                float(np.mean(everybody)),
                float(np.mean(column("global", "std"))),
                float(np.std(own, ddof=1)) if len(seeds) > 1 else 0.0,
                float(np.std(everybody, ddof=1)) if len(seeds) > 1 else 0.0,
            )
        )
    return rows


def draw(folder: Path, names: list[str], seed: int) -> None:
    """Pictures of a comparison, with the curves of one seed."""
    runs.draw(folder, {name: folder / name / f"seed-{seed}" for name in names})


def _last(place: Path) -> Mapping[str, Any]:
    last = (lines(place) or [{}])[-1]
    if "mixed" not in last or last["round"] != load(place / "config.toml").rounds:
        raise ValueError(f"{place} does not hold a finished run")
    return dict(last["mixed"])
