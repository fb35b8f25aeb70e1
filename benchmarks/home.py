"""What a living home costs: deciding, a flood of messages, and the time until Home Assistant shows what a room does.

Everything runs on one machine: Mosquitto with TLS and the ACL of `fedfilt home write`, `fedfilt home run`, `fedfilt
device` with recordings of the watch data set and, where tests/home_assistant.py finds one, a real Home Assistant.

    python benchmarks/home.py              all of it: a quarter of an hour
    python benchmarks/home.py decide       decisions a second on one core
    python benchmarks/home.py flood        messages a second that the edge server holds
    python benchmarks/home.py assistant    devices in real time, to Home Assistant
"""

import argparse
import bisect
import json
import logging
import multiprocessing
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import numpy as np

from common import heading, interleaved
from fedfilt.data.own import Making
from fedfilt.data.store import Store
from fedfilt.data.windows import Scaling
from fedfilt.datasets import Watch
from fedfilt.flower.deploy.certificates import client
from fedfilt.flower.deploy.supervise import free_port, running
from fedfilt.home.bus import Memory
from fedfilt.home.clock import Clock
from fedfilt.home.decider import Decider
from fedfilt.home.edge import Edge
from fedfilt.home.mqtt import Keys, Mqtt
from fedfilt.home.readings import Reading
from fedfilt.home.stream import Stream
from fedfilt.home.topics import Decision, Status, Topics, room_state, written
from fedfilt.models import Motifs
from fedfilt.training.kept import Kept, take
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer
from processes import FEDFILT, HERE, PATH, cpu_seconds, lines, memory, server, until
from processes import written as deployment

PARTS = ("decide", "flood", "assistant")
TOPICS = Topics("villa")
LABELS = [f"activity-{number}" for number in range(10)]
SHARES = (0.55, *(0.05,) * 9)
OTHERS = {f"device-{number:03d}": f"room-{number // 5}" for number in range(1, 51)}
WATCH = "device-000"  # which decides five times a second while the others flood
COLUMNS = "asked for", "sent", "received", "dropped by the broker", "median", "99 %", "votes"
COLUMNS += "CPU of the edge server", "of the broker", "memory of the edge server"
RATES, PAUSE = (0, 100, 1000, 10_000), 0.2
UNANSWERED = 20  # messages that Mosquitto takes from a client before it has acknowledged the first
STATE, DROPPED = TOPICS.state("kitchen"), "$SYS/broker/publish/messages/dropped"

FLOODED = """
[data]
name = "own"
shape = [6, 100]
labels = {labels}
folders = ""

[graph]
name = "homes"
rooms = 51
devices = 51

[model]
name = "motifs"
"""
SOURCE = '[source]\nname = "replay"\nfile = "data/recordings.csv"\nagain = true\n'
OVERRIDES = "rounds=1000 partition.unseen=8 graph.rooms=2 graph.devices=4 graph.inside=true graph.between=none"


# --- deciding -----------------------------------------------------------------------------------------------------


def deciding(_):
    """What a process does in a second on one core, on a bus in memory."""
    signal = np.concatenate([one.signal for one in Watch().recordings(Store()) if one.device == 0]).astype(np.float32)
    making = Making((6, 100), Watch.labels, Watch().step, 50.0)
    trainer = Trainer(Motifs(making.shape, len(making.labels)), Training(), making.shape)
    row, scaling = trainer.start(0), Scaling.of(signal.T[None])
    readings = [Reading(number / 50, values) for number, values in enumerate(signal)]
    stream = Stream(making)
    windows = [window for one in readings if (window := stream.push(one)) is not None]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("data", "state"):
            (folder / part).mkdir()
        take(folder / "state", Kept(row, 1, scaling.to_json()), trainer.layout)
        decider = Decider(folder, making, trainer, Memory().member(), TOPICS, "watch", "kitchen")

        def live():
            for one in readings:
                if (window := decider.stream.push(one)) is not None:
                    decider.decide(window)

        bus, home = Memory(), {WATCH: "kitchen", **OTHERS}
        edge = Edge(bus, Clock(), TOPICS, LABELS, home)

        def vote():
            for number in range(len(windows)):
                bus.publish(TOPICS.decision(list(home)[number % len(home)]), written(Decision(time.time(), 1, SHARES)))
                if not number % len(home):
                    edge.step()

        best = interleaved(
            {
                "fifty readings to a decision": live,
                "a window to a decision": lambda: [decider.decide(window) for window in windows],
                "the model alone": lambda: [trainer.predict(row, scaling.apply(one.values[None])) for one in windows],
                "a decision read and put to the vote": vote,
            },
            20,
        )
    print(f"| on one core ({trainer.backend}) | a second | each |\n|---|---|---|")
    for what, seconds in best.items():
        print(f"| {what} | {len(windows) / seconds:,.0f} | {1e6 * seconds / len(windows):.0f} µs |")
    print(flush=True)


