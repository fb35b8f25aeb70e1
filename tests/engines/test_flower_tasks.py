"""Tasks other than one label a sample, over Flower: the same bits and scores as on one machine."""

import pytest

from fedfilt.rounds.play import play
from fedfilt.runs.build import Run
from fedfilt.runs.checkpoint import models_hash
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import line_of


@pytest.mark.slow(8)
@pytest.mark.parametrize(
    ("kind", "model", "training"),
    [
        ("numbers", "logistic", {"loss": "mse"}),
        ("many", "logistic", {"loss": "bce", "metric": "auroc"}),
        ("sequence", "tasks:Tagger", {"optimizer": "adam", "optimizer_state": "kept"}),
    ],
)
def test_tasks_keep_their_bits_over_flower(kind, model, training):
    table = {
        "rounds": 2,
        "data": {"name": "tasks:Made", "kind": kind},
        "partition": "uniform",
        "model": model,
        "graph": {"name": "rooms", "rooms": 1, "devices": 4},
        "samples": {"train": 20, "local_test": 10, "global_test": 10},
        "training": training,
        "evaluation": {"every": 2},
    }
    found = []
    for engine in ("local", "flower"):
        run = Run(from_table({**table, "engine": {"name": engine, "workers": 1}}))
        with run.experiment() as experiment:
            *_, (state, record) = play(run.start(), experiment)
        found.append((models_hash(state.models), line_of(run, record)["mixed"]))
    assert found[0] == found[1]
