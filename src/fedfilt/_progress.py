"""A progress bar where somebody can see it: in a terminal, on standard error, or below a notebook cell."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

OFTEN = 0.1  # seconds between two updates of a bar in a notebook


def visible(text: str) -> str:
    """Words that may come from somebody else's file, without characters that control the terminal.

    >>> visible("hall\x1b[2J")
    'hall\\\\x1b[2J'
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)


def shown(value: Any) -> str:
    """The same for rich, which interprets [words] as markup."""
    from rich.markup import escape

    return escape(visible(str(value)))


def in_notebook() -> bool:
    """Whether this code runs in a notebook."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython() if ipython else None, "kernel")


@contextmanager
def progress_bar(show: bool | None = None) -> Iterator[Any]:
    """A `rich.progress.Progress`, drawn in a terminal or a notebook unless `show` decides otherwise."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    show = in_notebook() or sys.stderr.isatty() if show is None else show
    if show and in_notebook():
        bar = Progress(*columns, auto_refresh=False)  # never started: that would need ipywidgets
        draw = _drawn(bar)
        try:
            yield draw
        finally:
            draw.finish()
        return
    with Progress(*columns, console=Console(stderr=True), disable=not show) as progress:
        yield progress


def _drawn(bar: Any) -> Any:
    """A bar below a notebook cell: one picture that is replaced."""
    display = import_module("IPython.display").display  # always there in a notebook

    class Drawn:
        """The same bar; it is redrawn when it changes, but not too often."""

        console = bar.console

        def __init__(self) -> None:
            self._picture: Any = None
            self._last = 0.0

        def add_task(self, *words: Any, **options: Any) -> Any:
            task = bar.add_task(*words, **options)
            self._draw()
            return task

        def update(self, *words: Any, **changes: Any) -> None:
            bar.update(*words, **changes)
            if time.monotonic() > self._last + OFTEN:
                self._draw()

        def finish(self) -> None:
            if self._picture is not None:
                self._draw()

        def _draw(self) -> None:
            self._last = time.monotonic()
            if self._picture is None:
                self._picture = display(bar, display_id=True)
            else:
                self._picture.update(bar)

    return Drawn()
