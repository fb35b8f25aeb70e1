"""Personal models as ONNX and C: the same probabilities as fedfilt's own, from raw inputs."""

import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tomli_w
from safetensors.numpy import load_file, save_file

from fedfilt import _parts
from fedfilt._types import Array
from fedfilt.data.windows import Scaling
from fedfilt.export import c as c_format
from fedfilt.export import onnx as onnx_format
from fedfilt.export._models import NOTHING, SIGMOID, SOFTMAX, Personal
from fedfilt.export._writing import export
from fedfilt.runs.build import Run, known
from fedfilt.runs.config import from_table
from fedfilt.runs.play import play_in_folder
from fedfilt.training.description import Convolution, Dense, Description, Flatten, Pool, Relu, described
from fedfilt.training.kept import Kept, take
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer, model_named
from helpers import SENSORS, SMALL, call, encoded_run, finish

SHAPES = {"cnn1d": (6, 50), "motifs": (6, 50), "paper_cnn": (1, 28, 28)}
MAIN = """
#include "model.c"
#include <stdio.h>
int main(void)
{
    static float input[FEDFILT_INPUTS], output[FEDFILT_OUTPUTS];
    while (fread(input, sizeof input, 1, stdin) == 1) {
        fedfilt_predict(input, output);
        fwrite(output, sizeof output, 1, stdout);
    }
    return fedfilt_labels[0] == 0;
}
"""
STRICT = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]


def by_c(content: bytes, x: Array, folder: Path) -> Array:
    """What a C file says about inputs."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    folder.mkdir(exist_ok=True)
    (folder / "model.c").write_bytes(content)
    (folder / "main.c").write_text(MAIN)
    words = [compiler, *STRICT, str(folder / "main.c"), "-o", str(folder / "program"), "-lm"]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[:2000]
    given = x.astype(np.float32).tobytes()
    out = subprocess.run([folder / "program"], input=given, capture_output=True, check=True).stdout
    return np.frombuffer(out, np.float32).reshape(len(x), -1)


def by_onnx(content: bytes, x: Array) -> Array:
    """What ONNX Runtime says about inputs."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found: Array = session.run(["output"], {"input": x})[0]
    return found


def personal(description: Description, shape: tuple[int, ...], **changes: Any) -> Personal:
    """A model with weights that are large enough for its answers to differ, as those of a trained one."""
    row = np.float32(1.5) * description.start(3)
    biases = np.random.default_rng(0).standard_normal(len(row)).astype(np.float32) * np.float32(0.1)
    row = np.where(row == 0, biases, row)
    labels = tuple(f"label {i}" for i in range(description.outputs))
    made = Personal("model", description, row, shape, False, None, SOFTMAX, labels, {"fedfilt": "0", "device": "model"})
    return replace(made, **changes)


@pytest.mark.parametrize("kind", ["float32", "uint8"])
@pytest.mark.parametrize("name", _parts.names("models"))
def test_all_models_give_the_same_probabilities(name, kind, tmp_path):
    shape = SHAPES.get(name, (3, 7))
    description = described(model_named(name, {}, shape, 5))
    model = personal(description, shape, pixels=kind == "uint8")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((40, *shape)).astype(np.float32)
    x = rng.integers(0, 256, x.shape).astype(np.uint8) if kind == "uint8" else x
    wanted = Trainer(description, Training(), shape).predict(model.row, x)
    assert np.ptp(wanted, axis=0).max() > 0.1  # it tells inputs apart
    assert np.abs(by_onnx(onnx_format.content(model), x) - wanted).max() < 1e-6
    assert np.abs(by_c(c_format.content(model), x, tmp_path) - wanted).max() < 1e-6


