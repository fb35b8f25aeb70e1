"""A week of a living home in twenty minutes: five devices, a round of training every six hours, and faults all along.

Everything is real: deployment, Mosquitto with TLS and an ACL, edge server, training server, a process per device. They
share a clock that runs 500 times as fast. Devices replay recordings (dsads) of people who exercise for about a minute
every half hour. A person corrects some of that, now and then wrongly at first, and says it again if nobody answers.
Meanwhile broker, edge server, training server and devices are killed, or stopped for a while, at random times.

At the end, an account of its own (ledger.py) says which windows must be on each device's disk, and on no other.
Usage: python benchmarks/week.py [--hours 168] [--speed 500] [--seed 0] [--out FILE] [--folder NEW]
"""

import argparse
import bisect
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tomli_w

from common import conclude, heading
from fedfilt.data.store import Store
from fedfilt.datasets.dsads import UNITS, Dsads
from fedfilt.flower.deploy.supervise import end_with_parent, free_port
from fedfilt.flower.device import Device
from fedfilt.flower.home import label as say
from fedfilt.home.clock import Clock
from fedfilt.home.decider import read_model
from fedfilt.home.mqtt import Keys, Mqtt
from fedfilt.home.topics import Correction, Topics, decision, room_state
from ledger import HOP, IN_ALL, PER_LABEL, RATE, ROWS, Bout, Entry, Life, disk, judged, same_values
from processes import FEDFILT, PATH, lines, memory, tree, until, written

LABELS = {"sitting": 1, "stairs": 5, "walking": 9, "running": 12, "cycling": 15, "rowing": 17}  # as dsads counts them
NAMES = list(LABELS)
WORN = {  # person and unit of every device
    "gym-torso": (0, 0),
    "gym-leg": (0, 3),
    "hall-arm": (1, 1),
    "hall-leg": (1, 4),
    "studio-arm": (2, 2),
}
DEVICES = {name: name.partition("-")[0] for name in sorted(WORN)}  # each with its room
ROOMS = sorted(set(DEVICES.values()))
LINKS = [("gym-torso", "gym-leg"), ("hall-arm", "hall-leg"), ("hall-arm", "studio-arm"), ("gym-leg", "hall-leg")]
REPLAYED = 1500  # rows of each recording; the rest is never replayed, and models are tested on it
HOUR, DAY, PAUSE = 3600.0, 86_400.0, 1800.0  # seconds at home
FAULTS = {"broker": 1, "edge": 1, "training": 1, "kill": 2, "stop": 1}  # a day; the last two are of devices
INSIDE = ("supervisor", "superlink", "serverapp")  # of the training server, in turn
DOWN = (1.0, 8.0)  # seconds for which something is gone
WARM = 45.0  # seconds in which everything starts, before the week does
ROUND = 13.0  # seconds that a round takes; the next is due six hours at home after it began
KEPT_HOURS = 12  # for which devices have windows in memory
SAMPLE = 5.0  # seconds between two looks at memory
MOST_GROWTH = 5.0  # MB a day at home
GIVE_UP = 150.0  # seconds for which a person tries

EXPERIMENT = """
rounds = {rounds}

[data]
name = "own"
shape = [9, {rows}]
labels = {labels}
rate = {rate}
validation_share = 0.2
test_share = 0.2
folders = "{folders}"

[graph]
name = "edges"
devices = {devices}
file = "{graph}"

[model]
name = "motifs"

[training]
learning_rate = 0.02
batch_size = 16
momentum = 0.9

[scheduler]
name = "everything"
epochs = 3

[aggregator]
name = "gfedfilt"
filter = {{ name = "tikhonov", mu = 1.0 }}

[evaluation]
every = 1

[engine]
every = "{every:.1f}s"
timeout_seconds = 15.0
"""


def tell(*words):
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


class Shared(Clock):
    """The clock of the week, by which other times can be told too."""

    def __init__(self, speed, origin):
        super().__init__(speed, origin=origin)
        self.origin = origin

    def at(self, seconds):
        """The time at home at a time of the machine's clock."""
        return self.origin + self.speed * (seconds - self.origin)

    @property
    def hour(self):
        return (self.now() - self.origin) / HOUR


# --- what happens -------------------------------------------------------------------------------------------------


