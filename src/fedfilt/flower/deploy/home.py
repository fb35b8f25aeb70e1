"""What a living home needs besides its deployment: a broker that knows every device, and keys for all who speak there.

    server/       home.toml, mqtt/ (two keys of the edge server, one of `fedfilt home label`), start-home.sh, its unit
    broker/       mosquitto.conf, acl, ca.crt, server.crt, server.key, start.sh, fedfilt-broker.service
    assistant/    ca.crt, client.crt, client.key, for Home Assistant
    devices/      NAME/home.toml, NAME/mqtt/

The broker takes a client for whom its certificate names, and lets a device write only what it says itself and read only
what is said to it.
"""

import getpass
import math
import os
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from fedfilt._files import write_atomically
from fedfilt.flower.deploy.address import Address, Site, address
from fedfilt.flower.deploy.certificates import client, days_left, renew_server
from fedfilt.flower.deploy.members import Members
from fedfilt.flower.deploy.renewal import CARRIED, device_days, keep_copy, renew_all, renew_device
from fedfilt.flower.deploy.supervise import check_owner, checked
from fedfilt.flower.deploy.units import unit
from fedfilt.flower.deploy.write import experiment_of, start_files
from fedfilt.flower.home import EARS, EDGE, PEOPLE, settings
from fedfilt.home.rooms import UNKNOWN
from fedfilt.home.topics import NAME
from fedfilt.runs.build import is_own
from fedfilt.runs.config import Config

ASSISTANT = "homeassistant"  # who else is on the broker, besides the edge server and people
PORT = 8883

MOSQUITTO = """# The broker of a home; made by `fedfilt home write`. For Mosquitto 2.
listener {port}{bind}
cafile {place}/ca.crt
certfile {place}/server.crt
keyfile {place}/server.key
require_certificate true
use_identity_as_username true
use_username_as_clientid true
allow_anonymous false
acl_file {place}/acl

user {user}
persistence true
persistence_location {place}/data/
autosave_interval 60
persistent_client_expiration 7d
pid_file {place}/data/mosquitto.pid
max_queued_messages 1000
max_packet_size 65536
max_connections 10000
log_dest stdout
log_type error
log_type warning
log_type notice
"""

ACL = """# Who may do what; made by `fedfilt home write`. A name is that of the client's certificate.
# A device that reads its sensors from this broker needs a line of its own, such as
#   user watch
#   topic read zigbee2mqtt/watch
user {edge}
topic readwrite fedfilt/{home}/#
topic readwrite homeassistant/#

user {ears}
topic read fedfilt/{home}/devices/+/decision

user {assistant}
topic read fedfilt/{home}/#
topic write fedfilt/{home}/rooms/+/label
topic readwrite homeassistant/#

user {people}
topic read fedfilt/{home}/rooms/+/state
topic read fedfilt/{home}/rooms/+/corrected
topic read fedfilt/{home}/edge/status
topic write fedfilt/{home}/rooms/+/label

# Every device
pattern write fedfilt/{home}/devices/%u/decision
pattern write fedfilt/{home}/devices/%u/kept
pattern readwrite fedfilt/{home}/devices/%u/status
pattern read fedfilt/{home}/devices/%u/correction
"""


