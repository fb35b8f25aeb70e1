"""Several aggregation rules, and settings, on the same data, start and batches, over several seeds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfilt._checks import check_choice
from fedfilt._files import Busy
from fedfilt._reading import read_json, read_toml
from fedfilt._types import Table
from fedfilt.data.samples import FederatedData
from fedfilt.data.store import Store
from fedfilt.runs.build import Run
from fedfilt.runs.config import DEFAULTS, Config, hash_of, load_begun
from fedfilt.runs.folder import as_begun, check_folder, check_plain, check_several
from fedfilt.runs.lines import MAIN, read_lines
from fedfilt.runs.paired import Paired, paired
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.sweep import Variant, variants
from fedfilt.training.goal import ACCURACY, Metric, named
from fedfilt.training.memo import Memo

DEALT = ("seed", "data", "partition", "samples", "graph", "events", "evaluation")  # tables that decide on who has what


class Played(NamedTuple):
    """A round of one of the runs of a comparison, as it was played."""

    rule: str
    seed: int
    line: Table
    before: int = 0  # rounds of the runs that were finished before this one


def compare(
    config: Config,
    names: list[str],
    seeds: list[int],
    folder: Path,
    resume: bool = False,
    store: Store | None = None,
    over: Sequence[str] = (),
    controls: bool = False,
) -> Iterator[Played]:
    """Play every rule with every seed, each in a run folder `folder/rule/seed-n`; with resume, only what is left.

    `over` are settings to try with each rule, such as "training.learning_rate=0.01,0.05": then a folder is named
    "rule learning_rate=0.01". With `controls`, rules that use the graph are played on other graphs too: "rule
    graph=shuffled". See `fedfilt.runs.sweep`.
    """
    yield from play_variants(variants(config, names, over, controls), seeds, folder, resume, store)


def play_variants(
    found: Sequence[Variant],
    seeds: Sequence[int],
    folder: Path,
    resume: bool = False,
    store: Store | None = None,
    failed: dict[tuple[str, int], str] | None = None,
) -> Iterator[Played]:
    """Play every variant with every seed, each in a run folder `folder/name/seed-n`.

    Where `failed` is given, a run that cannot be played to its end, as it diverges or its rule refuses a setting, does
    not stop the others: its name and seed are put there, with the reason.
    """
    configs = {(one.name, seed): replace(one.config, seed=seed) for seed in seeds for one in found}
    check_several(folder)
    check_plain(folder, {"figures", *(one.name for one in found)})
    for (name, seed), mine in configs.items():  # before the first round of any
        check_folder(folder / name / f"seed-{seed}", mine, resume)
    data: dict[str, FederatedData] = {}  # of the run before, by what it was dealt from
    done: dict[tuple[str, int], int] = {}  # rounds
    for seed in seeds:
        left: dict[str, Config] = {}
        for one in found:
            mine = configs[one.name, seed]
            if resume and finished(folder / one.name / f"seed-{seed}", mine):
                done[one.name, seed] = mine.rounds
            else:
                left[one.name] = mine
        alike = {name: beside(mine) for name, mine in left.items()}
        by_engine = {name: hash_of(_without(mine, "aggregator")) for name, mine in left.items()}
        for engine_key in dict.fromkeys(by_engine.values()):
            group = [name for name in left if by_engine[name] == engine_key]
            if not group:  # all were played beside others
                continue
            key = _dealt(left[group[0]])
            first = Run(left[group[0]], store, data.get(key))
            data = {key: first.data}
            together = [
                [name for name in left if alike[name] == one] for one in dict.fromkeys(alike[name] for name in group)
            ]
            memo = Memo() if any(len(some) > 1 for some in together) else None
            with _engine(first, memo) as engine:  # one engine, partition and start for all rules of a seed
                for some in together:
                    with ExitStack() as stack:
                        engines: dict[str, Any] = {engine_key: engine}
                        playing: dict[str, Iterator[Table]] = {}
                        for name in some:
                            run = Run(left.pop(name), store, first.data)
                            if (own := by_engine[name]) not in engines:
                                engines[own] = stack.enter_context(_engine(run, memo))
                            steps = play_in_folder(run, folder / name / f"seed-{seed}", resume, engines[own])
                            playing[name] = stack.enter_context(closing(steps))
                        for name, line in _side_by_side(playing, seed, failed):
                            done[name, seed] = line["round"]
                            yield Played(name, seed, line, sum(done.values()) - line["round"])


def _side_by_side(
    playing: Mapping[str, Iterator[Table]], seed: int, failed: dict[tuple[str, int], str] | None
) -> Iterator[tuple[str, Table]]:
    """The rounds of several runs, always of one that is furthest behind; see `play_variants` for `failed`."""
    rounds = dict.fromkeys(playing, 0)
    while rounds:
        name = min(rounds, key=rounds.__getitem__)
        try:
            line = next(playing[name])
        except StopIteration:
            del rounds[name]
        except (ValueError, ArithmeticError) as error:
            if failed is None or isinstance(error, Busy) or isinstance(error.__cause__, OSError):
                raise
            failed[name, seed] = str(error)
            del rounds[name]
        else:
            rounds[name] = line["round"]
            yield name, line


def _engine(run: Run, memo: Memo | None) -> Any:
    """A new engine of a run, which uses what other runs of this process have trained, if it can."""
    return run.engine() if memo is None or run.config.engine.name != "local" else run.engine(memo=memo)


def beside(config: Config) -> str:
    """Equal for runs that are played side by side, as what they train in most rounds is the same.

    A client or a rule says by `like` as which other it works in these. Such a rule looks at no links, so that controls
    are alike too.
    """
    table = (_uncontrolled(config) if hasattr(config.aggregator, "like") else config).counted()
    for part in ("client", "aggregator"):
        if name := getattr(getattr(config, part), "like", ""):
            table[part] = {"name": name}
    if table.get("client") == {"name": DEFAULTS["client"]}:
        del table["client"]
    return hash_of(table)


def _dealt(config: Config) -> str:
    """Equal for runs that deal the same samples to the same devices, maybe with other links between these."""
    table = _uncontrolled(config).counted()
    return hash_of({name: table.get(name, "") for name in DEALT})


def _uncontrolled(config: Config) -> Config:
    return replace(config, graph=replace(config.graph, control=""))


def _without(config: Config, part: str) -> Table:
    return {key: value for key, value in config.counted().items() if key != part}


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
    validation: float | None = None  # where samples were held out
    metric: Metric = ACCURACY

    def told(self) -> Table:
        """As a table; the score has a name where it is not the accuracy."""
        found = self._asdict()
        found["metric"] = self.metric.key
        return found if self.metric != ACCURACY else {key: value for key, value in found.items() if key != "metric"}


def table(folder: Path, names: list[str], seeds: list[int]) -> list[Row]:
    """The last round of every rule from the run folders of a comparison."""
    rows = []
    for name in names:
        last = [last_tests(folder / name / f"seed-{seed}") for seed in seeds]

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
                float(np.mean(held)) if np.isfinite(held := column("validation", "mean")).all() else None,
                metric_of(last[0]),
            )
        )
    return rows


def against(rules: Sequence[str], wanted: str | None = None) -> str | None:
    """The rule that the others are compared with: the one wanted, else fine-tuning, else FedAvg; None without any.

    >>> against(["fedavg", "finetune:epochs=30", "mu=1"]), against(["local", "mu=1"])
    ('finetune:epochs=30', None)
    """
    if wanted is not None:
        return check_choice("against", wanted, rules)
    return next((rule for kind in ("finetune", "fedavg") for rule in rules if rule.split(":")[0] == kind), None)


def differences(folder: Path, found: Sequence[Variant], seeds: Sequence[int], baseline: str) -> dict[str, list[Paired]]:
    """Of every test, how the last round of each rule differs from that of a baseline, over seeds: a variant a rule."""
    last = {one.rule: {seed: last_tests(folder / one.name / f"seed-{seed}") for seed in seeds} for one in found}
    tests = [test for test in MAIN if all(test in tests for own in last.values() for tests in own.values())]
    return {
        test: paired({rule: {seed: own[seed][test]["mean"] for seed in seeds} for rule, own in last.items()}, baseline)
        for test in tests
    }


def chosen(rows: Sequence[Row], found: Sequence[Variant]) -> list[Row]:
    """Of every rule the row of the settings that are best on validation, mean over seeds; all rows without any."""
    by_rule: dict[str, dict[str, float]] = {}
    for row, one in zip(rows, found, strict=True):
        if row.validation is None:
            return list(rows)
        by_rule.setdefault(one.rule, {})[row.rule] = row.validation
    names = {rows[0].metric.best(scores, key=scores.__getitem__) for scores in by_rule.values()}
    return [row for row in rows if row.rule in names]


def metric_of(tests: Mapping[str, Any]) -> Metric:
    """The score by which tests were judged."""
    test: Mapping[str, Any] = next(iter(tests.values()), {})
    return named(test.get("metric", ACCURACY.key), bool(test.get("lower")))


def last_tests(place: Path) -> Mapping[str, Any]:
    """What the tests of the last round of a finished run found."""
    last = (read_lines(place) or [{}])[-1]
    if "mixed" not in last or last["round"] != read_toml(place / "config.toml").get("rounds"):
        raise ValueError(f"{place} does not hold a finished run")
    return dict(last["mixed"])
