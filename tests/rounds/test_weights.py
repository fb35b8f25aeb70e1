"""What a device counts for: the samples that it trained on in a round, or all that it holds."""

import numpy as np
import pytest

from fedfilt import Graph
from fedfilt.aggregators import GFedFilt
from fedfilt.filters import Tikhonov
from fedfilt.populations import Paper
from fedfilt.rounds.play import play_round
from fedfilt.rounds.types import Experiment, Reply, State
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import line_of
from fedfilt.system.orders import Plan, Schedule
from helpers import SMALL

HELD = np.array([100, 40, 10, 10])
PLANS = [Plan(1, 0.1), Plan(1, 1.0), Plan(1, 0.5), Plan(0)]  # the last takes no part
GRAPH = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])


class Steps:
    """Devices whose update is one more than their number, trained on what their plan says."""

    def train(self, jobs, deadline):
        for job in jobs:
            update = np.full(3, job.device + 1, np.float32)
            yield Reply(job.device, update, job.plan.samples(int(HELD[job.device])), loss=float(job.device))

    def test(self, state):
        raise AssertionError


@pytest.mark.parametrize(("weights", "counted"), [("trained", [10, 40, 5, 0]), ("held", [100, 40, 10, 0])])
def test_models_are_mixed_by_the_samples_that_count(weights, counted):
    hardware = Paper().draw(HELD, 12, np.random.default_rng(0))
    experiment = Experiment(
        GRAPH, GFedFilt(Tikhonov(2.0)), lambda *_: Schedule(PLANS), Steps(), hardware, 9, 12, weights=weights
    )
    state, record = play_round(State(0, np.zeros((4, 3), np.float32)), experiment)
    own = np.diag(np.array(counted) / np.mean(counted))
    laplacian = np.array([[1, -1, 0, 0], [-1, 2, -1, 0], [0, -1, 2, -1], [0, 0, -1, 1]])
    expected = np.linalg.solve(own + 2.0 * laplacian, own @ np.array([1.0, 2.0, 3.0, 0.0]))
    np.testing.assert_allclose(state.models[:, 0], expected, rtol=1e-5)
    assert record.samples.tolist() == [10, 40, 5, 0]  # what was trained is recorded as it was


def test_the_logged_loss_is_the_papers_objective():
    """The sum of κ_i L_i, with κ as the models are mixed."""
    sizes = {**SMALL["samples"], "train": [5, 40]}
    for weights in ("trained", "held"):
        scheduler = {"name": "same_deadline", "deadline": "fastest_full"}
        table = {**SMALL, "samples": sizes, "scheduler": scheduler, "weights": weights, "devices": "prescribed"}
        run = Run(from_table(table))
        with run.experiment() as experiment:
            _, record = play_round(run.start(), experiment)
        counts = record.samples if weights == "trained" else [len(rows) for rows in run.data.train]
        assert len(set(record.samples.tolist())) > 3
        expected = sum(n * loss for n, loss in zip(counts, record.losses, strict=True)) / sum(counts)
        assert line_of(run, record)["loss"] == pytest.approx(expected)


def test_an_unknown_weight_is_refused():
    with pytest.raises(ValueError, match="did you mean 'held'"):
        from_table({"weights": "hold"})
