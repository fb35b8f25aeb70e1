"""Changes to a running deployment: devices are added, removed and replaced, certificates renewed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedfilt._files import Busy, in_use, locked, write_atomically
from fedfilt._types import Table
from fedfilt.flower.deploy.address import Site
from fedfilt.flower.deploy.control import control, register
from fedfilt.flower.deploy.members import Members, with_changes
from fedfilt.flower.deploy.renewal import renew_all
from fedfilt.flower.deploy.supervise import check_owner, checked
from fedfilt.flower.deploy.write import check_name, experiment_of, write_device
from fedfilt.rounds.timeline import Timeline
from fedfilt.runs.build import Run, is_own
from fedfilt.runs.config import Config
from fedfilt.system.blind import read_keys


def add(building: Path, name: str, room: str | None, links: list[str], group_key: Path | None = None) -> Path:
    """Add a new device, or one that was removed, and write its folder; it starts before the next round.

    Without links, it is linked to the devices in its room. If rows are hidden from the edge server, `group_key` is the
    file of another device.
    """
    server = checked(building / "server", "deployment.toml")
    with _alone(server):
        members, config = Members(server), experiment_of(server)
        table = members.table
        if not is_own(config):
            raise ValueError("devices of this deployment were dealt their samples; only one with own data can grow")
        check_name(name)
        known = {device["name"]: device for device in table["device"]}
        if name in known and not known[name].get("gone"):
            raise ValueError(f"{name} already takes part; to give it a new key: fedfilt deploy replace {name}")
        now, place = _now(config, members), _room(config, room)
        linked = _linked(now, table, place, links, name)
        if name not in known:
            table["device"].append(known.setdefault(name, {"name": name, "public_key": ""}))
        known[name].pop("gone", None)
        entry: Table = {"what": "join", "device": name, "links": linked}
        table.setdefault("change", []).append(entry if place is None else entry | {"room": place})
        folder = _write_device(building, name, config, members, table, group_key)
        _keep(server, table)
    return folder


def remove(building: Path, name: str) -> None:
    """Remove a device: its key is refused, it leaves the graph with the next round, and its model is kept."""
    server = checked(building / "server", "deployment.toml")
    with _alone(server):
        members, config = Members(server), experiment_of(server)
        table = members.table
        _device(table, name)["gone"] = True
        table.setdefault("change", []).append({"what": "leave", "device": name})
        _planned(config, members, table)
        _keep(server, table)


def replace_device(building: Path, name: str, group_key: Path | None = None) -> Path:
    """Give a lost device a new key and write its folder; its old key is refused from now on."""
    server = checked(building / "server", "deployment.toml")
    with _alone(server):
        members, config = Members(server), experiment_of(server)
        table = members.table
        _device(table, name)
        if not Site.read(table).authentication:
            raise ValueError("the devices of this deployment have no keys (--no-authentication)")
        folder = _write_device(building, name, config, members, table, group_key)
        _keep(server, table)
    return folder


def renew(building: Path) -> list[str]:
    """Renew all certificates on the edge server, which loads them by itself; returns whose they are."""
    server = checked(building / "server", "deployment.toml")
    with _alone(server):
        if not Site.read(Members(server).table).authentication:
            raise ValueError("this deployment has no certificates (--no-authentication)")
        return renew_all(server)


@contextmanager
def _alone(server: Path) -> Iterator[None]:
    """One change at a time, by the owner of the folder."""
    check_owner(server)
    try:
        with locked(server / "flower"):
            yield
    except Busy:
        raise ValueError("this deployment is being changed by another command; try again when it is done") from None


def _device(table: Table, name: str) -> Table:
    """The entry of a device that takes part."""
    for device in table["device"]:
        if device["name"] == name and not device.get("gone"):
            return device
    names = ", ".join(device["name"] for device in table["device"] if not device.get("gone"))
    raise ValueError(f"name must be a device that takes part ({names}), got {name}")


def _write_device(
    building: Path, name: str, config: Config, members: Members, table: Table, group_key: Path | None
) -> Path:
    """Write the folder of a device with a new key, and note the key in the table."""
    group = _group_key(group_key, config.privacy.blind)
    run = Run(_planned(config, members, table))
    site, row = Site.read(table), [device["name"] for device in table["device"]].index(name)
    authority = building / "server" / "certificates" / "ca.crt" if site.authentication else None
    folder = building / "devices" / name
    table["device"][row]["public_key"] = write_device(folder, name, row, run, site, authority, group)
    return folder


def _group_key(path: Path | None, blind: bool) -> str:
    """The group key from the file of another device, as text; "" if the deployment has none."""
    if not blind:
        if path is not None:
            raise ValueError("--group-key is only for deployments with privacy.blind = true; this one has no group key")
        return ""
    if path is None:
        raise ValueError(
            "the edge server does not have the group key: copy the file group.key from another device's folder, "
            "if possible not via the edge server, and name it with --group-key"
        )
    text = path.read_text(encoding="utf-8")
    read_keys(text)
    return text


def _planned(config: Config, members: Members, table: Table) -> Config:
    """The experiment with all changes, new ones before the next round; impossible changes are refused."""
    played = members.played()
    if played + in_use(members.folder) >= config.rounds:
        raise ValueError(f"the change must come before the last of {config.rounds} rounds, which has been played")
    past = members.rounds()
    changed = with_changes(config, table, past + [played + 1] * (len(table.get("change", [])) - len(past)))
    Run(changed)
    return changed


def _now(config: Config, members: Members) -> Any:
    """The graph of the next round, as far as it is known without training."""
    run = Run(_planned(config, members, members.table))
    timeline = run.events or Timeline((), run.graph, config.rounds)
    return timeline.at(min(members.played() + 1, config.rounds))


def _room(config: Config, room: str | None) -> int | str | None:
    """A room by number or by name, as in the graph."""
    rooms = config.graph.graph(config.seed).rooms
    if rooms is None or room is None:
        if room is not None:
            raise ValueError("this deployment's graph has no rooms: leave out --room")
        return None
    place = getattr(config.graph.topology, "place", None)
    named = place(config.seed).room_names if place else ()
    try:
        if room in named:
            return named.index(room)
        return int(room) if np.issubdtype(rooms.dtype, np.integer) else room
    except ValueError:
        known = f"one of {', '.join(named)}, or " if named else ""
        raise ValueError(f"room must be {known}a number like {rooms[0]}, got {room!r}") from None


def _linked(now: Any, table: Table, room: int | str | None, links: list[str], name: str) -> list[str]:
    """Names of the devices to link a new one to: those given, or all in its room."""
    names = [device["name"] for device in table["device"]]
    there = [other for row, other in enumerate(names) if other != name and now.present[row]]
    for link in links:
        if link not in there:
            raise ValueError(f"--links must name devices that take part ({', '.join(there)}), got {link!r}")
    if links:
        return links
    if room is None:
        raise ValueError("a new device needs --links, or a --room with devices to link it to")
    found = [other for other in there if now.graph.rooms[names.index(other)] == room]
    if not found:
        raise ValueError(f"no device is in room {room}: name the devices to link it to with --links")
    return found


def _keep(server: Path, table: Table) -> None:
    """Write the deployment, and tell the SuperLink if it is running."""
    write_atomically(server / "deployment.toml", tomli_w.dumps(table).encode())
    site = Site.read(table)
    authority = server / "certificates" / "ca.crt" if site.authentication else None
    try:
        with control(str(site.where), authority) as link:
            register(table, link)
    except OSError as error:
        if in_use(server):
            raise OSError(f"the edge server is running but has not taken the change yet ({error}): try again") from None
