"""The same seed gives the same bits on any number of cores: linear algebra takes one thread where models are made."""

import multiprocessing
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import fedfilt
from fedfilt import _threads
from fedfilt._threads import one_thread
from fedfilt.clients.plain import Plain
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.training import _numpy
from helpers import SMALL

# 14,610 numbers a device: sums over devices, and lengths of updates, are long enough to be split among threads
PLAY = """
import sys
import numpy as np
from fedfilt import Run, from_table, play
from fedfilt.runs.checkpoint import models_hash
from fedfilt.runs.rules import with_rule
table = {"data": "digits", "model": {"name": "mlp", "hidden": 194}, "rounds": 3,
         "samples": {"train": 20, "local_test": 10, "global_test": 20}, "training": {"learning_rate": 0.5},
         "engine": {"workers": 1}, "guard": {"clip": 1.0}}
for rule in sys.argv[1:]:
    run = Run(with_rule(from_table(table), rule))
    run.learn_graph()
    with run.experiment() as experiment:
        *_, (state, _) = play(run.start(), experiment)
    print(rule, models_hash(state.models))
"""
RULES = ("fedavg", "mu=1", "scaffold", "attention", "fedamp", "two_level:before=2")


def hashes(threads: int) -> list[str]:
    """What every rule comes to in a process whose linear algebra would like so many threads."""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", PLAY, *RULES]
    return subprocess.check_output(words, env=env, text=True).splitlines()


@pytest.mark.slow(10)
def test_bits_do_not_depend_on_the_number_of_cores() -> None:
    assert hashes(1) == hashes(3)


def threads() -> set[int]:
    """How many threads NumPy's and SciPy's libraries of linear algebra would take now.

    Packages that other tests of the process have imported may have brought more, some of which know one thread only.
    """
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    ours = {library["num_threads"] for library in found if re.search("(numpy|scipy).libs", library["filepath"])}
    return ours or {library["num_threads"] for library in found}


@pytest.fixture
def two_threads():
    """Two threads for NumPy, SciPy and torch, as on a machine with two cores."""
    with threadpool_limits(2, user_api="blas"):
        torch.set_num_threads(2)
        yield
        torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_the_limit_is_taken_back_at_the_end_of_the_outermost():
    @one_thread()
    def fails() -> None:
        with one_thread():
            assert (threads(), torch.get_num_threads()) == ({1}, 1)
        assert (threads(), torch.get_num_threads()) == ({1}, 1)
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (threads(), torch.get_num_threads()) == ({2}, 2)


class Looks(Plain):
    """Trains, decides with the row it received, and looks at the threads in both."""

    def __call__(self, task):
        SEEN.add(("trains", *threads(), torch.get_num_threads()))
        return super().__call__(task)

    def personal(self, task):
        SEEN.add(("decides", *threads(), torch.get_num_threads()))
        return task.model.copy()


SEEN: set[tuple[object, ...]] = set()


@pytest.mark.usefixtures("two_threads")
def test_devices_train_decide_and_are_tested_in_one_thread(monkeypatch):
    def forward(*given, plain=_numpy._forward):
        SEEN.add(("NumPy", *threads()))
        return plain(*given)

    monkeypatch.setattr(_numpy, "_forward", forward)
    SEEN.clear()
    run = Run(replace(from_table({**SMALL, "rounds": 1}), client=Looks()))
    with run.experiment() as experiment:
        ((state, _),) = fedfilt.play(run.start(), experiment)
        SEEN.add(("rounds", *threads()))
        run.decided(state, experiment.engine)
    _numpy.outputs(run.trainer.description, state.models[0], run.data.x[:2])
    assert {("trains", 1, 1), ("decides", 1, 1), ("NumPy", 1), ("rounds", 2)} == SEEN


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes by fork here")
def test_a_process_that_is_forked_while_another_thread_asks_does_not_wait_for_it():
    def ask() -> None:
        with one_thread():
            pass

    child = multiprocessing.get_context("fork").Process(target=ask)
    with _threads._lock:
        child.start()
    child.join(300)
    assert child.exitcode == 0
