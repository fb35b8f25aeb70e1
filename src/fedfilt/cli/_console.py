"""What all commands share: options, a progress bar, and errors that end with one clear line."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfilt._trust import VARIABLE

if TYPE_CHECKING:
    from fedfilt.data.store import Store

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


def visible(text: str) -> str:
    """Words that may come from somebody else's file, with nothing in them that steers the terminal.

    >>> visible("hall\x1b[2J")
    'hall\\\\x1b[2J'
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)


def shown(value: Any) -> str:
    """The same for rich, which takes [words] for markup."""
    from rich.markup import escape

    return escape(visible(str(value)))


@contextmanager
def errors() -> Iterator[None]:
    """Errors of the user's making end the command with one clear line and code 1."""
    try:
        yield
    except BrokenPipeError:  # whoever read our output has seen enough
        os._exit(0)
    except (ValueError, ArithmeticError, OSError, MemoryError) as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        raise typer.Exit(1) from None


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


@contextmanager
def progress_bar() -> Iterator[Any]:
    """A bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield progress


def store_with(progress: Any, data_dir: Path | None) -> "Store":
    """The data files, with a bar for each that is fetched."""
    from fedfilt.data.store import Store

    tasks: dict[str, Any] = {}

    def show(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = progress.add_task(f"fetching {name}", total=total)
        progress.update(tasks[name], completed=done, visible=done < total)

    return Store(folder=data_dir, progress=show)


def progress_words(name: str, line: dict[str, Any]) -> str:
    """How far a run is, and how good, for the bar."""
    tests = line.get("mixed", {})
    scores = [f"{test} {tests[test]['mean']:.1%}" for test in ("local", "global") if test in tests]
    return " ".join([shown(name), "round", str(line["round"]), *scores])
