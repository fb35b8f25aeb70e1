"""Keeps the processes of a deployment alive: a SuperNode on a device; on the edge server a SuperLink and the run.

Flower does not resume a run. When a SuperLink or a server app has died, a new Flower run is started, and the server app
goes on from its last checkpoint. A SuperNode that was killed is refused until Flower counts its old self as offline,
about a minute; it is started again until it is taken.
"""

import ctypes
import fcntl
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
from typing import TYPE_CHECKING, Any

from fedfilt.flower.deploy import Address, address, check_open, registered
from fedfilt.flower.supernode import START

if TYPE_CHECKING:
    from fedfilt.flower.control import Control

log = logging.getLogger("fedfilt")

PAUSE = 5.0  # seconds before a process is started again
FAILURES = 4  # runs that may end without a new round before we give up


class Stopped(Exception):
    """The user, or systemd, wants an end."""


def environment(home: Path) -> dict[str, str]:
    """Flower's environment: nothing is reported to anybody, nothing is installed, its files are in `home`."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONUNBUFFERED": "1",
    }


def device_command(folder: Path, port: int) -> list[str]:
    """The command that starts the SuperNode of a device's folder; `port` is for its own use on loopback."""
    own = tomllib.loads((folder / "device.toml").read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "fedfilt.flower.supernode", "--superlink", own["address"]]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    config = f'folder="{folder / "state"}"'
    if own["authentication"]:
        command += ["--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", str(folder / "key")]
    else:
        command += ["--insecure"]
        config += f" partition-id={own['number']} num-partitions={own['devices']}"
    return [*command, "--node-config", config]


def server_command(folder: Path) -> list[str]:
    """The command that starts the SuperLink of the edge server's folder."""
    table, where = _deployment(folder)
    command = [sys.executable, "-m", "fedfilt.flower.superlink", "--host", where.host, "--port", str(where.port)]
    command += ["--database", str(folder / "superlink.db"), "--disable-runtime-dependency-installation"]
    if not table["authentication"]:
        return [*command, "--insecure"]
    for option, name in (("ca-certfile", "ca.crt"), ("certfile", "server.crt"), ("keyfile", "server.key")):
        command += [f"--ssl-{option}", str(folder / "certificates" / name)]
    return [*command, "--enable-supernode-auth"]


def keep_device(folder: Path) -> None:
    """Run a device's SuperNode until we are told to stop; start it again whenever it ends."""
    folder = _checked(folder, "device.toml")
    with _stoppable():
        while True:
            with _process(device_command(folder, free_port()), folder / "flower") as process:
                code = process.wait()
            log.warning("the SuperNode ended with code %d; it is started again in %g s", code, PAUSE)
            time.sleep(PAUSE)


def keep_server(folder: Path, ready: Callable[[], None] = lambda: None) -> None:
    """Run the SuperLink and the experiment until it is complete; go on from the last checkpoint after any crash.

    `ready` is called whenever devices can join.
    """
    folder = _checked(folder, "deployment.toml")
    table, where = _deployment(folder)
    check_open(where, table["authentication"], table["insist"])
    failures, reached = 0, _round(folder)
    with _stoppable():
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
    from fedfilt.flower.control import control

    table, where = _deployment(folder)
    authority = folder / "certificates" / "ca.crt" if table["authentication"] else None
    with _superlink(folder, where) as superlink, control(str(where), authority) as link:
        register(table, link)
        ready()
        reached = -1
        while superlink.poll() is None and not _complete(folder) and reached != _round(folder):
            reached = _round(folder)
            _play(folder, superlink, link)


def register(table: dict[str, Any], link: "Control") -> None:
    """Register the devices' keys under their names; those that are registered already stay."""
    known = link.names()
    for device in registered(table) or []:
        if device.name not in known:
            link.register(device.name, device.public_key)


def keep_all(folder: Path) -> None:
    """Run the edge server and all devices on this machine until the run is complete, to try a deployment out."""
    _checked(folder / "server", "deployment.toml")
    here = [sys.executable, "-m", "fedfilt.cli", "deploy", "device"]
    with ExitStack() as stack:
        waiting = sorted((folder / "devices").iterdir())

        def ready() -> None:
            while waiting:
                device = waiting.pop(0)
                stack.enter_context(_process([*here, str(device)], device / "flower", device / "device.log"))

        keep_server(folder / "server", ready)


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _play(folder: Path, superlink: "subprocess.Popen[bytes]", link: "Control") -> None:
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
        if _busy(folder):
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
        if _busy(folder):
            with suppress(ValueError, ProcessLookupError):
                os.kill(int((folder / "run" / "lock").read_text()), kind)
        while _busy(folder) and time.monotonic() < end:
            time.sleep(0.1)


def _busy(folder: Path) -> bool:
    """Whether a server app has the run folder in use."""
    try:
        with (folder / "run" / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _complete(folder: Path) -> bool:
    return (folder / "run" / "result.json").exists() and not _busy(folder)


def _round(folder: Path) -> int:
    path = folder / "run" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _deployment(folder: Path) -> tuple[dict[str, Any], Address]:
    table = tomllib.loads((folder / "deployment.toml").read_text(encoding="utf-8"))
    return table, address(table["address"])


def _checked(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise ValueError(f"{folder} must hold {name}, as fedfilt deploy write makes it")
    return folder.absolute()


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
    with _process(server_command(folder), folder / "flower", folder / "superlink.log", extra) as process:
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


@contextmanager
def _process(
    command: list[str], home: Path, output: Path | None = None, extra: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ends with us, whatever ends us."""
    home.mkdir(parents=True, exist_ok=True)
    env = environment(home) | (extra or {})
    with ExitStack() as stack:
        stream = stack.enter_context(output.open("ab")) if output else None
        process = subprocess.Popen(
            command,
            env=env,
            stdout=stream,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,  # a group of its own, for what it starts must end with it
            preexec_fn=_end_with_parent,
        )
        try:
            yield process
        finally:
            try:
                if process.poll() is None:
                    process.terminate()
                    process.wait(15)
            except subprocess.TimeoutExpired:
                pass
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends what is inside in good order."""

    def stop(number: int, frame: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Stopped:
        log.info("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
