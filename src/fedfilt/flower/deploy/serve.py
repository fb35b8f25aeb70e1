"""Keeps the edge server of a deployment alive: a SuperLink and the run on it.

Flower does not resume a run. When a SuperLink or a server app has died, a new Flower run is started, and the server app
continues from its last checkpoint.
"""

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from fedfilt._files import LOCK, in_use
from fedfilt._start import PROGRAM, PYTHON
from fedfilt._types import Table
from fedfilt.engines.flower._compat import START, Control
from fedfilt.flower.deploy.address import Address, Site, check_open
from fedfilt.flower.deploy.control import control, register
from fedfilt.flower.deploy.renewal import daily, renew_due
from fedfilt.flower.deploy.supervise import PAUSE, Terminated, checked, experiment_table, running, stoppable

log = logging.getLogger("fedfilt")
ASK = 5.0  # seconds between two queries of a run's status, each of which the SuperLink logs
MOST_LOG = 8_000_000  # bytes of a log; there is one older one
FAILURES = 4  # Flower runs that may end without a new round before we give up


def server_command(folder: Path) -> list[str]:
    """The command that starts the SuperLink of the edge server's folder."""
    site = Site.read(_deployment(folder))
    where = site.where
    command = [*PYTHON, "-m", "fedfilt.flower.deploy.superlink", "--host", where.host, "--port", str(where.port)]
    command += ["--database", str(folder / "superlink.db"), "--disable-runtime-dependency-installation"]
    if not site.authentication:
        return [*command, "--insecure"]
    for option, name in (("ca-certfile", "ca.crt"), ("certfile", "server.crt"), ("keyfile", "server.key")):
        command += [f"--ssl-{option}", str(folder / "certificates" / name)]
    return [*command, "--enable-supernode-auth"]


def _nothing() -> None:
    pass


def keep_server(folder: Path, ready: Callable[[], None] = _nothing, done: Callable[[], None] = _nothing) -> None:
    """Run the SuperLink and the experiment until it is complete; continue from the last checkpoint after any crash.

    `ready` is called whenever devices can connect, `done` when they should leave, before the SuperLink ends.
    """
    folder = checked(folder, "deployment.toml")
    experiment_table(folder)  # refuses at once if it names code that is not trusted
    site = Site.read(_deployment(folder))
    check_open(site.where, site.authentication, site.insist)
    failures, reached, renew = 0, _round(folder), daily(partial(renew_due, folder))
    with stoppable():
        while not _complete(folder):
            try:
                _serve(folder, ready, done, renew)
            except OSError as error:
                log.warning("%s", error)
            if _complete(folder):
                break
            failures = failures + 1 if _round(folder) == reached else 0
            reached = _round(folder)
            if failures == FAILURES:
                raise OSError(f"the run failed {FAILURES} times without a new round; see {folder}/*.log")
            log.warning("the run stopped after round %d; a new one continues from there", reached)
            time.sleep(1.0)
        log.info("all rounds are played; to look at them: fedfilt report %s", folder / "run")


def _serve(folder: Path, ready: Callable[[], None], done: Callable[[], None], renew: Callable[[], None]) -> None:
    """Run a SuperLink and one Flower run after the other on it, as long as they make progress."""
    renew()
    site = Site.read(_deployment(folder))
    authority = folder / "certificates" / "ca.crt" if site.authentication else None
    with _superlink(folder, site.where) as superlink, control(str(site.where), authority) as link:
        register(_deployment(folder), link)
        ready()
        reached = -1
        try:
            while superlink.poll() is None and not _complete(folder) and reached != _round(folder):
                reached = _round(folder)
                _play(folder, superlink, link, renew)
        except Terminated:
            done()
            raise
        if _complete(folder):
            done()


def keep_all(folder: Path, supernode: bool = False) -> None:
    """Run the edge server and all devices on this machine until the run is complete, to try a deployment out."""
    checked(folder / "server", "deployment.toml")
    here = [*PROGRAM, "deploy", "device", *(["--supernode"] if supernode else [])]
    members = {device["name"] for device in _deployment(folder / "server")["device"] if not device.get("gone")}
    with ExitStack() as stack:
        waiting = sorted(path for path in (folder / "devices").iterdir() if path.name in members)

        def ready() -> None:
            while waiting:
                device = waiting.pop(0)
                stack.enter_context(running([*here, str(device)], device / "flower", device / "device.log"))

        keep_server(folder / "server", ready, stack.close)


def _play(folder: Path, superlink: "subprocess.Popen[bytes]", link: Control, renew: Callable[[], None]) -> None:
    """Start a Flower run, and return when it or the SuperLink has ended.

    Flower takes a minute to notice that a server app was killed; its lock on the run folder is gone at once.
    """
    _end_server_app(folder)  # of a run before this one
    run = link.start(folder / "app")
    log.info("Flower run %d continues after round %d", run, _round(folder))
    told = _tell(folder, None)
    seen = asked = 0.0  # when the server app was last seen; it takes a while to start
    while superlink.poll() is None and not _complete(folder):
        told = _tell(folder, told)
        renew()
        if in_use(folder):
            seen = time.monotonic()
        elif seen and time.monotonic() - seen > 2.0:
            log.warning("the server app of Flower run %d is gone", run)
            link.stop(run)
            return
        if time.monotonic() - asked > ASK:
            asked, status = time.monotonic(), link.run(run).status
            for path in (folder / "superlink.log", *folder.parent.glob("devices/*/device.log")):
                bound(path)
            told = 0 if bound(folder / "run.log") else told
            if status.status == "finished":
                log.warning("Flower run %d ended: %s %s", run, status.sub_status, status.details)
                return
        time.sleep(0.5)
    _tell(folder, told)


def bound(path: Path) -> bool:
    """Once a log that another process writes is large, move its content to NAME.1.log and empty it."""
    with suppress(OSError):
        if path.stat().st_size > MOST_LOG:
            shutil.copyfile(path, path.with_suffix(".1.log"))
            os.truncate(path, 0)
            return True
    return False


def _tell(folder: Path, since: int | None) -> int:
    """Pass on what the server app logged since a position in its log (None: none yet); returns the new position."""
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
    """End a server app that has outlived its SuperLink: it would keep the folder in use and retry for ever."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + 5
        if in_use(folder):
            with suppress(ValueError, ProcessLookupError):
                os.kill(int((folder / LOCK).read_text()), kind)
        while in_use(folder) and time.monotonic() < end:
            time.sleep(0.1)


def _complete(folder: Path) -> bool:
    return (folder / "run" / "result.json").exists() and not in_use(folder)


def _round(folder: Path) -> int:
    path = folder / "run" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _deployment(folder: Path) -> Table:
    return tomllib.loads((folder / "deployment.toml").read_text(encoding="utf-8"))


@contextmanager
def _superlink(folder: Path, where: Address) -> Iterator["subprocess.Popen[bytes]"]:
    """A SuperLink that is ready for requests."""
    with socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((where.host, where.port))
        except OSError as error:
            raise OSError(f"cannot listen on {where}: {error}") from error
    most = _deployment(folder)["most_bytes"]
    extra = {"FEDFILT_DEPLOYMENT": str(folder / "deployment.toml"), "FEDFILT_MOST_BYTES": str(most)}
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
