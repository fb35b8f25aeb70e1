"""Personal models from the folder of a run or a device, with all that is needed to apply them to raw inputs."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from fedfilt._files import regular
from fedfilt._reading import MOST_TOML, read, read_json, toml_of
from fedfilt._trust import check_trusted, code_in
from fedfilt._types import Array, Table
from fedfilt._version import __version__
from fedfilt.data.windows import Scaling
from fedfilt.runs.config import Config, from_table
from fedfilt.runs.records import Records, find_runs
from fedfilt.training import _torch, kept
from fedfilt.training.description import Description, described
from fedfilt.training.encoders import behind
from fedfilt.training.network import Unknown
from fedfilt.training.trainer import model_named

SOFTMAX, SIGMOID, NOTHING = "softmax", "sigmoid", ""  # what makes probabilities, or numbers, of a model's outputs
ENDS = {"cross_entropy": SOFTMAX, "smoothed": SOFTMAX, "bce": SIGMOID, "mse": NOTHING, "mae": NOTHING}  # by loss
FILE = re.compile(r"device-(\d+)\.safetensors")
MOST_SIDES, MOST_SIDE = 4, 2**24  # of a sample's shape


@dataclass(frozen=True, eq=False)
class Personal:
    """A model of a device: raw inputs of `shape` are scaled, go through the layers, and end in probabilities."""

    name: str
    description: Description
    row: Array
    shape: tuple[int, ...]
    pixels: bool  # inputs are bytes, 0 to 255, of which the model sees 0 to 1
    scaling: Scaling | None  # of its inputs
    end: str
    labels: tuple[str, ...]  # names of its outputs, in order
    about: Mapping[str, str]

    @property
    def tensors(self) -> dict[str, Array]:
        """Its weights by name, as torch has them."""
        return self.description.layout.tensors(self.row)


@dataclass(frozen=True, eq=False)
class Models:
    """The models in a folder, which differ only in their weights and, behind encoders, in what they take."""

    folder: Path
    title: str
    files: Mapping[str, Path]  # by the model's name
    shapes: Mapping[str, tuple[int, ...]]  # of its inputs
    descriptions: Mapping[tuple[int, ...], Description]  # for inputs of a shape
    pixels: bool
    end: str
    labels: tuple[str, ...]
    about: Mapping[str, str]

    def read(self, name: str) -> Personal:
        """The model of this name; ValueError if it cannot be used."""
        shape = self.shapes[name]
        description = self.descriptions[shape]
        found = _kept(self.files[name], description)
        if found.row.ndim == 2:
            raise ValueError(
                f"{self.files[name]}: this device answers with the average of {len(found.row)} models, which cannot be "
                "exported as one; train with a client that decides with one model, such as two_level with "
                'answers = "personal"'
            )
        scaling = _scaling(self.files[name], found.scaling, shape)
        about = {**self.about, "device": name, **({"round": str(found.round)} if found.round else {})}
        pixels = self.pixels and scaling is None
        return Personal(name, description, found.row, shape, pixels, scaling, self.end, self.labels, about)


def models_in(path: Path, devices: frozenset[int] | None = None) -> list[Models]:
    """The models of a device's folder, of a run, or of every run in a folder; `devices` are those of runs (None: all).

    Code that a config names is run only if it is trusted, and only that of the model.
    """
    if (path / "device.toml").exists():
        return [_of_device(path)]
    return [_of_run(run, devices) for run in find_runs([path])]


def _of_run(run: Records, devices: frozenset[int] | None) -> Models:
    folder = run.folder
    if not run.config:
        raise ValueError("; ".join(run.notes))
    files = _files(folder, devices)
    data = run.config.get("data")
    if isinstance(data, dict) and data.get("name") == "own" and data.get("scale", True):
        raise ValueError(
            f"every device of {folder} scales its inputs by its own data, which is not stored there: export the models "
            "from the devices' folders (fedfilt export building/devices/NAME)"
        )
    try:
        partition = read_json(folder / "partition.json")
        unlike, pixels = partition.get("shapes"), partition["dtype"] == "uint8"
        shapes = {name: _shape(unlike[int(name[7:])] if unlike else partition["shape"]) for name in files}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ValueError(
            f"{folder}/partition.json does not contain the shape of the inputs: it is damaged, or from an earlier "
            f"version; fedfilt run {folder}/config.toml --out {folder} --resume writes it again"
        ) from None
    content = run.config_text.encode()
    about = {"run": run.name, "rule": run.rule, "seed": str(run.seed)}
    if run.status == "finished":
        about["round"] = str(run.rounds[-1]["round"])
    return _models(folder, files, folder / "config.toml", content, run.config, shapes, pixels, about, run.name)


def _of_device(folder: Path) -> Models:
    path, state = folder / "device.toml", folder / "state"
    try:
        content = read(path, MOST_TOML)
        table = toml_of(content)
        known, name = table["experiment"], str(table["name"])
        data = known["data"]
        own, sort = data.get("name") == "own", table.get("kind", "")
        unlike = {one["kind"]: one["shape"] for one in data.get("sensors", ())}
        shape = _shape(unlike[sort] if unlike else data["shape"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is not a device's folder made by fedfilt deploy write: {error}") from None
    if own and not data.get("scale", True):
        raise ValueError(f"{path}: with data.scale = false, the folder does not say if samples are bytes or numbers")
    if not (state / kept.FILE).exists():
        raise ValueError(f"{folder} has no model yet: a device stores that of its last round in {state / kept.FILE}")
    # Own samples are scaled unless they are bytes; what was dealt is used as it is
    pixels = own or _opened(state / "samples.safetensors", lambda file: file.get_slice("train_x").get_dtype()) == "U8"
    return _models(folder, {name: state / kept.FILE}, path, content, known, {name: shape}, pixels, {}, name)


def _models(
    folder: Path,
    files: Mapping[str, Path],
    path: Path,
    content: bytes,
    table: Table,
    shapes: Mapping[str, tuple[int, ...]],
    pixels: bool,
    about: Mapping[str, str],
    title: str,
) -> Models:
    """The models of an experiment's table, which stands in a file of this path and content."""
    training, model = table.get("training"), {"model": table.get("model", {})}
    loss = str(training.get("loss", "cross_entropy")) if isinstance(training, dict) else "cross_entropy"
    if loss not in ENDS:
        raise ValueError(f"{path}: models with the loss {loss} cannot be exported (allowed: {', '.join(ENDS)})")
    if code_in(model):
        check_trusted(path, content, code_in(table), [folder])
    encoder = table.get("encoder")
    config = from_table(model | ({"encoder": encoder} if isinstance(encoder, dict) else {}))
    head = next(iter(_described(config, shapes.values(), 1).values())).weighted[-1].name
    key = f"{head}.weight"
    outputs = _opened(next(iter(files.values())), lambda file: file.get_slice(key).get_shape()[0])
    descriptions = _described(config, shapes.values(), outputs)
    data = table.get("data")
    given = data.get("labels") if isinstance(data, dict) else None
    labels = given if isinstance(given, list) and len(given) == outputs else range(outputs)
    said = {"model": config.model.name, "fedfilt": __version__, **about}
    return Models(folder, title, files, shapes, descriptions, pixels, ENDS[loss], tuple(map(str, labels)), said)


