"""A hundred resident devices and their edge server on one machine, and what happens when some of them are killed.

Every device has data of its own: windows of the smartwatch recordings, those of each arm spread over five devices. They
train the model of experiments/watch.toml and send a quarter of every update. In every fourth round, 5 % of the devices,
drawn at random, are killed with SIGKILL and started again. Flower counts such a device as online for up to a minute. A
round that misses it ends when Flower gives it up, or after `engine.timeout_seconds` (--timeout); meanwhile the new
process is refused, and asks again. At the end, the local engine plays the same rounds without the replies that were
missing, to the same bits.
Usage: python benchmarks/many_devices.py [--devices 100] [--rounds 20] [--kill 0.05] [--timeout 180] [--seed 0]
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from common import conclude, heading
from fedfilt.data.store import Store
from fedfilt.datasets import Watch
from fedfilt.engines.local import Local
from fedfilt.flower.deploy.supervise import free_port
from fedfilt.rounds.play import play
from fedfilt.runs.build import Run
from fedfilt.runs.config import load
from processes import cpu_seconds, device, lines, memory, said, server, tree, until, written

PER_ROOM = 5
EVERY = 4  # rounds between two with kills
QUIET = 4  # rounds at the end without: everybody is back by then

EXPERIMENT = """
rounds = {rounds}

[data]
name = "own"
shape = [6, 100]
labels = {labels}
folders = "{folders}"

[graph]
name = "rooms"
rooms = {rooms}
devices = {devices}

[model]
name = "motifs"

[training]
learning_rate = 0.02
batch_size = 16
momentum = 0.9

[scheduler]
name = "everything"
epochs = 3
density = 0.25

[aggregator]
name = "gfedfilt"
filter = {{ name = "tikhonov", mu = 1.0 }}

[evaluation]
every = {rounds}

[engine]
timeout_seconds = {timeout}
"""


def experiment(folder, options):
    """Write the devices' data and the experiment on it."""
    samples = Watch().load(Store())
    arms = len(set(samples.devices.tolist()))
    share = -(-options.devices // arms)  # devices that an arm's windows are spread over
    for number in range(options.devices):
        arm, part = number % arms, number // arms
        rows = np.flatnonzero(samples.devices == arm)[part::share]
        place = folder / "homes" / f"device-{number:03d}" / "data"
        place.mkdir(parents=True)
        np.savez(place / "windows.npz", x=samples.x[rows], y=samples.y[rows])
    text = EXPERIMENT.format(
        rounds=options.rounds,
        labels=list(Watch.labels),
        folders=folder / "homes" / "*",
        rooms=options.devices // PER_ROOM,
        devices=options.devices,
        timeout=options.timeout,
    )
    (folder / "experiment.toml").write_text(text)
    return folder / "experiment.toml"


class Fleet:
    """The processes of all devices."""

    def __init__(self, folders, stack):
        self.folders, self._stack = folders, stack
        self.processes = [self._started(folder) for folder in folders]
        self.killed = []  # (round, devices)

    def _started(self, folder):
        return self._stack.enter_context(device(folder))

    def connected(self):
        """How many are connected, or were."""
        return sum(said(folder / "device.log", "is connected to") > 0 for folder in self.folders)

    def kill(self, round, numbers, rng):
        """Kill some devices in the middle of what they do, each at another moment, and start them again."""
        for number in numbers:
            time.sleep(rng.uniform(0, 0.5))
            os.kill(self.processes[number].pid, signal.SIGKILL)
        time.sleep(1)
        for number in numbers:
            self.processes[number].wait()
            self.processes[number] = self._started(self.folders[number])
        self.killed.append((round, sorted(numbers)))

    def end(self):
        """Tell all to stop at once; that each has is seen to by the stack."""
        for process in self.processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.terminate()


class Sizes:
    """Peaks of memory while it works."""

    def __init__(self, fleet, edge):
        self.proportional = self.resident = 0  # of all devices; of the largest
        self.server = {}  # process -> resident
        self._fleet, self._edge, self._end = fleet, edge, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self):
        while not self._end.wait(5):
            sizes = [memory(process.pid) for process in list(self._fleet.processes)]
            self.proportional = max(self.proportional, sum(size[0] for size in sizes))
            self.resident = max(self.resident, *(size[1] for size in sizes))
            for pid, command in tree(self._edge.pid):
                name = next((part for part in ("superlink", "superexec", "serverapp") if part in command), "supervisor")
                self.server[name] = max(self.server.get(name, 0), memory(pid)[1])

    def close(self):
        self._end.set()
        self._thread.join()


class Without:
    """The local engine, with the replies of some devices missing in some rounds."""

    def __init__(self, inner, absent):
        self._inner, self._absent, self.test = inner, absent, inner.test

    def train(self, jobs, deadline):
        missing = self._absent[jobs[0].round]
        return [reply for reply in self._inner.train(jobs, deadline) if reply.device not in missing]


