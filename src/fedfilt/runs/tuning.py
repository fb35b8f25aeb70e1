"""Settings of every rule chosen on training samples that were held out, with the same number of runs for each.

The learning rate comes first, on the same grid around the experiment's for every rule (around that divided by
1 - momentum if the rule's client lets no momentum build up); then the rest of the budget goes to the options that the
rule's parts say can be searched (`search`), and to rates within half a step of the grid around the best. What was found
is in the run folders alone: whoever resumes goes through the same steps and skips what is done.
"""

import json
import logging
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfilt._brief import lines_of
from fedfilt._checks import check_choice, check_count
from fedfilt._draws import Key, generator
from fedfilt._files import write_atomically
from fedfilt._reading import MOST_JSON, read, read_json
from fedfilt._trust import check_trusted
from fedfilt._types import Table
from fedfilt.data.store import Store
from fedfilt.rounds.types import Evaluation
from fedfilt.runs.build import Run
from fedfilt.runs.compare import Played, last_tests, metric_of, play_variants
from fedfilt.runs.config import Config, changed
from fedfilt.runs.rules import code_in_rule, with_rule
from fedfilt.runs.sweep import Variant
from fedfilt.training.goal import Metric, named

RATE = "training.learning_rate"
REACH = 10.0  # the grid of learning rates goes from a REACH-th of the experiment's to REACH times it
SHARE = 0.25  # of every device's training samples, that are held out where the experiment says no other
FIRST_SEED = 100  # of tuning: those below are for the comparison
FILE = "tuned.json"
OTHERWISE = ("seed", "aggregator", "client", "evaluation")  # tables in which the experiments of a tuning may differ

log = logging.getLogger("fedfilt")

Settings = Mapping[str, float]  # by key of the experiment


class Tried(NamedTuple):
    """Settings of a rule, and how they did on validation, mean over seeds."""

    settings: Settings
    validation: float | None = None  # None: some run could not be played to its end
    loss: float | None = None
    why: str = ""  # it could not


@dataclass(frozen=True, repr=False)
class Tuned:
    """What was tried for each rule, the best first, in a folder of runs.

    >>> import fedfilt, tempfile
    >>> table = {"data": "digits", "model": "logistic", "rounds": 1, "samples": {"train": 20, "local_test": 9}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fedfilt.tune(table, "fedavg", budget=2, seeds=1, folder=folder, engine={"workers": 1})
    ...     len(Tuned.of(folder).rules["fedavg"])
    2
    """

    folder: Path
    rules: Mapping[str, Sequence[Tried]]
    metric: Metric
    seeds: tuple[int, ...]
    budget: int  # runs for each rule
    experiment: Table  # that it was tuned for: the keys that count, without rule and seed

    @classmethod
    def of(cls, folder: str | Path) -> "Tuned":
        """What `fedfilt tune` wrote to a folder, or to the file in it."""
        path = Path(folder)
        path = path if path.name == FILE and path.is_file() else path / FILE
        try:
            found = read_json(path)
            rules = {str(rule): [_tried(one) for one in tried] for rule, tried in found["rules"].items()}
            if not rules or not all(tried and tried[0].validation is not None for tried in rules.values()):
                raise ValueError("there is no rule, or one without settings")
            known = tuple(map(int, found["seeds"])), int(found["budget"]), dict(found["experiment"])
            return cls(path.parent, rules, named(str(found["metric"]), bool(found["lower"])), *known)
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{folder} holds no finished tuning: there is no {FILE} in it") from None
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path} is not a file of fedfilt tune: {error!r}") from error

    def check_code(self) -> None:
        """Refuse rules that name code, unless the user trusts the file: it may be somebody else's."""
        path = self.folder / FILE
        check_trusted(path, read(path, MOST_JSON), {name for rule in self.rules for name in code_in_rule(rule)})

    def settings(self, rule: str) -> Settings:
        """The settings that were chosen for a rule."""
        return self.rules[check_choice("rule that was tuned", rule, self.rules)][0].settings

    def variants(self, config: Config, rules: Sequence[str]) -> list[Variant]:
        """Rules with what was chosen for them, maybe for another experiment: a warning says so."""
        wanted = _experiment(config)
        tables = sorted({*wanted, *self.experiment})
        if other := [key for key in tables if wanted.get(key) != self.experiment.get(key)]:
            log.warning("%s was tuned for another experiment, which differs in %s", self.folder, ", ".join(other))
        return [_variant(config, rule, self.settings(rule))._replace(name=rule) for rule in rules]

    def __repr__(self) -> str:
        words = [
            f"  {rule}: {self.metric.text(tried[0].validation or 0.0)} with "
            + ", ".join(f"{key}={value:g}" for key, value in tried[0].settings.items())
            for rule, tried in self.rules.items()
        ]
        seeds = f"seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"
        return lines_of(f"Tuned: {self.budget} runs for each rule, {seeds}, in {self.folder}", *words)


