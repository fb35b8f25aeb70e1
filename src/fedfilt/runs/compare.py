"""Several aggregation rules on the same data, start and batches, over several seeds."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfilt._reading import read_json, read_toml
from fedfilt._types import Table
from fedfilt.data.store import Store
from fedfilt.runs.build import Run
from fedfilt.runs.config import Config, load_begun
from fedfilt.runs.folder import as_begun, check_folder
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.rules import with_rule


class Played(NamedTuple):
    """A round of one of the runs of a comparison, as it was played."""

    rule: str
    seed: int
    line: Table


def compare(
    config: Config, names: list[str], seeds: list[int], folder: Path, resume: bool = False, store: Store | None = None
) -> Iterator[Played]:
    """Play every rule with every seed, each in a run folder `folder/rule/seed-n`; with resume, only what is left."""
    configs = {(name, seed): replace(with_rule(config, name), seed=seed) for seed in seeds for name in names}
    for (name, seed), one in configs.items():  # before the first round of any
        check_folder(folder / name / f"seed-{seed}", one, resume)
    for seed in seeds:
        left = [n for n in names if not (resume and finished(folder / n / f"seed-{seed}", configs[n, seed]))]
        if not left:
            continue
        first = Run(configs[left[0], seed], store)
        with first.engine() as engine:  # one engine, one partition and one start for all rules of a seed
            for name in left:
                run = Run(configs[name, seed], store, first.data)
                for line in play_in_folder(run, folder / name / f"seed-{seed}", resume, engine):
                    yield Played(name, seed, line)


def finished(place: Path, config: Config) -> bool:
    """Whether a run folder holds the result of exactly this config, on the same graph."""
    try:
        read_json(place / "result.json")
        environment = read_json(place / "environment.json")
        graph = config.graph.graph(config.seed).hash
        same = config.graph.learned or environment["graph_hash"] == graph  # what is learned follows from the config
        begun = place / "config.toml"
        return bool(load_begun(begun, config).hash() == as_begun(config, begun).hash() and same)
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


def _last(place: Path) -> Mapping[str, Any]:
    last = (read_lines(place) or [{}])[-1]
    if "mixed" not in last or last["round"] != read_toml(place / "config.toml").get("rounds"):
        raise ValueError(f"{place} does not hold a finished run")
    return dict(last["mixed"])
