"""Keeps the edge server of a deployment alive: a SuperLink, and the run on it.

Flower does not resume a run. When a SuperLink or a server app has died, a new Flower run is started, and the server app
goes on from its last checkpoint.
"""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedfilt._files import LOCK, in_use
from fedfilt.engines.flower._compat import START, Control
from fedfilt.engines.flower.identity import registered
from fedfilt.flower.deploy.address import Address, address, check_open
from fedfilt.flower.deploy.control import control
from fedfilt.flower.deploy.supervise import PAUSE, checked, running, stoppable

log = logging.getLogger("fedfilt")
FAILURES = 4  # runs that may end without a new round before we give up


def server_command(folder: Path) -> list[str]:
    """The command that starts the SuperLink of the edge server's folder."""
    table, where = _deployment(folder)
    command = [sys.executable, "-m", "fedfilt.flower.deploy.superlink", "--host", where.host, "--port", str(where.port)]
    command += ["--database", str(folder / "superlink.db"), "--disable-runtime-dependency-installation"]
    if not table["authentication"]:
        return [*command, "--insecure"]
    for option, name in (("ca-certfile", "ca.crt"), ("certfile", "server.crt"), ("keyfile", "server.key")):
        command += [f"--ssl-{option}", str(folder / "certificates" / name)]
    return [*command, "--enable-supernode-auth"]


def keep_server(folder: Path, ready: Callable[[], None] = lambda: None) -> None:
    """Run the SuperLink and the experiment until it is complete; go on from the last checkpoint after any crash.

    `ready` is called whenever devices can join.
    """
    folder = checked(folder, "deployment.toml")
    table, where = _deployment(folder)
    check_open(where, table["authentication"], table["insist"])
    failures, reached = 0, _round(folder)
    with stoppable():
        while not _complete(folder):
            try:
                _serve(folder, ready)
            except OSError as error:
                log.warning("%s", error)
            if _complete(folder):
                break
            failures = failures + 1 if _round(folder) == reached else 0
            reached = _round(folder)
            if failures == FAILURES:
                raise OSError(f"the run failed {FAILURES} times without a new round; see {folder}/*.log")
            log.warning("the run stopped after round %d; a new one goes on from there", reached)
            time.sleep(1.0)
        log.info("all rounds are played; to look at them: fedfilt report %s", folder / "run")


def _serve(folder: Path, ready: Callable[[], None]) -> None:
    """Run a SuperLink and one run after the other on it, as long as they get on."""
    table, where = _deployment(folder)
    authority = folder / "certificates" / "ca.crt" if table["authentication"] else None
    with _superlink(folder, where) as superlink, control(str(where), authority) as link:
        register(table, link)
        ready()
        reached = -1
        while superlink.poll() is None and not _complete(folder) and reached != _round(folder):
            reached = _round(folder)
            _play(folder, superlink, link)


def register(table: dict[str, Any], link: Control) -> None:
    """Register the devices' keys under their names; those that are registered already stay."""
    known = link.names()
    for device in registered(table) or []:
        if device.name not in known:
            link.register(device.name, device.public_key)


def keep_all(folder: Path) -> None:
    """Run the edge server and all devices on this machine until the run is complete, to try a deployment out."""
    checked(folder / "server", "deployment.toml")
    here = [sys.executable, "-m", "fedfilt.cli", "deploy", "device"]
    with ExitStack() as stack:
        waiting = sorted((folder / "devices").iterdir())

        def ready() -> None:
            while waiting:
                device = waiting.pop(0)
                stack.enter_context(running([*here, str(device)], device / "flower", device / "device.log"))

        keep_server(folder / "server", ready)


def _play(folder: Path, superlink: "subprocess.Popen[bytes]", link: Control) -> None:
    """Start a Flower run, and return when it has ended, or the SuperLink has.

    Flower takes a minute to miss a server app that was killed; that it no longer holds the run folder is seen at once.
    """
    _end_server_app(folder)  # of a run before this one
    run = link.start(folder / "app")
    log.info("Flower run %d goes on after round %d", run, _round(folder))
    told = _tell(folder, None)
    seen = 0.0  # when the server app was last seen; it takes a while to begin
    while superlink.poll() is None and not _complete(folder):
        told = _tell(folder, told)
        if in_use(folder / "run"):
            seen = time.monotonic()
        elif seen and time.monotonic() - seen > 2.0:
            log.warning("the server app of Flower run %d is gone", run)
            link.stop(run)
            return
        status = link.run(run).status
        if status.status == "finished":
            log.warning("Flower run %d ended: %s %s", run, status.sub_status, status.details)
            return
        time.sleep(0.5)
    _tell(folder, told)


def _tell(folder: Path, since: int | None) -> int:
    """Pass on what the server app has logged since a place in its log (None: nothing yet); the place for next time."""
    path = folder / "run.log"
    if since is None or not path.exists():
        return path.stat().st_size if path.exists() else 0
    with path.open("rb") as file:
        file.seek(since)
        new = file.read()
    whole = new[: new.rfind(b"\n") + 1]
    for line in re.findall(r"^\S+ \S+ (INFO|WARNING|ERROR): (.*)$", whole.decode(errors="replace"), re.MULTILINE):
        log.log(getattr(logging, line[0]), "%s", line[1])
    return since + len(whole)


def _end_server_app(folder: Path) -> None:
    """End a server app that has outlived its SuperLink: it would keep the run folder in use, and try for ever."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + 5
        if in_use(folder / "run"):
            with suppress(ValueError, ProcessLookupError):
                os.kill(int((folder / "run" / LOCK).read_text()), kind)
        while in_use(folder / "run") and time.monotonic() < end:
            time.sleep(0.1)


def _complete(folder: Path) -> bool:
    return (folder / "run" / "result.json").exists() and not in_use(folder / "run")


def _round(folder: Path) -> int:
    path = folder / "run" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _deployment(folder: Path) -> tuple[dict[str, Any], Address]:
    table = tomllib.loads((folder / "deployment.toml").read_text(encoding="utf-8"))
    return table, address(table["address"])


@contextmanager
def _superlink(folder: Path, where: Address) -> Iterator["subprocess.Popen[bytes]"]:
    """The SuperLink, ready to be spoken to."""
    with socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((where.host, where.port))
        except OSError as error:
            raise OSError(f"cannot listen on {where}: {error}") from error
    table, _ = _deployment(folder)
    extra = {"FEDFILT_DEPLOYMENT": str(folder / "deployment.toml"), "FEDFILT_MOST_BYTES": str(table["most_bytes"])}
    with running(server_command(folder), folder / "flower", folder / "superlink.log", extra) as process:
        end = time.monotonic() + START
        while process.poll() is None and time.monotonic() < end:
            try:
                socket.create_connection((where.host, where.port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        if process.poll() is not None:
            log.warning("the SuperLink ended with code %d; see %s", process.returncode, folder / "superlink.log")
            time.sleep(PAUSE)
        try:
            yield process
        finally:
            _end_server_app(folder)