def same_bits(building):
    """Whether the local engine comes to the same models with the same devices absent in the same rounds."""
    config = load(building / "server" / "run" / "config.toml")
    config = replace(config, data=replace(config.data, folders=str(building / "devices" / "*")))
    run = Run(config)
    absent = {line["round"]: set(map(int, line.get("absent", {}))) for line in lines(building)}
    with (
        Local(run.data, run.model, config.training, config.seed, 1, config.sparsifier) as inner,
        run.experiment(Without(inner, absent)) as made,
    ):
        *_, (last, _) = play(run.start(), made)
    models = load_file(building / "server" / "run" / "checkpoint" / "state.safetensors")["models"]
    return np.array_equal(models.view(np.uint32), last.models.view(np.uint32))


def tell(*words):
    print(f"{time.strftime('%H:%M:%S')}", *words, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kill", type=float, default=0.05, help="share of the devices, in every fourth round")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds that a round waits for missing devices")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and end all processes
    heading("flwr")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        building, rng = Path(folder) / "building", random.Random(options.seed)
        folders = written(experiment(Path(folder), options), building, free_port())
        begin = time.monotonic()
        fleet = Fleet(folders, stack)  # they ask for the server until it is there
        stack.callback(fleet.end)
        tell(f"{len(folders)} devices are started")
        time.sleep(len(folders) / 4)  # let them load before the server needs the cores
        edge = stack.enter_context(server(building))
        until(lambda: fleet.connected() == len(folders), "all devices are connected", every=1)
        ready = time.monotonic() - begin
        tell(f"all are connected after {ready:.0f} s")
        sizes, spent = Sizes(fleet, edge), []
        count = max(1, round(options.kill * len(folders))) if options.kill else 0
        end = time.monotonic() + 120 * options.rounds
        while edge.poll() is None:
            assert time.monotonic() < end, "the rounds take too long"
            played = len(lines(building))
            if played > len(spent):
                spent.append(cpu_seconds(edge.pid))
                line = lines(building)[-1]
                tell(f"round {played}: {line['seconds']:.1f} s, absent {sorted(map(int, line.get('absent', {})))}")
                last = fleet.killed[-1][0] if fleet.killed else 0
                if count and played + 1 >= last + EVERY and played + 1 <= options.rounds - QUIET:
                    fleet.kill(played + 1, rng.sample(range(len(folders)), count), rng)
                    tell(f"killed in round {played + 1}: {fleet.killed[-1][1]}")
            time.sleep(0.2)
        sizes.close()
        assert edge.returncode == 0, (building / "server.log").read_text()
        tell("the local engine plays the same rounds")
        report(lines(building), fleet, sizes, spent, same_bits(building))


def report(played, fleet, sizes, spent, same):
    """Print what was found, and whether it holds."""
    count = len(fleet.folders)
    absent = {line["round"]: set(map(int, line.get("absent", {}))) for line in played}
    whole = [line["seconds"] for line in played[:-1] if not absent[line["round"]]]
    missed = [line["seconds"] for line in played[:-1] if absent[line["round"]]]
    killed = {number for _, numbers in fleet.killed for number in numbers}
    lost = {number for number in range(count) if number in absent[played[-1]["round"]]}
    others = sum(len(gone - killed) for gone in absent.values())
    away = [sum(number in gone for gone in absent.values()) for number in killed]
    print(f"| {count} resident devices, {len(played)} rounds | |\n|---|---|")
    for name, values in (("a round with all devices", whole), ("a round that waits for killed ones", missed)):
        if values:
            words = f"{min(values):.1f} / {statistics.median(values):.1f} / {max(values):.1f} s"
            print(f"| {name}: least / median / most ({len(values)} rounds) | {words} |")
    print(f"| the last round, with models and tests | {played[-1]['seconds']:.1f} s |")
    print(f"| CPU of the edge server per round | {np.median(np.diff(spent)):.1f} s |")
    print(f"| memory of all devices, proportional | {sizes.proportional / 1e9:.2f} GB |")
    print(f"| and of one | {sizes.proportional / count / 1e6:.0f} MB |")
    print(f"| the largest device, resident | {sizes.resident / 1e6:.0f} MB |")
    for name, size in sizes.server.items():
        print(f"| edge server, {name}, resident | {size / 1e6:.0f} MB |")
    print(f"| kills in rounds {', '.join(str(number) for number, _ in fleet.killed)} | {len(killed)} devices |")
    print(f"| rounds that a killed device missed, at most | {max(away, default=0)} |")
    print(f"| replies of other devices that were missed | {others} of {count * len(played)} |")
    print(f"| devices lost for good | {len(lost)} |")
    print(f"| same bits as the local engine | {'yes' if same else 'NO'} |")
    conclude(
        [
            ("every round is played once", [line["round"] for line in played] == list(range(1, len(played) + 1)), 1),
            ("all devices take part in the last round", 1 - len(lost) / count, 1),
            ("the bits of the local engine", same, 1),
        ]
    )


if __name__ == "__main__":
    main()
