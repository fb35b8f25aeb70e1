"""Writes all that a building needs into one folder: certificates, keys, the app, start commands, systemd units.

    server/    deployment.toml, app/, flower/config.toml, certificates/, start.sh, fedfilt-server.service
    devices/   NAME/device.toml, key, key.pub, ca.crt, start.sh, fedfilt-NAME.service, state/ or own.toml and data/,
               and group.key if rows are hidden from the edge server (privacy.blind)

`server` belongs on the edge server, and each folder in `devices` on its device; no private key is in two of them.
"""

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedfilt._start import PROGRAM
from fedfilt._trust import code_in, files_of
from fedfilt._types import Table
from fedfilt.data.own import SETTINGS
from fedfilt.engines.flower.device import kept_samples
from fedfilt.flower.deploy.address import Address, Site, check_open
from fedfilt.flower.deploy.certificates import certificates, new_group_key, new_key, write_secret
from fedfilt.flower.deploy.pace import pace
from fedfilt.flower.deploy.supervise import experiment_table
from fedfilt.flower.deploy.units import unit
from fedfilt.flower.device import GROUP_KEY
from fedfilt.runs.build import Run, is_own, known
from fedfilt.runs.config import Config, from_table

OWN = """# Settings of this device's owner; the edge server never sees or changes this file.
# data = "data"          # folder of recordings or samples, relative to this file
# reader = "mine:Reader" # your own code that provides the samples, instead of files in that folder
# time = "time"          # columns of recordings
# label = "label"

[report]  # what to tell the edge server besides the update
samples = true
loss = true
test = true
"""


def write(
    folder: Path,
    run: Run,
    where: Address,
    authentication: bool = True,
    insist: bool = False,
    place: Path | None = None,
    program: str | None = None,
) -> list[str]:
    """Write the folder of a run's deployment, all of it or nothing; returns the names of its devices.

    `place` is the folder's path on the machines, `program` the fedfilt command there.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists already; choose a new folder with --out")
    check_open(where, authentication, insist)
    pace(run.config.engine.every, run.config.engine.between)
    program = program or shutil.which("fedfilt") or shlex.join(PROGRAM)
    site = Site(where, authentication, insist, (place or folder).absolute(), program)
    homes = run.config.data.places(run.graph.count) if is_own(run.config) else []
    names = [home.name for home in homes] or [f"device-{number:03d}" for number in range(run.graph.count)]
    for name in names:
        check_name(name)
    if len(set(names)) < len(names):
        raise ValueError(f"data.folders must have different names, got {names}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".fedfilt-", dir=folder.parent))
    try:
        public = _write_server(made / "server", run, site)
        authority = made / "server" / "certificates" / "ca.crt" if authentication else None
        group = new_group_key() if run.config.privacy.blind else ""
        keys = [
            write_device(made / "devices" / name, name, row, run, site, authority, group)
            for row, name in enumerate(names)
        ]
        for name, home in zip(names, homes, strict=False):
            _copy_data(home, made / "devices" / name)
        table = {
            "site": site.table(),
            "most_bytes": run.most_bytes + 2**20,  # in a request from a device
            "device": [{"name": name, "public_key": key} for name, key in zip(names, keys, strict=True)],
        }
        (made / "server" / "deployment.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
        (made / "server" / "app" / "pyproject.toml").write_text(app_project(run.config, public), encoding="utf-8")
        made.chmod(0o755)
        os.replace(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return names


def _write_server(server: Path, run: Run, site: Site) -> str:
    """Write the edge server's folder, without the list of devices; returns the path of the public test, if any."""
    for new in (server / "app", server / "flower"):
        new.mkdir(parents=True)
    connection: dict[str, object] = {"address": str(site.where), "insecure": not site.authentication}
    if site.authentication:
        certificates(server / "certificates", site.where)
        root = site.place / "server" / "certificates" / "ca.crt"
        connection = {"address": str(site.where), "root-certificates": str(root)}
    _copy_code(run.config.table(), [Path()], server)
    flower_config = {"superlink": {"default": "building", "building": connection}}
    (server / "flower" / "config.toml").write_text(tomli_w.dumps(flower_config), encoding="utf-8")
    command = f"{site.program} deploy server{_trust(run.config.table())}"
    what, broker = "the edge server of fedfilt", site.place / "broker"  # it renews the broker's certificate
    start_files(server, "fedfilt-server", command, site.place / "server", what, also=broker)
    if not is_own(run.config) or not run.config.data.public.file:
        return ""
    public = Path(run.config.data.public.file)
    shutil.copyfile(public, server / f"public{public.suffix}")
    return str(site.place / "server" / f"public{public.suffix}")


