"""Compute missing runs: several at a time, each in a process and on a core of its own; a killed one goes on."""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from fedfilt._files import write_atomically
from fedfilt.data.store import Store
from fedfilt.paper._cases import Case
from fedfilt.paper._results import CURVE, Results, record_of
from fedfilt.paper._watching import Watching
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.folder import check_plain
from fedfilt.runs.play import play_in_folder


class News(NamedTuple):
    """News of a run."""

    case: Case
    round: int  # played so far
    done: bool = False  # with it, for better or worse
    error: str = ""


def compute(cases: Sequence[Case], results: Results, jobs: int, data_dir: Path | None = None) -> Iterator[News]:
    """Play the runs and keep a record of each; what is under way lies in `.running` beside the records."""
    context = multiprocessing.get_context("spawn")
    left = list(cases)
    workers: dict[Connection, Any] = {}  # the process behind each pipe
    results.folder.mkdir(parents=True, exist_ok=True)
    check_plain(results.folder, {".running"})
    _tidy(results, cases)
    try:
        for _ in range(min(jobs, len(left))):
            here, there = context.Pipe()
            worker = context.Process(target=_work, args=(there, results.folder, data_dir), daemon=True)
            with _one_thread():
                worker.start()
            there.close()
            workers[here] = worker
            here.send(left.pop(0))
        while workers:
            for pipe in wait(list(workers)):
                assert isinstance(pipe, Connection)
                try:
                    step: News = pipe.recv()
                except EOFError:
                    raise OSError(
                        "a process that computed a run was killed (out of memory?); the same command goes on, with "
                        "fewer --jobs if need be"
                    ) from None
                if step.done:
                    results.forget(step.case)
                if step.done and left:
                    pipe.send(left.pop(0))
                elif step.done:
                    workers.pop(pipe).terminate()
                yield step
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.join()
    _tidy(results, cases)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started within do their linear algebra on one thread: several runs at a time share the cores."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


def _tidy(results: Results, cases: Sequence[Case]) -> None:
    """Drop the folders of runs whose record is kept; those of `cases` that are not done stay, to be gone on with."""
    running, folder = results.folder / ".running", results.folder
    left = {results.path(case).stem for case in results.missing(cases)}
    for place in running.iterdir() if running.exists() else ():
        if (folder / f"{place.name}.json").exists() and place.name not in left:
            shutil.rmtree(place)
    if running.exists() and not any(running.iterdir()):
        running.rmdir()


def _work(pipe: Connection, folder: Path, data_dir: Path | None) -> None:
    """Play what arrives; ends with the process that sends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    try:
        while True:
            case: Case = pipe.recv()
            try:
                for round in play(case, folder, data_dir):
                    pipe.send(News(case, round))
            except (ValueError, ArithmeticError, OSError) as error:
                if isinstance(error, BrokenPipeError):
                    return
                pipe.send(News(case, 0, done=True, error=str(error)))
            else:
                pipe.send(News(case, case.rounds, done=True))
    except (EOFError, BrokenPipeError):  # nobody is there any more
        return


def play(case: Case, folder: Path, data_dir: Path | None = None) -> Iterator[int]:
    """Play a run in a folder of its own, going on from its checkpoint, then keep its record and drop the folder."""
    results = Results(folder)
    kept = results.path(case)
    if results.complete(case):  # another process was faster
        return
    place_and_pace = {"engine": {"name": "local", "workers": 1}, "checkpoint": {"every": 20}}
    table = {**case.table(), **place_and_pace, "guard": False}  # the paper has none
    place = folder / ".running" / kept.stem
    run = Run(from_table(table), Store(folder=data_dir))
    if case.drawn:
        run.script = Watching(run, place / CURVE)
    for line in play_in_folder(run, place, resume=True):
        yield line["round"]
    write_atomically(kept, (json.dumps(record_of(case, place)) + "\n").encode())
    shutil.rmtree(place)