def write_home(building: Path, home: str, where: Address | None = None, rooms: Mapping[str, str] | None = None) -> None:
    """Write what the home in a deployment needs, all of it or nothing.

    `where` the broker is reached, by default beside the edge server; `rooms` by device, by default those of the graph.
    """
    server = checked(building / "server", "deployment.toml")
    members, config = Members(server), experiment_of(server)
    site = Site.read(members.table)
    if not site.authentication:
        raise ValueError("a home needs certificates, which this deployment has not (--no-authentication)")
    if not is_own(config):
        raise ValueError('a home needs devices with their own data: [data] name = "own"')
    if UNKNOWN in config.data.labels:
        raise ValueError(f"no label may be called {UNKNOWN!r}: that is what a room says that does not know")
    where = where or Address(site.where.host, PORT)
    found = _rooms(config, members, rooms or {})
    _check_names(home, found)
    made = Path(tempfile.mkdtemp(prefix=".fedfilt-", dir=building))
    try:
        _write_server(made / "server", server / "certificates", home, where, found, config, site)
        _write_broker(made / "broker", server / "certificates", home, where, site.place / "broker")
        client(server / "certificates", made / "assistant", ASSISTANT)
        for name, room in found.items():
            _write_device(made / "devices" / name, server / "certificates", home, where, room)
            keep_copy(made / "server", made / "devices" / name / "mqtt", name)
        _move(made, building)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def update_home(building: Path, rooms: Mapping[str, str] | None = None, renew: bool = False) -> dict[str, str]:
    """Bring the home in line with its deployment, all of it or nothing; what was done, by device.

    Devices that were added since get keys and a room, those that were removed may speak no more, and `rooms` may move
    others. An edge server that is running takes it up by itself, a device when it starts again. Certificates that end
    soon are renewed, with `renew` all of them.
    """
    server = checked(building / "server", "home.toml")
    check_owner(server)
    table, given = settings(server), rooms or {}
    before, where = dict(table["devices"]), address(table["broker"])
    found = {
        name: given.get(name) or before.get(name) or room
        for name, room in _rooms(experiment_of(server), Members(server), given).items()
    }
    _check_names(table["home"], found)
    added = [name for name in found if name not in before]
    moved = [name for name in before if name in found and found[name] != before[name]]
    made = Path(tempfile.mkdtemp(prefix=".fedfilt-", dir=building))
    try:
        for name in added:
            _write_device(made / "devices" / name, server / "certificates", table["home"], where, found[name])
            keep_copy(server, made / "devices" / name / "mqtt", name)
        for name in moved:
            if not (building / "devices" / name / "home.toml").exists():
                raise ValueError(f"the folder of {name} is not here: change the room in its own home.toml")
        _move(made, building)
        for name in moved:
            path = building / "devices" / name / "home.toml"
            about = tomllib.loads(path.read_text(encoding="utf-8")) | {"room": found[name]}
            write_atomically(path, tomli_w.dumps(about).encode())
        write_atomically(server / "home.toml", tomli_w.dumps(table | {"devices": found}).encode())
    finally:
        shutil.rmtree(made, ignore_errors=True)
    said = {name: f"may speak in {found[name]}" for name in added} | {
        name: f"is in {found[name]} now" for name in moved
    }
    said |= {name: "may speak no more" for name in before if name not in found}
    for whose, what in _renewed(building, [name for name in found if name not in added], renew).items():
        said[whose] = f"{said[whose]}, and {what}" if whose in said else what
    return said


def _renewed(building: Path, devices: Sequence[str], everything: bool) -> dict[str, str]:
    """Renew certificates that end soon, or everything; what was done, by whose they are."""
    within_days = math.inf if everything else CARRIED
    done = dict.fromkeys(renew_all(building / "server", within_days), "has a new certificate")
    assistant = building / "assistant"
    if (assistant / "client.crt").exists() and days_left(assistant / "client.crt") < within_days:
        client(building / "server" / "certificates", assistant, ASSISTANT)
        done["Home Assistant"] = f"has a new certificate; give it the files in {assistant}"
    for name in devices:
        if everything or device_days(building, name) < CARRIED:
            done[name] = f"has a new certificate; copy {renew_device(building, name)} into its folder on the device"
    return done


def _check_names(home: str, rooms: Mapping[str, str]) -> None:
    """Refuse names that cannot be in a topic, or are somebody else's on the broker."""
    for what, name in [("home", home), *(("device", name) for name in rooms), *(("room", r) for r in rooms.values())]:
        if not NAME.fullmatch(name):
            raise ValueError(f"a {what} must be up to 40 letters, digits, dots, dashes and underscores, got {name!r}")
    for name in (EDGE, EARS, PEOPLE, ASSISTANT):
        if name in rooms:
            raise ValueError(f"no device may be called {name!r}, which is somebody else's name on the broker")


