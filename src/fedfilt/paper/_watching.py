"""The curve of a run: its models tested every few rounds, and before the first, on a part of the test set."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedfilt._types import Array
from fedfilt.data.deal import split
from fedfilt.engines.local import Local
from fedfilt.paper._cases import OFTEN, PART
from fedfilt.rounds.play import play_round
from fedfilt.rounds.scores import summary
from fedfilt.rounds.types import Experiment, Record, State
from fedfilt.runs.build import Run
from fedfilt.runs.lines import MAIN


class Watching:
    """A script of a run that only looks on: what is trained is the same, bit for bit, with it and without.

    A run that goes on from a checkpoint writes some points again.
    """

    def __init__(self, run: Run, path: Path) -> None:
        config, self._path = run.config, path
        self._data = replace(run.data, global_test=part_of(run.data.y, run.data.global_test, PART))
        self._engine = Local(self._data, run.model, config.training, config.seed, workers=1)

    def play_round(self, state: State, experiment: Experiment) -> tuple[State, Record]:
        """The round as it would be without."""
        if state.round == 0:
            self._look(state)
        after, record = play_round(state, experiment)
        if after.round % OFTEN == 0 or after.round == experiment.rounds:
            self._look(after)
        return after, record

    def _look(self, state: State) -> None:
        scores = summary(self._engine.test(state), self._data)
        keys = [(test, key) for test in MAIN for key in ("mean", "std")]
        point = {f"{test} {key}": round(scores[test][key], 5) for test, key in keys}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"round": state.round, **point}) + "\n")


def part_of(y: Array, rows: Array, number: int) -> Array:
    """About so many of some samples, always the same: every label in its proportion, evenly from first to last.

    >>> part_of(np.array([0, 1, 0, 1, 0, 1]), np.arange(6), 4).tolist()
    [0, 1, 4, 5]
    """
    if number >= len(rows):
        return rows
    labels, counts = np.unique(y[rows], return_counts=True)
    found = []
    for label, wanted in zip(labels, split(number, counts / counts.sum()), strict=True):
        of_label = rows[y[rows] == label]
        found.append(of_label[np.linspace(0, len(of_label) - 1, wanted).round().astype(int)])
    return np.sort(np.concatenate(found))