def planned_bouts(hours, origin, rng):
    """When who does what."""
    found = []
    for place, room in enumerate(ROOMS):
        for number in range(int(hours * HOUR / PAUSE)):
            begin = origin + PAUSE * number + 300 * place + rng.uniform(60, 300)
            rows = rng.randint(1000, REPLAYED)
            found.append(Bout(begin, room, rng.choice(NAMES), rng.randint(0, REPLAYED - rows), rows))
    return sorted(found)


def planned_words(bouts, share, rng):
    """(when, room, correction) of what a person says: mostly the truth, some about a part, some wrong at first."""
    found = []
    for bout in bouts:
        if rng.random() >= share:
            continue
        late = rng.uniform(60, 400) if rng.random() < 0.7 else rng.uniform(400, 7200)
        due, begin, end, how = bout.end + late, bout.begin - 30, bout.end + 30, rng.random()
        if how < 0.15:
            end = bout.begin + rng.uniform(15, 30)
        elif how > 0.85:
            wrong = rng.choice([name for name in NAMES if name != bout.label])
            found.append((due, bout.room, Correction(wrong, begin, end)))
            due += rng.uniform(100, 1000)
            begin += (how > 0.95) * rng.uniform(35, 45)  # windows across the new begin are of neither
        found.append((due, bout.room, Correction(bout.label, begin, end)))
    return sorted(found)


def planned_faults(hours, origin, often, rng):
    """(when, kind, what, seconds) of what goes wrong."""
    found = []
    for kind, count in FAULTS.items():
        for number in range(max(1, round(often * count * hours / 24))):
            what = list(DEVICES)[number % len(DEVICES)] if kind in ("kill", "stop") else kind
            inside = INSIDE[number % len(INSIDE)] if kind == "training" else ""
            found.append((origin + rng.uniform(0.02, 0.96) * hours * HOUR, kind, what, inside, rng.uniform(*DOWN)))
    return sorted(found)


def recordings():
    """By person, unit and activity, the 75 s that dsads has of them."""
    found = defaultdict(list)
    for one in sorted(Dsads().recordings(Store()), key=lambda recording: recording.moment):
        found[one.person, one.device % len(UNITS), one.label + 1].append(one.signal)
    return {key: np.concatenate(parts).astype(np.float32) for key, parts in found.items()}


def sensed_by(name, bouts, held):
    """(times, values) of all that a device can sense."""
    own = [bout for bout in bouts if bout.room == DEVICES[name]]
    values = [held[(*WORN[name], LABELS[bout.label])][bout.start : bout.start + bout.rows] for bout in own]
    return np.concatenate([bout.times for bout in own]), np.concatenate(values)


# --- the building -------------------------------------------------------------------------------------------------


