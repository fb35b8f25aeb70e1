"""Plays a run in its folder, round by round, saved so that it can be resumed and trusted."""

import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import tomli_w
from safetensors.numpy import save as save_tensors

from fedfilt._files import FULL, STOP, locked, write_atomically
from fedfilt._types import Array, Table
from fedfilt.graph.serial import graph_json
from fedfilt.rounds.play import play
from fedfilt.rounds.types import Engine, State
from fedfilt.runs import checkpoint
from fedfilt.runs.build import Run
from fedfilt.runs.config import hash_of, load_begun
from fedfilt.runs.folder import (
    as_begun,
    check_environment,
    check_folder,
    check_same,
    devices_csv,
    earlier,
    environment,
    secret_seed,
)
from fedfilt.runs.lines import brief, line_of, of_devices, read_lines, result_of
from fedfilt.training.kept import tensors_of


class Stopped(KeyboardInterrupt):
    """A run was asked to stop by a file `stop` in its folder; it has a checkpoint and can be resumed."""


def play_in_folder(
    run: Run, folder: Path, resume: bool = False, engine: Engine | None = None
) -> Generator[Table, None, None]:
    """Play a run in its folder and yield each round's line; the folder is complete when this ends.

    A new run needs a new or empty folder; `resume` continues from the last checkpoint, or starts if there is none. A
    finished run stays as it is, unless it is to have more rounds: then it continues from its last one. An `engine` that
    is already running with the same data, model and seed may be passed in.

    >>> import tempfile
    >>> from fedfilt.runs.config import from_table
    >>> table = {"data": "digits", "model": "logistic", "rounds": 2, "samples": {"train": 9, "local_test": 9}}
    >>> run = Run(from_table({**table, "engine": {"workers": 1}}))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [line["round"] for line in play_in_folder(run, Path(folder) / "run")]
    [1, 2]
    """
    if engine is None:
        run.check_here()
    check_folder(folder, run.config, resume)
    config = run.config = as_begun(run.config, folder / "config.toml")
    folder.mkdir(parents=True, exist_ok=True)
    simulated = config.engine.name == "flower" and engine is None
    run.simulated = folder / "checkpoint" / "devices" if simulated else None
    every = 1 if simulated else config.checkpoint.every  # what a device may forget must be safe on the server
    with _room(folder), locked(folder):
        real = run.config.engine.name == "flower" and engine is not None  # what real devices do happens only once
        run.learn_graph(engine if real else None, folder / "checkpoint" / "first_updates.safetensors" if real else None)
        state, played = _begin(run, folder)
        if real and config.privacy.guards_rows:
            run.noise_seed = secret_seed(folder / "checkpoint" / "noise.key")
        if state.round == config.rounds and (folder / "result.json").exists():
            return
        saved = folder / "checkpoint" / "state.safetensors"
        with run.experiment(engine) as experiment, (folder / "metrics.jsonl").open("a", encoding="utf-8") as log:
            for now, record in play(state, experiment):
                state = now
                line = line_of(run, record, played[-1] if played else None)
                played.append(brief(line))
                log.write(json.dumps(line) + "\n")
                log.flush()
                nobody = state.round == config.rounds and _idle(played, line)
                stop = (folder / STOP).exists() and state.round < config.rounds
                if not nobody and (state.round % every == 0 or state.round == config.rounds or stop):
                    os.fsync(log.fileno())  # the log must not lag behind the checkpoint
                    checkpoint.save_state(saved, state, config.hash())
                yield line
                if nobody:
                    how = "when that is solved, or up to a later round (--rounds)"
                    raise ValueError(f"{folder} has no result: {nobody}; continue with --resume {how}")
                if stop:
                    (folder / STOP).unlink(missing_ok=True)
                    raise Stopped(f"{folder} was asked to stop after round {state.round}")
            models = run.decided(state, experiment.engine)
        _finish(run, folder, state, models, played, config.hash())


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """If the disk is full, report what could not be written and what was saved."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        last = checkpoint.round_of(folder / "checkpoint" / "state.safetensors")
        kept = f"{folder} is saved up to round {last}" if last else f"no round of {folder} was saved"
        raise ValueError(
            f"no room to write {error.filename or folder / 'metrics.jsonl'} ({error.strerror}); {kept}. When there is "
            "room again, continue with --resume"
        ) from error


def _idle(played: list[Table], last: Table) -> str:
    """If no device trained in the last round, a sentence on since when and why; otherwise ""."""
    before = next((line["round"] for line in reversed(played) if line.get("samples")), 0)
    if last["samples"]:
        return ""
    asked = "too few could take part" if last.get("drawn") == [] else "nobody was asked to"
    return f"no device has trained since round {before} ({next(iter(last.get('absent', {}).values()), asked)})"


def _begin(run: Run, folder: Path) -> tuple[State, list[Table]]:
    """(the state to continue from, the lines of the rounds that led to it, in brief)."""
    config, saved = run.config, folder / "checkpoint" / "state.safetensors"
    own, machine = folder / "config.toml", folder / "environment.json"
    now, rounds = environment(run), config.rounds
    if own.exists():
        check_same(config, own)
        rounds = load_begun(own, config).rounds
    if machine.exists():
        check_environment(folder, now)
    state = _saved(run, saved, rounds) if saved.exists() else run.start()
    if rounds < config.rounds:  # before config.toml says so: if killed in between, the run can still continue
        if saved.exists():
            checkpoint.save_state(saved, state, config.hash())
        (folder / "result.json").unlink(missing_ok=True)  # it belongs to a shorter run
    write_atomically(own, config.toml().encode())  # a folder with one can be resumed
    if not machine.exists():
        write_atomically(machine, json.dumps(now, indent=1).encode())
    write_atomically(folder / "partition.json", run.data.to_json().encode())
    if (graph := graph_json(run.graph)) is not None:
        write_atomically(folder / "graph.json", graph.encode())
    (folder / STOP).unlink(missing_ok=True)  # meant for a run that has since ended
    (folder / "checkpoint").mkdir(exist_ok=True)
    kept = [of_devices(line, run.graph.count) for line in read_lines(folder) if line["round"] <= state.round]
    if len(kept) != state.round:
        raise ValueError(f"{folder}/metrics.jsonl lacks rounds before the checkpoint at {state.round}; start again")
    text = "".join(json.dumps(line) + "\n" for line in kept)
    write_atomically(folder / "metrics.jsonl", text.encode())
    return state, [brief(line) for line in kept]


def _saved(run: Run, path: Path, rounds: int) -> State:
    """The state in the checkpoint of a run of `rounds` rounds, if all events added since are in later rounds."""
    versions = earlier(replace(run.config, rounds=rounds)) | earlier(run.config)
    state, wrote = checkpoint.load_state(path, versions, run.start())
    _check_kept(run, state, path)
    before = versions.get(wrote, run.config)
    for event in run.config.events[len(before.events) :]:
        if event.round <= state.round:
            raise ValueError(f"{path.parent.parent} has played round {state.round}: too late for the event {event}")
    return state


def keep(run: Run, folder: Path, state: State, models: Array, lines: list[Table], table: Table) -> None:
    """Write a run that was played without a folder as a run folder: to be read and shown, not to be resumed.

    `table` is the content of its config.toml; `lines` are those of all its rounds.
    """
    check_folder(folder, run.config, resume=False)
    if lines and (nobody := _idle([brief(line) for line in lines], lines[-1])):
        raise ValueError(f"{folder} gets no result: {nobody}")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        machine = environment(run) | {"config_hash": hash_of(table)}
        write_atomically(folder / "environment.json", json.dumps(machine, indent=1).encode())
        write_atomically(folder / "partition.json", run.data.to_json().encode())
        if (graph := graph_json(run.graph)) is not None:
            write_atomically(folder / "graph.json", graph.encode())
        tell(folder, lines, table)
        _finish(run, folder, state, models, [brief(line) for line in lines], hash_of(table))


def tell(folder: Path, lines: list[Table], table: Table) -> None:
    """Write what `Records` needs to read a run: its config and its rounds."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_atomically(folder / "metrics.jsonl", text.encode())
    write_atomically(folder / "config.toml", tomli_w.dumps(table).encode())


