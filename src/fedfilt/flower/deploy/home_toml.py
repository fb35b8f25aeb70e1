"""Reads home.toml. Every deployment loads this, also one without a home or a broker, so it does not need paho-mqtt."""

import tomllib
from pathlib import Path

from fedfilt._types import Table

EDGE, EARS, PEOPLE = "edge", "edge-ears", "people"  # clients of the broker on the edge server


def settings(folder: Path) -> Table:
    """The settings in a folder's home.toml."""
    try:
        table = tomllib.loads((folder / "home.toml").read_text(encoding="utf-8"))
    except OSError:
        raise ValueError(f"{folder} must hold home.toml, as fedfilt home write makes it") from None
    except RecursionError as error:
        raise ValueError(f"{folder / 'home.toml'} cannot be read: {error}") from None
    missing = [key for key in ("home", "broker", "tls") if key not in table]
    if missing:
        raise ValueError(f"{folder / 'home.toml'} must have the keys {', '.join(missing)}")
    return table


def listed(table: Table) -> Table:
    """The lists in a home.toml: `devices` with their rooms, those that are `moving`, and further `rooms`."""
    devices, moving, rooms = table.get("devices"), table.get("moving", []), table.get("rooms", [])
    if not isinstance(devices, dict):
        raise ValueError("home.toml must list the devices with their rooms, as fedfilt home write does")
    for key, names in (("moving", moving), ("rooms", rooms)):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{key} in home.toml must be a list of names, got {names!r}")
    return {"devices": devices, "moving": moving, "rooms": rooms}
