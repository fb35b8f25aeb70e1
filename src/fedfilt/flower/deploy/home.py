"""What a living home needs besides its deployment: a broker that knows every device, and keys for all its clients.

    server/       home.toml, mqtt/ (two keys of the edge server, one of `fedfilt home label`), issued.json (the
                  certificates issued), start-home.sh, its unit
    broker/       mosquitto.conf, acl, revoked.pem, ca.crt, server.crt, server.key, start.sh, fedfilt-broker.service
    assistant/    ca.crt, client.crt, client.key, for Home Assistant
    sensors/      NAME/ca.crt, client.crt, client.key, for clients that send sensor readings
    devices/      NAME/home.toml, NAME/mqtt/

The broker identifies a client by its certificate, and lets a device publish only its own messages and read only those
sent to it.
"""

import math
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tomli_w

from fedfilt._files import write_atomically
from fedfilt._types import Table
from fedfilt.flower.deploy.address import Address, Site
from fedfilt.flower.deploy.broker import (
    ASSISTANT,
    NAMES,
    Issued,
    check_sensors,
    reload_broker,
    write_broker,
    write_rights,
)
from fedfilt.flower.deploy.certificates import days_left
from fedfilt.flower.deploy.home_toml import EARS, EDGE, PEOPLE, listed, settings
from fedfilt.flower.deploy.members import Members
from fedfilt.flower.deploy.renewal import CARRIED, device_days, keep_copy, renew_all, renew_client, renew_device
from fedfilt.flower.deploy.supervise import check_owner, checked
from fedfilt.flower.deploy.write import experiment_of, start_files
from fedfilt.home.assistant import device_config, room_config
from fedfilt.home.bus import check_size
from fedfilt.home.rooms import UNKNOWN
from fedfilt.home.topics import Topics, check_name
from fedfilt.runs.build import is_own
from fedfilt.runs.config import Config

PORT = 8883


