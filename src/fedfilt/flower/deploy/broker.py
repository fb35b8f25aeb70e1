"""The broker of a home: its configuration, its access rules, and revoked certificates.

Everything follows from the edge server's home.toml and from `issued.json`, which lists the certificates of each name.
"""

import getpass
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedfilt._files import write_atomically
from fedfilt._types import Table
from fedfilt.flower.deploy.address import Address, address
from fedfilt.flower.deploy.certificates import client, renew_server, revocations
from fedfilt.flower.deploy.home_toml import EARS, EDGE, PEOPLE
from fedfilt.flower.deploy.units import unit
from fedfilt.home.topics import check_name

ASSISTANT = "homeassistant"
NAMES = (EDGE, EARS, PEOPLE, ASSISTANT)  # on the broker, besides devices and senders of sensor readings
ISSUED = "issued.json"
TOPIC = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")

MOSQUITTO = """# The broker of a home; made by `fedfilt home write`. For Mosquitto 2.
listener {port}{bind}
cafile {place}/ca.crt
crlfile {place}/revoked.pem
certfile {place}/server.crt
keyfile {place}/server.key
require_certificate true
use_identity_as_username true
use_username_as_clientid true
allow_anonymous false
acl_file {place}/acl

user {user}
pid_file {place}/data/pid
persistence true
persistence_location {place}/data/
autosave_interval 60
persistent_client_expiration 7d
max_queued_messages 1000
max_packet_size 65536
max_connections 10000
log_dest stdout
log_type error
log_type warning
log_type notice
"""

ACL = """# Access rules; made by `fedfilt home write` and `fedfilt home update` from home.toml: change that instead.
# Users are named by their certificates.
user {edge}
topic readwrite fedfilt/{home}/#
topic readwrite homeassistant/#

user {ears}
topic read fedfilt/{home}/devices/+/decision

user {assistant}
topic read fedfilt/{home}/#
topic write fedfilt/{home}/rooms/+/label
topic readwrite homeassistant/#
topic write statestream/#

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


class Issued(NamedTuple):
    """The certificates made for the clients of a broker, and those that are revoked."""

    now: dict[str, Table]  # name -> its "serials", and the "key" by which the deployment knows a device
    revoked: list[int]

    @classmethod
    def read(cls, server: Path) -> "Issued":
        """Read it from the folder of the edge server; empty for a home that an older version wrote."""
        try:
            table = json.loads((server / ISSUED).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls({}, [])
        return cls(table["now"], [int(serial) for serial in table["revoked"]])

    def give(self, authority: Path, folder: Path, name: str, file: str = "client", key: str = "") -> None:
        """Make a new certificate for a name and revoke the old one."""
        self.revoke(name)
        self.now[name] = {"serials": [], "key": key}
        self.renew(authority, folder, name, file)

    def renew(self, authority: Path, folder: Path, name: str, file: str = "client") -> None:
        """Make a new certificate for a name; the old one stays valid until it expires."""
        entry = self.now.setdefault(name, {"serials": [], "key": ""})
        entry["serials"].append(str(client(authority, folder, name, file)))

    def revoke(self, name: str) -> None:
        """Revoke the certificates of a name."""
        if name in self.now:
            self.revoked.extend(map(int, self.now.pop(name)["serials"]))

    def replaced(self, keys: Mapping[str, str]) -> list[str]:
        """Devices whose key in the deployment is not the one their certificate was made for."""
        return [name for name, key in keys.items() if name in self.now and self.now[name]["key"] != key]

    def write(self, server: Path) -> None:
        """Write it to the folder of the edge server."""
        table = {"now": self.now, "revoked": [str(serial) for serial in self.revoked]}
        write_atomically(server / ISSUED, json.dumps(table, indent=1).encode())


def acl(home: str, sensors: Mapping[str, str], reads: Mapping[str, Iterable[str]]) -> str:
    """Access rules: `sensors` maps other clients to the topic they may write, `reads` devices to topics they may read.

    >>> acl("villa", {"bridge": "z/#"}, {"watch": ["z/hall"]}).splitlines()[-5:]
    ['user bridge', 'topic readwrite z/#', '', 'user watch', 'topic read z/hall']
    """
    text = ACL.format(home=home, edge=EDGE, ears=EARS, assistant=ASSISTANT, people=PEOPLE)
    for name, topic in sensors.items():
        text += f"\nuser {name}\ntopic readwrite {topic}\n"
    for name, topics in reads.items():
        text += f"\nuser {name}\n" + "".join(f"topic read {topic}\n" for topic in topics)
    return text


def check_sensors(sensors: Mapping[str, str], reads: Mapping[str, Iterable[str]], devices: Iterable[str]) -> None:
    """Refuse invalid names and topics, and those that would let a client publish in another's name."""
    devices = list(devices)
    for name in sensors:
        check_name("sensor", name)
        if name in NAMES or name in devices:
            raise ValueError(f"a sensor must not be called {name!r}, which is another client's name on the broker")
    for name in reads:
        if name not in devices:
            raise ValueError(f"--reads must name devices that take part ({', '.join(devices)}), got {name!r}")
    for topic in (*sensors.values(), *(topic for topics in reads.values() for topic in topics)):
        if not TOPIC.fullmatch(topic) or re.match(r"fedfilt|homeassistant|[$+#]", topic):
            raise ValueError(
                "a topic of sensors must not contain spaces or begin with fedfilt, homeassistant, $, + or #, "
                f"got {topic!r}"
            )


def write_broker(made: Path, authority: Path, table: Table, place: Path) -> None:
    """Write the folder of a home's broker, to be used at `place`; `table` is the home.toml."""
    where: Address = address(table["broker"])
    made.mkdir()
    shutil.copyfile(authority / "ca.crt", made / "ca.crt")
    renew_server(authority, where, made)
    (made / "data").mkdir(mode=0o700)
    bind = f" {where.host}" if where.loopback else ""
    conf = MOSQUITTO.format(port=where.port, bind=bind, place=place, user=getpass.getuser())
    (made / "mosquitto.conf").write_text(conf, encoding="utf-8")
    write_rights(made, authority, table, ())
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or "mosquitto"
    command = f"{program} -c {shlex.quote(str(place / 'mosquitto.conf'))}"
    (made / "start.sh").write_text(
        f'#!/bin/sh\n# Starts the broker of the home.\nulimit -n "$(ulimit -Hn)"\nexec {command}\n'
    )
    (made / "start.sh").chmod(0o755)
    (made / "fedfilt-broker.service").write_text(unit("the broker of a home", command, place, reload="HUP"))


def write_rights(broker: Path, authority: Path, table: Table, revoked: Iterable[int]) -> None:
    """Write the access rules and the list of revoked certificates."""
    text = acl(table["home"], table.get("sensors", {}), table.get("reads", {}))
    write_atomically(broker / "acl", text.encode())
    (broker / "acl").chmod(0o600)
    write_atomically(broker / "revoked.pem", revocations(authority, revoked))


def reload_broker(broker: Path) -> bool:
    """Make the broker of a folder, if it runs here, read the access rules again; returns whether it runs here."""
    try:
        pid = int((broker / "data" / "pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if os.fsencode(broker.resolve() / "mosquitto.conf") not in words:
            return False  # by now, the number of another process
        os.kill(pid, signal.SIGHUP)
    except (OSError, ValueError):
        return False
    return True
