"""`fedfilt compare` and `fedfilt demo`: several rules side by side."""

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfilt._trust import trusting
from fedfilt.cli import _console as console
from fedfilt.cli.show import after

if TYPE_CHECKING:
    from fedfilt.runs.config import Config


def compare(
    config: console.ConfigFile,
    overrides: console.Overrides = None,
    rules: Annotated[
        str | None,
        typer.Option(
            help="Rules to compare: names, mu=VALUE, or 'paper' for FedAvg, Local and mu=.1/1/10/100.",
            show_default="paper, or all tuned rules",
        ),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE,...",
            help="Settings to try with every rule, such as training.learning_rate=0.01,0.05; repeatable, for a grid.",
            show_default=False,
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(help="Folder written by fedfilt tune: use the settings chosen for each rule.", show_default=False),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Rule to compare the others with, seed by seed.", show_default="finetune, else fedavg"),
    ] = None,
    controls: Annotated[
        bool,
        typer.Option(
            "--controls", help="Also run rules that use the graph on a shuffled, a complete and an empty graph."
        ),
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, starting at the experiment's seed.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs.", show_default="runs/NAME-compare")] = None,
    resume: console.Resume = False,
    as_json: console.Json = False,
    data_dir: console.DataDir = None,
    trust_code: console.TrustCode = False,
) -> None:
    """Compare aggregation rules on the same data, initial models and batches."""
    with console.errors(), trusting(trust_code):
        from fedfilt.calls import RUNS
        from fedfilt.runs.config import load

        folder = out or RUNS / f"{config.stem}-compare"
        console.check_resumable(folder, resume)
        made = load(config, overrides or [])
        _compare(made, rules, seeds, folder, resume, as_json, data_dir, over or [], tuned, against, controls)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("demo/mnist_2"),
    data_dir: console.DataDir = None,
) -> None:
    """Compare FedAvg, personal models and G-Fedfilt on MNIST: 20 devices with 2 digits each. Takes about a minute."""
    with console.errors():
        from fedfilt import _parts
        from fedfilt.data.store import DataMissing, store_with
        from fedfilt.runs.config import from_table

        table = {
            "rounds": 60,
            "samples": {"train": 45, "local_test": 100, "global_test": 1000},
            "training": {"learning_rate": 0.1},
            "evaluation": {"every": 10},
        }
        try:
            with console.progress_bar() as progress:
                _parts.find("datasets", "mnist")().load(store_with(progress, data_dir))
        except DataMissing as error:
            if find_spec("sklearn") is None:
                instead = "Or let the demo take the 8 x 8 digits of scikit-learn: pip install 'fedfilt[digits]'"
                raise DataMissing(f"{error}\n{instead}") from None
            print(f"{error}\nUsing the 8 x 8 digits of scikit-learn instead.", file=sys.stderr)
            small = {"train": 20, "local_test": 20, "global_test": 200}
            table |= {"data": "digits", "model": "mlp", "samples": small}
        _compare(from_table(table), "fedavg,local,mu=1,mu=10", 1, out, True, False, data_dir)
        after(out)


def _compare(
    config: "Config",
    rules: str | None,
    seeds: int,
    folder: Path,
    resume: bool,
    as_json: bool,
    data_dir: Path | None,
    over: Sequence[str] = (),
    tuned: Path | None = None,
    against: str | None = None,
    controls: bool = False,
) -> None:
    from fedfilt import calls
    from fedfilt.runs.compare import chosen, table
    from fedfilt.show.words import Score, comparison

    with console.interruptible(folder, resume_hint="the same command with --resume"):
        calls.compare(
            config,
            rules,
            seeds,
            folder,
            over=over,
            controls=controls,
            tuned=tuned,
            against=against,
            resume=resume,
            data_dir=data_dir,
            progress=True,
        )
    written = (folder / "comparison.json").read_text()
    if as_json:
        print(written)
        return
    found = calls.compared(config, rules, over, tuned, controls=controls)
    rows = table(folder, [one.name for one in found], list(range(config.seed, config.seed + seeds)))
    picked = chosen(rows, found)
    if picked != rows:
        console.print_table(_validation_table(rows, {row.rule for row in picked}))
    console.print_table(_comparison_table(picked))
    if "differences" in (told := json.loads(written)):
        console.print_table(_differences_table(told, rows[0].metric))
    print(comparison([Score(row.rule, row.local, row.everybody) for row in picked], rows[0].metric))
    if over and rows[0].validation is None:
        print("These settings are compared on the test sets. To choose one without them: evaluation.validation=0.2")
    print(f"runs: {folder}/RULE/seed-N, table: {folder / 'comparison.json'}, pictures: {folder / 'figures'}")


def _validation_table(rows: list[Any], chosen: set[str]) -> Any:
    from rich.table import Table

    metric = rows[0].metric
    table = Table("run", "validation", "", title=f"{metric.words} on held-out training samples")
    for row in rows:
        table.add_row(console.shown(row.rule), metric.text(row.validation), "chosen" if row.rule in chosen else "")
    return table


def _differences_table(told: Any, metric: Any) -> Any:
    """Every rule against one of them, with one column per test."""
    from rich.table import Table

    from fedfilt.runs.paired import SURE
    from fedfilt.show.words import difference

    tests = told["differences"]
    table = Table("rule", *(f"{test} test" for test in tests))
    table.title = f"difference from {console.shown(told['against'])}, seed by seed: mean and {SURE:.0%} interval"
    for rows in zip(*tests.values(), strict=True):
        cells = [
            f"{difference(metric, row['mean'])} ({difference(metric, row['low'])} to {difference(metric, row['high'])})"
            for row in rows
        ]
        table.add_row(console.shown(rows[0]["name"]), *(cell.replace(" points", "") for cell in cells))
    return table


def _comparison_table(rows: list[Any]) -> Any:
    from rich.table import Column, Table

    over = f", mean ± std over {rows[0].seeds} seeds" if rows[0].seeds > 1 else ""
    metric = rows[0].metric
    title = f"{metric.words} in the last round{over}"
    # As narrow as possible: the names of the rules need the space
    names = ("local\ntest", "std of\ndevices", "worst\ndevice", "global\ntest", "std of\ndevices")
    table = Table(Column("rule", overflow="fold"), *names, title=title)
    for row in rows:
        spread = [
            f" ± {metric.text(s)}" if row.seeds > 1 else ""
            for s in (row.local_between_seeds, row.everybody_between_seeds)
        ]
        table.add_row(
            console.shown(row.rule),
            f"{metric.text(row.local)}{spread[0]}",
            metric.text(row.local_std),
            metric.text(row.local_worst),
            f"{metric.text(row.everybody)}{spread[1]}",
            metric.text(row.everybody_std),
        )
    return table