def built(folder, options, clock):
    """Write the deployment and its home, with a clock that runs fast."""
    for name in DEVICES:
        (folder / "homes" / name / "data").mkdir(parents=True)
    number = list(DEVICES).index
    links = "".join(f"{number(one)},{number(other)}\n" for one, other in LINKS)
    (folder / "links.csv").write_text(f"a,b\n{links}")
    text = EXPERIMENT.format(
        rounds=max(1, round(options.hours / 6)),
        rows=ROWS,
        labels=NAMES,
        rate=float(RATE),
        folders=folder / "homes" / "*",
        devices=len(DEVICES),
        graph=folder / "links.csv",
        every=max(1.0, 6 * HOUR / options.speed - ROUND),
    )
    (folder / "experiment.toml").write_text(text)
    building = folder / "building"
    written(folder / "experiment.toml", building, free_port())
    rooms = [word for name, room in DEVICES.items() for word in ("--room", f"{name}={room}")]
    command = [*FEDFILT, "home", "write", str(building), "--home", "week", *rooms]
    command += ["--address", f"127.0.0.1:{free_port()}"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": PATH}, stdout=subprocess.DEVNULL)
    for place in (building / "server", *(building / "devices").iterdir()):
        table = tomllib.loads((place / "home.toml").read_text())
        table["clock"] = {"speed": clock.speed, "origin": clock.origin}
        if "vote" in table:  # 50 ms to gather says, and 2 s for which they count
            table["vote"] |= {"gather_seconds": 0.05 * clock.speed, "fresh_seconds": 2 * clock.speed}
        (place / "home.toml").write_text(tomli_w.dumps(table))
    own = {
        "source": {"name": "worn:Worn", "file": "week.npz"},
        "decide": {"keep_minutes": 60 * KEPT_HOURS, "per_label": PER_LABEL, "in_all": IN_ALL},
    }
    for name in DEVICES:
        (building / "devices" / name / "own.toml").write_text(tomli_w.dumps(own))
    return building


class Part:
    """A part of the home: a process that is killed and started again."""

    def __init__(self, command, log):
        self._command, self._log = list(map(str, command)), log
        self.lives = []
        self.start()

    def start(self):
        env = os.environ | {"PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        begin = time.time()
        with self._log.open("ab") as stream:
            self.process = subprocess.Popen(
                self._command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.lives.append(Life(self.process.pid, begin))

    def kill(self):
        self.process.kill()
        self._over()

    def stop(self):
        """End in good order; what is left below it then is killed."""
        below = tree(self.process.pid)[1:]
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        if self.process.poll() is None:
            self.process.kill()
        for pid, command in below:
            if (pid, command) in tree(pid)[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._over()

    def _over(self):
        self.process.wait()
        if self.lives[-1].end > time.time():
            self.lives[-1] = self.lives[-1]._replace(end=time.time())


class Faults(threading.Thread):
    """Lets go wrong what is planned, and starts again what it has killed; one thread, as processes end with theirs."""

    def __init__(self, plan, parts, building, clock):
        super().__init__(daemon=True)
        self._parts, self._building, self._clock = parts, building, clock
        self._coming = [(at, self._down, fault) for at, *fault in plan]
        self._away = set()
        self.done, self.unplanned, self.over = [], [], threading.Event()
        self.disks = defaultdict(list)  # by device, what was on it after each kill
        self.start()

    def run(self):
        while self._coming:
            self._coming.sort(key=lambda one: one[0])
            at, what, fault = self._coming.pop(0)
            self._clock.sleep(at - self._clock.now())
            what(*fault)
        self.over.set()
        threading.Event().wait()

    def _later(self, seconds, what, *fault):
        self._coming.append((self._clock.now() + seconds * self._clock.speed, what, fault))

    def _down(self, kind, name, inside, seconds):
        part, hour = self._parts[name], self._clock.hour
        if name in self._away:
            self._later(1.0, self._down, kind, name, inside, seconds)
            return
        if (code := part.process.poll()) is not None:
            if (name, code) != ("training", 0):  # after its last round it ends
                self.unplanned.append(f"{name} had ended by itself with code {code} before hour {hour:.1f}")
            return
        if kind == "stop":
            os.kill(part.process.pid, signal.SIGSTOP)
        elif below := [pid for pid, command in tree(part.process.pid)[1:] if inside and inside in command]:
            with suppress(ProcessLookupError):
                os.kill(below[0], signal.SIGKILL)
            seconds = 0.0  # it is not for us to start it again
        else:
            part.kill()
            if name in DEVICES:
                self.disks[name].append(disk(self._building / "devices" / name))
        if seconds:
            self._away.add(name)
            self._later(seconds, self._up, kind, name)
        what = f"{name} {inside}".strip()
        self.done.append({"hour": round(hour, 2), "kind": kind, "what": what, "seconds": round(seconds, 1)})
        tell(f"hour {hour:.1f}: {kind} {what}, {seconds:.1f} s")

    def _up(self, kind, name):
        part = self._parts[name]
        self._away.discard(name)
        if kind == "stop":
            os.kill(part.process.pid, signal.SIGCONT)
        else:
            part.start()


# --- people, and those who watch ----------------------------------------------------------------------------------


class Person(threading.Thread):
    """Says what is planned, again if nobody answers, one thing after the other."""

    def __init__(self, server, plan, clock):
        super().__init__(daemon=True)
        self._server, self._plan, self._clock = server, plan, clock
        self.entries, self.refused, self.given_up = [], Counter(), []
        self.start()

    def run(self):
        for due, room, correction in self._plan:
            self._clock.sleep(due - self._clock.now())
            said, tries = time.time(), 0
            while time.time() < said + GIVE_UP:
                tries += 1
                try:
                    say(self._server, room, correction)
                    self.entries.append(Entry(room, *correction, said, time.time(), tries))
                    break
                except (ValueError, OSError) as error:
                    self.refused[str(error)] += 1
                    time.sleep(0.2)
            else:
                self.given_up.append(correction)


class Watcher:
    """Hears what devices and rooms decide, as Home Assistant does, and counts by day how often that is right."""

    def __init__(self, building, bouts, origin):
        self._origin, self.right, self.said, self.strange = origin, defaultdict(Counter), defaultdict(Counter), 0
        self._bouts = {room: [bout for bout in bouts if bout.room == room] for room in ROOMS}
        self._begins = {room: [bout.begin for bout in own] for room, own in self._bouts.items()}
        self.decided = {room: set() for room in ROOMS}  # the numbers of the bouts that it has said something about
        topics, table = Topics("week"), tomllib.loads((building / "server" / "home.toml").read_text())
        host, port = table["broker"].split(":")
        self._bus = Mqtt(host, int(port), "homeassistant", keys=Keys.of(building / "assistant"))
        self._bus.subscribe(topics.decision("+"), self._decision, retained=False)
        self._bus.subscribe(topics.state("+"), self._state, retained=False)

    def _decision(self, topic, content):
        name, said = topic.split("/")[3], decision(content, len(NAMES))
        self._count(name, DEVICES[name], said.at, NAMES[int(np.argmax(said.probabilities))])

    def _state(self, topic, content):
        room, state = topic.split("/")[3], room_state(content)
        if state.devices:
            self._count(room, room, state.at, state.activity)

    def _count(self, who, room, at, activity):
        number = bisect.bisect_right(self._begins[room], at) - 1
        if number < 0 or at > self._bouts[room][number].end + 0.01:
            self.strange += 1  # nobody did anything then
            return
        day = int((at - self._origin) // DAY)
        self.said[day][who] += 1
        self.right[day][who] += activity == self._bouts[room][number].label
        if who == room:
            self.decided[room].add(number)

    def shares(self, names):
        """By day, how often they were right."""
        days = range(max(self.said, default=-1) + 1)
        sums = [[sum(one[day][name] for name in names) for one in (self.right, self.said)] for day in days]
        return [round(right / said, 4) if said else None for right, said in sums]

    def close(self):
        self._bus.close()


class Scales(threading.Thread):
    """Weighs all processes, and what lies in the folders."""

    def __init__(self, parts, building, clock):
        super().__init__(daemon=True)
        self._parts, self._building, self._clock = parts, building, clock
        self.rows = []  # (hour, what, pid, proportional, resident)
        self.files = []  # (hour, {file: bytes})
        self._over = threading.Event()
        self.start()

    def run(self):
        while not self._over.wait(SAMPLE):
            hour = self._clock.hour
            for name, part in self._parts.items():
                for pid, command in tree(part.process.pid):
                    what = f"training: {program(command)}" if name == "training" else name
                    found = memory(pid)
                    if found[1]:
                        self.rows.append((hour, what, pid, *found))
            if hour // 12 > len(self.files):
                self.files.append((hour, sizes(self._building)))

    def close(self):
        self._over.set()
        self.join()


def program(command):
    """What a process of the training server is."""
    return next((word for word in ("superlink", "superexec", "serverapp") if word in command), "supervisor")


def sizes(folder):
    """Bytes of every file."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                found[str(path.relative_to(folder))] = path.stat().st_size
    return found


def growth(rows):
    """(bytes a day, hours that this is from) by which processes grow, once their memory holds the windows it must."""
    lives, up, along, hours = defaultdict(list), 0.0, 0.0, 0.0
    for hour, pid, size in rows:
        lives[pid].append((hour, size))
    for life in lives.values():
        points = np.array([one for one in life if one[0] > life[0][0] + KEPT_HOURS + 2])
        if len(points) > 5:
            x, y = (points - points.mean(axis=0)).T
            up, along, hours = up + float(x @ y), along + float(x @ x), hours + float(np.ptp(x))
    return (24 * up / along if along else None), hours


def accuracy(folder, name, held):
    """How often the model that a device decides with is right about windows that were never replayed."""
    path = folder / "devices" / name / "state" / "model.safetensors"
    if not path.exists():
        return None
    trainer = Device.read(folder / "devices" / name).desk.trainer
    model, x, y = read_model(path, trainer), [], []
    for number, activity in enumerate(LABELS.values()):
        rest = held[(*WORN[name], activity)][REPLAYED:]
        x += [rest[start : start + ROWS].T for start in range(0, len(rest) - ROWS + 1, HOP)]
        y += [number] * (len(x) - len(y))
    x = np.array(x) if model.scaling is None else model.scaling.apply(np.array(x))
    return round(float((trainer.predict(model.row, x).argmax(axis=1) == y).mean()), 4)


# --- all of it ----------------------------------------------------------------------------------------------------


def live(folder, options, held):
    """Live through the week; all that is known of it then."""
    rng, clock = random.Random(options.seed), Shared(options.speed, float(round(time.time() + WARM)))
    bouts = planned_bouts(options.hours, clock.origin, rng)
    words = planned_words(bouts, options.share, rng)
    plan = planned_faults(options.hours, clock.origin, options.faults, rng)
    building = built(folder, options, clock)
    sensed = {name: sensed_by(name, bouts, held) for name in DEVICES}
    for name, (times, values) in sensed.items():
        np.savez(building / "devices" / name / "week.npz", time=times, values=values)
    tell(f"{len(bouts)} times somebody does something; {len(words)} corrections, {len(plan)} faults; {folder}")
    parts, server = {}, building / "server"
    try:
        parts["broker"] = Part([building / "broker" / "start.sh"], folder / "broker.log")
        parts["edge"] = Part([*FEDFILT, "home", "run", server], folder / "edge.log")
        parts["training"] = Part([*FEDFILT, "deploy", "server", server], folder / "training.log")
        for name in DEVICES:
            parts[name] = Part([*FEDFILT, "device", building / "devices" / name], folder / f"{name}.log")
        watcher, scales = Watcher(building, bouts, clock.origin), Scales(parts, building, clock)
        faults, person = Faults(plan, parts, building, clock), Person(server, words, clock)

        def verdicts():
            return {
                name: judged(
                    parts[name].lives,
                    [*faults.disks[name], disk(building / "devices" / name)],
                    [bout for bout in bouts if bout.room == DEVICES[name]],
                    [entry for entry in person.entries if entry.room == DEVICES[name]],
                    noted(building / "devices" / name / "week.npz.read"),
                    clock.at,
                )
                for name in DEVICES
            }

        first, last_round = follow(building, options, clock, parts, faults, person, held)
        with suppress(TimeoutError):
            until(lambda: all(one.exact for one in verdicts().values()), "all corrections are on disk", 60, 1)
        scales.close()
        watcher.close()
    finally:
        for part in reversed(parts.values()):
            part.stop()
    return SimpleNamespace(**locals(), found=verdicts())


def noted(path):
    """By process, the first reading of a device."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {int(pid): float(first) for pid, first in rows}


def follow(building, options, clock, parts, faults, person, held):
    """Wait until the week is over, everything is said and all rounds are played.

    How good the first models are, and the hour of the last round.
    """
    end, told, first, hour = time.time() + WARM + 3 * options.hours * HOUR / options.speed + 300, 0, {}, 0.0
    while True:
        assert time.time() < end, "the week takes too long"
        played = lines(building)
        for line in played[told:]:
            absent = [list(DEVICES)[int(number)] for number in line.get("absent", {})]
            hour, took = clock.hour, f"round {line['round']} took {line['seconds']:.1f} s"
            tell(f"hour {hour:.1f}: {took}{f' without {absent}' if absent else ''}")
        told = len(played)
        if told and not first:
            first = {name: accuracy(building, name, held) for name in DEVICES}
        over = clock.hour > options.hours + 0.2 and faults.over.is_set() and not person.is_alive()
        if over and parts["training"].process.poll() is not None:
            return first, hour
        time.sleep(0.2)


def report(week, options):
    """The figures, as they go into a file."""
    played, entries = lines(week.building), week.person.entries
    waits = [entry.confirmed - entry.said for entry in entries]
    now = sizes(week.building)
    by_name = {name: {**week.found[name]._asdict()} for name in DEVICES}
    for name, table in by_name.items():
        table["same_values"] = same_values(week.building / "devices" / name, *week.sensed[name])
    weights = {}
    for what in sorted({row[1] for row in week.scales.rows}):
        own = [row for row in week.scales.rows if row[1] == what and row[0] > 0]
        days = [[row[4] for row in own if row[0] // 24 == day] for day in range(int(np.ceil(options.hours / 24)))]
        rate, hours = growth([(hour, pid, resident) for hour, _, pid, _, resident in own])
        weights[what] = {
            "resident_mb_by_day": [round(float(np.median(day)) / 1e6, 1) if day else None for day in days],
            "proportional_mb": round(float(np.median([row[3] for row in own])) / 1e6, 1) if own else None,
            "growth_mb_a_day": None if rate is None else round(rate / 1e6, 2),
            "growth_is_from_hours": round(hours),
        }
    return {
        "hours": options.hours,
        "speed": options.speed,
        "seed": options.seed,
        "rounds": len(played),
        "rounds_without_some_device": sum(bool(line.get("absent")) for line in played),
        "last_round_at_hour": round(week.last_round, 1),
        "training_ended_with": week.parts["training"].process.returncode,
        "faults": week.faults.done,
        "faults_by_kind": dict(Counter(fault["kind"] for fault in week.faults.done)),
        "unplanned": week.faults.unplanned,
        "corrections": len(entries),
        "given_up": len(week.person.given_up),
        "said_again": sum(entry.tries > 1 for entry in entries),
        "refusals": dict(week.person.refused),
        "seconds_to_confirm": dict(
            zip(("median", "99 %", "most"), np.quantile(waits, (0.5, 0.99, 1)).round(3), strict=True)
        ),
        "devices": by_name,
        "bouts": dict(Counter(bout.room for bout in week.bouts)),
        "bouts_decided": {room: len(numbers) for room, numbers in week.watcher.decided.items()},
        "decisions": sum(day[name] for day in week.watcher.said.values() for name in DEVICES),
        "accuracy": {
            "unseen_after_first_round": week.first,
            "unseen_at_the_end": {name: accuracy(week.building, name, week.held) for name in DEVICES},
            "devices_by_day": week.watcher.shares(DEVICES),
            "rooms_by_day": week.watcher.shares(ROOMS),
        },
        "memory": weights,
        "files_mb": [(round(hour), round(sum(found.values()) / 1e6, 2)) for hour, found in week.scales.files]
        + [(options.hours, round(sum(now.values()) / 1e6, 2))],
        "largest_files": dict(sorted(now.items(), key=lambda one: -one[1])[:15]),
        "logs": {path.name: path.stat().st_size for path in sorted(week.folder.glob("*.log"))},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=168.0)
    parser.add_argument("--speed", type=float, default=500.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.25, help="of what people do, that is corrected")
    parser.add_argument("--faults", type=float, default=1.0, help="times as many as usual")
    parser.add_argument("--out", type=Path, help="file for the figures")
    parser.add_argument("--folder", type=Path, help="new folder, which is left as it is at the end")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and end all processes
    logging.getLogger("fedfilt").setLevel(logging.ERROR)
    heading("flwr", "paho-mqtt")
    folder = Path(tempfile.mkdtemp()) if options.folder is None else options.folder.absolute()
    folder.mkdir(exist_ok=True)
    try:
        week = live(folder, options, recordings())
        found = report(week, options)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(found, indent=1) + "\n"
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
    print(text)
    devices = found["devices"].values()
    decided = [found["bouts_decided"][room] / count for room, count in found["bouts"].items()]
    grown = [one["growth_mb_a_day"] or 0.0 for one in found["memory"].values()]
    conclude(
        [
            ("rounds that were played", found["rounds"], max(1, round(options.hours / 6))),
            ("corrections that were confirmed", found["corrections"], len(week.words)),
            ("devices with exactly the labels that were given", sum(one["exact"] for one in devices), len(DEVICES)),
            ("devices with the values of the recording", sum(one["same_values"] for one in devices), len(DEVICES)),
            ("share of all exercises that their room has decided on", min(decided), 0.7),
            (f"MB a day by which no process may grow, less the {max(grown)} of one", MOST_GROWTH - max(grown), 0),
            ("processes that ended by themselves, below 0", -len(found["unplanned"]), 0),
        ]
    )


if __name__ == "__main__":
    main()
