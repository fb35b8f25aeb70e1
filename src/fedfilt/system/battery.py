"""The charge of this machine's battery, where Linux reports it."""

from pathlib import Path

SUPPLIES = Path("/sys/class/power_supply")


def battery(folder: Path = SUPPLIES) -> float | None:
    """The remaining charge, of the fullest battery if there are several; None without a battery.

    Batteries of a mouse or a pen (`scope` Device) do not count.
    """
    shares = []
    for supply in folder.glob("*"):
        try:
            if _text(supply / "type") == "Battery" and _text(supply / "scope", "System") != "Device":
                shares.append(min(max(int(_text(supply / "capacity")) / 100, 0.0), 1.0))
        except (OSError, ValueError):
            continue
    return max(shares, default=None)


def _text(path: Path, default: str | None = None) -> str:
    if default is not None and not path.exists():
        return default
    return path.read_text().strip()