def _experiment(config: Config) -> Table:
    """What decides on the result besides rule, seed and what is held out."""
    return {key: value for key, value in config.counted().items() if key not in OTHERWISE}


def _tried(table: Any) -> Tried:
    """What was tried, of a table that others may have written."""
    settings = {str(key): value for key, value in dict(table["settings"]).items()}
    score, loss = table["validation"], table["loss"]
    for value in (*settings.values(), *(one for one in (score, loss) if one is not None)):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"settings and scores must be numbers, got {value!r:.40}")
    return Tried(settings, score, loss, str(table["why"]))


def tune(
    config: Config,
    rules: Sequence[str],
    budget: int,
    seeds: Sequence[int],
    folder: Path,
    resume: bool = False,
    store: Store | None = None,
) -> Iterator[Played]:
    """Play `budget` runs of validation for every rule, each in a run folder, and write what was chosen to tuned.json.

    A setting is tried with all seeds, so there are budget // len(seeds) of them. Up to five, or half of them, are
    learning rates.
    """
    number = check_count("budget", budget, low=len(seeds)) // len(seeds)
    config = validated(config)
    kept = _kept(folder, config, budget, seeds, resume)
    check_playable(config, rules, seeds[0], store)
    tried = {rule: [{RATE: rate} for rate in rates(_usual_rate(config, rule), number)] for rule in rules}
    played = _Played(config, seeds, folder, {})
    yield from played.play(tried, resume, store)
    more = {
        rule: drawn(
            played.ranked(rule, own)[0].settings[RATE], searched(with_rule(config, rule), rule), number, seeds[0]
        )
        for rule, own in tried.items()
    }
    done = sum(map(len, tried.values())) * len(seeds) * config.rounds
    yield from (step._replace(before=step.before + done) for step in played.play(more, resume, store))
    found = {rule: played.ranked(rule, [*own, *more[rule]]) for rule, own in tried.items()}
    metric = metric_of(last_tests(played.place(rules[0], found[rules[0]][0].settings, seeds[0])))
    table = {
        "rules": {rule: [one._asdict() for one in own] for rule, own in {**kept, **found}.items()},
        "metric": metric.key,
        "lower": metric.lower,
        "seeds": list(seeds),
        "budget": budget,
        "validation": config.evaluation.validation,
        "experiment": _experiment(config),
    }
    write_atomically(folder / FILE, json.dumps(table, indent=1).encode())


