"""`fedfilt audit`: what each device can read about others from its own row."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfilt._trust import trusting
from fedfilt.cli import _console as console

if TYPE_CHECKING:
    from fedfilt.runs.audit import Audit, Found

SHOWN = 40  # devices in the table, exposed ones first


def audit(
    path: Annotated[Path, typer.Argument(help="Experiment file (TOML) or run folder.", show_default=False)],
    overrides: console.Overrides = None,
    together: Annotated[str, typer.Option(help="Devices that share what they know, such as 3,5.")] = "",
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 2 if a device can read another's update or model.")
    ] = False,
    as_json: console.Json = False,
    trust_code: console.TrustCode = False,
) -> None:
    """Show what each device can read about others from the row it receives, and what would prevent it.

    Nothing is trained, and no data is loaded.
    """
    with console.errors(), trusting(trust_code):
        from fedfilt.runs import audit as audits

        made = audits.audit(path, overrides or [], _devices(together))
        found = made.found()
        exposed = [one for one in found if one.exposed]
        links, left = made.links() if exposed else ([], 0)
        table: dict[str, Any] = {
            "rule": made.name,
            "devices": [{**one._asdict(), "verdict": one.verdict} for one in found],
            "exposed": [one.device for one in exposed],
            "together": list(made.together),
            "by_strength": made.by_strength(),
            "links": {"add": links, "exposed": left},
            "privacy": _promise(made),
            "noise": _noise(made) if exposed else None,
        }
        if as_json:
            print(json.dumps(table))
        else:
            console.print_table(_table(found, made))
            for line in _lines(table, exposed, made):
                print(line)
        if strict and exposed and not (made.privacy.noisy or made.privacy.grid):
            raise typer.Exit(2)


def _devices(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"together must be device numbers separated by commas, got {text!r}") from None


def _promise(made: "Audit") -> dict[str, Any]:
    """What the table [privacy] promises."""
    privacy = made.privacy
    found: dict[str, Any] = {"least_others": privacy.least_others, "grid": privacy.grid, "epsilon": None}
    if privacy.noisy:
        noise = privacy.multiplier(made.rounds)
        found |= {"noise": noise, "delta": privacy.delta, "epsilon": made.epsilon()}
    return found


def _noise(made: "Audit") -> float | None:
    """The proposed noise; None if nothing can account for it."""
    try:
        return made.noise()
    except ValueError:
        return None


def _table(found: list["Found"], made: "Audit") -> Any:
    from rich.markup import escape
    from rich.table import Table

    several = len(made.stages) > 1
    title = f"{escape(made.name)}: what a device's row says about others"
    table = Table("device", "room", "links", "own share", "hidden among", "reads", *(["round"] * several), title=title)
    rows = sorted(found, key=lambda one: (not one.exposed, one.device))
    for one in rows[:SHOWN]:
        room = "" if one.room is None else escape(str(one.room))
        cells = [str(one.device), room, str(one.links), f"{one.own:.0%}", f"{one.others:.1f}" if one.others else ""]
        table.add_row(
            *cells,
            _reads(one, made.sums_neighbours),
            *([str(one.round)] * several),
            style="bold" if one.exposed else None,
        )
    if len(rows) > SHOWN:
        table.caption = f"... and {len(rows) - SHOWN} more devices"
    return table


def _reads(one: "Found", sums: bool) -> str:
    """A finding in words."""
    if one.kept_back:
        return "nothing: row withheld, too few others"
    if one.verdict == "nothing":
        return "nothing"
    what = f"the sum of {one.links} neighbours' models" if sums else f"a mix of {one.mixes} devices' updates"
    whose = {
        "exact": f"device {one.nearest}'s update, exactly" + (" (its only link)" if one.links == 1 else ""),
        "mostly": f"device {one.nearest}'s update to {one.error:.0%}",
        "mixed": "",
        "sum": f"{what}; no update to better than {one.error:.0%}",
    }[one.verdict]
    if one.reads_mixed and one.verdict != "exact":
        names = ", ".join(map(str, one.reads_mixed))
        mixed = f"the personal model of {names}, exactly" + (" (its only link)" if one.links == 1 else "")
        whose = f"{mixed}; {whose}" if whose else mixed
    return whose


def _lines(table: dict[str, Any], exposed: list["Found"], made: "Audit") -> list[str]:
    """A summary of the table, and what would fix it."""
    promise = table["privacy"]
    leaves = [one.device for one in exposed if one.links == 1]
    lines = [
        f"{len(exposed)} of {len(table['devices'])} devices can read another's update or model"
        + (f"; through their only link: {_names(leaves)}" if leaves else "")
    ]
    if table["together"]:
        lines.append(f"Devices {_names(table['together'])} share what they know.")
    if made.privacy.noisy:
        spent = "too large to promise anything" if promise["epsilon"] is None else f"{promise['epsilon']:.3g}"
        lines.append(
            f"privacy.noise = {promise['noise']:.3g}: what they read is covered by noise; over all rows of "
            f"{made.rounds} rounds: epsilon {spent} at delta {promise['delta']:g}."
        )
    if made.privacy.grid:
        lines.append(f"privacy.grid = {promise['grid']:g}: what they read is off by up to that divided by the share.")
    if not exposed:
        return lines
    if table["by_strength"]:
        counted = ", ".join(f"{name}: {count}" for name, count in table["by_strength"].items())
        lines.append(f"Devices exposed by strength: {counted}.")
    if links := table["links"]["add"]:
        pairs = ", ".join(f"{a}-{b}" for a, b in links)
        lines.append(f"Adding the links {pairs} leaves {table['links']['exposed']} exposed.")
    least, kept = made.least_others()
    lines.append(f"privacy.least_others = {least} withholds {kept} rows: those devices continue with their own models.")
    if not made.privacy.noisy:
        noise = "" if table["noise"] is None else f" = {table['noise']:.3g} for epsilon 8 in {made.rounds} rounds"
        lines.append(f"privacy.clip with privacy.noise{noise}, or privacy.grid, hides what they read.")
    lines.append("docs/privacy.md shows what each of these costs.")
    return lines


def _names(devices: list[int]) -> str:
    return ", ".join(map(str, devices))
