"""The state of a deployment's devices, as far as the edge server knows it."""

import re
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from fedfilt._files import in_use
from fedfilt.flower.deploy.address import Site
from fedfilt.flower.deploy.control import control
from fedfilt.flower.deploy.members import Members
from fedfilt.flower.deploy.renewal import lasting
from fedfilt.flower.deploy.supervise import checked

LOG = 1 << 20  # bytes read from the end of the SuperLink's log


class Status(NamedTuple):
    """The state of a device; unknown values are None."""

    device: str
    online: bool | None  # None: the SuperLink is not running
    last_round: int | None  # the last with a good reply
    seconds_ago: float | None  # since that reply
    samples: int | None  # that it reported training on
    score: float | None  # on its own test, if it reports that
    metric: str | None  # name of the score
    clock_ahead: float | None  # seconds
    version: str | None  # of fedfilt on it
    problem: str  # why its last reply failed
    refused: int  # attempts by a second process with its key (a restart or a copy), as far as the log goes back


class Report(NamedTuple):
    """The state of a deployment."""

    round: int  # rounds played
    running: bool  # the edge server
    devices: list[Status]
    strangers: int  # attempts with a key that is not registered (any more), as far as the log goes back
    certificates: dict[str, int]  # days until they expire, by owner


def status(building: Path) -> Report:
    """The state of a deployment and its devices."""
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
    refused = _refused(server / "superlink.log")
    keys = {device.name: device.public_key for device in members.registered() or []}
    found = []
    for device in table["device"]:
        name, seen = device["name"], known.get(device["name"], {})
        problem = "removed" if device.get("gone") else seen.get("problem", "")
        if not problem and seen.get("round") and seen.get("samples") == 0:
            problem = "it has no labelled samples"
        answered = bool(seen.get("round"))
        online = None if here is None else name in here
        found.append(
            Status(
                name,
                online,
                seen["round"] if answered else None,
                round(time.time() - seen["at"], 1) if answered else None,
                seen["samples"] if answered else None,
                seen.get("score"),
                seen.get("metric"),
                seen["clock_ahead"] if answered else None,
                seen["version"] if answered else None,
                problem,
                refused.get(keys.get(name, b""), 0),
            )
        )
    strangers = sum(times for key, times in refused.items() if key not in keys.values())
    return Report(
        members.played(),
        in_use(server),
        found,
        strangers,
        {whose: int(days) for whose, days in lasting(building).items()},
    )


def _refused(log: Path) -> Counter[bytes]:
    """How often each public key was refused, according to the end of the SuperLink's log."""
    if not log.exists():
        return Counter()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG))
        text = file.read()
    return Counter(key.replace(b"\\n", b"\n") for key in re.findall(rb"with public key: b'([^']+)', exception", text))
