"""Finds certificates that expire soon and renews them in time.

They last a year, and their authority ten years. If the authority's key is there, the edge server renews its own and the
broker's certificate a month before they expire, without a restart. A device's certificate for the broker has to be
copied to the device.
"""

import logging
import math
import shutil
import time
import tomllib
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedfilt._files import Busy, locked
from fedfilt.flower.deploy.address import Address, Site, address
from fedfilt.flower.deploy.broker import Issued, reload_broker
from fedfilt.flower.deploy.certificates import client, days_left, renew_server
from fedfilt.flower.deploy.home_toml import EARS, EDGE, PEOPLE, settings

log = logging.getLogger("fedfilt")

SOON = 30.0  # days before it expires that a certificate is renewed
CARRIED = 60.0  # the same, if somebody has to copy it to its place
DAY = 86_400.0  # seconds


class Certificate(NamedTuple):
    """A certificate on the edge server."""

    whose: str
    path: Path
    renew: Callable[[], object]


def on_server(server: Path) -> list[Certificate]:
    """The certificates in an edge server's folder and its broker's; none without authentication."""
    site = Site.read(tomllib.loads((server / "deployment.toml").read_text(encoding="utf-8")))
    if not site.authentication:
        return []
    authority, broker = server / "certificates", server.parent / "broker"
    found = [Certificate("the edge server", authority / "server.crt", partial(renew_server, authority, site.where))]
    if (server / "home.toml").exists():
        where = address(settings(server)["broker"])
        found.append(Certificate("the broker", broker / "server.crt", partial(_renew_broker, authority, where, broker)))
        for name in (EDGE, EARS, PEOPLE):
            made = partial(client, authority, server / "mqtt", name, name)
            found.append(Certificate(f"{name} on the broker", server / "mqtt" / f"{name}.crt", made))
    return [one for one in found if one.path.exists()]


def _renew_broker(authority: Path, where: Address, broker: Path) -> None:
    """Renew the broker's certificate and reload the broker; one that runs elsewhere must be reloaded by hand."""
    renew_server(authority, where, broker)
    reload_broker(broker)


def renew_all(server: Path, within_days: float = math.inf, now: datetime | None = None) -> list[str]:
    """Renew the certificates on an edge server that expire within some days; returns whose they are."""
    due = [one for one in on_server(server) if days_left(one.path, now) < within_days]
    for one in due:
        one.renew()
    return [one.whose for one in due]


def renew_due(server: Path, now: datetime | None = None) -> None:
    """Renew what expires soon on an edge server; failures are logged."""
    try:
        due = [one for one in on_server(server) if days_left(one.path, now) < SOON]
        if due and not (server / "certificates" / "ca.key").exists():
            first = min(due, key=lambda one: days_left(one.path, now))
            log.warning(
                "the certificate of %s expires in %.0f days: put ca.key back into %s and run fedfilt deploy renew",
                first.whose,
                days_left(first.path, now),
                server / "certificates",
            )
        elif due:
            with locked(server / "flower"):
                for whose in renew_all(server, SOON, now):
                    log.info("the certificate of %s was renewed", whose)
    except (Busy, OSError, ValueError) as error:
        log.warning("could not renew certificates; trying again tomorrow: %s", error)


def daily(do: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> Callable[[], None]:
    """A function that calls `do` the first time and then once a day, however often it is called.

    >>> done, now = [], [0.0]
    >>> call = daily(lambda: done.append(now[0]), lambda: now[0])
    >>> for now[0] in (0.0, 1.0, 90_000.0, 90_001.0):
    ...     call()
    >>> done
    [0.0, 90000.0]
    """
    last = -math.inf

    def call() -> None:
        nonlocal last
        if clock() - last >= DAY:
            last = clock()
            do()

    return call


def renew_device(building: Path, name: str) -> Path:
    """Renew a device's certificate for the broker, in its folder here; returns the folder to copy to the device."""
    folder = building / "devices" / name / "mqtt"
    renew_client(building / "server", folder, name)
    keep_copy(building / "server", folder, name)
    return folder


def renew_client(server: Path, folder: Path, name: str) -> None:
    """Renew a client's certificate for the broker, in a folder, and record it."""
    issued = Issued.read(server)
    issued.renew(server / "certificates", folder, name)
    issued.write(server)


def keep_copy(server: Path, folder: Path, name: str) -> None:
    """Keep a copy of a device's certificate, which is public, on the edge server, to know when it expires."""
    (server / "mqtt" / "devices").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / "client.crt", server / "mqtt" / "devices" / f"{name}.crt")


def device_days(building: Path, name: str, now: datetime | None = None) -> float:
    """Days until a device's certificate for the broker expires; NaN if unknown here."""
    copies = (
        building / "server" / "mqtt" / "devices" / f"{name}.crt",
        building / "devices" / name / "mqtt" / "client.crt",
    )
    for path in copies:
        if path.exists():
            return days_left(path, now)
    return math.nan


def lasting(building: Path, now: datetime | None = None) -> dict[str, float]:
    """Days until the certificates of a deployment expire, by owner, as far as known."""
    server = building / "server"
    found = {one.whose: days_left(one.path, now) for one in on_server(server)}
    if found:
        found["the authority"] = days_left(server / "certificates" / "ca.crt", now)
    if found and (server / "home.toml").exists():
        if (building / "assistant" / "client.crt").exists():
            found["Home Assistant"] = days_left(building / "assistant" / "client.crt", now)
        table = settings(server)
        found |= {
            name: days_left(path, now)
            for name in table.get("sensors", {})
            if (path := building / "sensors" / name / "client.crt").exists()
        }
        found |= {name: device_days(building, name, now) for name in table["devices"]}
    return {whose: days for whose, days in found.items() if not math.isnan(days)}
