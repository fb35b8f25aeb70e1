"""What all commands share: options, a progress bar, and errors that end with one clear line."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfilt._files import FULL
from fedfilt._progress import progress_bar as progress_bar
from fedfilt._progress import shown as shown
from fedfilt._progress import visible as visible
from fedfilt._trust import VARIABLE

ConfigFile = Annotated[Path, typer.Argument(help="Experiment file (TOML); see experiments/.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Keys to change, such as rounds=50 aggregator.filter.mu=10.", show_default=False),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON; progress goes to standard error.")]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        envvar=VARIABLE,
        help="Allow the code (module:Class) that the file names. The permission lasts until the file changes.",
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder to search for data files that are not in the cache.", show_default=False)
]


@contextmanager
def errors() -> Iterator[None]:
    """Errors that the user can fix end the command with one clear line and exit code 1."""
    try:
        yield
    except BrokenPipeError:  # whoever reads our output has seen enough
        os._exit(0)
    except (ValueError, ArithmeticError, OSError, MemoryError) as error:
        words = str(error)
        if isinstance(error, OSError) and error.errno in FULL:
            words = (
                f"no room to write {error.filename or 'a file'} ({error.strerror}); no half-written file is left behind"
            )
        print(f"error: {visible(words)}", file=sys.stderr)
        raise typer.Exit(1) from None


def check_resumable(folder: Path, resume: bool) -> None:
    """Refuse to resume what was never started, as the folder may be misspelt, and to start what is there already."""
    if not resume and (folder / "config.toml").exists():
        raise ValueError(f"{folder} holds a run already; go on with --resume, or choose another --out")
    if resume and not folder.exists():
        raise ValueError(
            f"there is no folder {folder} to resume; leave out --resume to start, or name the folder with --out"
        )


def print_table(table: Any) -> None:
    """Print a table without cutting anything off: a word too long for its column wraps to the next line.

    If no terminal sets the width, columns are as wide as they need to be.
    """
    from rich.console import Console

    for column in table.columns:
        column.overflow = "fold"
    out = Console()
    if not out.is_terminal and "COLUMNS" not in os.environ:
        wide = Console(width=10_000)
        out = Console(width=max(wide.measure(table).maximum, out.width))
    out.print(table)


def check_mqtt() -> None:
    """Name the missing package if a home on a broker cannot be run, instead of failing at an import."""
    if find_spec("paho") is None:
        raise ValueError("a home on a broker needs paho-mqtt: pip install 'fedfilt[mqtt]'")


@contextmanager
def interruptible(folder: Path, resume_hint: str) -> Iterator[None]:
    """Ctrl-C ends a run and says how to resume it."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nstopped; {folder} is saved up to its last checkpoint. Resume with: {resume_hint}", file=sys.stderr)
        raise typer.Exit(130) from None
