"""Frequency responses, one per file. A new file in this folder is a new filter: usable by its name, and tested."""

from typing import Any

from fedfilt import parts


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in (found := parts.classes("filters")):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found[name]


def __dir__() -> list[str]:
    return sorted(parts.classes("filters"))
