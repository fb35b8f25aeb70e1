"""A run in its folder: made from a config, played round by round, saved so that it can be resumed and trusted."""

import copy
import csv
import inspect
import io
import json
import logging
import math
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as save_tensors
from torch.nn import functional

from fedfilt import __version__, checkpoint, native, parts
from fedfilt.building import heterogeneity
from fedfilt.config import Config, load
from fedfilt.data import FederatedData
from fedfilt.events import Timeline
from fedfilt.graph import Graph
from fedfilt.hardware import Hardware
from fedfilt.homes import early_updates
from fedfilt.kinds import ByKind
from fedfilt.layout import Layout, glorot
from fedfilt.metrics import accuracy, local_from_global, scores
from fedfilt.native.network import Unknown, flops, recognise
from fedfilt.records import STOP, graph_json
from fedfilt.rounds import Engine, Experiment, Record, State, Tests, play
from fedfilt.simulated import Simulated
from fedfilt.store import Store
from fedfilt.train import generator, inputs

# Keys of SeedSequence(seed, spawn_key=...) for what is drawn once; rounds use longer keys (round, device, ...)
PARTITION, START, DEVICES = (2**30,), (2**30 + 1,), (2**30 + 2,)


class Stopped(KeyboardInterrupt):
    """A run that was asked to stop, by a file `stop` in its folder: it is checkpointed and can be resumed."""


