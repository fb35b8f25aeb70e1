"""A blind server against an open one: accuracy, bytes, seconds, and what the server gets to see.

Eight resident devices with data of their own (MNIST, two digits each) train the paper's CNN over loopback, with TLS and
keys. Open and blind deployments take turns, as other work on the machine slows them down. Bytes are counted by a proxy
in front of every device. The rows of all rounds, trained and mixed, are known from a run on the local engine. They are
looked for in the memory of all processes of the server between rounds, and on its disk at the end: as float32, and in
fixed point before and after mixing. For the open server the same search is the control. All of it once with whole
updates, and once with a density of a tenth. In addition the paper's MNIST_2 with 20 devices is played on the local
engine, which has the same arithmetic, with three seeds; and once more with every mixed value moved to the next float32,
as training makes much of little.
Usage: python benchmarks/blind.py [--quick]
"""

import json
import re
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from common import conclude, heading, where
from fedfilt import Graph
from fedfilt.aggregators import FedAvg, GFedFilt
from fedfilt.data.store import Store
from fedfilt.filters import Tikhonov
from fedfilt.flower.deploy.supervise import free_port
from fedfilt.rounds.blind import Blind
from fedfilt.rounds.play import play
from fedfilt.rounds.privacy import Privacy
from fedfilt.rounds.scores import summary
from fedfilt.rounds.types import Updates
from fedfilt.runs.build import Run
from fedfilt.runs.config import load
from fedfilt.runs.split import split
from fedfilt.system import blind
from processes import HERE, device, lines, proxies, said, server, tree, until, written

RESULT = HERE.parent / "results" / "blind.json"
KINDS = {  # whether the server is blind, density
    "open": (False, 1.0),
    "blind": (True, 1.0),
    "open, a tenth": (False, 0.1),
    "blind, a tenth": (True, 0.1),
}
STRONGER = "blind, a tenth, mu=10"  # a column is mixed a tenth as often, so ten times as strongly
PLACES = (0.1, 0.35, 0.6, 0.85)  # of a row at which a piece of it is looked for
BLOCK = 1 << 24


@dataclass
class Found:
    """What was measured of open or blind deployments."""

    rounds: list = field(default_factory=list)  # seconds
    tested: list = field(default_factory=list)  # seconds of rounds with a test
    accuracy: list = field(default_factory=list)  # own test, mean of the devices, last round
    up: list = field(default_factory=list)  # bytes a round and device
    down: list = field(default_factory=list)
    in_memory: int = 0  # pieces of rows found
    on_disk: int = 0
    memory_bytes: int = 0  # that were looked through
    disk_bytes: int = 0


class Needles:
    """Pieces of rows, but for public ones, two numbers of eight bytes each, looked for at every byte."""

    def __init__(self, rows, public):
        found = {}
        for first, second in {pair for row in rows for pair in _pairs(row)} - {
            p for row in public for p in _pairs(row)
        }:
            if first and second:
                found.setdefault(first, set()).add(second)
        self._seconds, self._firsts = found, np.array(sorted(found), np.uint64)
        self._likely = np.zeros(1 << 16, bool)
        self._likely[_hash(self._firsts)] = True

    def __len__(self):
        return sum(map(len, self._seconds.values()))

    def in_file(self, path):
        """(pieces found, bytes looked through) in a file."""
        found = looked = 0
        with path.open("rb") as file:
            while len(content := file.read(BLOCK + 16)) >= 32:
                found, looked = found + self._within(content), looked + len(content) - 16
                file.seek(-16, 1)
        return found, looked

    def _within(self, content):
        found = 0
        for shift in range(8):
            words = np.frombuffer(content, np.uint64, (len(content) - shift) // 8, shift)
            likely = np.flatnonzero(self._likely[_hash(words[:-1])])
            hits = likely[np.isin(words[likely], self._firsts)]
            found += sum(int(words[i + 1]) in self._seconds[int(words[i])] for i in hits)
        return found


def _pairs(row):
    """The pieces of a row: as float32, and in fixed point before and after mixing."""
    for place in PLACES:
        start = int(place * len(row))
        whole = blind.whole(row[start : start + 4])
        for piece in (row[start : start + 4].tobytes(), whole, whole << blind.WEIGHT_BITS):
            yield tuple(np.frombuffer(bytes(piece)[:16], np.uint64).tolist())


def _hash(words):
    return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)


def copy_memory(pid, file):
    """Append the memory that a process can write to a file."""
    with suppress(OSError), open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            begin, end, access = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            if "w" not in access or "[v" in line:
                continue
            for start in range(int(begin, 16), int(end, 16), BLOCK):
                with suppress(OSError):  # gone since, or not there yet
                    memory.seek(start)
                    file.write(memory.read(min(BLOCK, int(end, 16) - start)))