# --- a home of commands -------------------------------------------------------------------------------------------


class Home:
    """A home as the commands write it, its broker and its edge server, and somebody who may read everything."""

    def __init__(self, stack, folder, experiment, rooms, *patterns):
        """`patterns` are of topics that are read."""
        self.building, port = folder / "building", free_port()
        deployment(experiment, self.building, free_port())
        words = [word for name, room in rooms.items() for word in ("--room", f"{name}={room}")]
        where = ["--home", TOPICS.home, "--address", f"127.0.0.1:{port}"]
        self.port = port
        command = [*FEDFILT, "home", "write", str(self.building), *where, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with (self.building / "broker" / "acl").open("a") as acl:
            acl.write("\nuser reader\ntopic read #\ntopic read $SYS/#\n")
        with (self.building / "broker" / "mosquitto.conf").open("a") as file:
            file.write("sys_interval 1\n")
        client(self.building / "server" / "certificates", self.building / "reader", "reader")
        logs = {"output": folder / "log", "extra": {"PYTHONPATH": PATH}}
        start = [str(self.building / "broker" / "start.sh")]
        self.broker = stack.enter_context(running(start, folder / "flower", **logs))
        edge = [*FEDFILT, "home", "run", str(self.building / "server")]
        self.edge = stack.enter_context(running(edge, folder / "flower", **logs))
        self.reader = self.bus("reader", "reader")
        stack.callback(self.reader.close)
        self.heard = {}  # by topic, (when, content)
        for pattern in (TOPICS.edge, *patterns):
            self.reader.subscribe(pattern, self._hear)
        until(lambda: self.heard.get(TOPICS.edge), "the edge server is online")

    def bus(self, folder, name):
        """Somebody on the broker."""
        return Mqtt("127.0.0.1", self.port, name, keys=Keys.of(self.building / folder))

    def _hear(self, topic, content):
        self.heard.setdefault(topic, []).append((time.time(), content))

    def state(self):
        """What the edge server says of itself."""
        return json.loads((self.building / "server" / "home" / "state.json").read_text())


def latencies(decisions, states):
    """Seconds from each decision, by its time, to the first (when, at) of the room's states that is no older."""
    newest, first = [], []
    for when, at in states:
        if not newest or at > newest[-1]:
            newest.append(at)
            first.append(when)
    places = [(at, bisect.bisect_left(newest, at)) for at in decisions]
    return sorted(first[place] - at for at, place in places if place < len(first))


def spread(seconds):
    """Median and 99 % as cells of a table."""
    if not seconds:
        return ["-", "-"]
    return [f"{1e3 * seconds[min(int(share * len(seconds)), len(seconds) - 1)]:.0f} ms" for share in (0.5, 0.99)]


def megabytes(pid):
    """Memory of a process as cells of a table: its share (PSS), resident (RSS), and the most that was resident."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    most = next(1024 * int(row.split()[1]) for row in rows if row.startswith("VmHWM"))
    return [f"{size / 1e6:.0f} MB" for size in (*memory(pid), most)]


# --- a flood ------------------------------------------------------------------------------------------------------


class Line:
    """A device on the broker with next to no work for a message: packets are put together here. MQTT 5, TLS, QoS 1."""

    def __init__(self, building, port, name):
        keys = Keys.of(building / "devices" / name / "mqtt")
        context = ssl.create_default_context(cafile=keys.ca)
        context.load_cert_chain(keys.certificate, keys.key)
        self._topic = TOPICS.decision(name).encode()
        self.sent = self.open = 0
        self._left = b""
        self.socket = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")
        self.socket.sendall(_packet(0x10, _text(b"MQTT") + b"\x05\x02" + struct.pack("!H", 60) + b"\0" + _text(b"")))
        assert self.socket.recv(4096)[0] == 0x20
        about = written(Status(online=True, accuracy=0.8))
        self.socket.sendall(_packet(0x31, _text(TOPICS.status(name).encode()) + b"\0" + about))

    def send(self, count, content):
        """Send a decision so many times."""
        expiry = struct.pack("!BBI", 5, 2, 60)
        ids = [struct.pack("!H", (self.sent + place) % 65535 + 1) for place in range(count)]
        self.socket.sendall(b"".join(_packet(0x32, _text(self._topic) + one + expiry + content) for one in ids))
        self.sent += count
        self.open += count

    def read(self):
        """Take note of what the broker has acknowledged."""
        self._left += self.socket.recv(1 << 14)
        while len(self._left) >= 2 and len(self._left) >= 2 + self._left[1]:
            self.open -= self._left[0] == 0x40
            self._left = self._left[2 + self._left[1] :]


def _text(content):
    return struct.pack("!H", len(content)) + content


def _packet(kind, content):
    size = len(content)
    return bytes([kind, *([size] if size < 128 else [size % 128 | 128, size // 128])]) + content


def flood(building, port, rate, stop, sent):
    """Send so many decisions a second, by fifty devices."""
    senders = [Line(building, port, name) for name in OTHERS]
    by_socket = {one.socket: one for one in senders}
    start = time.monotonic()
    while not stop.wait(0.002):
        for ready in select.select(list(by_socket), [], [], 0)[0]:
            by_socket[ready].read()
        due = int((time.monotonic() - start) * rate / len(senders))
        content = written(Decision(time.time(), 1, SHARES))
        for one in senders:
            if (count := min(due - one.sent, UNANSWERED - one.open)) > 0:
                one.send(count, content)
        sent.value = sum(one.sent for one in senders)


def flooded(home, rate, seconds):
    """A row of the table: how a room fares while others send `rate` messages a second together."""
    context = multiprocessing.get_context("spawn")
    stop, sent = context.Event(), context.Value("q", 0)
    sender = context.Process(target=flood, args=(home.building, home.port, rate, stop, sent))
    watch, decisions = home.bus(f"devices/{WATCH}/mqtt", WATCH), []

    def counted():
        told = home.state()
        lost = int(home.heard[DROPPED][-1][1])
        used = cpu_seconds(home.edge.pid), cpu_seconds(home.broker.pid)
        return [time.monotonic(), sent.value, told["received"], lost, *used]

    try:
        if rate:
            sender.start()
            until(lambda: sent.value > rate, "the flood has begun")
        watch.publish(TOPICS.status(WATCH), written(Status(online=True, accuracy=0.8)), retain=True)
        time.sleep(5)
        home.heard.pop(STATE, None)
        before = counted()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            decisions.append(time.time())
            watch.publish(TOPICS.decision(WATCH), written(Decision(decisions[-1], 1, SHARES)))
            time.sleep(PAUSE)
        time.sleep(2)
        after = counted()
    finally:
        stop.set()
        watch.close()
        if rate:
            sender.join(30)
    passed = after[0] - before[0]
    left, received, lost, edge, broker = ((new - old) / passed for new, old in zip(after[1:], before[1:], strict=True))
    states = [(when, room_state(content).at) for when, content in home.heard[STATE]]
    votes = len({at for _, at in states} & set(decisions))
    cells = [f"{rate:,}", f"{left:,.0f}", f"{received:,.0f}", f"{lost:,.0f}", *spread(latencies(decisions, states))]
    cells += [f"{votes} of {len(decisions)}", f"{edge:.0%}", f"{broker:.0%}", megabytes(home.edge.pid)[1]]
    print("|", " | ".join(cells), "|", flush=True)
    time.sleep(5)


def floods(seconds):
    """Messages a second that the edge server holds, and what that does to a device that sends few."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "experiment.toml").write_text(FLOODED.format(labels=LABELS))
        home = Home(stack, folder, folder / "experiment.toml", {WATCH: "kitchen", **OTHERS}, STATE, DROPPED)
        print("|", " | ".join(COLUMNS), "|\n" + "|---" * len(COLUMNS) + "|")
        for rate in RATES:
            flooded(home, rate, seconds)
    print(flush=True)


# --- Home Assistant -----------------------------------------------------------------------------------------------


def showing(assistant, found):
    """Note when Home Assistant changes a state: by entity, (when, state, attributes)."""
    for event in assistant.events():
        if event.get("event_type") == "state_changed" and (new := event["data"]["new_state"]):
            when = datetime.fromisoformat(event["time_fired"]).timestamp()
            found[new["entity_id"]].append((when, new["state"], new["attributes"]))


def shown(states, events):
    """(when, at) of the states of a room as Home Assistant shows them: the first event that has all of one."""
    found, place = [], 0
    for state in states:
        for later in range(place, len(events)):
            when, activity, about = events[later]
            if when > state.at and (activity, about.get("probabilities")) == (state.activity, state.probabilities):
                found.append((when, state.at))
                place = later
                break
    return found


def in_assistant(seconds):
    """Real devices in real time, to Home Assistant."""
    sys.path.append(str(HERE.parent / "tests"))
    from home_assistant import INTERPRETER, Assistant

    if INTERPRETER is None:
        print("no Home Assistant here: see tests/home_assistant.py")
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        watch = str(HERE.parent / "experiments" / "watch.toml")
        split = [*FEDFILT, "data", "split", watch, *OVERRIDES.split(), "engine.every=1min", "--recordings"]
        subprocess.run([*split, "--out", str(folder / "homes")], check=True, stdout=subprocess.DEVNULL)
        rooms = {f"device-{number:03d}": ("kitchen", "study")[number // 2] for number in range(4)}
        home = Home(stack, folder, folder / "homes" / "experiment.toml", rooms, TOPICS.state("+"), TOPICS.decision("+"))

        def start(words, log):
            return stack.enter_context(running(list(map(str, words)), folder / "flower", log, {"PYTHONPATH": PATH}))

        place = folder / "assistant", free_port(), ("127.0.0.1", home.port), home.building / "assistant"
        assistant = Assistant(*place, start)
        until(assistant.up, "Home Assistant answers", every=1.0)
        stack.enter_context(server(home.building))
        devices = {}
        for name in rooms:
            (home.building / "devices" / name / "own.toml").write_text(SOURCE)
            devices[name] = start([*FEDFILT, "device", home.building / "devices" / name], folder / f"{name}.log")
        until(lambda: len(lines(home.building)) >= 2, "two rounds of training")
        events = defaultdict(list)
        threading.Thread(target=showing, args=(assistant, events), daemon=True).start()
        until(lambda: all(f"sensor.{room}_activity" in events for room in rooms.values()), "rooms are shown")
        begin, rounds = time.time(), len(lines(home.building))
        used = {name: cpu_seconds(process.pid) for name, process in devices.items()}
        time.sleep(2 * seconds)
        end, rounds, taken, asked = time.time(), len(lines(home.building)) - rounds, [], 0
        used = {name: (cpu_seconds(process.pid) - used[name]) / (end - begin) for name, process in devices.items()}
        for name, room in rooms.items():
            states = [room_state(content) for _, content in home.heard[TOPICS.state(room)]]
            said = [json.loads(content)["at"] for _, content in home.heard[TOPICS.decision(name)]]
            said = [at for at in said if begin < at < end - 5]
            taken += latencies(said, shown(states, events[f"sensor.{room}_activity"]))
            asked += len(said)
        taken.sort()
        print("from the last sample of a window to the room's decision in Home Assistant:")
        print(f"median {spread(taken)[0]}, 99 % {spread(taken)[1]}, {len(taken)} of {asked} decisions; {rounds} rounds")
        print(f"CPU of a device: {', '.join(f'{share:.1%}' for share in used.values())}\n")
        print("| memory of | PSS | RSS | at most |\n|---|---|---|---|")
        others = {"edge server": home.edge, "Mosquitto": home.broker, "Home Assistant": assistant.process}
        for name, process in (devices | others).items():
            print(f"| {name} |", " | ".join(megabytes(process.pid)), "|")


def main(parts, seconds):
    logging.getLogger("fedfilt").setLevel(logging.ERROR)
    heading("paho-mqtt")
    for name, part in (("decide", deciding), ("flood", floods), ("assistant", in_assistant)):
        if name in parts:
            print(f"load of the machine: {' '.join(f'{load:.2f}' for load in os.getloadavg())}\n", flush=True)
            part(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of every row of the flood; twice that with devices"
    )
    given = parser.parse_args()
    main(given.parts or PARTS, given.seconds)
