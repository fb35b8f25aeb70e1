"""What tests share: a small experiment, the command line in this process or in one of its own, waiting, real data."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from fedfilt import Graph, _parts
from fedfilt._types import Table
from fedfilt.cli import app
from fedfilt.data import FederatedData, Samples
from fedfilt.data.store import DataMissing, Store
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.play import play_in_folder
from fedfilt.training.rows import glorot

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
    return [sys.executable, "-m", "fedfilt.cli", *map(str, words)]


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


def until(happens: Callable[[], Any], what: str, seconds: float = SLOW) -> Any:
    """Wait for something to happen and give it; every wait has its own generous limit."""
    end = time.monotonic() + seconds
    while not (found := happens()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.02)
    return found


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
    glorot(module, torch.Generator().manual_seed(1))
    return module


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