class Run:
    """All that a config stands for, ready to play: graph, data, model, start and engine."""

    def __init__(self, config: Config, store: Store | None = None, data: FederatedData | None = None) -> None:
        self.config = config
        self.graph: Graph = config.graph.graph(config.seed)
        data = dealt(config, self.graph, store) if data is None else data
        if data.count != self.graph.count:
            raise ValueError(f"graph must have one device per part of the data, {data.count}, got {self.graph.count}")
        self.data: FederatedData = data
        start = int(generator(config.seed, *START).integers(2**62))
        with torch.random.fork_rng(devices=[]):  # layers that glorot() does not know draw from torch's own generator
            torch.manual_seed(start)
            self.module = _module(config, data)
        glorot(self.module, torch.Generator().manual_seed(start))
        self.layout = Layout(self.module)
        held = np.array([len(rows) for rows in data.train])
        self.update_bytes: int = config.sparsifier.full_bytes(self.layout.size)
        self.hardware: Hardware = config.devices.draw(held, self.update_bytes, generator(config.seed, *DEVICES))
        if config.graph.learned:
            self.graph = config.graph.graph(config.seed, early_updates(self))
        self.aggregator = config.aggregator
        if data.kinds is not None:
            self.graph = replace(self.graph, kinds=data.kinds)
            self.aggregator = ByKind(config.aggregator, config.kinds.private(self.layout))
        self.events = Timeline(config.events, self.graph, config.rounds) if config.events else None

    @contextmanager
    def experiment(self, engine: Engine | None = None) -> Iterator[Experiment]:
        """The experiment on a running engine: the one given, or its own."""
        config = self.config
        with nullcontext(engine) if engine is not None else self.engine() as running:
            yield Experiment(
                self.graph,
                self.aggregator,
                config.scheduler,
                running if config.engine.real_time else Simulated(running, self.hardware, config.seed, config.late),
                self.hardware,
                config.rounds,
                self.update_bytes,
                config.evaluation,
                config.seed,
                self.events,
            )

    def engine(self, **more: Any) -> Any:
        """A new engine of the kind that the config names; `more` is what it alone knows."""
        config, place = self.config, self.config.engine
        kind = parts.find("engines", place.name)
        if place.name == "flower":
            real_time = config.late if place.real_time else None
            waiting = {"timeout": place.timeout_seconds, "grace": place.grace_seconds}
            more |= {**waiting, "real_time": real_time, "spread": self.hardware.error}
        return kind(self.data, self.module, config.training, config.seed, place.workers, config.sparsifier, **more)

    @cached_property
    def flops_per_sample(self) -> int:
        """Floating-point operations of training on one sample: multiplications and additions, forward and backward."""
        try:
            return flops(recognise(self.module, self.layout, self.data.x.shape[1:]))
        except Unknown:
            from torch.utils.flop_counter import FlopCounterMode  # takes a second to import
        module = copy.deepcopy(self.module).train()
        x = inputs(self.data.x[:2])  # two, for layers that need more than one (batch norm)
        with FlopCounterMode(display=False) as counter:
            loss = functional.cross_entropy(module(x), torch.from_numpy(self.data.y[:2]))
            loss.backward()  # type: ignore[no-untyped-call]
        return int(counter.get_total_flops()) // 2

    def start(self) -> State:
        """Round 0: every device has the same model."""
        return State(0, np.tile(self.layout.row(self.module), (self.graph.count, 1)))

    def line(self, record: Record) -> dict[str, Any]:
        """A record as a line of metrics.jsonl."""
        trained = np.isfinite(record.losses)
        line: dict[str, Any] = {
            "round": record.round,
            "seconds": round(record.seconds, 4),
            "loss": float(record.losses[trained].mean()) if trained.any() else None,
            "samples": int(record.samples.sum()),
            "time": self._time(record),
        }
        if self.events is not None:
            line |= {"events": list(record.events), "away": list(record.away)}
        if record.absent:
            line["absent"] = {str(device): why for device, why in sorted(record.absent.items())}
        for name in ("mixed", "trained"):
            tests = getattr(record, name)
            if tests is not None:
                line[name] = summary(tests, self.data)
        return line

    def _time(self, record: Record) -> dict[str, Any]:
        """Simulated time, energy and bytes of a round, in all and per device."""
        plans = record.schedule.plans
        arrivals = record.costs[:, :2].sum(axis=1)
        there = arrivals > 0
        epochs = np.array([plan.epochs for plan in plans])
        trained = np.floor([p.data_fraction * n + 1e-9 for p, n in zip(plans, self.hardware.samples, strict=True)])
        joules = record.costs[:, 2:4].sum(axis=1)
        columns = {
            "compute_seconds": record.costs[:, 0],
            "send_seconds": record.costs[:, 1],
            "idle_seconds": record.costs[:, 4],
            "joules": joules,
        }
        return {
            "deadline": record.schedule.deadline if math.isfinite(record.schedule.deadline) else None,
            "latency": record.latency,
            "desync": max(0.0, record.latency - float(arrivals[there].min())) if there.any() else 0.0,
            "flops": self.flops_per_sample * int((epochs * trained).sum()),
            "joules": float(joules.sum()),
            "bytes": int(record.sizes.sum()),
            "late": np.flatnonzero(record.late).tolist(),
            "devices": {
                **{name: [float(f"{value:.6g}") for value in column] for name, column in columns.items()},
                "bytes": record.sizes.tolist(),
                "epochs": epochs.tolist(),
                "data_fraction": [round(plan.data_fraction, 6) for plan in plans],
                "density": [round(plan.density, 6) for plan in plans],
                "clock": [round(plan.clock, 6) for plan in plans],
                "bandwidth_hz": [float(f"{plan.bandwidth_hz:.6g}") for plan in plans],
                "outcome": [plan.outcome for plan in plans],
            },
        }


def dealt(config: Config, graph: Graph, store: Store | None = None) -> FederatedData:
    """The samples of a config, dealt to the devices of its graph."""
    rooms = np.zeros(graph.count, int) if graph.rooms is None else graph.rooms
    samples = config.data.load(store or Store())
    return config.partition(samples, rooms, config.samples, generator(config.seed, *PARTITION))