def _kept(
    folder: Path, config: Config, budget: int, seeds: Sequence[int], resume: bool
) -> Mapping[str, Sequence[Tried]]:
    """The rules that were tuned in a folder before, which stay; refuses another tuning."""
    if not (folder / FILE).exists():
        return {}
    if not resume:
        raise ValueError(
            f"{folder} holds a tuning already; go on with --resume (resume=True), also with other rules, or choose "
            "another --out"
        )
    before, now = Tuned.of(folder), json.loads(json.dumps(_experiment(config)))
    share = config.evaluation.validation
    compared = {
        "budget": (before.budget, budget),
        "seeds": ([*before.seeds], [*seeds]),
        "evaluation.validation": (read_json(folder / FILE).get("validation", share), share),
    }
    changes = [f"{name} was {was}, is {given}" for name, (was, given) in compared.items() if was != given]
    if other := [key for key in sorted({*now, *before.experiment}) if now.get(key) != before.experiment.get(key)]:
        changes.append(f"its experiment differs in {', '.join(other)}")
    if changes:
        raise ValueError(
            f"{folder} holds another tuning ({'; '.join(changes)}); resume with the same one, or choose another --out"
        )
    return before.rules


def validated(config: Config) -> Config:
    """The same experiment with samples held out, tested on these alone and at its end only."""
    share = config.evaluation.validation or SHARE
    return replace(config, evaluation=Evaluation(config.rounds, validation=share, tests=False))


def check_playable(config: Config, rules: Sequence[str], seed: int, store: Store | None) -> None:
    """Refuse rules that this experiment cannot have, before anything is trained."""
    data = None
    for rule in rules:
        ruled = with_rule(config, rule)
        searched(ruled, rule)
        run = Run(replace(ruled, seed=seed), store, data)
        run.check_here()
        data = run.data


def searched(config: Config, rule: str) -> dict[str, tuple[float, float]]:
    """Keys of an experiment that its rule's parts name in `search`, from where to where; not those that a rule fixes.

    >>> from fedfilt.runs.config import load
    >>> searched(with_rule(load(None), "ditto"), "ditto")
    {'client.weight': (0.01, 10.0)}
    >>> searched(with_rule(load(None), "ditto+gfedfilt"), "ditto+gfedfilt")
    {'client.weight': (0.01, 10.0), 'aggregator.filter.mu': (0.1, 100.0)}
    >>> searched(with_rule(load(None), "mu=10"), "mu=10")
    {}
    """
    fixed = set(re.findall(r"(\w+)=", rule))
    found = {**_searched(config.client, "client"), **_searched(config.aggregator, "aggregator")}
    return {key: ends for key, ends in found.items() if key.rpartition(".")[2] not in fixed}


def _searched(part: Any, path: str) -> dict[str, tuple[float, float]]:
    found = {}
    names = [field.name for field in fields(part)] if is_dataclass(part) else []
    for name, ends in getattr(part, "search", {}).items():
        if name not in names or len(ends) != 2 or not 0 < ends[0] < ends[1] < math.inf:
            raise ValueError(
                f"{type(part).__name__}.search must name options with the ends of a range above 0, such as "
                f'{{"weight": (0.01, 10.0)}}, got {name!r}: {ends!r}'
            )
        found[f"{path}.{name}"] = (ends[0], ends[1])
    for name in names:
        found |= _searched(getattr(part, name), f"{path}.{name}")
    return found


def _usual_rate(config: Config, rule: str) -> float:
    """The experiment's learning rate; without momentum, one with which steps are as long."""
    training = config.training
    builds_up = getattr(with_rule(config, rule).client, "momentum", True)
    return training.learning_rate / (1.0 if builds_up else 1 - training.momentum)


def rates(rate: float, number: int) -> list[float]:
    """Learning rates to begin with, the usual one in the middle: most of up to eight settings, half of more; odd.

    >>> rates(0.02, 7), rates(0.02, 5), rates(0.02, 1)
    ([0.002, 0.00632, 0.02, 0.0632, 0.2], [0.002, 0.02, 0.2], [0.02])
    """
    grid = _grid(number)
    return [_round(rate * REACH**power) for power in np.linspace(-1, 1, grid)] if grid > 1 else [_round(rate)]


