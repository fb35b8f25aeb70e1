"""The model on a device's disk that it decides with: replaced unless the new one is worse, and rolled back."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedfilt._files import write_atomically
from fedfilt._types import Array
from fedfilt.training.rows import Layout

log = logging.getLogger("fedfilt")

FILE = "model.safetensors"
EARLIER = "earlier"  # folder of the models before it
LAST = 5  # earlier models that are kept
ALSO = "also."  # begins the names of tensors of a second model, also.1., a third, also.2., ...: answers are averaged

Judge = Callable[[Array], float]  # how often a row is right about the device's own validation samples, 0 to 1


class Kept(NamedTuple):
    """A model as stored on a device."""

    row: Array  # (B,), or (n, B) of several whose answers are averaged
    round: int  # that made it
    scaling: str = ""  # of its inputs, as text
    left: int = 0  # the newest round whose model the owner went back from


def tensors_of(row: Array, layout: Layout) -> dict[str, Array]:
    """A model as a state dict for plain PyTorch; of several, all but the first have longer names (`ALSO`)."""
    if row.ndim == 1:
        return layout.tensors(row)
    return {
        (f"{ALSO}{number}.{key}" if number else key): tensor
        for number, one in enumerate(row)
        for key, tensor in layout.tensors(one).items()
    }


def read(path: Path, layout: Layout) -> Kept:
    """The model in a file; ValueError if it cannot be used."""
    names = {slot: key for key, slot in layout.names.items()}
    try:
        rows = []
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            count = 1 + len({key.split(".")[1] for key in file.keys() if key.startswith(ALSO)})  # noqa: SIM118
            for start in ("", *(f"{ALSO}{number}." for number in range(1, count))):
                tensors = {slot.name: file.get_tensor(start + names.get(slot.name, slot.name)) for slot in layout.slots}
                for slot in layout.slots:
                    if tensors[slot.name].shape != slot.shape:
                        raise ValueError(f"{slot.name} must have shape {slot.shape}, got {tensors[slot.name].shape}")
                rows.append(layout.row(tensors))
        row = rows[0] if count == 1 else np.stack(rows)
        if not np.isfinite(row).all():
            raise ValueError("it is not finite")
        return Kept(row, int(metadata.get("round", 0)), metadata.get("scaling", ""), int(metadata.get("left", 0)))
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def kept(path: Path, layout: Layout) -> Kept | None:
    """The model in a file; None if there is none that can be used."""
    try:
        return read(path, layout)
    except ValueError:
        return None


def take(folder: Path, model: Kept, layout: Layout, judge: Judge | None = None, margin: float = 1.0) -> bool:
    """Keep a model to decide with, unless it is worse than the last by more than a margin; returns whether it was kept.

    A model that the owner went back from is not kept again. The file can be loaded by plain PyTorch; round and scaling
    are in its metadata.
    """
    before = kept(folder / FILE, layout)
    if before is not None and model.round <= before.left:
        return False
    if before is not None and judge is not None and not np.array_equal(before.row, model.row):
        old, new = judge(before.row), judge(model.row)
        if new < old - margin:
            log.info(
                "the model of round %d is not taken: it is right about %.1f %% of this device's validation samples, "
                "the one of round %d about %.1f %%",
                model.round,
                100 * new,
                before.round,
                100 * old,
            )
            return False
    if before is not None and before.round < model.round:
        _keep_earlier(folder, before, layout)
    _write(folder / FILE, model, layout)
    return True


def roll_back(folder: Path, layout: Layout) -> Kept:
    """Go back to the previous model, until a newer one than now comes, and return it; ValueError if there is none."""
    now = kept(folder / FILE, layout)
    for path in reversed(_earlier(folder)):
        model = kept(path, layout)
        if model is not None and (now is None or model.round < now.round):
            left = 0 if now is None else max(now.round, now.left)
            _write(folder / FILE, model._replace(left=left), layout)
            path.unlink()
            return model
    raise ValueError(f"{folder} has no earlier model to go back to")


def _earlier(folder: Path) -> list[Path]:
    return sorted((folder / EARLIER).glob("model-*.safetensors"))


def _keep_earlier(folder: Path, model: Kept, layout: Layout) -> None:
    (folder / EARLIER).mkdir(exist_ok=True)
    _write(folder / EARLIER / f"model-{model.round:08d}.safetensors", model, layout)
    for path in _earlier(folder)[:-LAST]:
        path.unlink()


def _write(path: Path, model: Kept, layout: Layout) -> None:
    metadata = {"round": str(model.round)} | ({"scaling": model.scaling} if model.scaling else {})
    metadata |= {"left": str(model.left)} if model.left else {}
    write_atomically(path, save(tensors_of(model.row, layout), metadata))