def all_rows(config):
    """(rows that devices train and get in every round, the first model, which is public); also piece by piece."""
    run, rows, sent = Run(config), [], []

    class Noted:
        """The rule, noting what it is given and what it gives."""

        def __init__(self, rule):
            self._rule = rule

        def __call__(self, models, updates, graph):
            sent.extend(models + np.nan_to_num(updates.rows))
            return self._rule(models, updates, graph)

    run.aggregator = Noted(run.aggregator)
    with run.experiment() as experiment:
        for state, _ in play(run.start(), experiment):
            rows.extend(state.models)
    rows, public, pieces = rows + sent, [run.start().models[0]], np.concatenate(run.cut.columns)
    return rows + [row[pieces] for row in rows], public + [row[pieces] for row in public]


def measure(experiment, found, needles):
    """Play a deployment of an experiment file."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        building, port = Path(folder) / "building", free_port()
        folders = written(experiment, building, port)
        between = proxies(folders, port, stack)
        rounds, every = (load(experiment).rounds, load(experiment).evaluation.every)
        edge = stack.enter_context(server(building))
        until(lambda: said(building / "server.log", "Flower run"), "the start of the edge server")
        for own in folders:
            stack.enter_context(device(own))
        marks = []
        while len(marks) < rounds:
            until(lambda: len(lines(building)) > len(marks), "a round", 600)
            marks.append(np.array([(proxy.up, proxy.down) for proxy in between]))
            if len(marks) == rounds // 2:  # while the run goes on
                with (Path(folder) / "memory").open("wb") as file:
                    for pid, _ in tree(edge.pid):
                        copy_memory(pid, file)
        until(lambda: edge.poll() is not None, "the end of the run")
        assert edge.returncode == 0
        played = lines(building)
        assert not any(line.get("absent") for line in played)
        in_memory = needles.in_file(Path(folder) / "memory")
        found.in_memory, found.memory_bytes = found.in_memory + in_memory[0], found.memory_bytes + in_memory[1]
        for path in (building / "server").rglob("*"):
            if path.is_file():
                hits, looked = needles.in_file(path)
                found.on_disk, found.disk_bytes = found.on_disk + hits, found.disk_bytes + looked
        found.rounds += [line["seconds"] for line in played[1:] if line["round"] % every]
        found.tested += [line["seconds"] for line in played[1:] if not line["round"] % every]
        found.accuracy.append(played[-1]["mixed"]["local"]["mean"])
        first, last = marks[0], marks[every - 2]  # rounds without a test
        up, down = ((last - first).mean(axis=0) / (every - 2)).tolist()
        found.up.append(up)
        found.down.append(down)


class LastBit:
    """A rule whose every value is moved to the next float32: how much a run changes by the least there is."""

    def __init__(self, rule):
        self._rule = rule

    def __call__(self, models, updates, graph):
        return np.nextafter(self._rule(models, updates, graph), np.float32(np.inf))


def on_one_machine(seeds, rounds):
    """By seed and kind: accuracies local and global of MNIST_2, and how far models are from the open run's.

    With a tenth of the bytes, runs go on for five times as many rounds; accuracies are those after every `rounds`.
    """
    found = []
    for seed in seeds:
        line, models = {"seed": seed}, {}
        for kind in (*KINDS, "last bit", STRONGER):
            hidden, density = KINDS.get(kind, KINDS["blind, a tenth" if kind == STRONGER else "open"])
            last = rounds if density == 1 else 5 * rounds
            words = [f"seed={seed}", f"rounds={last}", "training.learning_rate=.1", f"evaluation.every={rounds}"]
            words += ["guard=false", f"scheduler.density={density}"]  # a blind server has none
            config = load(HERE.parent / "experiments" / "mnist_2.toml", words)
            if kind == STRONGER:
                config = replace(config, aggregator=GFedFilt(Tikhonov(mu=10.0)))
            run = Run(replace(config, privacy=Privacy(blind=hidden)))
            if kind == "last bit":
                run.aggregator = LastBit(run.aggregator)
            first, tested = None, []
            with run.experiment() as experiment:
                for state, record in play(run.start(), experiment):
                    first = state.models if first is None else first
                    tested += [] if record.mixed is None else [summary(record.mixed, run.data)]
            models[kind] = first, state.models
            like = models["open" if density == 1 else "open, a tenth"]
            apart = [float(abs(ours - theirs).max()) for ours, theirs in zip(models[kind], like, strict=True)]
            line[kind] = {name: [tests[name]["mean"] for tests in tested] for name in ("local", "global")}
            line[kind]["apart"] = apart
        found.append(line)
    return found


def arithmetic(size=53_002, count=20):
    """Milliseconds of masking, mixing and unmasking, the least of five."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(count, size)).astype(np.float32)
    found, work, graph = {}, {}, Graph.from_edges(count, [])
    for density, pieces in ((1.0, 1), (0.1, blind.PIECES)):
        cut = blind.Cut(0, size, pieces)
        group = blind.Group((bytes(32),), cut, blind.hashes(rows[0], cut))
        rule = Blind(FedAvg(), cut, sealed=True)
        state = np.zeros((count, cut.sealed_width), np.uint64)
        for round in range(1, 15):  # until pieces of all rounds are in a row that there will be
            sent = cut.sent(round, density)
            content = [blind.masked(row, group, sent, "run", round, i) for i, row in enumerate(rows)]
            held = np.stack([blind.sealed(one, cut, sent, round, i) for i, one in enumerate(content)])
            arguments = state, Updates(held, np.ones(count)), graph
            state = rule(*arguments)
        fields = blind.handed_out(state[0], blind.Sealing(cut, rows[0]))
        work |= {
            f"density {density:g}: a device masks its row": partial(blind.masked, rows[0], group, sent, "run", 1, 0),
            f"density {density:g}: it takes all masks off": partial(blind.taken_in, fields, group, "run"),
            f"density {density:g}: the server mixes {count} rows": partial(rule, *arguments),
        }
    for name, do in work.items():
        times = []
        for _ in range(5):
            start = time.perf_counter()
            do()
            times.append(time.perf_counter() - start)
        found[name] = 1000 * min(times)
    return found


