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
    list[str] | None, typer.Argument(help="Overrides, such as rounds=50 aggregator.filter.mu=10.", show_default=False)
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON; progress goes to standard error.")]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        envvar=VARIABLE,
        help="Run the code (module:Class) that the file names. Said once, it is remembered until the file changes.",
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder to look for data files in, after the cache.", show_default=False)
]


@contextmanager
def errors() -> Iterator[None]:
    """Errors of the user's making end the command with one clear line and code 1."""
    try:
        yield
    except BrokenPipeError:  # whoever read our output has seen enough
        os._exit(0)
    except (ValueError, ArithmeticError, OSError, MemoryError) as error:
        words = str(error)
        if isinstance(error, OSError) and error.errno in FULL:
            words = (
                f"no room to write {error.filename or 'a file'} ({error.strerror}); nothing half-written is left of it"
            )
        print(f"error: {visible(words)}", file=sys.stderr)
        raise typer.Exit(1) from None


def check_resumable(folder: Path, resume: bool) -> None:
    """Refuse to go on with what was never begun: the folder may be misspelt."""
    if resume and not folder.exists():
        raise ValueError(
            f"there is no folder {folder} to go on from; leave out --resume to begin, or name the folder with --out"
        )


def print_table(table: Any) -> None:
    """Print a table in which nothing is cut: a word too long for its column goes on in the next line.

    Where no terminal sets the width, columns are as wide as they need to be.
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
    """Say what is missing where a home on a broker is wanted, instead of failing at an import."""
    if find_spec("paho") is None:
        raise ValueError("a home on a broker needs paho-mqtt: pip install 'fedfilt[mqtt]'")


@contextmanager
def interruptible(folder: Path, resume_hint: str) -> Iterator[None]:
    """Ctrl-C ends a run with a word on how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nstopped; {folder} is kept up to its last checkpoint. Go on with: {resume_hint}", file=sys.stderr)
        raise typer.Exit(130) from None
