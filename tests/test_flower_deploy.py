"""Real processes on loopback: a SuperLink and four SuperNodes, plain and with TLS and keys; kills and intruders.

Every wait has an end. Ports are free ones of loopback, and the processes that are killed are children of ours.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

pytest.importorskip("flwr")

from fedfilt.config import load
from fedfilt.engines.local import Local
from fedfilt.flower.keeping import device_command, environment, free_port
from fedfilt.rounds import play
from fedfilt.runs import Run, lines

EXPERIMENT = """
rounds = 2
data = "digits"
model = { name = "mlp", hidden = 16 }
samples = { train = 20, local_test = 10, global_test = 50 }
partition = { name = "labels", per_device = 3 }
training = { learning_rate = 0.1 }
graph = { name = "rooms", rooms = 1, devices = 4 }
scheduler = { name = "everything", epochs = 1, density = 0.2 }
evaluation = { every = 100 }
engine = { name = "flower", timeout_seconds = 300.0 }
"""


def fedfilt(*words):
    return [sys.executable, "-m", "fedfilt.cli", *map(str, words)]


def written(folder, *words):
    """A deployment folder on a free port, and its experiment file."""
    experiment = folder / "experiment.toml"
    experiment.write_text(EXPERIMENT)
    where = f"127.0.0.1:{free_port()}"
    command = fedfilt("deploy", "write", experiment, *words, "--out", folder / "building", "--address", where)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "building"


class Kept:
    """Processes of ours that end with the test."""

    def __init__(self):
        self._all = []

    def start(self, command, output, env=None):
        with output.open("ab") as stream:
            process = subprocess.Popen(
                list(map(str, command)), stdout=stream, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )
        self._all.append(process)
        return process

    def end(self):
        for process in self._all:
            process.terminate()
        for process in self._all:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def kept():
    processes = Kept()
    yield processes
    processes.end()


def until(true, seconds, what):
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.1)
    return found


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
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if all(word in command for word in words):
                found.append(child)
    return found


def metrics(building):
    folder = building / "server" / "run"
    return lines(folder) if (folder / "metrics.jsonl").exists() else []


class Without:
    """The local engine, with the replies of some devices lost in some rounds: what a run must come to."""

    def __init__(self, inner, absent):
        self._inner, self._absent = inner, absent
        self.test = inner.test

    def train(self, jobs, deadline):
        lost = self._absent[jobs[0].round]
        return [reply for reply in self._inner.train(jobs, deadline) if reply.device not in lost]


def expected(building):
    """The models that the local engine comes to when the same devices are absent in the same rounds."""
    run = Run(load(building / "server" / "run" / "config.toml"))
    absent = [{int(device) for device in line.get("absent", {})} for line in metrics(building)]
    config = run.config
    with Local(run.data, run.module, config.training, config.seed, 1, config.sparsifier) as inner:
        with run.experiment(Without(inner, absent)) as experiment:
            state = run.start()
            for state, _ in play(state, experiment):
                pass
    return state.models


def check_result(building, rounds):
    done = metrics(building)
    assert [line["round"] for line in done] == list(range(1, rounds + 1))  # each accepted round once
    folder = building / "server" / "run"
    models = load_file(folder / "checkpoint" / "state.safetensors")["models"]
    np.testing.assert_array_equal(models, expected(building))
    return models


def test_plain_on_loopback_equals_the_local_engine(tmp_path, kept):
    building = written(tmp_path, "--no-authentication")
    process = kept.start(fedfilt("deploy", "all", building), tmp_path / "all.log")
    until(lambda: process.poll() is not None, 400, "the run")
    assert process.returncode == 0, (tmp_path / "all.log").read_text()
    assert not any("absent" in line for line in metrics(building))
    models = check_result(building, 2)
    result = json.loads((building / "server" / "run" / "result.json").read_text())
    assert result["local"]["last"]["round"] == 2
    run = Run(load(building / "server" / "run" / "config.toml"))
    for number in range(4):  # every device has its own, final model on its own disk
        own = load_file(building / "devices" / f"device-{number:03d}" / "state" / "model.safetensors")
        kept_model = run.layout.tensors(models[number])
        assert all((own[name] == tensor.numpy()).all() for name, tensor in kept_model.items())
