"""All that a building needs, written into one folder: certificates, keys, the app, start commands, systemd units.

    server/    deployment.toml, app/, flower/config.toml, certificates/, start.sh, fedfilt-server.service
    devices/   NAME/device.toml, key, key.pub, ca.crt, start.sh, fedfilt-NAME.service

`server` belongs on the edge server and each folder of `devices` on its device; no private key is in two of them.
"""

import getpass
import os
import shlex
import shutil
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import tomli_w

from fedfilt._types import Table
from fedfilt.engines.flower.device import kept_samples
from fedfilt.flower.deploy.address import Address, check_open
from fedfilt.flower.deploy.certificates import certificates, new_key
from fedfilt.runs.build import Run
from fedfilt.runs.config import Config


def write(
    folder: Path,
    run: Run,
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
    run: Run,
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
        authority = certificates(server / "certificates", where)
        for name in names:
            (devices / name / "ca.crt").write_bytes(authority)
            public[name] = new_key(devices / name)
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
        kept_samples(devices / name / "state", run.config.hash(), number, lambda: run.data)
        own = {"name": name, "address": str(where), "authentication": authentication, "experiment": _experiment(run)}
        if not authentication:
            own |= {"number": number, "devices": len(names)}
        (devices / name / "device.toml").write_text(tomli_w.dumps(own), encoding="utf-8")
        _start(
            devices / name, f"fedfilt-{name}", f"{program} deploy device", place / "devices" / name, f"fedfilt {name}"
        )


def _experiment(run: Run) -> Table:
    """What a device must know of the experiment."""
    table = run.config.table()
    known = {"seed": run.config.seed, "shape": list(run.data.x.shape[1:]), "classes": run.data.classes}
    return {**known, **{part: table[part] for part in ("model", "training", "sparsifier")}}


def app_project(config: Config) -> str:
    """The pyproject.toml of the Flower app of an experiment: it is all there is to the app, fedfilt has the rest."""
    topology = config.graph.topology
    named = {field.name: getattr(topology, field.name) for field in fields(topology) if field.init}
    files = {key: _absolute(named[key]) for key in ("file", "building") if isinstance(named.get(key), str)}
    graph = replace(config.graph, topology=replace(topology, **files))
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