def summary(tests: Tests, data: FederatedData) -> dict[str, Any]:
    """Accuracy of every device on its own and the global test, and the paper's I_1 .. I_4 of the summed confusion."""
    if tests.local_test is None:
        width = tests.global_test.shape[1] - data.classes  # labels that the model knows and nobody has
        own, confusion = local_from_global(tests.global_test, np.pad(data.shares, ((0, 0), (0, width))))
    else:
        own, confusion = accuracy(tests.local_test), tests.local_test
    both = {"local": (own, confusion), "global": (accuracy(tests.global_test), tests.global_test)}
    result = {}
    for name, (per_device, matrices) in both.items():
        tested = np.isfinite(per_device)
        if not tested.any():
            continue
        total = matrices.sum(axis=0)
        worst = int(np.nanargmin(per_device))
        result[name] = {
            "mean": float(per_device[tested].mean()),
            "std": float(per_device[tested].std()),
            "worst": float(per_device[worst]),
            "worst_device": worst,
            **dict(zip(("I_1", "I_2", "I_3", "I_4"), scores(total), strict=True)),
            "devices": [round(float(value), 6) if math.isfinite(value) else None for value in per_device],
            "confusion": total.round(4).tolist(),
        }
        losses = getattr(tests, f"{name}_loss")
        if losses is not None and np.isfinite(losses).any():
            result[name]["loss"] = float(np.nanmean(losses))
    return result


def play_in_folder(
    run: Run, folder: Path, resume: bool = False, engine: Engine | None = None
) -> Iterator[dict[str, Any]]:
    """Play a run in its folder and give each round's line; the folder is complete when this ends.

    A new run needs a new or empty folder; `resume` goes on from the last checkpoint, or starts if there is none; a
    finished run is left as it is. An `engine` that is running already with the same data, model and seed may be given.
    """
    config = run.config
    check_folder(folder, config, resume)
    folder.mkdir(parents=True, exist_ok=True)
    with checkpoint.locked(folder):
        state = _begin(run, folder)
        if state.round == config.rounds and (folder / "result.json").exists():
            return
        saved = folder / "checkpoint" / "state.safetensors"
        with run.experiment(engine) as experiment, (folder / "metrics.jsonl").open("a", encoding="utf-8") as log:
            for now, record in play(state, experiment):
                state = now
                line = run.line(record)
                log.write(json.dumps(line) + "\n")
                log.flush()
                stop = (folder / STOP).exists() and state.round < config.rounds
                if state.round % config.checkpoint.every == 0 or state.round == config.rounds or stop:
                    os.fsync(log.fileno())  # the log must not fall behind the checkpoint
                    checkpoint.save_state(saved, state, config.hash())
                yield line
                if stop:
                    (folder / STOP).unlink(missing_ok=True)
                    raise Stopped(f"{folder} was asked to stop after round {state.round}")
        _finish(run, folder, state)