def _check_kept(run: Run, state: State, path: Path) -> None:
    """Refuse to continue without what clients keep: with Flower it is on the devices, else in the checkpoint."""
    keeps = hasattr(run.config.client, "start") or run.config.training.optimizer_state == "kept"
    trained = state.accepted is not None and state.accepted.any()
    over_flower = run.config.engine.name == "flower"
    if keeps and trained and bool(state.clients) == over_flower:
        where, name = ("in the checkpoint", "local") if over_flower else ("on the devices", "flower")
        raise ValueError(f"{path.parent.parent}: its clients' data is {where}; continue with engine.name = {name!r}")


def _finish(run: Run, folder: Path, state: State, models: Array, played: list[Table], config_hash: str) -> None:
    tested = [line for line in played if "mixed" in line]
    write_atomically(folder / "devices.csv", devices_csv(run, tested[-1]["mixed"] if tested else {}).encode())
    if not run.sealed:
        (folder / "models").mkdir(exist_ok=True)
        for device, (row, trainer) in enumerate(zip(models, run.trainers, strict=True)):
            tensors = save_tensors(tensors_of(row, trainer.layout))
            write_atomically(folder / "models" / f"device-{device:03d}.safetensors", tensors)
    result = result_of(played)
    seconds = round(sum(line["seconds"] for line in played), 2)
    result |= {"config_hash": config_hash, "seed": run.config.seed, "wall_seconds": seconds}
    result["masked_sha256" if run.sealed else "models_sha256"] = checkpoint.models_hash(state.models)
    write_atomically(folder / "result.json", json.dumps(result, indent=1).encode())
