"""A resident device against Flower's SuperNode: a deployment with TLS and keys on loopback, four devices.

They train the paper's CNN and send all, all, a tenth and a hundredth of their updates. Both kinds take turns, as
other work on the machine slows them down; SuperNodes, which start processes, more than resident devices. Bytes are
counted by a proxy in front of every device, so TLS, HTTP and polling are in them. A device idles while the server waits
for the last one.
Usage: python benchmarks/flower.py [--quick]
"""

import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from common import conclude, heading
from fedfilt.flower.deploy.supervise import free_port
from fedfilt.system.orders import Plan, Schedule
from fedfilt.system.wire import wire_size
from processes import cpu_seconds, device, lines, memory, proxies, said, server, tree, until, written

DENSITIES = (1.0, 1.0, 0.1, 0.01)
SIZE = 53_002
SETTLE = 40.0  # seconds until polling is as seldom as it gets
HOUR = 3600.0
SERVER = {  # words of a command -> what it is
    "fedfilt.flower.deploy.superlink": "SuperLink",
    "flower-superexec": "SuperExec",
    "flwr-serverapp": "server app",
    "deploy server": "supervisor",
}

EXPERIMENT = """
rounds = {rounds}
data = "mnist"
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


@dataclass(frozen=True)
class Kind:
    """A way to be a device."""

    words: tuple  # of the command
    ready: str  # what it says when it is connected
    rounds: int


@dataclass
class Found:
    """What was measured of a kind."""

    ready: list = field(default_factory=list)  # seconds from the start of a device to its connection
    rounds: list = field(default_factory=list)  # seconds
    last: list = field(default_factory=list)  # seconds of the last round, which also hands out the models
    memory: list = field(default_factory=list)  # (proportional, resident) peak of a device
    server: dict = field(default_factory=dict)  # process -> proportional peak
    idle_cpu: float = 0.0  # seconds per hour and device
    idle_bytes: float = 0.0  # per hour and device
    traffic: list = field(default_factory=list)  # (up, down) bytes a round by device


class Watch:
    """Looks at the memory of devices and server while they work."""

    def __init__(self, devices, server):
        self.devices, self.server = [(0, 0)] * len(devices), defaultdict(int)
        self._pids, self._server, self._end = [one.pid for one in devices], server.pid, threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self):
        while not self._end.wait(0.25):
            for number, pid in enumerate(self._pids):
                sizes = [memory(one) for one, _ in tree(pid)]
                now = tuple(map(sum, zip(*sizes, strict=True))) if sizes else (0, 0)
                self.devices[number] = tuple(map(max, self.devices[number], now))
            for pid, command in tree(self._server):
                name = next((name for words, name in SERVER.items() if words in command), None)
                if name:
                    self.server[name] = max(self.server[name], memory(pid)[0])

    def close(self):
        self._end.set()


def measure(kind, found, idle):
    """Play a deployment with devices of one kind; with `idle`, look so many seconds at devices that wait."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        building, port = Path(folder) / "building", free_port()
        experiment = Path(folder) / "experiment.toml"
        experiment.write_text(EXPERIMENT.format(rounds=kind.rounds))
        folders = written(experiment, building, port)
        between = proxies(folders, port, stack)
        edge = stack.enter_context(server(building))
        until(lambda: said(building / "server.log", "Flower run"), "the start of the edge server")
        time.sleep(3)  # the server app starts
        devices = []
        for own in folders:
            if len(devices) == len(folders) - 1 and idle:
                idling(devices, between, idle, found)
            start = time.monotonic()
            devices.append(stack.enter_context(device(own, *kind.words)))
            until(lambda own=own: said(own / "device.log", kind.ready), "a device is ready", every=0.02)
            found.ready.append(time.monotonic() - start)
        watch = Watch(devices, edge)
        marks = []
        while len(marks) <= kind.rounds:  # the first mark is before round 1, with the start of everything in it
            until(lambda: len(lines(building)) >= len(marks), "a round", 600)
            marks.append([(proxy.up, proxy.down) for proxy in between])
        until(lambda: edge.poll() is not None, "the end of the run")
        watch.close()
        assert edge.returncode == 0
        played = lines(building)
        assert not any(line.get("absent") for line in played)
        *seconds, last = [line["seconds"] for line in played]
        found.rounds += seconds
        found.last.append(last)
        found.memory += watch.devices
        found.server = dict(watch.server)
        before, after, count = marks[1], marks[-2], len(marks) - 3
        found.traffic = [
            tuple((new - old) / count for old, new in zip(*pair, strict=True))
            for pair in zip(before, after, strict=True)
        ]


