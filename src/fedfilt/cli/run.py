"""`fedfilt run`: one experiment."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfilt._trust import code_in, trusting
from fedfilt.cli import _console as console
from fedfilt.cli.show import live as live_dashboard

if TYPE_CHECKING:
    from fedfilt.data.samples import FederatedData


def run(
    config: console.ConfigFile,
    overrides: console.Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/NAME-seed-N")] = None,
    resume: console.Resume = False,
    as_json: console.Json = False,
    data_dir: console.DataDir = None,
    live: Annotated[bool, typer.Option("--live", help="Open the dashboard on this run.")] = False,
    trust_code: console.TrustCode = False,
) -> None:
    """Train the devices of an experiment and keep everything in a run folder."""
    with console.errors(), trusting(trust_code), live_dashboard() as watched:
        from fedfilt._reading import read_json
        from fedfilt.runs.build import Run
        from fedfilt.runs.config import load
        from fedfilt.runs.play import play_in_folder
        from fedfilt.show.pictures import write_pictures

        loaded = load(config, overrides or [])
        folder = out or Path("runs") / f"{config.stem}-seed-{loaded.seed}"
        if live:
            watched(folder)
        with console.progress_bar() as progress:
            made = Run(loaded, console.store_with(progress, data_dir))
            made.check_here()
            if not as_json:
                progress.console.print(_labels(made.data))
            task = progress.add_task(console.shown(config.stem), total=loaded.rounds)
            trust = " --trust-code" if code_in(loaded.table()) else ""
            again = f"fedfilt run {folder}/config.toml --out {folder} --resume{trust}"
            with console.interruptible(folder, resume_hint=again):
                for line in play_in_folder(made, folder, resume):
                    progress.update(
                        task, completed=line["round"], description=console.progress_words(config.stem, line)
                    )
        result = read_json(folder / "result.json")
        write_pictures(folder)
        if as_json:
            print(json.dumps({"folder": str(folder), **result}))
            return
        from rich.console import Console

        Console().print(_result_table(result))
        print(f"run folder: {folder}, pictures: {folder / 'figures'}")


def _labels(data: "FederatedData") -> Any:
    from rich.table import Table

    table = Table(
        "device",
        "samples",
        *map(str, range(data.classes)),
        title=f"{console.shown(data.name)}: training samples per label",
    )
    for device, counts in enumerate(data.label_counts[:40]):
        table.add_row(str(device), str(counts.sum()), *[str(n) if n else "·" for n in counts])
    if data.count > 40:
        table.caption = f"... and {data.count - 40} devices more"
    return table


def _result_table(result: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("test", "round", "accuracy", "std over devices", "worst device", "precision", "recall", "F1")
    for test in ("local", "global"):
        for which, words in (("last", "last round"), ("best", "best on this test")):
            if test in result:
                row = result[test][which]
                values = [f"{row[key]:.1%}" for key in ("mean", "std", "worst", "I_2", "I_3", "I_4")]
                table.add_row(f"{test}, {words}", str(row["round"]), *values)
    totals = result["totals"]
    table.caption = (
        f"in all: {totals['I_5_flops']:.3g} FLOPs, latency {totals['I_6_latency_seconds']:.4g} s, desynchronisation "
        f"{totals['I_7_desync_seconds']:.3g} s, {totals['joules']:.3g} J, {totals['bytes'] / 1e6:.4g} MB (simulated)"
    )
    return table
