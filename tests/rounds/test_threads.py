"""The same seed gives the same bits on any number of cores: linear algebra takes one thread where models are made."""

import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fedfilt._threads import one_thread
from fedfilt.aggregators import FedAvg
from fedfilt.graph import Graph
from fedfilt.rounds.types import Updates

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


def test_a_rule_is_limited_to_one_thread_and_the_limit_ends() -> None:
    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    updates = Updates(np.ones((2, 3)), np.ones(2))
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with one_thread():
            FedAvg()(np.zeros((2, 3)), updates, Graph.from_edges(2, [(0, 1)]))
            assert set(threads()) == {1}
        assert threads() == before