def write_home(
    building: Path,
    home: str,
    where: Address | None = None,
    rooms: Mapping[str, str] | None = None,
    sensors: Mapping[str, str] | None = None,
    reads: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write what the home of a deployment needs: all of it, or nothing.

    `where` is the broker's address, by default on the edge server; `rooms` are the devices' rooms, by default those of
    the graph; `sensors` are other clients and the topics they publish on; `reads` tells which of these topics a device
    may read.
    """
    server = checked(building / "server", "deployment.toml")
    members, config = Members(server), experiment_of(server)
    site = Site.read(members.table)
    if not site.authentication:
        raise ValueError("a home needs certificates, but this deployment has none (--no-authentication)")
    if not is_own(config):
        raise ValueError('a home needs devices with their own data: [data] name = "own"')
    if UNKNOWN in config.data.labels:
        raise ValueError(f"a label must not be called {UNKNOWN!r}: rooms say that when they are not sure")
    table: Table = {
        "home": home,
        "broker": str(where or Address(site.where.host, PORT)),
        "tls": True,
        "labels": list(config.data.labels),
        "correct_seconds": 30.0,
        "vote": {"how": "weighted", "threshold": 0.5, "switch_seconds": 0.0},
        "sensors": dict(sensors or {}),
        "reads": {name: list(topics) for name, topics in (reads or {}).items()},
        "devices": _rooms(config, members, rooms or {}),
    }
    _check(table)
    authority, issued, keys = server / "certificates", Issued({}, []), _keys(members)
    made = Path(tempfile.mkdtemp(prefix=".fedfilt-", dir=building))
    try:
        _write_server(made / "server", authority, table, site, issued)
        write_broker(made / "broker", authority, table, site.place / "broker")
        issued.give(authority, made / "assistant", ASSISTANT)
        for name in table["sensors"]:
            issued.give(authority, made / "sensors" / name, name)
        for name in table["devices"]:
            _write_device(made / "devices" / name, authority, table, issued, keys[name])
            keep_copy(made / "server", made / "devices" / name / "mqtt", name)
        issued.write(made / "server")
        _move(made, building)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def update_home(
    building: Path,
    rooms: Mapping[str, str] | None = None,
    sensors: Mapping[str, str] | None = None,
    reads: Mapping[str, Sequence[str]] | None = None,
    renew: bool = False,
) -> dict[str, str]:
    """Bring the home in line with its deployment: all of it, or nothing. Returns what was done, by name.

    Devices added since then get keys and a room, replaced ones get new keys, and the keys of removed ones are revoked.
    `rooms` may move devices; `sensors` and `reads` allow further clients and topics. A running edge server and broker
    pick up the change by themselves, a device when it restarts. Certificates that expire soon are renewed, with `renew`
    all of them.
    """
    server = checked(building / "server", "home.toml")
    check_owner(server)
    table, members, given = settings(server), Members(server), rooms or {}
    issued, keys = Issued.read(server), _keys(members)
    known = listed(table)
    before = known["devices"]
    found = {
        name: given.get(name) or before.get(name) or room
        for name, room in _rooms(experiment_of(server), members, given).items()
    }
    new = {name: topic for name, topic in (sensors or {}).items() if table.get("sensors", {}).get(name) != topic}
    allowed = {name: list(topics) for name, topics in (table.get("reads", {}) | dict(reads or {})).items()}
    after: Table = table | {"devices": found, "sensors": table.get("sensors", {}) | new}
    if known["moving"]:
        after["moving"] = [name for name in known["moving"] if name in found]
    after["reads"] = {name: topics for name, topics in allowed.items() if name in found or name in (reads or {})}
    _check(after)
    added = [name for name in found if name not in before]
    moved = [name for name in before if name in found and found[name] != before[name]]
    replaced = [name for name in issued.replaced(keys) if name in found]
    removed = [name for name in before if name not in found]
    said = {name: f"takes part in {found[name]}" for name in added}
    for name in moved:
        away = "" if (building / "devices" / name).is_dir() else "; its folder is not here: change its home.toml too"
        said[name] = f"is now in {found[name]}{away}"
    said |= dict.fromkeys(replaced, "has new keys")
    said |= dict.fromkeys(removed, "is no longer admitted")
    said |= {name: f"may publish on {topic}" for name, topic in new.items()}
    said |= {name: f"may read {', '.join(topics)}" for name, topics in (reads or {}).items()}
    if said:
        _change(building, table, after, issued, keys, (added, moved, replaced, removed, list(new)))
        if not reload_broker(building / "broker"):
            said["the broker"] = "is not running here; if it runs elsewhere, copy its folder there and reload it"
    old = [name for name in found if name not in (*added, *replaced)]
    for whose, what in _renewed(building, old, after["sensors"].keys() - new, renew).items():
        said[whose] = f"{said[whose]}, and {what}" if whose in said else what
    return said


def _change(
    building: Path, before: Table, after: Table, issued: Issued, keys: Mapping[str, str], who: Sequence[list[str]]
) -> None:
    """Write a changed home.toml and all that follows from it; `who` has added, moved, replaced, removed and new names.

    Nothing has changed until the folders of devices are moved to their place.
    """
    server, (added, moved, replaced, removed, sensors) = building / "server", who
    authority = server / "certificates"
    for name in replaced:
        if not (building / "devices" / name / "device.toml").exists():
            raise ValueError(f"the folder of {name} must be here, as fedfilt deploy replace wrote it")
    made = Path(tempfile.mkdtemp(prefix=".fedfilt-", dir=building))
    try:
        for name in (*added, *replaced):
            _write_device(made / "devices" / name, authority, after, issued, keys[name])
        for name in sensors:
            if name not in before.get("sensors", {}):
                issued.give(authority, made / "sensors" / name, name)
        for name in removed:
            issued.revoke(name)
        for name in replaced:  # their old keys are useless
            shutil.rmtree(building / "devices" / name / "mqtt", ignore_errors=True)
            (building / "devices" / name / "home.toml").unlink(missing_ok=True)
        _move(made, building)
        for name in (*added, *replaced):
            keep_copy(server, building / "devices" / name / "mqtt", name)
        for name in moved:
            path = building / "devices" / name / "home.toml"
            if path.exists():  # otherwise it is on the device by now; the edge server's list decides
                about = tomllib.loads(path.read_text(encoding="utf-8")) | {"room": after["devices"][name]}
                write_atomically(path, tomli_w.dumps(about).encode())
        issued.write(server)
        write_rights(building / "broker", authority, after, issued.revoked)
        write_atomically(server / "home.toml", tomli_w.dumps(after).encode())
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _renewed(building: Path, devices: Iterable[str], sensors: Iterable[str], everything: bool) -> dict[str, str]:
    """Renew certificates that expire soon, or all; returns what was done, by owner."""
    within_days, server = math.inf if everything else CARRIED, building / "server"
    done = dict.fromkeys(renew_all(server, within_days), "has a new certificate")
    others = {"Home Assistant": (ASSISTANT, building / "assistant")}
    others |= {name: (name, building / "sensors" / name) for name in sensors}
    for whose, (name, folder) in others.items():
        if (folder / "client.crt").exists() and days_left(folder / "client.crt") < within_days:
            renew_client(server, folder, name)
            done[whose] = f"has a new certificate; give it the files in {folder}"
    for name in devices:
        if everything or device_days(building, name) < CARRIED:
            done[name] = f"has a new certificate; copy {renew_device(building, name)} into its folder on the device"
    return done


def _keys(members: Members) -> dict[str, str]:
    """The key of each device in the deployment, by name."""
    return {one["name"]: one["public_key"] for one in members.table["device"]}


def _check(table: Table) -> None:
    """Refuse a home with names that are invalid in a topic or taken, or that cannot be announced."""
    home, rooms, labels = table["home"], table["devices"], table["labels"]
    for what, name in [("home", home), *(("device", name) for name in rooms), *(("room", r) for r in rooms.values())]:
        check_name(what, name)
    for name in NAMES:
        if name in rooms:
            raise ValueError(f"a device must not be called {name!r}, which is another client's name on the broker")
    check_sensors(table["sensors"], table["reads"], rooms)
    for name, room in rooms.items():
        topics = Topics(home)
        for said in (room_config(topics, room, labels, 1), device_config(topics, name, labels, 1, battery=True)):
            try:
                check_size("the message for Home Assistant", said)
            except ValueError as error:
                raise ValueError(f"the {len(labels)} labels are too many or too long to announce: {error}") from None


def _write_device(made: Path, authority: Path, table: Table, issued: Issued, key: str) -> None:
    """Write what a device needs; the device has the name of its folder."""
    name = made.name
    issued.give(authority, made / "mqtt", name, key=key)
    own = {
        "home": table["home"],
        "device": name,
        "room": table["devices"][name],
        "broker": table["broker"],
        "tls": True,
    }
    (made / "home.toml").write_text(tomli_w.dumps(own), encoding="utf-8")


def _write_server(made: Path, authority: Path, table: Table, site: Site, issued: Issued) -> None:
    made.mkdir()
    for name in (EDGE, EARS, PEOPLE):
        issued.give(authority, made / "mqtt", name, name)
    (made / "home.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    command = f"{site.program} home run"
    start_files(made, "fedfilt-home", command, site.place / "server", "the rooms of fedfilt", "start-home.sh")


def _rooms(config: Config, members: Members, given: Mapping[str, str]) -> dict[str, str]:
    """The room of every device that takes part, by name."""
    table = members.table
    graph = config.graph.graph(config.seed).rooms
    placed = {} if graph is None else dict(zip((one["name"] for one in table["device"]), graph.tolist(), strict=False))
    placed |= {one["device"]: one["room"] for one in table.get("change", []) if "room" in one}
    names = [one["name"] for one in table["device"] if not one.get("gone")]
    for name in given:
        if name not in names:
            raise ValueError(f"--room must name devices that take part ({', '.join(names)}), got {name!r}")
    called = {name: f"room-{room}" if isinstance(room, int) else str(room) for name, room in placed.items()}
    return {name: given.get(name) or called.get(name, "home") for name in names}


def _move(made: Path, building: Path) -> None:
    """Move everything to its place, or nothing."""
    pairs = [(made / part, building / part) for part in ("broker", "assistant") if (made / part).exists()]
    pairs += [(one, building / "sensors" / one.name) for one in made.glob("sensors/*")]
    if (made / "sensors").exists():
        (building / "sensors").mkdir(exist_ok=True)
    for folder in (*made.glob("server"), *made.glob("devices/*")):
        pairs += [(one, building / one.relative_to(made)) for one in folder.iterdir()]
    for _, target in pairs:
        if target.exists():
            raise ValueError(f"{target} exists already; remove it to write the home again")
        if not target.parent.is_dir():
            raise ValueError(f"there is no {target.parent}: write the home before you move the devices' folders")
    moved: list[Path] = []
    try:
        for source, target in pairs:
            os.rename(source, target)
            moved.append(target)
    except BaseException:
        for target in moved:
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        raise
