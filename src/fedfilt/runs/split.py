"""Turns any experiment into one with own data: a folder per device, with the files its owner would have there."""

import csv
import glob
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedfilt._files import write_atomically
from fedfilt._types import Array, Table
from fedfilt.data import FederatedData
from fedfilt.data.samples import shaped
from fedfilt.data.store import Store
from fedfilt.data.windows import TEST, TRAIN, VALIDATION, Recording
from fedfilt.runs.build import dealt
from fedfilt.runs.config import Config, from_table

PAUSE = 10  # periods between two recordings in a file, which keeps them apart

Progress = Callable[[int, int], None]  # (devices written, devices in total)


def split(
    config: Config,
    out: Path,
    recordings: bool = False,
    store: Store | None = None,
    progress: Progress = lambda done, total: None,
) -> Path:
    """Write a folder per device and the experiment on them into `out`, all or nothing; returns the experiment's path.

    Every device gets exactly its samples, already scaled, so that the models keep their bits. With `recordings`, it
    gets the whole recordings behind them as CSV, to be cut and scaled on the device. If the local test is the global
    test restricted to a device's labels, the device gets those samples as its own test.
    """
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ValueError(f"--out must be a new or empty folder, got {out}")
    store = store or Store()
    data = dealt(config, config.graph.graph(config.seed), store)
    if data.elsewhere:
        raise ValueError("this experiment's data is already on its devices: there is nothing to split")
    if not data.labelled:
        raise ValueError(f"devices read labels from their own files, but samples of {data.name} have no labels")
    if recordings and data.shapes is not None:
        raise ValueError("--recordings needs devices with the same channels and rate: without it, samples are written")
    found = _recordings_of(config, data, store) if recordings else []
    write = _write_recordings(config, data, found) if recordings else _write_samples(data)
    out.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        for device in range(data.count):
            folder = place / f"device-{device:0{max(3, len(str(data.count - 1)))}}" / "data"
            folder.mkdir(parents=True)
            write(folder, device)
            progress(device + 1, data.count)
        if len(data.global_test) and data.shapes is None:
            np.savez(place / "public.npz", x=data.x[data.global_test], y=data.y[data.global_test])
        made = from_table(_experiment(config, data, out.resolve(), found))
        write_atomically(place / "experiment.toml", made.toml().encode())
        place.rename(out)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return out / "experiment.toml"


def _write_samples(data: FederatedData) -> Callable[[Path, int], None]:
    def write(folder: Path, device: int) -> None:
        parts = _parts_of(data, device)
        rows = np.concatenate(parts)
        part = np.repeat([TRAIN, VALIDATION, TEST], [len(one) for one in parts])
        x = data.x[rows] if data.shapes is None else shaped(data.x[rows], data.shapes[device])
        np.savez(folder / "samples.npz", x=x, y=data.y[rows], part=part)

    return write


def _parts_of(data: FederatedData, device: int) -> tuple[Array, Array, Array]:
    """A device's samples for training, validation and test."""
    if data.local_test is not None:
        test = data.local_test[device]
    else:
        test = data.global_test[np.isin(data.y[data.global_test], np.flatnonzero(data.label_counts[device]))]
    return data.train[device], np.arange(0) if data.validation is None else data.validation[device], test


def _recordings_of(config: Config, data: FederatedData, store: Store) -> list[Recording]:
    """The recordings of all devices, numbered as in the experiment."""
    if not hasattr(config.data, "recordings"):
        raise ValueError(f"--recordings needs a data set of recordings, such as watch, got {data.name}")
    recorded = config.data.load(store).devices
    owners = [np.unique(recorded[np.concatenate(_parts_of(data, device))]).tolist() for device in range(data.count)]
    if any(len(numbers) != 1 for numbers in owners):
        raise ValueError("--recordings needs a partition that leaves every device its own recordings, such as wearers")
    numbers = {number: device for device, [number] in enumerate(owners)}
    found: list[Recording] = config.data.recordings(store)
    return [one._replace(device=numbers[one.device]) for one in found if one.device in numbers]


def _write_recordings(config: Config, data: FederatedData, found: list[Recording]) -> Callable[[Path, int], None]:
    names, labels = _channels(config, found), _labels(config, data)

    def write(folder: Path, device: int) -> None:
        with (folder / "recordings.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["time", *names, "label"])
            start = 0
            for recording in (one for one in found if one.device == device):
                for row, values in enumerate(recording.signal.tolist(), start):
                    table.writerow([row / recording.rate, *values, labels[recording.label]])
                start += len(recording.signal) + PAUSE

    return write


def _channels(config: Config, found: list[Recording]) -> list[str]:
    return list(getattr(config.data, "channels", ())) or [f"channel_{i}" for i in range(found[0].signal.shape[1])]


def _labels(config: Config, data: FederatedData) -> list[str]:
    """Names of labels, or numbers if a data set has no names."""
    known = getattr(config.data, "labels", ())
    return list(known) if len(known) == data.classes else [str(label) for label in range(data.classes)]


def _experiment(config: Config, data: FederatedData, out: Path, found: list[Recording]) -> Table:
    """The same experiment on the folders in `out`."""
    table = config.table()
    del table["partition"]
    own: Table = {"shape": list(data.x.shape[1:]), "labels": _labels(config, data), "scale": bool(found)}
    if found:
        own |= {"channels": _channels(config, found), "rate": found[0].rate, "validation_share": 0.0}
        own |= {"step": getattr(config.data, "step", data.x.shape[-1])}
        own |= {key: getattr(config.data, key) for key in ("test_share", "soft") if hasattr(config.data, key)}
    if config.evaluation.validation:
        own["validation_share"] = config.evaluation.validation
    own |= {"kinds": list(data.kinds or ()), "folders": f"{glob.escape(str(out))}/device-*"}
    if data.shapes is not None and data.kinds is not None:  # no single file could be their global test
        shapes = dict(zip(data.kinds, map(list, data.shapes), strict=True))
        own |= {"shape": [], "sensors": [{"kind": kind, "shape": shape} for kind, shape in shapes.items()]}
        return {**table, "data": {"name": "own", **own}}
    own |= {"public": {"file": str(out / "public.npz") if len(data.global_test) else ""}}
    return {**table, "data": {"name": "own", **own}}
