"""All that a building needs, written into one folder: certificates, keys, the app, start commands, systemd units.

    server/    deployment.toml, app/, flower/config.toml, certificates/, start.sh, fedfilt-server.service
    devices/   NAME/device.toml, key, key.pub, ca.crt, start.sh, fedfilt-NAME.service

`server` belongs on the edge server and each folder of `devices` on its device; no private key is in two of them.
"""

import datetime
import getpass
import ipaddress
import os
import shlex
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomli_w

if TYPE_CHECKING:  # a supervisor on a small device needs this module, and must not load torch
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    from fedfilt.config import Config
    from fedfilt.runs import Run

YEARS = 10


class Address(NamedTuple):
    """Where the SuperLink is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it can be reached from this machine only."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def address(text: str) -> Address:
    """HOST:PORT as an address.

    >>> address("192.168.1.10:9092"), address("localhost:9092").loopback
    (Address(host='192.168.1.10', port=9092), True)
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address must be HOST:PORT, such as 192.168.1.10:9092, got {text!r}")
    return Address(host, int(port))


class Registered(NamedTuple):
    """A device as it was registered: its row in the graph is its place in the list."""

    name: str
    public_key: bytes  # PEM, as Flower keeps it


def registered(table: dict[str, Any]) -> list[Registered] | None:
    """The registered devices of a deployment file, by row; None if it has no authentication."""
    if not table["authentication"]:
        return None
    from cryptography.hazmat.primitives import serialization

    found = []
    for device in table["device"]:
        key = serialization.load_ssh_public_key(device["public_key"].encode())
        pem = serialization.PublicFormat.SubjectPublicKeyInfo
        found.append(Registered(device["name"], key.public_bytes(serialization.Encoding.PEM, pem)))
    return found


def check_open(where: Address, authentication: bool, insist: bool) -> None:
    """Refuse to be open to a network without authentication, unless that is insisted on."""
    if not authentication and not where.loopback and not insist:
        raise ValueError(
            f"without authentication anybody who reaches {where} can take part and read models; use 127.0.0.1, "
            "leave out --no-authentication, or insist with --insist"
        )