def idling(devices, proxies, seconds, found):
    """CPU time and bytes of devices that wait for an order."""
    time.sleep(min(SETTLE, seconds))

    def state():
        wire = sum(proxy.up + proxy.down for proxy in proxies)
        return time.monotonic(), sum(cpu_seconds(one.pid) for one in devices), wire

    begin = state()
    time.sleep(seconds)
    spent, cpu, wire = (end - start for start, end in zip(begin, state(), strict=True))
    share = HOUR / spent / len(devices)
    found.idle_cpu, found.idle_bytes = cpu * share, wire * share


def main():
    quick = "--quick" in sys.argv[1:]
    heading("flwr")
    kinds = {
        "resident": Kind((), "is connected to", 6 if quick else 14),
        "SuperNode": Kind(("--supernode",), "SuperNode ID", 4 if quick else 6),
    }
    found = {name: Found() for name in kinds}
    for turn in range(1 if quick else 2):
        for name, kind in kinds.items():
            print(f"turn {turn + 1}: {name}", file=sys.stderr, flush=True)
            measure(kind, found[name], idle=0 if turn else 10 if quick else 90)
    table(found)
    mine, other = found["resident"], found["SuperNode"]
    resident = max(one[1] for one in mine.memory) / 1e6
    conclude(
        [
            ("a round with resident devices takes 2 s", 2 / statistics.median(mine.rounds), 1.0),
            ("and a sixth of one with SuperNodes", statistics.median(other.rounds) / statistics.median(mine.rounds), 6),
            ("a resident device takes at most 100 MB", 100 / resident, 1.0),
            ("it is ready within 2 s", 2 / statistics.median(mine.ready), 1.0),
        ]
    )


def table(found):
    """All that was found, as the page on deployments shows it."""
    print("|", *[f"| {name}" for name in found], "|")
    print("|---" * (1 + len(found)) + "|")
    rows = {
        "seconds a round, median (least)": lambda one: f"{statistics.median(one.rounds):.2f} ({min(one.rounds):.2f})",
        "the last round, with the models": lambda one: f"{statistics.median(one.last):.1f} s",
        "seconds from start to ready": lambda one: f"{statistics.median(one.ready):.1f} ({min(one.ready):.1f})",
        "peak memory of a device, proportional": lambda one: f"{max(size[0] for size in one.memory) / 1e6:.0f} MB",
        "and resident": lambda one: f"{max(size[1] for size in one.memory) / 1e6:.0f} MB",
        "CPU of an idle device": lambda one: f"{one.idle_cpu:.0f} s/h",
        "bytes of an idle device": lambda one: f"{one.idle_bytes / 1e6:.1f} MB/h",
    }
    for name, cell in rows.items():
        print(f"| {name} |", " | ".join(cell(one) for one in found.values()), "|")
    print(f"\n| density | packed update |{'|'.join(f' {name}: up | down a round ' for name in found)}|")
    print("|---" * (2 + 2 * len(found)) + "|")
    for number, density in enumerate(DENSITIES):
        cells = [f"{size / 1e3:.1f} kB" for one in found.values() for size in one.traffic[number]]
        print(f"| {density:g} | {int(density * wire_size(SIZE, SIZE)):,} B |", " | ".join(cells), "|")
    print("\n| edge server | peak memory (proportional) |\n|---|---|")
    for name, size in found["resident"].server.items():
        print(f"| {name} | {size / 1e6:.0f} MB |")


if __name__ == "__main__":
    main()
