"""How many messages a second the edge server of a home holds, and how soon a room's decision follows a device's.

In one process on the bus in memory, and on a Mosquitto with TLS, QoS 1 and a certificate per device, where a device
decides twice a second while fifty others send as fast as they are told. Usage: python benchmarks/home.py
"""

import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from fedfilt.flower.deploy.address import Address
from fedfilt.flower.deploy.certificates import certificates, client
from fedfilt.flower.deploy.supervise import free_port
from fedfilt.home.bus import Memory
from fedfilt.home.clock import Clock
from fedfilt.home.edge import OFFLINE, Edge
from fedfilt.home.mqtt import Keys, Mqtt
from fedfilt.home.topics import Decision, Status, Topics, written

if __name__ == "__main__":  # the processes that are measured do without
    from common import heading
    from fedfilt.flower.deploy.home import ACL, MOSQUITTO

LABELS = [f"activity-{number}" for number in range(10)]
SHARES = (0.55, *(0.05,) * 9)
OTHERS = {f"device-{number:02d}": f"room-{number // 5}" for number in range(50)}
DEVICES = {"watch": "kitchen", **OTHERS}
TOPICS = Topics("villa")
SECONDS = 15.0


def decided():
    return written(Decision(time.time(), 1, SHARES))


def in_memory():
    """Messages a second that one process reads and counts, and the time that a vote takes."""
    bus = Memory()
    edge = Edge(bus, Clock(), TOPICS, LABELS, DEVICES)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < 5:
        for name in OTHERS:
            bus.publish(TOPICS.decision(name), decided())
        edge.step()
        count += len(OTHERS)
    print(
        f"in memory: {count / (time.perf_counter() - start):,.0f} decisions a second written, read and put to the vote"
    )


def edge_server(folder, port, ready, stop, told):
    bus = Mqtt("127.0.0.1", port, "edge", keys=Keys.of(folder / "edge"), will=(TOPICS.edge, OFFLINE))
    edge = Edge(bus, Clock(), TOPICS, LABELS, DEVICES, folder=folder / "home")
    running = threading.Event()
    threading.Thread(target=edge.run, args=(running,), daemon=True).start()
    bus.wait(30)
    ready.set()
    while not stop.wait(0.5):
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        told[:] = edge.received, used.ru_utime + used.ru_stime, pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    running.set()
    bus.close()


def flood(folder, port, names, rate, stop, sent):
    """Send so many decisions a second, by as many devices."""
    buses = [Mqtt("127.0.0.1", port, name, keys=Keys.of(folder / name)) for name in names]
    for bus, name in zip(buses, names, strict=True):
        bus.wait(30)
        bus.publish(TOPICS.status(name), written(Status(online=True, accuracy=0.8)), retain=True)
    start, count = time.monotonic(), 0
    while not stop.is_set():
        due = int((time.monotonic() - start) * rate) - count
        for number in range(min(due, 2000)):
            place = (count + number) % len(names)
            buses[place].publish(TOPICS.decision(names[place]), decided())
        count += due if due <= 2000 else 2000
        sent.value = count - sum(bus.dropped.total() for bus in buses)
        time.sleep(0.002)
    for bus in buses:
        bus.close()


def on_a_broker(folder, rate):
    """Latency of a room's decision while others send `rate` messages a second together."""
    port, context = free_port(), multiprocessing.get_context("spawn")
    shutil.copytree(folder / "broker", folder / "now", dirs_exist_ok=True)
    place = folder / "now"
    conf = MOSQUITTO.format(port=port, bind=" 127.0.0.1", place=place, user="root" if os.getuid() == 0 else "nobody")
    (place / "mosquitto.conf").write_text(conf)
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin") or "mosquitto"
    broker = subprocess.Popen(
        [program, "-c", place / "mosquitto.conf"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ready, stop, told, sent = context.Event(), context.Event(), context.Array("d", 3), context.Value("q", 0)
    processes = [context.Process(target=edge_server, args=(folder, port, ready, stop, told))]
    if rate:
        processes.append(context.Process(target=flood, args=(folder, port, list(OTHERS), rate, stop, sent)))
    taken, heard = [], threading.Event()
    try:
        for process in processes:
            process.start()
        ready.wait(60)
        watch = Mqtt("127.0.0.1", port, "watch", keys=Keys.of(folder / "watch"))
        look = Mqtt("127.0.0.1", port, "homeassistant", keys=Keys.of(folder / "homeassistant"))

        def room(_, content):
            taken.append(time.time() - json.loads(content)["at"])
            heard.set()

        look.subscribe(TOPICS.state("kitchen"), room, retained=False)
        watch.wait(30)
        look.wait(30)
        time.sleep(3)
        begin, before, end = time.monotonic(), [*told, sent.value], time.monotonic() + SECONDS
        taken.clear()
        asked = 0
        while time.monotonic() < end:
            watch.publish(TOPICS.decision("watch"), decided())
            asked += 1
            time.sleep(0.5)
        time.sleep(1)
        passed = time.monotonic() - begin
        after = [*told, sent.value]
        stop.set()
        watch.close()
        look.close()
    finally:
        stop.set()
        for process in processes:
            process.join(30)
        broker.terminate()
        broker.wait()
    taken.sort()
    received, cpu, _, left = ((new - old) / passed for new, old in zip(after, before, strict=True))
    median, worst = (f"{1e3 * taken[int(share * (len(taken) - 1))]:.0f}" if taken else "-" for share in (0.5, 0.99))
    cells = f"{median} ms", f"{worst} ms", f"{len(taken)} of {asked}", f"{cpu:.0%}", f"{after[2]:.0f} MB"
    print(f"| {rate:,} | {left:,.0f} | {received:,.0f} |", " | ".join(cells), "|", flush=True)


def main():
    heading("paho-mqtt")
    in_memory()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates(folder / "broker", Address("127.0.0.1", 1))
        (folder / "broker" / "data").mkdir()
        (folder / "broker" / "acl").write_text(
            ACL.format(home="villa", edge="edge", assistant="homeassistant", people="people")
        )
        for who in ("edge", "homeassistant", *DEVICES):
            client(folder / "broker", folder / who, who)
        print("\n| asked for | sent a second | received | median | 99 % | votes | CPU of the edge server | memory |")
        print("|---|---|---|---|---|---|---|---|")
        for rate in (0, 100, 1000, 10_000):
            on_a_broker(folder, rate)


if __name__ == "__main__":
    sys.exit(main())
