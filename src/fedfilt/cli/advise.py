"""`fedfilt advise`: whether a graph helps here, and which rule to use."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedfilt._trust import trusting
from fedfilt.cli import _console as console


def advise(
    path: Annotated[Path, typer.Argument(help="Experiment file (TOML) or run folder.", show_default=False)],
    overrides: console.Overrides = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of FedAvg before the devices fine-tune.")] = 20,
    share_labels: Annotated[
        bool, typer.Option("--share-labels", help="Let devices report how many samples of each label they have.")
    ] = False,
    as_json: console.Json = False,
    data_dir: console.DataDir = None,
    trust_code: console.TrustCode = False,
) -> None:
    """Say whether a graph, given or found, would help, and which rule to use. The server needs no data.

    It trains a short probe. Advice on a run is kept in the run's folder, and the dashboard shows it.
    """
    with console.errors(), trusting(trust_code):
        from fedfilt import calls
        from fedfilt.runs.config import parsed

        changes = {".".join(steps): value for steps, value in map(parsed, overrides or [])}
        found = calls.advise(path, rounds=rounds, share_labels=share_labels, data_dir=data_dir, **changes)
        if as_json:
            print(json.dumps(found.table()))
            return
        for sentence in found.sentences():
            print(console.visible(sentence))