def first_round(run: Run) -> dict[str, Any]:
    """What the scheduler plans for the first round: per device settings, seconds, joules, outcome."""
    size = run.update_bytes
    now = run.hardware.at(run.config.seed, 0)
    schedule = run.config.scheduler(now, size)
    devices = []
    for i, plan in enumerate(schedule.plans):
        band = plan.bandwidth_hz or now.bandwidth_hz[i]
        given = replace(now, clock_hz=now.clock_hz * plan.clock, bandwidth_hz=np.full(now.count, band))
        work = plan.epochs * plan.data_fraction
        sending = plan.density * size if plan.epochs else 0.0
        devices.append(
            {
                "device": i,
                "room": "" if run.graph.rooms is None else run.graph.rooms[i].item(),
                "epochs": plan.epochs,
                "data_fraction": plan.data_fraction,
                "density": plan.density,
                "compute_seconds": float(work * given.compute_seconds()[i]),
                "send_seconds": float(given.send_seconds(sending)[i]),
                "joules": float(work * given.compute_joules()[i] + given.send_joules(sending)[i]),
                "outcome": plan.outcome,
            }
        )
    last = max(d["compute_seconds"] + d["send_seconds"] for d in devices)
    end = schedule.deadline if math.isfinite(schedule.deadline) else last
    for d in devices:
        d["idle_seconds"] = max(0.0, end - d["compute_seconds"] - d["send_seconds"]) if d["epochs"] else 0.0
    full = (3 * now.compute_seconds() + now.send_seconds(size))[now.samples > 0]
    deadline = schedule.deadline if math.isfinite(schedule.deadline) else None
    return {"deadline": deadline, "heterogeneity": heterogeneity(full), "devices": devices}


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line cut short by a crash is left out."""
    path = folder / "metrics.jsonl"
    texts = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for number, text in enumerate(texts, start=1):
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            if number < len(texts):
                raise ValueError(f"{path} is damaged in line {number}") from None
    return found


def check_folder(folder: Path, config: Config, resume: bool) -> None:
    """Refuse to write into what is not a folder of this run, before anything in it is touched."""
    if (folder / "config.toml").exists():
        if not resume:
            raise ValueError(f"{folder} holds a run already; go on with --resume or choose another --out")
        _check_same(config, folder / "config.toml")
    elif folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose a folder with --out")
    elif folder.exists() and any(not path.name.endswith(".tmp") for path in _others(folder)):
        raise ValueError(f"{folder} holds other files; choose a new folder with --out")


def _others(folder: Path) -> list[Path]:
    """Files that a run killed at its very start does not leave behind."""
    return [path for path in folder.iterdir() if path.name != "lock" or path.stat().st_size > 20]


def _begin(run: Run, folder: Path) -> State:
    config, saved = run.config, folder / "checkpoint" / "state.safetensors"
    old, machine = folder / "config.toml", folder / "environment.json"
    if old.exists():
        _check_same(config, old)
    now = json.loads(_environment(run))
    if machine.exists():
        before = json.loads(machine.read_text())
        for what in ("graph", "partition", "devices"):
            if before.get(f"{what}_hash") != now[f"{what}_hash"]:
                raise ValueError(f"{folder} was run with another {what} (its file has changed); choose another --out")
        changed = [
            f"{key} {before.get(key)} -> {now[key]}"
            for key in ("torch", "native", "native_sources")
            if before.get(key, now[key]) != now[key]
        ]
        if changed:
            logging.getLogger("fedfilt").warning(
                f"{folder} goes on with {', '.join(changed)}: the last bits of its numbers may differ from then on"
            )
    else:
        checkpoint.write_atomically(machine, json.dumps(now, indent=1).encode())
    checkpoint.write_atomically(folder / "partition.json", run.data.to_json().encode())
    if (graph := graph_json(run.graph)) is not None:
        checkpoint.write_atomically(folder / "graph.json", graph.encode())
    (folder / STOP).unlink(missing_ok=True)  # meant for a run that has ended since
    (folder / "checkpoint").mkdir(exist_ok=True)
    checkpoint.write_atomically(old, config.toml().encode())
    shape = (run.graph.count, run.layout.size)
    state = checkpoint.load_state(saved, config.hash(), shape) if saved.exists() else run.start()
    kept = [line for line in lines(folder) if line["round"] <= state.round]
    if len(kept) != state.round:
        raise ValueError(f"{folder}/metrics.jsonl lacks rounds before the checkpoint at {state.round}; start again")
    text = "".join(json.dumps(line) + "\n" for line in kept)
    checkpoint.write_atomically(folder / "metrics.jsonl", text.encode())
    return state


def _check_same(config: Config, old: Path) -> None:
    before = load(old)
    if before.hash() == config.hash():
        return
    changes = []
    for key, value in _flat(config.table()).items():
        was = _flat(before.table()).get(key)
        if was != value:
            changes.append(f"{key} was {was!r}, is {value!r}")
    raise ValueError(
        f"{old.parent} was run with another config ({'; '.join(changes)}); resume with the same one, "
        "or choose another --out"
    )


def _flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value})
    return flat


def _finish(run: Run, folder: Path, state: State) -> None:
    seconds = sum(line["seconds"] for line in lines(folder))
    tested = [line for line in lines(folder) if "mixed" in line]
    write = checkpoint.write_atomically
    write(folder / "devices.csv", _devices_csv(run, tested[-1]["mixed"] if tested else {}).encode())
    (folder / "models").mkdir(exist_ok=True)
    for device, row in enumerate(state.models):
        write(folder / "models" / f"device-{device:03d}.safetensors", save_tensors(run.layout.tensors(row)))
    result = result_of(tested)
    rounds = [line["time"] for line in lines(folder)]
    names = {"I_5_flops": "flops", "I_6_latency_seconds": "latency", "I_7_desync_seconds": "desync"}
    result["totals"] = {name: sum(r[key] for r in rounds) for name, key in names.items()}
    result["totals"] |= {name: sum(r[name] for r in rounds) for name in ("joules", "bytes")}
    result |= {"config_hash": run.config.hash(), "seed": run.config.seed, "wall_seconds": round(seconds, 2)}
    result["models_sha256"] = checkpoint.models_hash(state.models)
    write(folder / "result.json", json.dumps(result, indent=1).encode())


def result_of(tested: list[dict[str, Any]]) -> dict[str, Any]:
    """Last and best round by mean accuracy, local and global, from the lines in which models were tested."""
    result: dict[str, Any] = {}
    for test in ("local", "global"):
        found = [line for line in tested if test in line["mixed"]]
        if found:
            best = max(found, key=lambda line: line["mixed"][test]["mean"])
            last = found[-1]
            keep = ("mean", "std", "worst", "worst_device", "I_1", "I_2", "I_3", "I_4")
            result[test] = {
                "last": {"round": last["round"], **{key: last["mixed"][test][key] for key in keep}},
                "best": {"round": best["round"], **{key: best["mixed"][test][key] for key in keep}},
            }
    return result


def draw(folder: Path, curves_of: dict[str, Path] | None = None) -> None:
    """Pictures of a run, or of the runs `curves_of` by name: who holds which labels, and accuracy against rounds."""
    from fedfilt.figures import accuracy_curves, label_counts

    places = curves_of or {"": folder}
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    partition = json.loads((next(iter(places.values())) / "partition.json").read_text())
    shown = {"labels": label_counts(np.array(partition["label_counts"]))}
    for test in ("local", "global"):
        curves = {}
        for name, place in places.items():
            tested = [line for line in lines(place) if test in line.get("mixed", {})]
            curves[name] = np.array([(line["round"], line["mixed"][test]["mean"]) for line in tested]).reshape(-1, 2)
        shown[test] = accuracy_curves(curves, f"mean accuracy on the {test} test")
    for name, figure in shown.items():
        figure.write_html(figures / f"{name}.html", include_plotlyjs="directory")


def _devices_csv(run: Run, tests: dict[str, Any]) -> str:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["device", "room", "samples", "labels", "local_accuracy", "global_accuracy"])
    rooms = [""] * run.graph.count if run.graph.rooms is None else run.graph.rooms.tolist()
    for device, counts in enumerate(run.data.label_counts):
        labels = " ".join(f"{label}:{number}" for label, number in enumerate(counts) if number)
        scores = [tests[name]["devices"][device] if name in tests else "" for name in ("local", "global")]
        writer.writerow([device, rooms[device], int(counts.sum()), labels, *scores])
    return table.getvalue()


def _environment(run: Run) -> str:
    packages = ("numpy", "scipy", "torch", "safetensors")
    return json.dumps(
        {
            "fedfilt": __version__,
            "python": sys.version.split()[0],
            "platform": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            **{name: version(name) for name in packages},
            "native": native.chosen().level,
            "native_sources": native.sources()[:12],
            "config_hash": run.config.hash(),
            "seed": run.config.seed,
            "partition_hash": run.data.hash,
            "graph_hash": run.graph.hash,
            "devices_hash": run.hardware.hash,
        },
        indent=1,
    )


def _module(config: Config, data: FederatedData) -> torch.nn.Module:
    kind = parts.find("models", config.model.name)
    known: dict[str, Any] = {"shape": tuple(data.x.shape[1:]), "classes": data.classes}
    accepted = inspect.signature(kind).parameters
    try:
        return kind(**{key: value for key, value in known.items() if key in accepted}, **config.model.options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"model {config.model.name} does not fit inputs of shape {known['shape']}: {error}") from error
