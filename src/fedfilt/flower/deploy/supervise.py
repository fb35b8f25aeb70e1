"""Keeps a process alive and makes it end with us: on a device, its SuperNode. Standard library only.

After a SuperNode is killed, Flower refuses a new one for about a minute, until it counts the old one as offline; the
new one is restarted until it is accepted.
"""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedfilt._reading import MOST_TOML, read, toml_of
from fedfilt._start import PYTHON
from fedfilt._trust import check_trusted, code_in

log = logging.getLogger("fedfilt")
PAUSE = 5.0  # seconds before a process is started again


class Terminated(BaseException):
    """The user, or systemd, has asked this process to end."""


def environment(home: Path) -> dict[str, str]:
    """Flower's environment: no telemetry, nothing is installed, and its files are in `home`."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # import nothing from the current folder
    }


def device_command(folder: Path, port: int) -> list[str]:
    """The command that starts the SuperNode of a device's folder; `port` is for its own use on loopback."""
    own = tomllib.loads((folder / "device.toml").read_text(encoding="utf-8"))
    command = [*PYTHON, "-m", "fedfilt.flower.deploy.supernode", "--superlink", own["address"]]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    config = f'folder="{folder}"'
    if own["authentication"]:
        command += ["--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", str(folder / "key")]
    else:
        command += ["--insecure"]
        config += f" partition-id={own['number']}"
    return [*command, "--node-config", config]


def keep_device(folder: Path) -> None:
    """Run a device's SuperNode until stopped; restart it whenever it ends."""
    folder = checked(folder, "device.toml")
    with stoppable():
        while True:
            with running(device_command(folder, free_port()), folder / "flower") as process:
                code = process.wait()
            log.warning("the SuperNode ended with code %d; restarting it in %g s", code, PAUSE)
            time.sleep(PAUSE)


def experiment_table(server: Path) -> dict[str, Any]:
    """The experiment in an edge server's folder, from its Flower app; code that it names must be trusted."""
    path = server / "app" / "pyproject.toml"
    content = read(path, MOST_TOML, links=True)
    table = toml_of(str(toml_of(content)["tool"]["flwr"]["app"]["config"]["experiment"]).encode())
    check_trusted(path, content, code_in(table), [server])
    return table


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def checked(folder: Path, name: str) -> Path:
    """The folder, if `fedfilt deploy write` made it."""
    if not (folder / name).is_file():
        raise ValueError(f"{folder} must hold {name}, as fedfilt deploy write makes it")
    return folder.absolute()


def check_owner(folder: Path) -> None:
    """Refuse to write as root to another user's folder: that user could not read the files."""
    if os.geteuid() == 0 and folder.stat().st_uid != 0:
        raise ValueError(f"{folder} belongs to {folder.owner()}: run this as that user, with sudo -u {folder.owner()}")


@contextmanager
def running(
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
            start_new_session=True,  # a process group of its own, so that what it starts ends with it
            preexec_fn=end_with_parent,
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


def end_with_parent() -> None:
    """Have the system end this process when its parent ends, where that is possible."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@contextmanager
def stoppable(again: float = 0.0) -> Iterator[None]:
    """SIGTERM ends the block in good order.

    An exception raised by a signal is lost if it arrives while an object is being destroyed: Python ignores it there.
    Therefore it is raised `again` after these seconds if the block has not ended by then; 0: only once.
    """

    def stop(number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, again)
        raise Terminated

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    except Terminated:
        log.info("stopped")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