def write(
    folder: Path,
    run: "Run",
    where: Address,
    authentication: bool = True,
    insist: bool = False,
    place: Path | None = None,
    program: str | None = None,
) -> list[str]:
    """Write the folder of a deployment of a run, and give the names of its devices; all of it or nothing.

    `place` is where the folder will be on the machines, `program` the fedfilt command there.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already; choose a new folder with --out")
    check_open(where, authentication, insist)
    names = [f"device-{number:03d}" for number in range(run.graph.count)]
    place = (place or folder).absolute()
    program = program or shutil.which("fedfilt") or f"{sys.executable} -m fedfilt.cli"
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".fedfilt-", dir=folder.parent))
    try:
        _write(made, run, names, where, authentication, insist, place, program)
        made.chmod(0o755)
        os.replace(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return names


def _write(
    made: Path,
    run: "Run",
    names: list[str],
    where: Address,
    authentication: bool,
    insist: bool,
    place: Path,
    program: str,
) -> None:
    server, devices = made / "server", made / "devices"
    app, flower = server / "app", server / "flower"
    for new in (app, flower):
        new.mkdir(parents=True)
    public = dict.fromkeys(names, "")
    for name in names:
        (devices / name).mkdir(parents=True)
    if authentication:
        authority = _certificates(server / "certificates", where)
        for name in names:
            (devices / name / "ca.crt").write_bytes(authority)
            public[name] = _key(devices / name)
    (app / "pyproject.toml").write_text(app_project(run.config), encoding="utf-8")
    connection: dict[str, object] = {"address": str(where), "insecure": not authentication}
    if authentication:
        connection = {"address": str(where), "root-certificates": str(place / "server" / "certificates" / "ca.crt")}
    flower_config = {"superlink": {"default": "building", "building": connection}}
    (flower / "config.toml").write_text(tomli_w.dumps(flower_config), encoding="utf-8")
    table = {
        "address": str(where),
        "authentication": authentication,
        "insist": insist,
        "most_bytes": run.update_bytes + 2**20,  # of a request from a device
        "device": [{"name": name, "public_key": public[name]} for name in names],
    }
    (server / "deployment.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    _start(server, "fedfilt-server", f"{program} deploy server", place / "server", "the edge server of fedfilt")
    for number, name in enumerate(names):
        own = {"name": name, "address": str(where), "authentication": authentication}
        if not authentication:
            own |= {"number": number, "devices": len(names)}
        (devices / name / "device.toml").write_text(tomli_w.dumps(own), encoding="utf-8")
        _start(
            devices / name, f"fedfilt-{name}", f"{program} deploy device", place / "devices" / name, f"fedfilt {name}"
        )


def app_project(config: "Config") -> str:
    """The pyproject.toml of the Flower app of an experiment: it is all there is to the app, fedfilt has the rest."""
    given = config.graph
    graph = replace(given, file=_absolute(given.file), building=_absolute(given.building))
    config = replace(config, engine=replace(config.engine, name="flower"), graph=graph)
    return tomli_w.dumps(
        {
            "project": {
                "name": "building",
                "version": "1.0.0",
                "description": "An experiment of fedfilt",
                "license": "Apache-2.0",
                "dependencies": [],
            },
            "tool": {
                "flwr": {
                    "app": {
                        "publisher": "fedfilt",
                        "components": {
                            "serverapp": "fedfilt.flower.app:server",
                            "clientapp": "fedfilt.flower.app:client",
                        },
                        "config": {"experiment": config.toml(), "out": ""},
                    }
                }
            },
        },
        multiline_strings=True,
    )


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def _start(folder: Path, name: str, command: str, place: Path, what: str) -> None:
    script = folder / "start.sh"
    script.write_text(f'#!/bin/sh\n# Starts {what}.\nexec {command} "$(cd "$(dirname "$0")" && pwd)"\n')
    script.chmod(0o755)
    (folder / f"{name}.service").write_text(
        f"[Unit]\nDescription={what}\nAfter=network-online.target\nWants=network-online.target\n\n"
        f"[Service]\nExecStart={command} {shlex.quote(str(place))}\nUser={getpass.getuser()}\n"
        "Restart=on-failure\nRestartSec=5\nNoNewPrivileges=true\nPrivateTmp=true\n\n[Install]\nWantedBy=multi-user.target\n"
    )


def _certificates(folder: Path, where: Address) -> bytes:
    """A certificate authority and a certificate for the SuperLink; the authority's certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    folder.mkdir()
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)  # clocks of devices may be behind
    end = begin + datetime.timedelta(days=365 * YEARS)

    def called(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = called("fedfilt building authority")
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())

    def begun(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)

    def usage(signs: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=signs,
            crl_sign=signs,
            encipher_only=False,
            decipher_only=False,
        )

    authority = (
        begun(issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    try:
        own: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(where.host))
    except ValueError:
        own = x509.DNSName(where.host)
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        begun(called("fedfilt edge server"), server_key)
        .add_extension(x509.SubjectAlternativeName([own, *(n for n in here if n != own)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    _write_key(folder / "ca.key", authority_key)
    _write_key(folder / "server.key", server_key)
    content = _pem(authority)
    (folder / "ca.crt").write_bytes(content)
    (folder / "server.crt").write_bytes(_pem(server))
    return content


def _pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key(folder: Path) -> str:
    """A new key pair of a device, in the formats Flower reads; the public key as text."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(folder / "key", key, ssh=True)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (folder / "key.pub").write_text(public + "\n")
    return public


def _write_key(path: Path, key: "ec.EllipticCurvePrivateKey", ssh: bool = False) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    kind = PrivateFormat.OpenSSH if ssh else PrivateFormat.PKCS8
    content = key.private_bytes(Encoding.PEM, kind, NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