@pytest.mark.parametrize("soft", [0.0, 3.0])
def test_the_scaling_of_a_home_is_part_of_the_model(soft, tmp_path):
    description = described(model_named("motifs", {"filters": 8, "latent": 3}, (4, 30), 3))
    rng = np.random.default_rng(0)
    raw = (9.81 + np.array([0.01, 1, 100, 1e4])[:, None] * rng.standard_normal((50, 4, 30))).astype(np.float32)
    model = personal(description, (4, 30), scaling=Scaling.of(raw[:40], soft))
    raw[0, 0] = 1e6  # far beyond what is cut off
    wanted = Trainer(description, Training(), (4, 30)).predict(model.row, model.scaling.apply(raw))
    assert np.abs(by_onnx(onnx_format.content(model), raw) - wanted).max() < 1e-6
    assert np.abs(by_c(c_format.content(model), raw, tmp_path) - wanted).max() < 1e-6


@pytest.mark.parametrize("end", [SIGMOID, NOTHING])
def test_other_ends_than_softmax(end, tmp_path):
    description = Description((Flatten(), Dense(12, 7), Relu(), Dense(7, 3, bias=False)))
    model = personal(description, (12,), end=end)
    x = np.random.default_rng(0).standard_normal((9, 12)).astype(np.float32)
    tensors = {name: tensor.astype(np.float64) for name, tensor in model.tensors.items()}
    hidden = np.maximum(x @ tensors["1.weight"].T + tensors["1.bias"], 0)
    wanted = hidden @ tensors["3.weight"].T
    wanted = 1 / (1 + np.exp(-wanted)) if end == SIGMOID else wanted
    assert np.allclose(by_onnx(onnx_format.content(model), x), wanted, rtol=1e-5, atol=1e-6)
    assert np.allclose(by_c(c_format.content(model), x, tmp_path), wanted, rtol=1e-5, atol=1e-6)


def test_odd_sizes_and_orders(tmp_path):
    layers = (
        Convolution(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), bias=False),
        Pool((2, 3)),
        Relu(),
        Convolution(3, 4, (1, 1), stride=(1, 1), padding=(0, 0)),
        Flatten(),
        Dense(4 * 2 * 4, 2),
    )
    model = personal(Description(layers), (2, 9, 13))
    x = np.random.default_rng(0).standard_normal((20, 2, 9, 13)).astype(np.float32)
    wanted = Trainer(Description(layers), Training(), (2, 9, 13)).predict(model.row, x)
    assert np.abs(by_onnx(onnx_format.content(model), x) - wanted).max() < 1e-6
    assert np.abs(by_c(c_format.content(model), x, tmp_path) - wanted).max() < 1e-6
    with pytest.raises(ValueError, match="a model with Relu at that place cannot be exported to C"):
        c_format.content(personal(Description((Relu(), Flatten(), Dense(4, 2))), (4,)))


def test_weights_in_c_have_the_same_bits():
    model = personal(Description((Flatten(), Dense(300, 5))), (300,))
    text = c_format.content(model).decode()
    table = text.partition("static const float weights[1505] = {")[2].partition("}")[0]
    assert np.array_equal(np.array([word.strip().rstrip("f") for word in table.split(",")], np.float32), model.row)


def test_labels_and_names_of_strangers_end_no_comment_and_no_text(tmp_path):
    description = Description((Flatten(), Dense(3, 2)))
    labels = ('sit "down"\\', "??/*/\n€")
    about = {"fedfilt": "0", "rule": "*/ int x; /* ??/\\", "device": "a"}
    model = personal(description, (3,), labels=labels, about=about)
    x = np.ones((1, 3), np.float32)
    assert by_c(c_format.content(model), x, tmp_path).sum() == pytest.approx(1)
    props = {one.key: one.value for one in onnx.load_from_string(onnx_format.content(model)).metadata_props}
    assert props["labels"].split("\n", 1) == [labels[0], labels[1]]


# --- from folders --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    finish(folder, rounds=2)
    return folder


