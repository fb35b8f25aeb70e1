"""The commands that show runs: `fedfilt report` and `fedfilt dashboard`."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from fedfilt._start import PROGRAM
from fedfilt._trust import without_trust
from fedfilt.cli._console import errors

PORT = 8050
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders of a comparison.", show_default=False)]


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="File to write.", show_default="report.html in the folder")] = None,
    images: Annotated[str, typer.Option(help="Also save each figure as png, svg or pdf (needs Chrome).")] = "",
) -> None:
    """Write a report on a run or a comparison: one HTML file that opens offline in any browser."""
    with errors():
        from fedfilt import calls
        from fedfilt.show import report as reports

        path = calls.report(runs, out)
        print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
        if images:
            folder = path.with_name(f"{path.stem}-figures")
            drawn = reports.write_images([run for run in reports.readable(runs) if run.rounds], folder, images)
            print(f"figures: {len(drawn)} files in {folder}")


def dashboard(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs or homes, or folders that contain them.", show_default="the folder runs"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; to let other machines in, choose a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = PORT,
    token: Annotated[
        str, typer.Option(envvar="FEDFILT_TOKEN", help="Token that the page asks for.", show_default="random")
    ] = "",
    browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Watch runs while they train: the building, every device, the effect of another mu; stop and resume runs.

    A living home in one of the folders has a page of its own, /home.
    """
    with errors():
        _check_dash()
        _check_folders(runs)
        from fedfilt.show.dashboard.server import serve

        def ready(address: str, once: str) -> None:
            print(f"dashboard: {address} (stop it with Ctrl-C)", flush=True)
            if browser:
                import webbrowser

                webbrowser.open(once)

        with suppress(KeyboardInterrupt):  # the server ends by itself at Ctrl-C once it serves
            serve(runs or [Path("runs")], host, port, token, ready)
        print("dashboard stopped; runs continue")


def after(folder: Path) -> None:
    """Write the report on what has just been run, and say how to open it."""
    from fedfilt.show import report as reports

    path = reports.write([folder])
    print(f"report: {path} (open it in a browser; it needs no network)")
    typed = f"{sys.executable} -m fedfilt" if sys.argv[0].endswith("__main__.py") else sys.argv[0]
    print(f"dashboard: {typed} dashboard {folder} --open")


@contextmanager
def live() -> Iterator[Callable[[Path], None]]:
    """Gives a function that opens the dashboard on a folder, in a separate process so that training is not slowed.

    In a terminal the dashboard stays open after the run until Ctrl-C; elsewhere it ends with the run.
    """
    opened: list[subprocess.Popen[bytes]] = []
    folders: list[Path] = []

    def open_on(folder: Path) -> None:
        from fedfilt.show.dashboard.server import bind

        _check_dash()
        folder.mkdir(parents=True, exist_ok=True)
        folders.append(folder)
        port = PORT
        try:
            bind("127.0.0.1", port).close()
        except ValueError:
            port = 0  # in use, perhaps by another dashboard
        words = ["dashboard", str(folder), "--port", str(port), "--open"]
        opened.append(subprocess.Popen([*PROGRAM, *words], env=without_trust()))

    try:
        yield open_on
    finally:
        for process in opened:
            try:
                if sys.stdin.isatty() and process.poll() is None:
                    print("The dashboard stays open; stop it with Ctrl-C.", file=sys.stderr)
                    process.wait()
            except KeyboardInterrupt:
                pass
            process.terminate()
            process.wait()
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()  # if the run did not start


def _check_folders(runs: list[Path] | None) -> None:
    """Refuse a missing folder: it is more often misspelt than not there yet."""
    for folder in runs or [Path("runs")]:
        if not folder.is_dir():
            named = "name the folder of your runs" if runs is None else "check the name"
            raise ValueError(f"there is no folder {folder}: {named}, or start a run with fedfilt run EXPERIMENT.toml")


def _check_dash() -> None:
    from importlib.util import find_spec

    if find_spec("dash") is None:
        raise ValueError("the dashboard needs: pip install 'fedfilt[dashboard]'")
