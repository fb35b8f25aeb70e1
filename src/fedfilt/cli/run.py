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
    out: Annotated[Path | None, typer.Option(help="Folder for the run.", show_default="runs/NAME-seed-N")] = None,
    resume: console.Resume = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Total number of rounds, also for a run that is resumed.")
    ] = None,
    as_json: console.Json = False,
    data_dir: console.DataDir = None,
    live: Annotated[bool, typer.Option("--live", help="Open the dashboard on this run.")] = False,
    trust_code: console.TrustCode = False,
) -> None:
    """Train the devices of an experiment and save everything in a run folder.

    CONFIG may also be a run folder, to continue that run: `fedfilt run runs/mnist_2-seed-0 --rounds 400`.
    """
    with console.errors(), trusting(trust_code), live_dashboard() as watched:
        from fedfilt import calls
        from fedfilt.runs.config import load
        from fedfilt.runs.folder import check_plain

        name = config.stem
        if (config / "config.toml").is_file():  # a run folder
            check_plain(config)
            name, config, out, resume = config.name, config / "config.toml", out or config, resume or out is None
        loaded = load(config, [*(overrides or []), *([] if rounds is None else [f"rounds={rounds}"])])
        folder = out or calls.RUNS / f"{name}-seed-{loaded.seed}"
        console.check_resumable(folder, resume)
        if live:
            watched(folder)
        trust = " --trust-code" if code_in(loaded.table()) else ""
        again = f"fedfilt run {folder}/config.toml --out {folder} --resume{trust}"
        begun = None if as_json else lambda made, bar: bar.console.print(_labels(made.data))
        with console.interruptible(folder, resume_hint=again):
            result = calls.run(loaded, folder, resume=resume, data_dir=data_dir, progress=True, begun=begun).result
        if as_json:
            print(json.dumps({"folder": str(folder), **result}))
            return
        console.print_table(_result_table(result))
        print(f"run folder: {folder}, pictures: {folder / 'figures'}")


def _labels(data: "FederatedData") -> Any:
    from rich.table import Table

    table = Table(
        "device",
        "samples",
        *map(str, range(data.classes * data.labelled)),
        title=f"{console.shown(data.name)}: training samples{' per label' * data.labelled}",
    )
    for device, counts in enumerate(data.label_counts[:40]):
        table.add_row(str(device), str(counts.sum()), *[str(n) if n else "·" for n in counts if data.labelled])
    if data.count > 40:
        table.caption = f"... and {data.count - 40} more devices"
    return table


def _result_table(result: dict[str, Any]) -> Any:
    from rich.table import Table

    from fedfilt.training.goal import metric_in

    shown: dict[str, Any] = next((result[test]["last"] for test in ("local", "global") if test in result), {})
    metric, others = metric_in(shown), [key for key in shown.get("scores", {}) if key != shown["metric"]]
    words = [metric_in({"metric": key}) for key in others]
    papers = {} if "I_2" not in shown else {"I_2": "precision", "I_3": "recall", "I_4": "F1"}
    heads = [
        metric.words,
        "std over devices",
        "worst device",
        *(papers.values() if papers else [m.words for m in words]),
    ]
    table = Table("test", "round", *heads)
    for test in ("local", "global"):
        for which, said in (("last", "last round"), ("best", "best on this test")):
            if test in result:
                row = result[test][which]
                values = [metric.text(row[key]) for key in ("mean", "std", "worst")]
                if papers:
                    values += [f"{row[key]:.1%}" for key in papers]
                else:
                    scores = row.get("scores", {})
                    values += [one.text(scores.get(one.key, float("nan"))) for one in words]
                table.add_row(f"{test}, {said}", str(row["round"]), *values)
    totals = result["totals"]
    table.caption = (
        f"total: {totals['I_5_flops']:.3g} FLOPs, latency {totals['I_6_latency_seconds']:.4g} s, desynchronisation "
        f"{totals['I_7_desync_seconds']:.3g} s, {totals['joules']:.3g} J, {totals['bytes'] / 1e6:.4g} MB (simulated)"
    )
    return table
