"""Deployments for tests: real processes on loopback, on ports that are ours, that end with the test.

Every wait is for an event and has an end of its own. The processes that are killed are children of ours.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from fedfilt.engines.local import Local
from fedfilt.flower.deploy.address import Site
from fedfilt.flower.deploy.supervise import end_with_parent
from fedfilt.rounds.play import play
from fedfilt.runs.build import Run, is_own
from fedfilt.runs.config import from_table, load
from fedfilt.runs.lines import read_lines
from helpers import ROOM, SLOW, call, command, until

PLACE = {"name": "flower", "timeout_seconds": SLOW}
DEALT = from_table(ROOM | {"rounds": 2, "evaluation": {"every": 100}, "engine": PLACE}).toml()
LABELS = ("vacuuming", "ironing", "sleeping")
FILE = "tuesday-evening.csv"


def free_port():
    """A port of loopback that nobody uses, and that the system gives to nobody who asks for any."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while listeners(port := random.SystemRandom().randrange(10_000, first)):
        pass
    return port


def listeners(port):
    """Sockets that listen on a port, as Linux numbers them."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"}


def listens(pid, port):
    """Whether it is this process that listens on a port."""
    wanted = listeners(port)
    try:
        return any(os.readlink(file) in wanted for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def written(folder, *words, experiment=DEALT):
    """A deployment folder on a free port, and its experiment file."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "experiment.toml").write_text(experiment)
    where = f"127.0.0.1:{free_port()}"
    options = "--out", folder / "building", "--address", where
    done = call("deploy", "write", folder / "experiment.toml", *words, *options)
    assert done.returncode == 0, done.stderr
    return folder / "building"


def site(building):
    return Site.read(tomllib.loads((building / "server" / "deployment.toml").read_text()))


def record(folder, seed, rows=360):
    """A recording of a device in its folder: the signal of an activity is around a level of its own."""
    rng = np.random.default_rng(seed)
    lines = ["time,left,right,label"]
    for row in range(rows):
        label = row // 60 % len(LABELS)
        left, right = 10 * label + rng.standard_normal(2) + seed
        lines.append(f"{row / 10},{left:.9f},{right:.9f},{LABELS[label]}")
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / FILE).write_text("\n".join(lines) + "\n")


def own_experiment(folder, count=4, **changes):
    """An experiment with own data, in folders of which every one is a device's."""
    for number in range(count):
        record(folder / f"device-{number:03d}", seed=number)
    table = {
        "rounds": 3,
        "data": {
            "name": "own",
            "shape": [2, 10],
            "labels": list(LABELS),
            "rate": 10.0,
            "folders": f"{folder}/device-*",
        },
        "samples": {"train": 30},
        "model": {"name": "mlp", "hidden": 8},
        "graph": {"name": "rooms", "rooms": 1, "devices": count},
        "training": {"learning_rate": 0.1},
        "scheduler": {"name": "everything", "epochs": 2, "density": 0.3},
        "evaluation": {"every": 1},
        "engine": PLACE,
    }
    return from_table(table | changes).toml()


class Kept:
    """Processes of ours that end with the test."""

    def __init__(self):
        self._all = []

    def start(self, words, output, env=None):
        with output.open("ab") as stream:
            process = subprocess.Popen(
                list(map(str, words)),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=end_with_parent,  # also if the tests are killed
            )
        self._all.append(process)
        return process

    def end(self):
        for process in reversed(self._all):
            process.terminate()
        for process in self._all:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def deployed(folder, kept, *words, experiment=DEALT):
    """(folder, process) of a new deployment whose edge server has started; its SuperLink has the port."""
    for attempt in itertools.count():
        building = written(folder / f"attempt-{attempt}", *words, experiment=experiment)
        port = site(building).where.port
        log = building.parent / "server.log"
        server = kept.start(command("deploy", "server", building / "server"), log)

        def found(server=server, port=port, log=log):
            if any(listens(pid, port) for pid in below(server.pid, "fedfilt.flower.deploy.superlink")):
                return "ours"
            assert server.poll() is None, log.read_text()
            return "cannot listen on" in log.read_text() and "taken"  # by somebody, since we looked

        if until(found, "the SuperLink listens") == "ours":
            return building, server
        assert attempt < 9
        server.terminate()
        server.wait(SLOW)
    raise AssertionError


def below(pid, *words):
    """Ids of the processes below one of ours whose command has all the words."""
    found, stack = [], [pid]
    while stack:
        parent = stack.pop()
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            stack.append(child)
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if all(word in line for word in words):
                found.append(child)
    return found


def alive(pid):
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # that of a zombie is empty
    except OSError:
        return False


def metrics(building):
    folder = building / "server" / "run"
    return read_lines(folder) if (folder / "metrics.jsonl").exists() else []


class Without:
    """The local engine, with the replies of some devices lost in some rounds: what a run must come to."""

    def __init__(self, inner, absent):
        self._inner, self._absent = inner, absent
        self.test = inner.test

    def train(self, jobs, deadline):
        lost = self._absent[jobs[0].round]
        return [reply for reply in self._inner.train(jobs, deadline) if reply.device not in lost]


def expected(building, rounds):
    """The models that the local engine comes to in so many rounds when the same devices are absent in the same ones."""
    config = load(building / "server" / "run" / "config.toml")
    if is_own(config):
        config = replace(config, data=replace(config.data, folders=f"{building}/devices/*"))
    run = Run(config)
    run.learn_graph()
    lines = {line["round"]: {int(device) for device in line.get("absent", {})} for line in metrics(building)}
    with (
        Local(run.data, run.model, config.training, config.seed, 1, config.sparsifier, config.client) as inner,
        run.experiment(Without(inner, lines)) as experiment,
    ):
        for state, _ in itertools.islice(play(run.start(), experiment), rounds):
            last = state
    return last.models


def check_result(building, rounds):
    """The checkpoint after so many rounds holds, bit by bit, what the local engine comes to; gives its models."""
    assert [line["round"] for line in metrics(building)] == list(range(1, rounds + 1))  # each accepted round once
    models = load_file(building / "server" / "run" / "checkpoint" / "state.safetensors")["models"]
    np.testing.assert_array_equal(models, expected(building, rounds))
    return models


class Devices:
    """The resident devices of a deployment, each with a log of its own."""

    def __init__(self, building, kept):
        self._building, self._kept = building, kept
        self.processes, self.logs = {}, {}

    def start(self, name, folder=None):
        """Start a device, and wait until it has said something."""
        log = self.logs.setdefault(name, self._building.parent / f"{name}-{len(self.logs)}.log")
        log.write_text("")
        self.processes[name] = self._kept.start(command("device", folder or self._building / "devices" / name), log)
        return self

    def start_all(self):
        for folder in sorted((self._building / "devices").iterdir()):
            self.start(folder.name)
        for name in self.logs:
            self.says(name, "is connected to")
        return self

    def says(self, name, words):
        """Wait until a device says something."""
        until(lambda: words in self.logs[name].read_text(), f"{name} says {words!r}")

    def kill(self, name):
        os.kill(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()


def status(building):
    """By name, how the devices are, as `fedfilt deploy status` says."""
    done = call("deploy", "status", "--building", building, "--json")
    assert done.returncode == 0, done.stderr
    return {device["device"]: device for device in json.loads(done.stdout)["devices"]}
