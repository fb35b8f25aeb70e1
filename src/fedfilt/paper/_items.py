"""What an item is, and how items are found: every file of this folder that does not begin with "_"."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from fedfilt import _parts
from fedfilt._checks import check_choice
from fedfilt.paper._cases import Case, Scope
from fedfilt.paper._results import Results


class Item(NamedTuple):
    """An item made: Markdown with the numbers beside the printed ones, and pictures (Plotly figures) by name."""

    text: str
    figures: Mapping[str, Any] = {}


class Maker(NamedTuple):
    """A file of this folder: see the package's docstring."""

    name: str
    title: str
    place: str
    order: int
    # An item that is only arithmetic needs no runs
    cases: Callable[[Scope], list[Case]]
    make: Callable[[Results], Item]


def makers() -> list[Maker]:
    """All items in the order of the paper."""
    return sorted(map(maker, _parts.names("paper")), key=lambda one: one.order)


def maker(name: str) -> Maker:
    """The item of that name; an unknown one is refused with the nearest."""
    check_choice("item", name, ["all", "list", *_parts.names("paper")])
    module = import_module(f"fedfilt.paper.{name}")
    title = (module.__doc__ or "").splitlines()[0].removesuffix(".")
    # An item that is only arithmetic needs no runs
    cases: Callable[[Scope], list[Case]] = getattr(module, "cases", lambda scope: [])
    return Maker(name, title, module.place, module.order, cases, module.make)
