"""What tests share: a small experiment, the command line in this process or in one of its own, waiting, real data."""

import contextlib
import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from fedfilt import Graph, _parts
from fedfilt._start import PROGRAM
from fedfilt._types import Array, Table
from fedfilt.aggregators import FedAvg
from fedfilt.cli import app
from fedfilt.data import FederatedData, Samples
from fedfilt.data.deal import Sizes
from fedfilt.data.store import DataMissing, Store
from fedfilt.data.windows import Recording, windows
from fedfilt.paper._cases import Case
from fedfilt.partitions import Wearers
from fedfilt.rounds.types import Updates
from fedfilt.runs.build import Run
from fedfilt.runs.checkpoint import load_state, models_hash
from fedfilt.runs.compare import compare
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.training._torch import glorot

Given = TypeVar("Given")
ROOT = Path(__file__).resolve().parent.parent
SLOW = 900.0  # seconds that a single wait may take: nothing takes long, but a machine may be slow or busy

SMALL: Table = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 16},
    "samples": {"train": 20, "local_test": 10, "global_test": 50},
    "training": {"learning_rate": 0.1},
    "rounds": 6,
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
    "engine": {"workers": 1},
}


ROOM: Table = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 8},
    "samples": {"train": 20, "local_test": 10, "global_test": 40},
    "partition": {"name": "labels", "per_device": 3},
    "graph": {"name": "rooms", "rooms": 1, "devices": 4},
    "training": {"learning_rate": 0.1},
    "scheduler": {"name": "everything", "epochs": 1, "density": 0.2},
    "rounds": 3,
    "evaluation": {"every": 3, "trained": True},
}  # four devices over Flower

# A file with a client of one's own
MINE = '''
from dataclasses import dataclass
import numpy as np
from fedfilt import Sent

@dataclass(frozen=True)
class Halfway:
    """Sends half of what it learnt, and remembers how often."""
    share: float = 0.5
    rule = "fedavg"

    def start(self, task):
        return {"times": np.zeros(1, np.float32)}

    def __call__(self, task):
        given = task.model.copy()
        loss = task.train(task.model)
        sent = given + np.float32(self.share) * (task.model - given)
        return Sent(sent, loss, {"times": task.state["times"] + 1})
'''

KINDS = ("watch", "phone", "watch", "phone", "watch", "phone")

# Changes by which a run goes on until it is ended: a test that ends it does not depend on how fast it is
ENDLESS: Table = {"rounds": 100_000, "evaluation": {"every": 100_000}, "checkpoint": {"every": 1}}


def trained(client: Any, task: Any) -> float:
    """Epochs over all samples that a client trains in one round."""
    found, train = [], task.train

    def counting(row: Array, **how: Any) -> float:
        if how.get("batch") is not None:
            found.append(1 / task.steps(1))
        else:
            epochs = task.epochs if how.get("epochs") is None else how["epochs"]
            found.append(epochs * (1 if how.get("among") is None else len(how["among"]) / task.samples))
        return float(train(row, **how))

    task.train = counting
    client(task)
    return sum(found)


def config_file(folder: Path, **changes: Any) -> Path:
    """The small experiment, changed, as a file."""
    path = folder / "small.toml"
    path.write_text(from_table({**SMALL, **changes}).toml())
    return path


def finish(folder: Path, resume: bool = False, **changes: Any) -> Table:
    """Play the small experiment, changed, in a folder, and give its result."""
    for _ in play_in_folder(Run(from_table({**SMALL, **changes})), folder, resume):
        pass
    return dict(json.loads((folder / "result.json").read_text()))


def sweep(folder: Path, rounds: int = 2) -> Path:
    """Three rules, three learning rates and three seeds of the small experiment: 27 runs in a folder."""
    for rate in (0.05, 0.2, 0.5):
        evaluation, training = {"every": 1, "trained": True}, {"learning_rate": rate}
        config = from_table({**SMALL, "rounds": rounds, "evaluation": evaluation, "training": training})
        for _ in compare(config, ["fedavg", "local", "mu=1"], [0, 1, 2], folder / f"learning_rate={rate}"):
            pass
    return folder