def test_models_of_a_run(run, tmp_path):
    done = call("export", run, "--onnx", "--device", 3, "--out", tmp_path / "three.onnx")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"onnx: {tmp_path / 'three.onnx'}\n"
    built = Run(from_table({**SMALL, "rounds": 2}))
    row = built.layout.row(load_file(run / "models" / "device-003.safetensors"))
    x = built.data.x[:30]
    wanted = built.trainer.predict(row, x)
    content = (tmp_path / "three.onnx").read_bytes()
    assert np.abs(by_onnx(content, x) - wanted).max() < 1e-6
    made = onnx.load_from_string(content)
    props = {one.key: one.value for one in made.metadata_props}
    assert props == {
        "model": "mlp",
        "fedfilt": made.producer_version,
        "run": "mu=1",
        "rule": "mu=1",
        "seed": "0",
        "round": "2",
        "device": "device-003",
        "labels": "\n".join("0123456789"),
    }
    assert call("export", run, "--c", "--out", tmp_path / "all").stdout == f"c: 20 models in {tmp_path / 'all'}\n"
    files = sorted((tmp_path / "all").iterdir())
    assert [file.name for file in files] == [f"device-{i:03d}.c" for i in range(20)]
    assert np.abs(by_c(files[3].read_bytes(), x, tmp_path / "built") - wanted).max() < 1e-6


