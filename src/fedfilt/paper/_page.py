"""The page docs/paper.md from the items, and their pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfilt.paper._items import Item, Maker
from fedfilt.paper._results import Results


def page(chosen: Sequence[Maker], made: Mapping[str, Item], results: Results, ending: str) -> str:
    """All items on one page of Markdown."""
    parts = ["# The paper, made anew"]
    for one in chosen:
        parts.append(f"## {one.title} ({one.place})")
        item = made.get(one.name, Item("*Skipped: its data set is missing.*"))
        parts.append(item.text)
        parts += [f"![{one.title}](paper/{name}.{ending})" for name in item.figures]
    return "\n\n".join(parts) + "\n"


def pictures(made: Mapping[str, Item], folder: Path, png: bool) -> list[Path]:
    """Write the pictures of the items."""
    written = []
    for item in made.values():
        for name, figure in item.figures.items():
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.{'png' if png else 'html'}"
            _write(figure, path)
            written.append(path)
    return written


def _write(figure: Any, path: Path) -> None:
    if path.suffix == ".html":
        figure.write_html(path, include_plotlyjs="directory")
        return
    figure.write_image(path, scale=2)
