"""fedfilt where torch is not installed: the same bits from the native core, NumPy without it, and plain words."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import tomli_w

import fedfilt
from fedfilt import native
from fedfilt._trust import VARIABLE
from fedfilt.runs.build import Run, known
from fedfilt.runs.config import from_table
from helpers import SLOW, SMALL, command

SOURCES = Path(fedfilt.__file__).parent.parent

# Python imports a module of this name when it starts, in worker processes too
HIDING = """
    import sys
    from importlib.machinery import PathFinder

    HIDDEN = {"torch", "sklearn", "scikit-learn"}

    class AllButThese(PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

        @staticmethod
        def find_distributions(context):
            return [] if context.name in HIDDEN else PathFinder.find_distributions(context)

    sys.meta_path[sys.meta_path.index(PathFinder)] = AllButThese
"""
MINE = '''
    from dataclasses import dataclass
    from typing import ClassVar

    import numpy as np

    from fedfilt.data import Samples

    @dataclass(frozen=True)
    class Stripes:
        """Bright rows on dark pictures."""

        files: ClassVar[tuple] = ()

        def load(self, store):
            rng = np.random.default_rng(0)
            y = np.arange(400) % 4
            x = rng.integers(0, 60, (400, 1, 12, 12))
            x[np.arange(400), 0, 3 * y] += 150
            return Samples("stripes", x.astype(np.uint8), y, 4, np.arange(400) % 3 == 0)
'''
NETS = """
    from torch import nn

    class Net(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(144, 4))
"""
EXPERIMENT = {
    "data": "stripes:Stripes",
    "model": "paper_cnn",
    "samples": {"train": 12, "local_test": 8, "global_test": 20},
    "graph": {"name": "rooms", "rooms": 1, "devices": 4},
    "partition": {"name": "labels", "per_device": 2},
    "training": {"learning_rate": 0.05, "momentum": 0.5},
    "scheduler": {"name": "everything", "density": 0.5},
    "rounds": 2,
    "evaluation": {"every": 1},
    "engine": {"workers": 1},
}
needs_core = pytest.mark.skipif(not native.available(), reason="the native core is not built")


@pytest.fixture
def place(tmp_path):
    """A folder with an experiment and code of a user's own."""
    (tmp_path / "hiding").mkdir()
    for name, code in {"hiding/sitecustomize": HIDING, "stripes": MINE, "nets": NETS}.items():
        (tmp_path / f"{name}.py").write_text(dedent(code))
    (tmp_path / "small.toml").write_text(tomli_w.dumps(EXPERIMENT))
    return tmp_path


def python(place, *words, torch=False, core="", **more):
    """Python in a process that finds torch and scikit-learn only if it may."""
    paths = [str(place), str(SOURCES), *[str(place / "hiding")] * (not torch)]
    env = {**os.environ, VARIABLE: "1", native.VARIABLE: core, "PYTHONPATH": os.pathsep.join(paths), **more}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=place,
        env={name: value for name, value in env.items() if value},
        capture_output=True,
        text=True,
        timeout=SLOW,
        check=False,
    )


def fedfilt_says(place, *words, **how):
    done = python(place, *command(*words)[1:], **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


def result_of(place, out, *overrides, **how):
    return json.loads(fedfilt_says(place, "run", "small.toml", *overrides, "--out", out, "--json", **how))


def test_torch_is_hidden_indeed(place):
    code = "from importlib.util import find_spec; print(find_spec('torch'), find_spec('sklearn')); import torch"
    done = python(place, "-c", code)
    assert done.stdout == "None None\n"
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr


@needs_core
@pytest.mark.slow(3)
def test_the_native_core_gives_the_same_bits_without_torch(place):
    with_torch, without = (result_of(place, f"torch-{there}", torch=there) for there in (True, False))
    assert without["models_sha256"] == with_torch["models_sha256"]
    environments = [json.loads((place / f"torch-{there}" / "environment.json").read_text()) for there in (True, False)]
    assert [bool(one["torch"]) for one in environments] == [True, False]
    says = fedfilt_says(place, "report", "torch-False")
    assert (place / "torch-False" / "report.html").exists(), says


@pytest.mark.slow(4)
def test_numpy_trains_where_there_is_neither_torch_nor_the_native_core(place):
    one, two = (result_of(place, f"with-{n}", f"engine.workers={n}", "rounds=6", core="off") for n in (1, 2))
    assert two["models_sha256"] == one["models_sha256"]
    lines = [json.loads(line) for line in (place / "with-2" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    facts = json.loads(fedfilt_says(place, "info", "--json", core="off"))
    assert facts["torch"] == "not installed"
    assert (facts["training"], facts["filtering"]) == ("NumPy", "SciPy")


def test_a_plan_needs_no_torch(place):
    found = json.loads(fedfilt_says(place, "plan", "small.toml", "--json"))
    assert len(found["devices"]) == 4
    assert (place / found["picture"]).exists()
    assert "not installed" in fedfilt_says(place, "info")


def test_a_torch_module_says_what_is_missing(place):
    done = python(place, *command("run", "small.toml", "model=nets:Net")[1:])
    assert done.returncode != 0
    assert "torch" in done.stderr
    assert "Traceback" not in done.stderr
    code = """
    import numpy as np
    import fedfilt
    from fedfilt.models import Logistic

    x, y = np.eye(4, dtype=np.float32), [0, 1, 0, 1]
    fitted = fedfilt.fit([(x, y)] * 2, Logistic((4,), 2), fedfilt.Graph.from_edges(2, [(0, 1)]), rounds=2)
    assert fitted.predict(1, x).shape == (4, 2)
    try:
        fitted.model(1)
    except ValueError as error:
        print(error)
    """
    done = python(place, "-W", "error", "-c", dedent(code))
    assert done.stdout == "this model needs torch: pip install 'fedfilt[torch]'\n", done.stderr


@needs_core
def test_a_resident_device_loads_little(place):
    """It trains too, in the native core, where torch and all the rest are installed."""
    device = {"name": "lamp", "address": "127.0.0.1:9092", "authentication": False, "number": 0, "samples": 20}
    device["experiment"] = known(Run(from_table(SMALL)))
    (place / "device.toml").write_text(tomli_w.dumps(device))
    code = """
    import sys
    from pathlib import Path
    import numpy as np
    from fedfilt.flower.device import Device

    lamp = Device.read(Path("."))
    trainer = lamp.desk.trainer
    row, x = trainer.start(0), np.zeros((4, *trainer.shape), np.float32)
    trainer.train(row, x, np.arange(4), np.arange(4), seed=0, round=1, device=0, epochs=1, samples=4)
    print(trainer.backend, {"torch", "scipy", "plotly", "sklearn"} & set(sys.modules))
    """
    done = python(place, "-c", dedent(code), torch=True)
    assert done.stdout == "native set()\n", done.stderr
