"""`fedfilt data`: data sets."""

from pathlib import Path
from typing import Annotated

import typer

from fedfilt._trust import trusting
from fedfilt.cli import _console as console

data_app = typer.Typer(
    no_args_is_help=True, help="Data sets: list them, download one, show where they are kept, split one among devices."
)


@data_app.command("list")
def data_list() -> None:
    """List all data sets and whether they are in the cache."""
    with console.errors():
        from rich.table import Table

        from fedfilt import _parts
        from fedfilt.data.store import Store

        table = Table("name", "in cache", "what it is")
        for name in _parts.names("datasets"):
            try:
                kind = _parts.find("datasets", name)
            except ValueError as error:
                table.add_row(name, "-", console.shown(error))
                continue
            files = getattr(kind, "files", ())
            here = "yes" if all(Store().kept(file).exists() for file in files) else "no"
            table.add_row(
                name,
                "on devices" if hasattr(kind, "federated") else here,
                (kind.__doc__ or "").strip().partition("\n")[0],
            )
        console.print_table(table)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="Name of the data set.")], data_dir: console.DataDir = None
) -> None:
    """Download a data set into the cache."""
    with console.errors():
        from fedfilt import _parts
        from fedfilt.data.store import store_with

        with console.progress_bar() as progress:
            samples = _parts.find("datasets", name)().load(store_with(progress, data_dir))
        print(f"{name}: {(~samples.test).sum():,} training and {samples.test.sum():,} test samples")


@data_app.command("where")
def data_where() -> None:
    """Print the folder where data sets are kept."""
    from fedfilt.data.store import Store

    print(Store().cache)


@data_app.command("split")
def data_split(
    config: console.ConfigFile,
    out: Annotated[Path, typer.Option(help="New folder for the devices' folders.", show_default=False)],
    overrides: console.Overrides = None,
    recordings: Annotated[
        bool, typer.Option("--recordings", help="Write whole recordings as CSV; each device cuts and scales its own.")
    ] = False,
    data_dir: console.DataDir = None,
    trust_code: console.TrustCode = False,
) -> None:
    """Write each device's data into a folder of its own, as if it had been recorded there.

    OUT/device-000/data, device-001/data, ... hold the samples that the experiment gives each device, OUT/public.npz
    holds the global test, and OUT/experiment.toml is the same experiment on own data: `fedfilt run
    OUT/experiment.toml` trains the same models. Copy a folder to a real device to continue there.
    """
    with console.errors(), trusting(trust_code):
        from fedfilt.data.store import store_with
        from fedfilt.runs.config import load
        from fedfilt.runs.split import split

        loaded = load(config, overrides or [])
        with console.progress_bar() as progress:
            task = progress.add_task("writing devices", total=None)
            written = split(
                loaded,
                out,
                recordings,
                store_with(progress, data_dir),
                lambda done, total: progress.update(task, completed=done, total=total),
            )
        print(f"{len(list(out.glob('device-*')))} devices in {out}; try it: fedfilt run {written}")
