"""`fedfilt data`: data sets."""

from typing import Annotated

import typer

from fedfilt.cli import _console as console

data_app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, get one, where it is.")


@data_app.command("list")
def data_list() -> None:
    """All data sets, and whether they are here."""
    with console.errors():
        from rich.console import Console
        from rich.table import Table

        from fedfilt import _parts
        from fedfilt.data.store import Store

        table = Table("name", "in cache", "what it is")
        for name in _parts.names("datasets"):
            try:
                kind = _parts.find("datasets", name)
            except ValueError as error:
                table.add_row(name, "-", str(error))
                continue
            files = getattr(kind, "files", ())
            here = all(Store().kept(file).exists() for file in files)
            table.add_row(name, "yes" if here else "no", (kind.__doc__ or "").strip().partition("\n")[0])
        Console().print(table)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="Name of the data set.")], data_dir: console.DataDir = None
) -> None:
    """Fetch a data set into the cache."""
    with console.errors():
        from fedfilt import _parts

        with console.progress_bar() as progress:
            samples = _parts.find("datasets", name)().load(console.store_with(progress, data_dir))
        print(f"{name}: {(~samples.test).sum():,} training and {samples.test.sum():,} test samples")


@data_app.command("where")
def data_where() -> None:
    """The folder in which data sets are kept."""
    from fedfilt.data.store import Store

    print(Store().cache)
