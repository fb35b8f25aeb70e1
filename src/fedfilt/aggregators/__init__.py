"""Rules that turn the models and updates of all devices into their next models, one per file."""

from typing import Any

from fedfilt import parts


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in (found := parts.classes("aggregators")):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found[name]


def __dir__() -> list[str]:
    return sorted(parts.classes("aggregators"))
