"""What benchmarks of deployments share: a deployment on loopback, and memory, CPU and bytes of its processes."""

import os
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from fedfilt._start import PROGRAM
from fedfilt._trust import VARIABLE
from fedfilt.flower.deploy.supervise import running
from fedfilt.runs.lines import read_lines

HERE = Path(__file__).resolve().parent
FEDFILT = PROGRAM
os.environ[VARIABLE] = "1"  # the sources that experiments and devices name here are ours
TICKS = os.sysconf("SC_CLK_TCK")
PATH = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])  # parts of ours for all processes


def written(experiment, building, port):
    """Write a deployment on loopback, with TLS and keys; its devices' folders by row."""
    command = [*FEDFILT, "deploy", "write", str(experiment), "--out", str(building), "--address", f"127.0.0.1:{port}"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": PATH}, stdout=subprocess.DEVNULL)
    return sorted((building / "devices").iterdir())


def server(building):
    """The edge server of a deployment, as long as it is needed."""
    command = [*FEDFILT, "deploy", "server", str(building / "server")]
    return running(command, building / "server" / "flower", building / "server.log", {"PYTHONPATH": PATH})


def device(folder, *words):
    """The process of a device."""
    command = [*FEDFILT, "deploy", "device", str(folder), *words]
    return running(command, folder / "flower", folder / "device.log", {"PYTHONPATH": PATH})


def until(condition, what, seconds=300.0, every=0.05):
    """What a condition gives when it first holds; a benchmark that waits in vain ends."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(every)
    return found


def said(log, words):
    """How often a log has these words."""
    return log.read_text(errors="replace").count(words) if log.exists() else 0


def lines(building):
    """The rounds that are played."""
    folder = building / "server" / "run"
    return read_lines(folder) if (folder / "metrics.jsonl").exists() else []


# --- processes ----------------------------------------------------------------------------------------------------


def tree(pid):
    """(pid, command) of a process and of all below it."""
    found, stack = [], [pid]
    while stack:
        one = stack.pop()
        try:
            stack += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
            command = Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found.append((one, command))
    return found


def memory(pid):
    """(proportional, resident) bytes of a process; zeros if it has ended."""
    try:
        rows = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    except OSError:
        return 0, 0
    sizes = {row[0]: int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"}
    return sizes.get("Pss:", 0), sizes.get("Rss:", 0)


def cpu_seconds(pid):
    """CPU time of a process tree up to now."""
    spent = 0
    for one, _ in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            spent += sum(map(int, fields[11:15]))  # own, and of children that have ended
    return spent / TICKS


# --- the network --------------------------------------------------------------------------------------------------


class Proxy:
    """Passes bytes on to a port and counts them: up from the device, down to it."""

    def __init__(self, port):
        self.up = self.down = 0
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                device, _ = self._server.accept()
            except OSError:  # closed
                return
            try:
                link = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                device.close()
                continue
            threading.Thread(target=self._pass, args=(device, link, "up"), daemon=True).start()
            threading.Thread(target=self._pass, args=(link, device, "down"), daemon=True).start()

    def _pass(self, source, target, way):
        with suppress(OSError):
            while block := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(block))
                target.sendall(block)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._server.close()


def proxies(folders, port, stack):
    """A proxy in front of every device, which its device.toml names from now on; they close with the stack."""
    made = [Proxy(port) for _ in folders]
    for own, proxy in zip(folders, made, strict=True):
        stack.callback(proxy.close)
        text = (own / "device.toml").read_text()
        (own / "device.toml").write_text(text.replace(str(port), str(proxy.port)))
    return made