def _grid(number: int) -> int:
    """Settings that go to the grid of rates."""
    count = max(min(5, (2 * number + 1) // 3), (number + 1) // 2)
    return max(1, count - (count % 2 == 0))


def drawn(rate: float, space: Mapping[str, tuple[float, float]], number: int, seed: int) -> list[dict[str, float]]:
    """The other settings: near the best rate and all over the options' ranges, even on a log scale.

    >>> drawn(0.02, {"client.epochs": (1, 30)}, 7, 100)
    [{'training.learning_rate': 0.0305, 'client.epochs': 28}, {'training.learning_rate': 0.0138, 'client.epochs': 2}]
    """
    grid = _grid(number)
    count, step = number - grid, REACH ** (1 / max(grid - 1, 1))  # half of that from one rate of the grid to the next
    columns = {}
    for key, (low, high) in {RATE: (rate / step, rate * step), **space}.items():
        rng = generator(seed, Key.TUNING, zlib.crc32(key.encode()))
        places = (rng.permutation(count) + rng.random(count)) / max(count, 1)  # a Latin hypercube
        values = low * (high / low) ** places
        whole = isinstance(low, int) and isinstance(high, int)
        columns[key] = [round(value) if whole else _round(value) for value in values]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def _variant(config: Config, rule: str, settings: Settings) -> Variant:
    """A rule with settings; an option that its client shares with the rule that belongs to it is set for both."""
    ruled, both = with_rule(config, rule), dict(settings)
    for key, value in settings.items():
        part, _, option = key.partition(".")
        if part == "client" and "+" not in rule and hasattr(ruled.aggregator, option):
            both[f"aggregator.{option}"] = value
    words = [f"{key.rpartition('.')[2]}={value:g}" for key, value in settings.items()]
    texts = tuple(f"{key}={value!r}" for key, value in both.items())
    return Variant(" ".join([rule, *words]), rule, texts, changed(ruled, texts))


class _Played(NamedTuple):
    """Runs of a tuning, and which of them could not be played to their end."""

    config: Config
    seeds: Sequence[int]
    folder: Path
    failed: dict[tuple[str, int], str]  # by the name of the variant and the seed: why

    def play(self, tried: Mapping[str, Sequence[Settings]], resume: bool, store: Store | None) -> Iterator[Played]:
        """Play settings of rules, each with all seeds; what two settings have in common is played once."""
        found = [_variant(self.config, rule, settings) for rule, own in tried.items() for settings in own]
        different = {one.name: one for one in found}.values()
        yield from play_variants(list(different), self.seeds, self.folder, resume, store, self.failed)

    def place(self, rule: str, settings: Settings, seed: int) -> Path:
        """The folder of a run."""
        return self.folder / _variant(self.config, rule, settings).name / f"seed-{seed}"

    def ranked(self, rule: str, tried: Sequence[Settings]) -> list[Tried]:
        """What was tried for a rule, the best first; of equal scores, as few samples give, that with less loss."""
        found, lower = [], False
        for settings in tried:
            name = _variant(self.config, rule, settings).name
            if why := next((self.failed[name, seed] for seed in self.seeds if (name, seed) in self.failed), ""):
                found.append(Tried(settings, why=why))
                continue
            tests = [last_tests(self.folder / name / f"seed-{seed}") for seed in self.seeds]
            lower = metric_of(tests[0]).lower
            score = float(np.mean([test["validation"]["mean"] for test in tests]))
            loss = float(np.mean([test["validation"].get("loss") or math.nan for test in tests]))
            found.append(Tried(settings, score, loss if math.isfinite(loss) else None))
        if all(one.validation is None for one in found):
            raise ValueError(f"no setting of {rule} could be played to its end: {found[0].why}")

        def place(one: Tried) -> tuple[bool, float, float]:
            score = one.validation or 0.0
            return one.validation is None, score if lower else -score, math.inf if one.loss is None else one.loss

        return sorted(found, key=place)