def main():
    quick = "--quick" in sys.argv[1:]
    heading("flwr")
    found = {name: Found() for name in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        words = [f"rounds={6 if quick else 12}", f"evaluation.every={5 if quick else 6}"]
        made = split(load(HERE.parent / "experiments" / "mnist_8.toml", words), Path(folder) / "homes", store=Store())
        experiments, needles = {}, {}
        for name, (hidden, density) in KINDS.items():
            words = ["data.public.file=", "guard=false", f"scheduler.density={density}"]  # a blind server neither tests
            config = load(made, words)  # nor guards
            config = replace(config, privacy=Privacy(blind=hidden))
            experiments[name] = Path(folder) / f"{name}.toml"
            experiments[name].write_text(config.toml())
            needles[name] = Needles(*all_rows(config))
        for turn in range(1 if quick else 2):
            for name in KINDS:
                print(f"turn {turn + 1}: {name}", file=sys.stderr, flush=True)
                measure(experiments[name], found[name], needles[name])
    table(found, needles)
    costs = arithmetic()
    for name, milliseconds in costs.items():
        print(f"{name}: {milliseconds:.1f} ms")
    same = on_one_machine(range(1 if quick else 3), 10 if quick else 40)
    print("\n| MNIST_2 | local / global | from the open run's models: after round 1, after the last |\n|---|---|---|")
    for line in same:
        for kind in list(line)[1:]:
            local, everybody, (first, last) = line[kind].values()
            scores = ", ".join(f"{one:.2%} / {all:.2%}" for one, all in zip(local, everybody, strict=True))
            print(f"| seed {line['seed']}, {kind} | {scores} | {first:.1e}, {last:.1e} |")
    if not quick:
        report = {"where": where("flwr"), "devices": {k: vars(v) for k, v in found.items()}}
        RESULT.write_text(json.dumps(report | {"milliseconds": costs, "mnist_2": same}, indent=1) + "\n")
    mine, other, tenth = found["blind"], found["open"], found["blind, a tenth"]
    pieces = sum(one.in_memory + one.on_disk for one in (mine, tenth))
    conclude(
        [
            ("no row in the blind servers' memory or on their disks (1: none)", pieces == 0, 1),
            ("the same search finds rows of the open server", other.in_memory + other.on_disk, 1),
            ("same accuracy (1: to .2 points)", abs(mine.accuracy[0] - other.accuracy[0]) < 0.002, 1),
            ("bytes sent at density 1 over those at .1", statistics.mean(mine.up) / statistics.mean(tenth.up), 5),
        ]
    )


def table(found, needles):
    """All that was found, as the page on deployments shows it."""
    print("|", *[f"| {name}" for name in found], "|")
    print("|---" * (1 + len(found)) + "|")
    rows = {
        "a round: median (least)": lambda one: f"{statistics.median(one.rounds):.2f} s ({min(one.rounds):.2f} s)",
        "a round with a test": lambda one: f"{statistics.median(one.tested):.2f} s" if one.tested else "-",
        "up a round, per device": lambda one: f"{statistics.mean(one.up) / 1e3:.1f} kB",
        "down a round, per device": lambda one: f"{statistics.mean(one.down) / 1e3:.1f} kB",
        "accuracy on own tests": lambda one: " ".join(f"{100 * value:.2f} %" for value in one.accuracy),
        "pieces of rows in memory": lambda one: f"{one.in_memory} in {one.memory_bytes / 1e6:.0f} MB",
        "pieces of rows on disk": lambda one: f"{one.on_disk} in {one.disk_bytes / 1e6:.0f} MB",
    }
    for name, cell in rows.items():
        print(f"| {name}", *[f"| {cell(one)}" for one in found.values()], "|")
    print("pieces looked for:", {name: len(one) for name, one in needles.items()}, end="\n\n")


if __name__ == "__main__":
    main()