def unlike_run(mix: str = "trunk", events: Sequence[Table] = (), rule: str = "gfedfilt") -> Run:
    """Three homes, each with a watch and a phone, whose sensors are unlike."""
    rng = np.random.default_rng(0)
    found = []
    for device, kind in enumerate(KINDS):
        for label in range(3):
            signal = np.sin(np.arange(60)[:, None] * (label + 1) / 3 + np.arange(4)) + 0.3 * rng.standard_normal(
                (60, 4)
            )
            signal[:, 2 if kind == "watch" else 4 :] = 0
            found.append(Recording(device, device // 2, label, signal))
    samples = windows("made", found, window=10, step=10, kinds=KINDS)
    config = from_table(
        {
            "rounds": 3,
            "graph": {"name": "homes", "rooms": 3, "devices": 6, "between": "same_place"},
            "partition": "wearers",
            "model": {"name": "motifs", "filters": 8, "latent": 3},
            "aggregator": rule,
            "kinds": {"mix": mix},
            "engine": {"workers": 1},
            "events": events,
        }
    )
    data = Wearers()(samples, np.arange(6) // 2, Sizes(9, "whole", "whole"), np.random.default_rng(0))
    return Run(config, data=data)


# Three kinds of devices by name: channels, rows of a window, rows a second
SENSORS = {"watch": (3, 10, 5.0), "phone": (6, 20, 10.0), "unit": (9, 20, 10.0)}
ENCODED: Table = {
    "rounds": 4,
    "graph": {"name": "homes", "rooms": 2, "devices": 6, "between": "same_place"},
    "encoder": {"latent": [4, 10], "kernel": 3, "epochs": 2},
    "model": {"name": "motifs", "filters": 8, "kernel": 3},
    "training": {"learning_rate": 0.1, "batch_size": 8},
    "scheduler": {"name": "everything", "epochs": 2},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
    "engine": {"workers": 1},
}  # two homes with a watch, a phone and a unit each


def motions(device: int, kind: str, seconds: int = 36) -> tuple[Array, Array]:
    """(signal (time, channels), labels (time,)) of what a kind of device records: three motions in turn."""
    channels, _, rate = SENSORS[kind]
    rng, time = np.random.default_rng(device), np.arange(round(seconds * rate)) / rate
    labels = (time // 6).astype(int) % 3
    phases = np.arange(channels) + 0.3 * device
    return np.sin(time[:, None] * (1 + labels[:, None]) * 2 + phases) + 0.3 * rng.standard_normal(
        (len(time), channels)
    ), labels


def encoded_run(**changes: Any) -> Run:
    """Devices of three kinds in two homes, of unlike channels and rates, with the moments that they saw together."""
    found, kinds = [], tuple(SENSORS) * 2
    for device, kind in enumerate(kinds):
        signal, labels = motions(device, kind)
        for label in range(3):
            moment = 3 * (device // 3) + label
            found.append(Recording(device, device // 3, label, signal[labels == label], SENSORS[kind][2], moment))
    samples = windows("made", found, window=20, step=20, kinds=kinds)
    data = Wearers()(samples, np.arange(6) // 3, Sizes(9, "whole", "whole"), np.random.default_rng(0))
    return Run(from_table({**ENCODED, "partition": "wearers", **changes}), data=data)


def encoded_homes(folder: Path, **changes: Any) -> Table:
    """The same as an experiment on devices with data of their own, which is written into their folders."""
    for device, kind in enumerate(tuple(SENSORS) * 2):
        signal, labels = motions(device, kind)
        names = ["time", *(f"c{i}" for i in range(signal.shape[1])), "label"]
        rows = [
            ",".join([repr(row / SENSORS[kind][2]), *map(repr, values.tolist()), "abc"[label]])
            for row, (values, label) in enumerate(zip(signal, labels, strict=True))
        ]
        place = folder / f"device-{device}" / "data"
        place.mkdir(parents=True)
        (place / "week.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
    sensors = [{"kind": k, "shape": [c, rows], "rate": rate} for k, (c, rows, rate) in SENSORS.items()]
    own = {"name": "own", "labels": list("abc"), "sensors": sensors, "kinds": list(SENSORS) * 2}
    return {**ENCODED, "data": {**own, "folders": f"{folder}/device-*"}, "samples": {"train": 30}, **changes}


def as_far_as(last: int, folder: Path, **changes: Any) -> tuple[list[Table], str]:
    """Play the small experiment, changed and with checkpoints, up to a round that it has not reached yet.

    Gives the lines of all rounds without the times that they took, and the hash of the models.
    """
    run = Run(from_table({**SMALL, **changes}))
    for line in play_in_folder(run, folder, resume=folder.exists()):
        if line["round"] >= last:
            break
    saved = folder / "checkpoint" / "state.safetensors"
    state = load_state(saved, [run.config.hash()], run.start())[0]
    assert state.round == last
    return [{**line, "seconds": 0} for line in read_lines(folder)], models_hash(state.models)


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file of a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the command line ---------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def call(*words: Any, cwd: Path | None = None, env: dict[str, str] | None = None) -> Done:
    """`fedfilt words...` in this process: what a command says and does, without the seconds that a process takes."""
    with contextlib.chdir(cwd) if cwd else contextlib.nullcontext():
        result = CliRunner().invoke(app, [str(word) for word in words], env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # a user would see a traceback
    return Done(result.exit_code, result.stdout, result.stderr)


def command(*words: Any) -> list[str]:
    """`fedfilt words...` as a command for a process of its own."""
    return [*PROGRAM, *map(str, words)]


def process(*words: Any, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`fedfilt words...` in a process of its own, to its end."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=SLOW, check=False, **options)


@contextlib.contextmanager
def started(words: list[str], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """A process that is killed at the end, if it has not ended by itself."""
    running = subprocess.Popen(words, **options)
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()


def killed(words: list[str], ready: Callable[[], Any], more: float = 0.0, **options: Any) -> None:
    """Start a process and end it and its own by SIGKILL once it is `ready`, or some seconds more after that."""
    with tempfile.TemporaryFile("w+") as said:
        options = {"stdout": subprocess.DEVNULL, "stderr": said, "start_new_session": True, **options}
        with started(words, **options) as running:
            until(lambda: running.poll() is not None or ready(), "what the process was to be killed after")
            time.sleep(more)
            if running.poll() is not None:
                said.seek(0)
                raise AssertionError(f"the process ended by itself: {said.read()}")
            os.killpg(running.pid, signal.SIGKILL)


@contextlib.contextmanager
def serving(*words: Any, **options: Any) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`fedfilt dashboard words...` in a process of its own, and its address."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with (
        started(command("dashboard", *words, "--port", 0), **pipes, **options) as running,
        sure(running.stdout) as said,
    ):
        line = said.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + said.read()
        yield running, found.group()


def later(stamp: Callable[[], int], before: int) -> bool:
    """Whether a stamp, such as the time of a file, has risen."""
    return stamp() > before


def until(happens: Callable[[], Any], what: str, seconds: float = SLOW) -> Any:
    """Wait for something to happen and give it; every wait has its own generous limit."""
    end = time.monotonic() + seconds
    while not (found := happens()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.02)
    return found


@dataclass(frozen=True)
class DigitsCase(Case):
    """A run of the paper that takes seconds: scikit-learn's digits in place of MNIST.

    It is here because the processes that compute such runs must be able to import it.
    """

    def table(self) -> Table:
        small = {"train": 20, "local_test": 10, "global_test": 50}
        model = {"name": "mlp", "hidden": 16}
        less = {"name": "everything", "epochs": 1}
        return {**super().table(), "data": {"name": "digits"}, "model": model, "samples": small, "scheduler": less}


def sure(value: Given | None) -> Given:
    """A value that may be missing in general, but not here."""
    assert value is not None
    return value


ROUNDS = itertools.count(1)


@dataclass(frozen=True)
class Patient:
    """FedAvg; in a process that another one has started it stays in its 30th round until that other one has ended."""

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        parent = multiprocessing.parent_process()
        if parent is not None and next(ROUNDS) == 30:
            until(lambda: not parent.is_alive(), "the end of the process that has started this one")
        return FedAvg()(models, updates, graph)


# --- data and graphs ----------------------------------------------------------------------------------------------


def real(name: str, **options: Any) -> Samples:
    """The samples of a real data set; a test that needs one has nothing to test where it cannot be had."""
    try:
        samples: Samples = _parts.find("datasets", name)(**options).load(Store())
    except DataMissing as error:
        pytest.skip(f"no network and no copy of {name}: {str(error)[:80]}")
    return samples


def some_data(
    devices: int = 4,
    shape: tuple[int, ...] = (1, 12, 12),
    classes: int = 3,
    seed: int = 0,
    sizes: tuple[int, ...] = (40, 25, 33, 1),
) -> FederatedData:
    """Random samples of a few devices that a small model can learn."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, *shape)).astype(np.float32)

    def draw(number: int) -> tuple[Any, Any]:
        labels = rng.integers(0, classes, number)
        return centres[labels] + rng.standard_normal((number, *shape)).astype(np.float32), labels

    return FederatedData.from_arrays([draw(sizes[i % len(sizes)]) for i in range(devices)], global_test=draw(50))


def a_net(shape: tuple[int, ...] = (1, 12, 12), classes: int = 3) -> nn.Module:
    """A small network that the native core knows."""
    module = nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, classes),
    )
    glorot(module, 1)
    return module


class Odd(nn.Module):
    """Batch norm, dropout and a tied weight: more than a plain stack of layers.

    It is defined here because worker processes import the module of what they are sent, and test modules have no name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(144, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, 3)
        self.tied = self.first
        self.register_buffer("seen", torch.zeros(3), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(self.norm(torch.relu(self.tied(x.flatten(1))))))


@st.composite
def graphs(draw: Any, max_count: int = 10, connected: bool = False) -> Graph:
    """Weighted graphs of any shape: lone devices and several components included."""
    count = draw(st.integers(1, max_count))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    adjacency = np.triu(rng.uniform(0.1, 3.0, (count, count)) * (rng.random((count, count)) < density), k=1)
    if connected:
        adjacency[np.arange(count - 1), np.arange(1, count)] = 1
    return Graph.from_adjacency(adjacency + adjacency.T, rooms=rng.integers(0, 3, count))


@st.composite
def weighted_graphs(draw: Any, zeros: bool = False, **options: Any) -> tuple[Graph, Any, Any]:
    """(graph, sample counts, (K, 3) signal); with `zeros` some devices of a component have no samples."""
    graph = draw(graphs(**options))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = rng.integers(1, 500, graph.count).astype(float)
    if zeros:
        weights *= rng.random(graph.count) < 0.6
        for members in graph.members():
            if not weights[members].any():
                weights[members[0]] = 7.0
    return graph, weights, rng.standard_normal((graph.count, 3))


strengths = st.one_of(st.just(0.0), st.floats(1e-3, 1e4))
