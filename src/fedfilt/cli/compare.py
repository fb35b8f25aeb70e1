"""`fedfilt compare` and `fedfilt demo`: several rules side by side."""

import json
import sys
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
        str, typer.Option(help="Rules to compare: names, mu=VALUE, or 'paper' for FedAvg, Local and mu=.1/1/10/100.")
    ] = "paper",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from the experiment's seed on.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs.", show_default="runs/NAME-compare")] = None,
    resume: console.Resume = False,
    as_json: console.Json = False,
    data_dir: console.DataDir = None,
    trust_code: console.TrustCode = False,
) -> None:
    """Compare aggregation rules on the same data, start and batches."""
    with console.errors(), trusting(trust_code):
        from fedfilt.runs import rules as named
        from fedfilt.runs.config import load

        loaded = load(config, overrides or [])
        names = named.rules(rules)
        numbers = list(range(loaded.seed, loaded.seed + seeds))
        folder = out or Path("runs") / f"{config.stem}-compare"
        _compare(config.stem, loaded, names, numbers, folder, resume, as_json, data_dir)


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("demo/mnist_2"),
    data_dir: console.DataDir = None,
) -> None:
    """Compare FedAvg, purely personal models and G-Fedfilt on MNIST, 20 devices with 2 digits each: about a minute."""
    with console.errors():
        from fedfilt import _parts
        from fedfilt.data.store import DataMissing
        from fedfilt.runs.config import from_table

        table = {
            "rounds": 60,
            "samples": {"train": 45, "local_test": 100, "global_test": 1000},
            "training": {"learning_rate": 0.1},
            "evaluation": {"every": 10},
        }
        try:
            with console.progress_bar() as progress:
                _parts.find("datasets", "mnist")().load(console.store_with(progress, data_dir))
        except DataMissing as error:
            print(f"{error}\nGoing on with the 8 x 8 digits of scikit-learn instead.", file=sys.stderr)
            small = {"train": 20, "local_test": 20, "global_test": 200}
            table |= {"data": "digits", "model": "mlp", "samples": small}
        config = from_table(table)
        names = ["fedavg", "local", "mu=1", "mu=10"]
        _compare("demo", config, names, [0], out, True, False, data_dir)
        after(out)


def _compare(
    title: str,
    config: "Config",
    names: list[str],
    seeds: list[int],
    folder: Path,
    resume: bool,
    as_json: bool,
    data_dir: Path | None,
) -> None:
    from fedfilt.runs import compare as comparing
    from fedfilt.show.pictures import write_pictures
    from fedfilt.show.words import Score, comparison

    with console.progress_bar() as progress:
        total = len(names) * len(seeds) * config.rounds
        task = progress.add_task(console.shown(title), total=total)
        order = {(name, seed): i for i, (seed, name) in enumerate((s, n) for s in seeds for n in names)}
        steps = comparing.compare(config, names, seeds, folder, resume, console.store_with(progress, data_dir))
        with console.interruptible(folder, resume_hint="the same command with --resume"):
            for step in steps:
                done = order[step.rule, step.seed] * config.rounds + step.line["round"]
                words = console.progress_words(f"{step.rule} seed {step.seed}", step.line)
                progress.update(task, completed=done, description=words)
            progress.update(task, completed=total)
    rows = comparing.table(folder, names, seeds)
    write_pictures(folder, {name: folder / name / f"seed-{seeds[0]}" for name in names})
    content = json.dumps({"folder": str(folder), "rules": [row._asdict() for row in rows]}, indent=1)
    (folder / "comparison.json").write_text(content)
    if as_json:
        print(content)
        return
    from rich.console import Console

    Console().print(_comparison_table(rows))
    print(comparison([Score(row.rule, row.local, row.everybody) for row in rows]))
    print(f"runs: {folder}/RULE/seed-N, table: {folder / 'comparison.json'}, pictures: {folder / 'figures'}")


def _comparison_table(rows: list[Any]) -> Any:
    from rich.table import Table

    over = f", mean ± std over {rows[0].seeds} seeds" if rows[0].seeds > 1 else ""
    title = f"accuracy at the last round{over}"
    table = Table("rule", "local test", "std of devices", "worst device", "global test", "std of devices", title=title)
    for row in rows:
        spread = [
            f" ± {s:.1%}" if row.seeds > 1 else "" for s in (row.local_between_seeds, row.everybody_between_seeds)
        ]
        table.add_row(
            console.shown(row.rule),
            f"{row.local:.1%}{spread[0]}",
            f"{row.local_std:.1%}",
            f"{row.local_worst:.1%}",
            f"{row.everybody:.1%}{spread[1]}",
            f"{row.everybody_std:.1%}",
        )
    return table