def write_device(
    folder: Path, name: str, row: int, run: Run, site: Site, authority: Path | None, group: str = ""
) -> str:
    """Write the folder of a device and return its public key; files that its owner put there stay.

    `group` is the group key as text, if rows are hidden from the edge server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if group:
        (folder / GROUP_KEY).unlink(missing_ok=True)
        write_secret(folder / GROUP_KEY, group.encode())
    public = ""
    if authority is not None:
        shutil.copyfile(authority, folder / "ca.crt")
        for old in ("key", "key.pub"):
            (folder / old).unlink(missing_ok=True)
        public = new_key(folder)
    _copy_code(known(run), [folder.parents[1] / "server", Path()], folder)
    own = {"name": name, "address": str(site.where), "authentication": site.authentication, "number": row}
    own |= {} if run.data.shapes is None or run.data.kinds is None else {"kind": run.data.kinds[row]}
    (folder / "device.toml").write_text(tomli_w.dumps(own | {"experiment": known(run)}), encoding="utf-8")
    if is_own(run.config):
        (folder / "data").mkdir(exist_ok=True)
        if not (folder / SETTINGS).exists():
            (folder / SETTINGS).write_text(OWN, encoding="utf-8")
    else:
        kept_samples(folder / "state", run.config.hash(), row, lambda: run.data)
    command = f"{site.program} device{_trust(known(run), ' run')}"
    start_files(folder, f"fedfilt-{name}", command, site.place / "devices" / name, f"fedfilt {name}")
    return public


def _trust(table: Table, command: str = "") -> str:
    """The option of a start command for code that its file names: whoever installs the one trusts the other."""
    return f"{command} --trust-code" if code_in(table) else ""


def _copy_code(table: Table, sources: Sequence[Path], folder: Path) -> None:
    """Copy the modules that an experiment names from these folders; installed modules are not copied."""
    for file in files_of(code_in(table), sources):
        source = next(one.resolve() for one in sources if file.resolve().is_relative_to(one.resolve()))
        copy = folder / file.resolve().relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _copy_data(home: Path, folder: Path) -> None:
    """Copy all that an owner has in a folder into a device's folder: data, settings, code that reads it."""
    made = {path.name for path in folder.iterdir()} - {SETTINGS, "data"}
    for name in sorted(name for name in made if name.endswith(".py") and (home / name).exists()):
        if (home / name).read_bytes() != (folder / name).read_bytes():
            raise ValueError(f"{home / name} has the same name as a module of the experiment: rename one of them")
    shutil.copytree(home, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*made, "state", "flower", "*.log"))


def check_name(name: str) -> None:
    """Refuse a name that is not valid for a folder, a systemd unit and a topic."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", name):
        raise ValueError(f"a device's name must be up to 40 letters, digits, dots, dashes, underscores, got {name!r}")


def experiment_of(server: Path) -> Config:
    """The experiment in the folder of an edge server."""
    return from_table(experiment_table(server))


def _with_absolute_files(topology: Any) -> Any:
    """A topology (and the one inside it) with absolute paths to its files."""
    named = {field.name: getattr(topology, field.name) for field in fields(topology) if field.init}
    changes: dict[str, Any] = {
        key: _absolute(named[key]) for key in ("file", "building") if isinstance(named.get(key), str)
    }
    if "graph" in named:
        changes["graph"] = _with_absolute_files(named["graph"])
    return replace(topology, **changes)


def app_project(config: Config, public: str = "") -> str:
    """The pyproject.toml of an experiment's Flower app. The app has no other file: fedfilt contains the rest."""
    if is_own(config):  # the server has no device folders, and a copy of the public test
        config = replace(config, data=replace(config.data, folders="", public=replace(config.data.public, file=public)))
    graph = replace(config.graph, topology=_with_absolute_files(config.graph.topology))
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


def start_files(
    folder: Path,
    name: str,
    command: str,
    place: Path,
    what: str,
    script: str = "start.sh",
    also: Path | None = None,
) -> None:
    """Write a start script and a systemd unit of that name, for a command that takes its folder last.

    The unit may write to its folder and to `also`, if that exists.
    """
    starter = folder / script
    starter.write_text(f'#!/bin/sh\n# Starts {what}.\nexec {command} "$(cd "$(dirname "$0")" && pwd)"\n')
    starter.chmod(0o755)
    made = unit(what, f"{command} {shlex.quote(str(place))}", place, also=also)
    (folder / f"{name}.service").write_text(made)
