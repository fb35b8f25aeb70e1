"""The commands that show runs: `fedfilt report` and `fedfilt dashboard`."""

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders of a comparison.", show_default=False)]


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The file.", show_default="report.html in the folder")] = None,
    images: Annotated[str, typer.Option(help="Also every figure as a file: png, svg or pdf (needs Chrome).")] = "",
) -> None:
    """Write one HTML file about a run or a comparison that opens offline in any browser."""
    from fedfilt.cli import _errors

    with _errors():
        from fedfilt import report as reports

        path = reports.write(runs, out)
        print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
        if images:
            folder = path.with_name(f"{path.stem}-figures")
            drawn = reports.write_images([run for run in reports.readable(runs) if run.rounds], folder, images)
            print(f"figures: {len(drawn)} files in {folder}")