def test_a_torch_module_of_known_layers(tmp_path, monkeypatch):
    (tmp_path / "stack.py").write_text(
        "from torch import nn\n"
        "class Stack(nn.Sequential):\n"
        "    def __init__(self, classes: int) -> None:\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    finish(tmp_path / "run", rounds=1, model="stack:Stack")
    words = ("export", tmp_path / "run", "--onnx", "--device", "4", "--out", tmp_path / "four.onnx")
    done = call(*words, "--trust-code", env={"XDG_STATE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    built = Run(from_table({**SMALL, "rounds": 1, "model": "stack:Stack"}))
    row = built.layout.row(load_file(tmp_path / "run" / "models" / "device-004.safetensors"))
    wanted = built.trainer.predict(row, built.data.x[:30])
    assert np.abs(by_onnx((tmp_path / "four.onnx").read_bytes(), built.data.x[:30]) - wanted).max() < 1e-6


def test_models_of_a_device_with_its_own_scaling(tmp_path):
    folder = tmp_path / "kitchen"
    labels = ["sit", "walk", "run"]
    data = {"name": "own", "shape": [4, 30], "labels": labels}
    graph = {"name": "rooms", "rooms": 1, "devices": 4}
    built = Run(from_table({"data": data, "graph": graph, "model": {"name": "motifs", "filters": 8}}))
    (folder / "state").mkdir(parents=True)
    (folder / "device.toml").write_text(tomli_w.dumps({"name": "kitchen", "experiment": known(built)}))
    with pytest.raises(ValueError, match="has no model yet"):
        export("c", [folder])
    raw = 5 + np.random.default_rng(0).standard_normal((30, 4, 30)).astype(np.float32)
    scaling, row = Scaling.of(raw), built.trainer.start(5)
    take(folder / "state", Kept(row, 7, scaling.to_json()), built.layout)
    wanted = built.trainer.predict(row, scaling.apply(raw))
    assert export("c", [folder]) == [str(folder / "c" / "kitchen.c")]
    text = (folder / "c" / "kitchen.c").read_bytes()
    assert np.abs(by_c(text, raw, tmp_path / "built") - wanted).max() < 1e-6
    assert b'fedfilt_labels[FEDFILT_OUTPUTS] = {"sit", "walk", "run"};' in text
    [path] = export("onnx", [folder])
    assert np.abs(by_onnx(Path(path).read_bytes(), raw) - wanted).max() < 1e-6
    props = {one.key: one.value for one in onnx.load(path).metadata_props}
    assert (props["round"], props["device"], props["labels"].split("\n")) == ("7", "kitchen", labels)


@pytest.mark.slow(4)
@pytest.mark.parametrize(
    "changes", [{}, {"encoder": {"latent": [12], "epochs": 1}, "model": {"name": "mlp", "hidden": 8}}]
)
def test_models_behind_encoders_take_the_raw_inputs_of_their_kind(tmp_path, changes):
    run = encoded_run(rounds=1, **changes)
    for _ in play_in_folder(run, tmp_path / "run"):
        pass
    for name in ("onnx", "c"):
        export(name, [tmp_path / "run"], devices="0,1,2")
    for device, (channels, rows, _) in enumerate(SENSORS.values()):
        x = np.random.default_rng(device).standard_normal((20, channels, rows)).astype(np.float32)
        trainer, file = run.trainers[device], tmp_path / "run" / "models" / f"device-{device:03d}.safetensors"
        wanted = trainer.predict(trainer.layout.row(load_file(file)), x)
        assert np.ptp(wanted, axis=0).max() > 0.01
        onnx_file, c_file = (tmp_path / "run" / name / f"{file.stem}.{name}" for name in ("onnx", "c"))
        assert np.abs(by_onnx(onnx_file.read_bytes(), x) - wanted).max() < 1e-6
        assert np.abs(by_c(c_file.read_bytes(), x, tmp_path / str(device)) - wanted).max() < 1e-6


def test_what_cannot_be_exported_is_said(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    with pytest.raises(ValueError, match=r"has no model of device 20 \(it has devices 0 to 19\)"):
        export("onnx", [folder], devices="3,20")
    with pytest.raises(ValueError, match="device must name the devices"):
        export("onnx", [folder], devices="none")
    for content in (None, "{", '{"shape": [0], "dtype": "uint8"}', '{"shape": [1, 8, 8.0], "dtype": "uint8"}', "[]"):
        (folder / "partition.json").unlink(missing_ok=True)
        if content is not None:
            (folder / "partition.json").write_text(content)
        with pytest.raises(ValueError, match=r"does not contain the shape .* --resume writes it again"):
            export("onnx", [folder])
    finish(folder, resume=True, rounds=2)  # as it says
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('name = "mlp"\nhidden = 16', 'name = "helpers:Odd"', 1))
    with pytest.raises(ValueError, match=r"names code, helpers:Odd, .* --trust-code"):
        export("onnx", [folder])
    done = call("export", folder, "--onnx", "--trust-code", env={"XDG_STATE_HOME": str(tmp_path)})
    assert "model helpers:Odd cannot be exported: it must be a file of fedfilt/models" in done.stderr
    (folder / "config.toml").write_text(config.replace("hidden = 16", "hidden = 17", 1))
    with pytest.raises(ValueError, match=r"device-000.safetensors: .* must have shape \(17, 64\)"):
        export("onnx", [folder])
    (folder / "config.toml").write_text(config)
    model = folder / "models" / "device-000.safetensors"
    broken = {key: np.full_like(value, math.nan) for key, value in load_file(model).items()}
    save_file(broken, model)
    with pytest.raises(ValueError, match="it is not finite"):
        export("c", [folder], devices="0")
    model.rename(tmp_path / "elsewhere")
    model.symlink_to(tmp_path / "elsewhere")
    with pytest.raises((ValueError, OSError), match="it is a link"):
        export("c", [folder], devices="0")
    (folder / "models").rename(tmp_path / "private")
    (folder / "models").symlink_to(tmp_path / "private")
    with pytest.raises(ValueError, match="models is a link to another place"):
        export("c", [folder], devices="1")
    (folder / "models").unlink()
    with pytest.raises(ValueError, match="has no models: they are written when a run has finished"):
        export("c", [folder])
    assert not (folder / "c").exists() or not list((folder / "c").iterdir())


def test_models_of_a_comparison_lie_side_by_side(run, tmp_path):
    both = tmp_path / "both"
    for name in ("one", "two"):
        shutil.copytree(run, both / name)
    written = export("c", [both], str(tmp_path / "out"), devices="1,2")
    assert len(written) == 2
    assert len(list((tmp_path / "out").glob("*/*.c"))) == 4
    assert len(export("c", [both], devices="1")) == 2
    assert (both / "one" / "c" / "device-001.c").exists()
