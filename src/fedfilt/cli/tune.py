"""`fedfilt tune`: choose the settings of rules on held-out training samples."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfilt._trust import code_in, trusting
from fedfilt.cli import _console as console

SEEDS = 5  # of the comparison that is proposed


def tune(
    config: console.ConfigFile,
    overrides: console.Overrides = None,
    rules: Annotated[
        str, typer.Option(help="Rules to tune, separated by commas, such as fedavg,finetune,ditto,gfedfilt.")
    ] = "fedavg,local,finetune,ditto,gfedfilt",
    budget: Annotated[int, typer.Option(min=1, help="Validation runs for each rule.")] = 20,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds for each setting.")] = 2,
    first_seed: Annotated[
        int, typer.Option(min=0, help="First seed; lower ones stay unused for the comparison.")
    ] = 100,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs.", show_default="runs/NAME-tune")] = None,
    resume: console.Resume = False,
    as_json: console.Json = False,
    data_dir: console.DataDir = None,
    trust_code: console.TrustCode = False,
) -> None:
    """Choose learning rates and options of rules on held-out training samples, with the same budget for each rule."""
    with console.errors(), trusting(trust_code):
        from fedfilt import calls
        from fedfilt.runs.config import load
        from fedfilt.runs.rules import code_in_rule
        from fedfilt.runs.tuning import FILE

        folder = out or calls.RUNS / f"{config.stem}-tune"
        console.check_resumable(folder, resume)
        made = load(config, overrides or [])
        with console.interruptible(folder, resume_hint="the same command with --resume"):
            found = calls.tune(
                made,
                rules,
                budget,
                seeds,
                folder,
                first_seed=first_seed,
                resume=resume,
                data_dir=data_dir,
                progress=True,
            )
        if as_json:
            print((folder / FILE).read_text())
            return
        console.print_table(_table(found))
        words = ["fedfilt", "compare", str(config), *(overrides or [])]
        if set(range(made.seed, made.seed + SEEDS)) & set(found.seeds):
            words.append(f"seed={max(found.seeds) + 1}")
        words += ["--tuned", str(folder), "--seeds", str(SEEDS)]
        words += [] if data_dir is None else ["--data-dir", str(data_dir)]
        words += ["--out", f"{folder}d"] if folder.name.endswith("-tune") else ["--out", f"{folder}-compare"]
        if any(map(code_in_rule, found.rules)) or code_in(made.table()):
            words.append("--trust-code")  # of the file that holds the result
        print(
            f"all trials: {folder / FILE}. Compare the rules on seeds that tuning has not used:\n  {shlex.join(words)}"
        )


def _table(found: Any) -> Any:
    from rich.table import Table

    table = Table("rule", "validation", "chosen", "next best", "failed")
    table.title = f"{found.metric.words} on held-out training samples, mean over {len(found.seeds)} seed(s)"
    for rule, tried in found.rules.items():
        good = [one for one in tried if one.validation is not None]
        words = ", ".join(f"{key}={value:g}" for key, value in good[0].settings.items())
        second = found.metric.text(good[1].validation) if len(good) > 1 else ""
        failed = len(tried) - len(good)
        table.add_row(
            console.shown(rule), found.metric.text(good[0].validation), words, second, str(failed) if failed else ""
        )
    return table
