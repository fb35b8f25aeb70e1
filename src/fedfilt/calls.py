"""One function per task, used by the command line and by Python."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfilt._checks import check_count
from fedfilt._files import write_atomically
from fedfilt._progress import progress_bar, shown
from fedfilt._trust import trusting
from fedfilt.data.store import store_with
from fedfilt.runs import advice, tuning
from fedfilt.runs import compare as comparing
from fedfilt.runs.advice import ROUNDS, Advice
from fedfilt.runs.build import Run
from fedfilt.runs.comparison import Comparison
from fedfilt.runs.config import Config, config_of, written
from fedfilt.runs.config import load as load_config
from fedfilt.runs.fit import Fitted
from fedfilt.runs.folder import check_plain
from fedfilt.runs.lines import TESTS
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records
from fedfilt.runs.rules import rules as named
from fedfilt.runs.sweep import Variant, variants, with_controls
from fedfilt.runs.tuning import FIRST_SEED, Tuned
from fedfilt.show import report as reports
from fedfilt.show.pictures import write_pictures
from fedfilt.training.goal import metric_in

Given = Config | Mapping[str, Any] | str | Path | None  # an experiment: its config, its table or its file
RUNS = Path("runs")  # for folders without a given name


def run(
    config: Given,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    data_dir: str | Path | None = None,
    progress: bool | None = None,
    trust_code: bool = False,
    begun: Callable[[Run, Any], None] | None = None,
    **overrides: Any,
) -> Records:
    """Train the devices of an experiment, save everything in a run folder, and return its records.

    `config` is a file, a table with the same keys, or a Config. Overrides are keys of the experiment: rounds=50,
    training={"learning_rate": 0.1}, or **{"training.learning_rate": 0.1}. The default folder is runs/NAME-seed-N.
    With `resume`, a run continues from its last checkpoint, and a finished one is just read. `begun` is called with the
    run and its progress bar before the first round.

    >>> import tempfile
    >>> table = {"data": "digits", "model": "logistic", "rounds": 2, "samples": {"train": 9, "local_test": 9}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run(table, f"{folder}/first", engine={"workers": 1}).status
    'finished'
    """
    made = config_of(config, overrides, trust_code)
    place = RUNS / f"{_name(config, made)}-seed-{made.seed}" if folder is None else Path(folder)
    with progress_bar(progress) as bar:
        whole = Run(made, store_with(bar, data_dir))
        whole.check_here()
        if begun is not None:
            begun(whole, bar)
        task = bar.add_task(shown(place.name), total=made.rounds)
        for line in play_in_folder(whole, place, resume):
            bar.update(task, completed=line["round"], description=_progress_words(place.name, line))
    write_pictures(place)
    return Records(place)


def compare(
    config: Given,
    rules: str | Sequence[str] | None = None,
    seeds: int = 1,
    folder: str | Path | None = None,
    *,
    over: str | Sequence[str] | Mapping[str, Sequence[Any]] = (),
    tuned: Tuned | str | Path | None = None,
    against: str | None = None,
    controls: bool = False,
    resume: bool = False,
    data_dir: str | Path | None = None,
    progress: bool | None = None,
    trust_code: bool = False,
    **overrides: Any,
) -> Comparison:
    """Run an experiment under several rules and seeds, with the same data, initial models and batches for each rule.

    Rules are names: files in fedfilt/aggregators, "mu=10" for G-Fedfilt, "paper" for the paper's rules. The runs are in
    `folder`/RULE/seed-N (by default runs/NAME-compare); the table of their last rounds is in its comparison.json.
    `over` has settings to try with every rule: "training.learning_rate=0.01,0.05", a list of such texts, or
    {"training.learning_rate": [0.01, 0.05]}; see `fedfilt.runs.sweep`.
    With `controls`, every rule that uses the graph also runs on a shuffled, a complete and an empty graph.
    `tuned` is the result of `tune`, or its folder: each rule then has the settings chosen for it. With several seeds,
    all rules are compared with `against`: by default fine-tuning if it takes part, else FedAvg. For the rest see `run`.

    >>> import tempfile
    >>> table = {"data": "digits", "model": "logistic", "rounds": 1, "samples": {"train": 9, "local_test": 9}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(compare(table, rules="fedavg,mu=1", folder=folder, engine={"workers": 1}).runs)
    2
    """
    over = _axes(over)
    made = config_of(config, overrides, trust_code)
    numbers = list(range(made.seed, made.seed + check_count("seeds", seeds)))
    place = RUNS / f"{_name(config, made)}-compare" if folder is None else Path(folder)
    with trusting(trust_code):
        found = compared(made, rules, over, tuned, numbers, controls)
    baseline = comparing.against([one.rule for one in found], against)
    with progress_bar(progress) as bar:
        steps = comparing.play_variants(found, numbers, place, resume, store_with(bar, data_dir))
        _follow(bar, place.name, steps, made.rounds * len(found) * len(numbers))
    every = [one.name for one in found]
    write_pictures(place, {name: place / name / f"seed-{numbers[0]}" for name in every})
    rows = comparing.table(place, every, numbers)
    table: dict[str, Any] = {"folder": str(place), "rules": [row.told() for row in rows]}
    chosen = comparing.chosen(rows, found)
    if over:
        table["chosen"] = [row.rule for row in chosen] if chosen != rows else None
    names = {row.rule for row in chosen}
    one_each = [one for one in found if one.name in names]
    if baseline is not None and len(numbers) > 1 and len(one_each) == len({one.rule for one in found}) > 1:
        differences = comparing.differences(place, one_each, numbers, baseline)
        told = {test: [row._asdict() for row in pairs] for test, pairs in differences.items()}
        table |= {"against": baseline, "differences": told}
    write_atomically(place / "comparison.json", json.dumps(table, indent=1).encode())
    return Comparison.of(place)


def compared(
    config: Config,
    rules: str | Sequence[str] | None,
    over: Sequence[str] = (),
    tuned: Tuned | str | Path | None = None,
    seeds: Sequence[int] = (),
    controls: bool = False,
) -> list[Variant]:
    """The runs of a comparison, for any seed. Without names: the paper's rules, or all tuned ones."""
    if tuned is None:
        return variants(config, _named("paper" if rules is None else rules), over, controls)
    if over:
        raise ValueError("over tries settings, but tuned has already chosen them: use only one of the two")
    chosen = tuned if isinstance(tuned, Tuned) else Tuned.of(tuned)
    if both := sorted(set(seeds) & set(chosen.seeds)):
        raise ValueError(
            f"seed must not be one that settings were chosen with ({both} in {chosen.folder}); choose another, such as "
            f"seed={max(chosen.seeds) + 1}"
        )
    if rules is None:
        chosen.check_code()  # nobody has typed their names
    found = chosen.variants(config, list(chosen.rules) if rules is None else _named(rules))
    return with_controls(found) if controls else found


def tune(
    config: Given,
    rules: str | Sequence[str],
    budget: int = 20,
    seeds: int = 2,
    folder: str | Path | None = None,
    *,
    first_seed: int = FIRST_SEED,
    resume: bool = False,
    data_dir: str | Path | None = None,
    progress: bool | None = None,
    trust_code: bool = False,
    **overrides: Any,
) -> Tuned:
    """Choose the settings of rules on held-out training samples, with `budget` runs for each rule.

    Learning rates come first, then the options that a rule's parts list in `search`. Every setting is tried with all
    seeds, which start at `first_seed`, so that lower ones are new to `compare(..., tuned=...)`. The runs are in
    `folder` (by default runs/NAME-tune), and the results in its tuned.json. For the rest see `run`.

    >>> import tempfile
    >>> table = {"data": "digits", "model": "logistic", "rounds": 1, "samples": {"train": 20, "local_test": 9}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(tune(table, "fedavg", budget=2, seeds=1, folder=folder, engine={"workers": 1}).rules)
    ['fedavg']
    """
    made, names = config_of(config, overrides, trust_code), _named(rules)
    numbers = list(range(first_seed, check_count("first_seed", first_seed, low=0) + check_count("seeds", seeds)))
    place = RUNS / f"{_name(config, made)}-tune" if folder is None else Path(folder)
    with progress_bar(progress) as bar:
        steps = tuning.tune(made, names, budget, numbers, place, resume, store_with(bar, data_dir))
        _follow(bar, place.name, steps, made.rounds * len(names) * (budget // len(numbers)) * len(numbers))
    return Tuned.of(place)


def advise(
    run: Given | Records,
    *,
    rounds: int = ROUNDS,
    share_labels: bool = False,
    data_dir: str | Path | None = None,
    trust_code: bool = False,
    **overrides: Any,
) -> Advice:
    """Say whether a graph (given or found) helps an experiment, and which rule to use, without looking at its data.

    `run` is an experiment as in `run`, or the folder or records of a run. In a run's folder, the measurement is saved
    for reuse, and the advice for the dashboard. A probe trains with FedAvg for `rounds` rounds, then every device
    fine-tunes. With `share_labels`, devices also report how many samples of each label they have. Advice on a run with
    overrides is not kept, because it is about another experiment. See docs/choosing.md.

    >>> table = {"data": "digits", "model": "logistic", "samples": {"train": 9, "local_test": 9}}
    >>> advise(table, rounds=1).experiment
    'EXPERIMENT.toml'
    """
    given, folder = advisable(run)
    made = config_of(given, overrides, trust_code)
    return advised(given, made, written(overrides), folder, rounds, share_labels, data_dir)


def advisable(run: Given | Records) -> tuple[Given, Path | None]:
    """(the experiment that is asked about, its folder if it is that of a run)."""
    folder = run.folder if isinstance(run, Records) else Path(run) if isinstance(run, str | Path) else None
    if folder is not None and (folder / "config.toml").is_file():
        check_plain(folder)
        return folder / "config.toml", folder
    if isinstance(run, Records):
        raise ValueError(f"{run} has no config.toml, so its experiment is unknown")
    return run, None


def advised(
    given: Given,
    made: Config,
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    rounds: int = ROUNDS,
    share_labels: bool = False,
    data_dir: str | Path | None = None,
) -> Advice:
    """Advice on the experiment `made` of what is `given` and overrides, which the advised command repeats.

    In the `folder` of a run, it is kept, unless overrides make it advice on another experiment.
    """
    words = [str(given) if isinstance(given, str | Path) else "EXPERIMENT.toml", *overrides]
    words += [] if data_dir is None else ["--data-dir", str(data_dir)]
    with progress_bar(False) as bar:
        found = advice.advise(made, shlex.join(words), store_with(bar, data_dir), rounds, share_labels, folder)
    if folder is not None and not overrides:
        found.save(folder)
    return found


def _named(rules: str | Sequence[str]) -> list[str]:
    return named(rules if isinstance(rules, str) else ",".join(rules))


def _follow(bar: Any, name: str, steps: Iterable[comparing.Played], total: int) -> None:
    """Show how far runs have got; runs that were already finished count once a later one starts."""
    task = bar.add_task(shown(name), total=total)
    for step in steps:
        words = _progress_words(f"{step.rule} seed {step.seed}", step.line)
        bar.update(task, completed=step.before + step.line["round"], description=words)
    bar.update(task, completed=total)


def _axes(over: str | Sequence[str] | Mapping[str, Sequence[Any]]) -> list[str]:
    """Settings to try, as on the command line.

    >>> _axes({"client.weight": [0.1, 1], "graph": ["rooms"]}), _axes("client.weight=0.1,1")
    (['client.weight=0.1,1', 'graph=rooms'], ['client.weight=0.1,1'])
    """
    if not isinstance(over, Mapping):
        return [over] if isinstance(over, str) else list(over)
    tried = {key: [values] if isinstance(values, str) else values for key, values in over.items()}
    told = {key: [one if isinstance(one, str) else json.dumps(one) for one in values] for key, values in tried.items()}
    return [f"{key}={','.join(values)}" for key, values in told.items()]


def report(runs: Any, out: str | Path | None = None) -> Path:
    """Write a report on runs, one HTML file that opens offline in any browser, and return its path.

    `runs` is a result of `run`, `compare` or `load`, or a folder, or a list of these. Without `out`, the file is
    report.html in the folder, or in the current folder if there are several.

    >>> import tempfile
    >>> table = {"data": "digits", "model": "logistic", "rounds": 1, "samples": {"train": 9, "local_test": 9}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report(run(table, f"{folder}/run", engine={"workers": 1})).name
    'report.html'
    """
    several = [runs] if isinstance(runs, str | Path | Records | Comparison | Fitted) else list(runs)
    return reports.write(map(_folder, several), out)


def load(path: str | Path | None, overrides: Iterable[str] | Mapping[str, Any] = (), trust_code: bool = False) -> Any:
    """Load a path: a run folder as `Records`, a folder of runs as a `Comparison`, an experiment file as a `Config`.

    None means the experiment with all defaults. Overrides and `trust_code` are for experiments; see `run`.

    >>> load(None, ["rounds=5"]).rounds
    5
    """
    if path is not None and not Path(path).exists():
        raise ValueError(f"path must be a run folder or an experiment file; there is no {path}")
    if path is None or not Path(path).is_dir():
        return load_config(path, overrides, trust_code)
    if overrides:
        raise ValueError(f"overrides change an experiment, but {path} is a folder of runs; got {overrides!r}")
    return Records(path) if (Path(path) / "config.toml").exists() else Comparison.of(path)


def _progress_words(name: str, line: Mapping[str, Any]) -> str:
    """How far a run has got, and its score, for the progress bar."""
    tests = line.get("mixed", {})
    scores = [f"{test} {metric_in(tests[test]).text(tests[test]['mean'])}" for test in TESTS if test in tests]
    return " ".join([shown(name), "round", str(line["round"]), *scores])


def _name(given: Given, made: Config) -> str:
    """The name of an experiment: its file's name, or its hash."""
    return Path(given).stem if isinstance(given, str | Path) else f"experiment-{made.hash()[:8]}"


def _folder(runs: Any) -> Path:
    if isinstance(runs, Fitted):
        raise ValueError("a report needs a folder: pass the result of fitted.save(folder)")
    return runs.folder if isinstance(runs, Records | Comparison) else Path(runs)
