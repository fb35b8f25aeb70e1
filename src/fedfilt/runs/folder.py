"""The folder of a run: whether it may be written, whether it belongs to this experiment, and what it holds."""

import csv
import io
import logging
import os
import platform
import secrets
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedfilt import native
from fedfilt._files import write_atomically
from fedfilt._reading import read_json
from fedfilt._types import Table
from fedfilt._version import __version__, version_of
from fedfilt.rounds.guard import Guard
from fedfilt.runs.build import Run
from fedfilt.runs.config import Config, hash_of, load_begun

SECRET = 32  # bytes


def check_folder(folder: Path, config: Config, resume: bool) -> None:
    """Before touching anything, refuse to write into a folder that is not this run's."""
    if (folder / "config.toml").exists():
        if not resume:
            raise ValueError(
                f"{folder} holds a run already; go on with --resume (resume=True), or choose another --out"
            )
        check_plain(folder)
        check_same(config, folder / "config.toml")
    elif folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose a folder with --out")
    elif folder.exists() and any(not path.name.endswith(".tmp") for path in _others(folder)):
        raise ValueError(f"{folder} holds other files; choose a new folder with --out")


def check_plain(folder: Path, only: Collection[str] = ()) -> None:
    """Refuse a folder that holds anything but files and folders, at any depth, or in those named in `only`.

    It may be somebody else's and is about to be written into: a link would take what is written to another place, and a
    pipe would keep us waiting.
    """
    left = [folder] if folder.is_dir() else []
    while left:
        with os.scandir(place := left.pop()) as entries:
            for one in entries:
                if only and place is folder and one.name not in only:
                    continue
                if one.is_dir(follow_symlinks=False):
                    left.append(Path(one.path))
                elif not one.is_file(follow_symlinks=False):
                    kind = "a link to another place" if one.is_symlink() else "neither a file nor a folder"
                    raise ValueError(f"{one.path} is {kind}: remove it if you want to write into {folder}")


def check_several(folder: Path) -> None:
    """Refuse to put several runs into a folder that is that of one."""
    if (folder / "config.toml").exists():
        raise ValueError(f"{folder} is the folder of a single run; choose another --out for several")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose a folder with --out")


def _others(folder: Path) -> list[Path]:
    """Files other than those that a run killed at its very start leaves behind."""
    return [path for path in folder.iterdir() if path.name != "lock" or path.stat().st_size > 20]


def check_same(config: Config, old: Path) -> None:
    """Refuse to continue a folder with a different experiment; only more rounds or more events are allowed.

    Whether new events are in future rounds is checked when the checkpoint is read.
    """
    before = load_begun(old, config)
    config = as_begun(config, old)
    rounds = min(before.rounds, config.rounds)
    if before.hash() == replace(config, events=config.events[: len(before.events)], rounds=rounds).hash():
        if rounds < config.rounds and config.privacy.epsilon:
            raise ValueError(
                f"{old.parent} has spent privacy.epsilon = {config.privacy.epsilon:g} on {rounds} rounds; "
                f"{config.rounds} rounds need more noise from the start: choose another --out"
            )
        return
    was, now = _flat(before.table()), _flat(config.table())
    changes = [f"{key} was {was.get(key)!r}, is {now.get(key)!r}" for key in was | now if was.get(key) != now.get(key)]
    raise ValueError(
        f"{old.parent} was run with another config ({'; '.join(changes)}); resume with the same one, "
        "or choose another --out"
    )


def as_begun(config: Config, old: Path) -> Config:
    """The experiment, without its guard if the folder started without one and the guard is the default one."""
    without = old.exists() and config.guard == Guard() and not load_begun(old, config).guard.on
    return replace(config, guard=Guard(on=False)) if without else config


def earlier(config: Config) -> dict[str, Config]:
    """The experiment, and what it was before its last events were added one by one, by hash."""
    table, versions = config.counted(), {}
    for count in range(len(config.events), -1, -1):  # the hash of each, without making the whole table again
        events = {"events": table["events"][:count]} if count else {}
        was = {key: value for key, value in table.items() if key != "events"} | events
        versions[hash_of(was)] = replace(config, events=config.events[:count])
    return versions


def _flat(table: Table, path: str = "") -> Table:
    flat: Table = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value})
    return flat


def environment(run: Run) -> Table:
    """Versions, machine and hashes of a run."""
    trace = getattr(run.script, "trace", None)
    return {
        "fedfilt": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        **{name: version_of(name) for name in ("numpy", "scipy", "torch", "safetensors")},
        "training": run.trainer.backend,
        "native": native.chosen().level,
        "native_sources": native.sources()[:12],
        "config_hash": run.config.hash(),
        "seed": run.config.seed,
        "partition_hash": run.data.hash,
        "graph_hash": run.begun.hash,
        "devices_hash": run.begun_hardware.hash,
        **({} if trace is None else {"trace_hash": trace.hash}),
    }


def check_environment(folder: Path, now: Table) -> None:
    """Refuse a different graph, partition or hardware than before; warn if the computing software has changed."""
    before = read_json(folder / "environment.json")
    for what in ("graph", "partition", "devices", "trace"):
        if before.get(f"{what}_hash") != now.get(f"{what}_hash"):
            raise ValueError(f"{folder} was run with another {what} (its file has changed); choose another --out")
    changed = [
        f"{key} {before.get(key)} -> {now[key]}"
        for key in ("training", "native", "native_sources", *(["torch"] if now["training"] == "torch" else []))
        if before.get(key, now[key]) != now[key]
    ]
    if changed:
        logging.getLogger("fedfilt").warning(
            f"{folder} continues with {', '.join(changed)}: the last bits of its numbers may differ from then on"
        )


def secret_seed(path: Path) -> int:
    """A seed that only the edge server knows, drawn once and kept: with the seed, noise could be removed."""
    if not path.exists():
        write_atomically(path, secrets.token_bytes(SECRET), mode=0o600)
    content = path.read_bytes()
    if len(content) != SECRET:
        raise ValueError(f"{path} is damaged: it must hold {SECRET} bytes, got {len(content)}")
    return int.from_bytes(content)


def devices_csv(run: Run, tests: dict[str, Any]) -> str:
    """The table devices.csv: room, samples, labels (as far as known here) and scores of every device."""
    table, metric = io.StringIO(), run.trainer.goal.metric.key
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["device", "room", "samples", "labels", f"local_{metric}", f"global_{metric}"])
    rooms = [""] * run.graph.count if run.graph.rooms is None else run.graph.rooms.tolist()
    for device in range(run.graph.count):
        counts = run.data.label_counts[device]
        labels = " ".join(f"{label}:{number}" for label, number in enumerate(counts) if number and run.data.labelled)
        held = "" if run.data.elsewhere else int(counts.sum())
        scores = [tests[name]["devices"][device] if name in tests else "" for name in ("local", "global")]
        writer.writerow([device, rooms[device], held, labels, *scores])
    return table.getvalue()