def _write_device(made: Path, authority: Path, home: str, where: Address, room: str) -> None:
    """Write what a device needs, whose name is that of its folder."""
    client(authority, made / "mqtt", made.name)
    table = {"home": home, "device": made.name, "room": room, "broker": str(where), "tls": True}
    (made / "home.toml").write_text(tomli_w.dumps(table), encoding="utf-8")


def _write_server(
    made: Path, authority: Path, home: str, where: Address, rooms: Mapping[str, str], config: Config, site: Site
) -> None:
    made.mkdir()
    for name in (EDGE, EARS, PEOPLE):
        client(authority, made / "mqtt", name, name)
    table = {
        "home": home,
        "broker": str(where),
        "tls": True,
        "labels": list(config.data.labels),
        "correct_seconds": 30.0,
        "vote": {"how": "weighted", "threshold": 0.5, "switch_seconds": 0.0},
        "devices": dict(rooms),
    }
    (made / "home.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    command = f"{site.program} home run"
    what, broker = "the rooms of fedfilt", site.place / "broker"  # whose certificate it renews
    start_files(made, "fedfilt-home", command, site.place / "server", what, "start-home.sh", broker)


def _write_broker(made: Path, authority: Path, home: str, where: Address, place: Path) -> None:
    made.mkdir()
    shutil.copyfile(authority / "ca.crt", made / "ca.crt")
    renew_server(authority, where, made)
    (made / "data").mkdir(mode=0o700)
    bind = f" {where.host}" if where.loopback else ""
    conf = MOSQUITTO.format(port=where.port, bind=bind, place=place, user=getpass.getuser())
    (made / "mosquitto.conf").write_text(conf, encoding="utf-8")
    acl = ACL.format(home=home, edge=EDGE, ears=EARS, assistant=ASSISTANT, people=PEOPLE)
    (made / "acl").write_text(acl, encoding="utf-8")
    (made / "acl").chmod(0o600)
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or "mosquitto"
    command = f"{program} -c {shlex.quote(str(place / 'mosquitto.conf'))}"
    (made / "start.sh").write_text(
        f'#!/bin/sh\n# Starts the broker of the home.\nulimit -n "$(ulimit -Hn)"\nexec {command}\n'
    )
    (made / "start.sh").chmod(0o755)
    made_unit = unit("the broker of a home", command, place, reload="HUP")
    (made / "fedfilt-broker.service").write_text(made_unit)


def _rooms(config: Config, members: Members, given: Mapping[str, str]) -> dict[str, str]:
    """By name, the room of every device that takes part."""
    table = members.table
    graph = config.graph.graph(config.seed).rooms
    placed = {} if graph is None else dict(zip((one["name"] for one in table["device"]), graph.tolist(), strict=False))
    placed |= {one["device"]: one["room"] for one in table.get("change", []) if "room" in one}
    names = [one["name"] for one in table["device"] if not one.get("gone")]
    for name in given:
        if name not in names:
            raise ValueError(f"--room must name devices that take part, got {name!r}; there are {', '.join(names)}")
    called = {name: f"room-{room}" if isinstance(room, int) else str(room) for name, room in placed.items()}
    return {name: given.get(name) or called.get(name, "home") for name in names}


def _move(made: Path, building: Path) -> None:
    """Move everything to its place, or nothing."""
    pairs = [(made / part, building / part) for part in ("broker", "assistant") if (made / part).exists()]
    for folder in (*made.glob("server"), *made.glob("devices/*")):
        pairs += [(one, building / one.relative_to(made)) for one in folder.iterdir()]
    for _, target in pairs:
        if target.exists():
            raise ValueError(f"{target} is there already; remove it to write the home anew")
        if not target.parent.is_dir():
            raise ValueError(f"{target.parent} is not here: write the home before you move the devices' folders")
    moved: list[Path] = []
    try:
        for source, target in pairs:
            os.rename(source, target)
            moved.append(target)
    except BaseException:
        for target in moved:
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        raise
