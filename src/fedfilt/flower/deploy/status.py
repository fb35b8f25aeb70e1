"""How the devices of a deployment are, from what the edge server knows of them."""

import time
from pathlib import Path
from typing import NamedTuple

from fedfilt.flower.deploy.address import Site
from fedfilt.flower.deploy.control import control
from fedfilt.flower.deploy.members import Members
from fedfilt.flower.deploy.supervise import checked
from fedfilt.runs.lines import read_lines


class Status(NamedTuple):
    """How a device is; what is not known is None."""

    device: str
    online: bool | None  # None: the SuperLink does not run
    last_round: int | None  # in which it answered well
    seconds_ago: float | None  # that was
    samples: int | None  # it said it had trained on
    accuracy: float | None  # on its own test, if it reports that
    clock_ahead: float | None  # seconds
    version: str | None  # of fedfilt on it
    problem: str  # why its last answer was none


def status(building: Path) -> tuple[int, list[Status]]:
    """(rounds played, how each device is) of a deployment."""
    server = checked(building / "server", "deployment.toml")
    members = Members(server)
    table, known = members.table, members.known()
    site = Site.read(table)
    authority = server / "certificates" / "ca.crt" if site.authentication else None
    here: set[str] | None
    try:
        with control(str(site.where), authority) as link:
            here = {node.name for node in link.nodes() if node.online} if site.authentication else None
    except OSError:
        here = None
    found = []
    for device in table["device"]:
        name, seen = device["name"], known.get(device["name"], {})
        problem = "removed" if device.get("gone") else seen.get("problem", "")
        answered = bool(seen.get("round"))
        online = None if here is None else name in here
        found.append(
            Status(
                name,
                online,
                seen["round"] if answered else None,
                round(time.time() - seen["at"], 1) if answered else None,
                seen["samples"] if answered else None,
                seen.get("accuracy"),
                seen["clock_ahead"] if answered else None,
                seen["version"] if answered else None,
                problem,
            )
        )
    return len(read_lines(members.run)), found