def _described(config: Config, shapes: Iterable[tuple[int, ...]], outputs: int) -> dict[tuple[int, ...], Description]:
    """The layers of a model for inputs of each shape, if it says what they are; behind encoders, these first."""
    named, encoder = config.model, config.encoder
    found = {}
    for shape in dict.fromkeys(shapes):
        model = model_named(named.name, named.options, encoder.latent or shape, outputs)
        if encoder.latent:
            [model] = behind(encoder, model, [shape])
        try:
            found[shape] = _torch.describe(model) if hasattr(model, "forward") else described(model)
        except Unknown as reason:
            raise ValueError(
                f"model {named.name} cannot be exported: it must be a file of fedfilt/models or a torch module of "
                f"known layers, not {reason}. Its weights (models/*.safetensors) can be loaded into the module for "
                "torch.onnx.export"
            ) from None
    return found


def _files(folder: Path, devices: frozenset[int] | None) -> dict[str, Path]:
    """The models of a run folder's devices, by name and in order."""
    if (folder / "models").is_symlink():
        raise ValueError(f"{folder / 'models'} is a link to another place")
    try:
        names = sorted(path.name for path in (folder / "models").iterdir() if FILE.fullmatch(path.name))
    except OSError:
        names = []
    if not names:
        raise ValueError(f"{folder} has no models: they are written when a run has finished")
    found = {int(name[7:-12]): folder / "models" / name for name in names}
    if unknown := sorted(set(devices or ()) - set(found)):
        raise ValueError(f"{folder} has no model of device {unknown[0]} (it has devices {min(found)} to {max(found)})")
    chosen = {number: path for number, path in found.items() if devices is None or number in devices}
    if not chosen:
        raise ValueError("device must name the devices whose models are wanted, or be all, got none")
    return {path.stem: path for _, path in sorted(chosen.items())}


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of a sample, from a file."""
    fits = isinstance(value, list) and 1 <= len(value) <= MOST_SIDES
    if not fits or any(type(side) is not int or not 1 <= side <= MOST_SIDE for side in value):
        raise ValueError(f"shape must be 1 to {MOST_SIDES} whole numbers from 1 to {MOST_SIDE}, got {value!r}")
    return tuple(value)


def _opened(path: Path, ask: Callable[[Any], Any]) -> Any:
    """What a safetensors file answers; ValueError if it is none."""
    try:
        with regular(path, links=False), safe_open(path, "np") as file:
            return ask(file)
    except (OSError, SafetensorError, IndexError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _kept(path: Path, description: Description) -> kept.Kept:
    with regular(path, links=False):  # a pipe would keep its reader waiting
        return kept.read(path, description.layout)


def _scaling(path: Path, text: str, shape: tuple[int, ...]) -> Scaling | None:
    """The scaling that is kept with a model."""
    if not text:
        return None
    scaling = Scaling.from_json(text)
    if len(scaling.mean) != shape[0]:
        raise ValueError(f"{path}: its scaling must have {shape[0]} channels, got {len(scaling.mean)}")
    if scaling.unknown:
        raise ValueError(f"{path}: when the device received its model, it had no samples to scale its inputs by")
    return scaling
