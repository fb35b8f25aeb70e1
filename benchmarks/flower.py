"""A deployment on Flower with TLS and keys, on loopback: seconds a round, bytes on the wire, memory per process.

Four devices train the paper's CNN; they send all, all, a tenth and a hundredth of their updates. Bytes are counted by a
proxy in front of every SuperNode, so TLS, HTTP and polling are in them.
Usage: python benchmarks/flower.py [rounds]
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedfilt.flower.deploy.supervise import free_port
from fedfilt.system.orders import Plan, Schedule
from fedfilt.system.wire import wire_size

HERE = Path(__file__).resolve().parent
DENSITIES = (1.0, 1.0, 0.1, 0.01)
SIZE = 53_002

EXPERIMENT = """
rounds = {rounds}
data = "{data}"
samples = {{ train = 45, local_test = 10, global_test = 20 }}
partition = {{ name = "labels", per_device = 3 }}
graph = {{ name = "rooms", rooms = 1, devices = 4 }}
scheduler = {{ name = "flower:ByDevice" }}
evaluation = {{ every = 1000 }}
"""


@dataclass(frozen=True)
class ByDevice:
    """Every device sends another share of its update."""

    def __call__(self, hardware, update_bytes):
        return Schedule([Plan(3, 1.0, density) for density in DENSITIES])


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
            device, _ = self._server.accept()
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


def processes(pid):
    """(name, proportional memory) of all processes below one."""
    found, stack = [], [pid]
    while stack:
        parent = stack.pop()
        try:
            stack += [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
            command = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
            lines = Path(f"/proc/{parent}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        names = (
            "flwr-serverapp",
            "flwr-clientapp",
            "flower-superexec",
            "fedfilt.flower.deploy.supernode",
            "fedfilt.flower.deploy.superlink",
        )
        text = b" ".join(command).decode()
        name = next((name for name in names if name in text), "supervisor (fedfilt deploy)")
        memory = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        found.append((name, memory))
    return found


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "fedfilt.cli", "deploy"]
    with tempfile.TemporaryDirectory() as folder:
        building, port = Path(folder) / "building", free_port()
        experiment = Path(folder) / "experiment.toml"
        experiment.write_text(EXPERIMENT.format(rounds=rounds, data="mnist"))
        write = [*command, "write", str(experiment), "--out", str(building), "--address", f"127.0.0.1:{port}"]
        subprocess.run(write, check=True, env=environment, stdout=subprocess.DEVNULL)
        proxies = [Proxy(port) for _ in DENSITIES]
        devices = sorted((building / "devices").iterdir())
        for device, proxy in zip(devices, proxies, strict=True):
            own = device / "device.toml"
            own.write_text(own.read_text().replace(str(port), str(proxy.port)))
        running = subprocess.Popen([*command, "all", str(building)], env=environment)
        marks, peak, log = [], {}, building / "server" / "run" / "metrics.jsonl"
        try:
            while running.poll() is None:
                done = log.read_bytes().count(b"\n") if log.exists() else 0
                if len(marks) <= done:
                    marks.append((time.monotonic(), [(proxy.up, proxy.down) for proxy in proxies]))
                for name, memory in processes(running.pid):
                    peak[name] = max(peak.get(name, 0), memory)
                time.sleep(0.1)
        finally:
            running.terminate()
            running.wait()
        assert running.returncode == 0
    # marks[0] is before round 1; the first round has the start of everything in it
    (start, before), (end, after) = marks[1], marks[rounds - 1]
    count = rounds - 2
    print(f"\n{(end - start) / count:.1f} s a round (mean of {count}, four devices on this machine)\n")
    print("density   packed update   up a round   down a round   (bytes; dense row down: 212,008)")
    for device, density in enumerate(DENSITIES):
        up, down = ((after[device][way] - before[device][way]) / count for way in (0, 1))
        budget = int(density * wire_size(SIZE, SIZE))
        print(f"{density:7g}   {budget:13,}   {up:10,.0f}   {down:12,.0f}")
    print("\npeak memory (proportional share of pages)")
    for name, memory in sorted(peak.items()):
        print(f"{name:28} {memory / 1e6:6.0f} MB")


if __name__ == "__main__":
    main()
