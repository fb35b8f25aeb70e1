"""Rules in fixed point and on masked rows; runs whose server could not look; what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfilt import Graph, filters
from fedfilt.aggregators import SFL, FedAvg, FedU, GFedFilt, Local, PaperLiteral, RoomAverage, SelfBlend
from fedfilt.rounds.blind import Blind, check_rule
from fedfilt.rounds.types import Updates
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.system import blind
from fedfilt.system.orders import Job, Plan
from helpers import ROOM, SMALL, as_far_as, finish, unlike_run, weighted_graphs

BLIND = {"privacy": {"blind": True}}
OWN = {"data": {"name": "own", "shape": [2, 10], "labels": ["walk", "rest"]}}
LINEAR = [
    GFedFilt(filters.Tikhonov(mu=1.0)),
    GFedFilt(filters.Heat()),
    GFedFilt(filters.Ideal()),
    FedAvg(),
    Local(),
    SFL(hops=2),
]
KEY = [bytes(32)]


def masked(rows, round, brings):
    """What the server gets in a round: sealed rows of those that bring something."""
    sent = [
        blind.sealed(blind.masked(row, KEY, "run", round, i), rows.shape[1], round, i) for i, row in enumerate(rows)
    ]
    return np.where(brings[:, None], np.stack(sent), np.uint64(0))


@settings(max_examples=40)
@given(weighted_graphs(zeros=True), st.sampled_from(LINEAR), st.integers(0, 2**32 - 1), st.data())
def test_masked_rows_come_to_the_same_bits_and_near_the_open_rule(case, rule, seed, data):
    """Two rounds, in the second of which others are absent: rows that stay are still under the masks of the first."""
    pytest.importorskip("cryptography")
    graph, weights, _ = case
    rng = np.random.default_rng(seed)
    here, size = np.asarray(weights, float), 7
    others = np.where(data.draw(st.lists(st.booleans(), min_size=graph.count, max_size=graph.count)), here, 0.0)
    first = rng.normal(size=size).astype(np.float32)
    models = open_models = np.tile(first, (graph.count, 1))
    server = np.zeros((graph.count, blind.sealed_width(size)), np.uint64)
    for round, weighing in enumerate((here, others), start=1):
        rows = np.where(weighing[:, None] > 0, rng.normal(size=models.shape), 0).astype(np.float32)
        server = Blind(rule, sealed=True)(server, Updates(masked(models + rows, round, weighing > 0), weighing), graph)
        updates = Updates(rows, weighing)
        models, open_models = Blind(rule)(models, updates, graph), rule(open_models, updates, graph)
        for sealed, row in zip(server, models, strict=True):
            values, masks = blind.opened(sealed)
            found = blind.unmasked(values, masks, KEY, "run") if masks else first
            np.testing.assert_array_equal(found, row)
        np.testing.assert_allclose(models, open_models, atol=1e-5)


def test_a_room_is_averaged_blind_too():
    graph = Graph.from_rooms(["a", "a", "b"])
    check_rule(RoomAverage(), graph)
    updates = Updates(np.array([[1.0], [3.0], [9.0]], np.float32), np.array([1.0, 1.0, 0.0]))
    np.testing.assert_array_equal(Blind(RoomAverage())(np.zeros((3, 1), np.float32), updates, graph), [[2], [2], [0]])


class Squares:
    """Not linear, but right on unit rows."""

    def __call__(self, models, updates, graph):
        return (models + updates.rows) ** 2


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (GFedFilt(signal="updates"), "must be linear in models \\+ updates"),
        (Squares(), "must be linear in models \\+ updates"),
        (FedU(), "must not mix the old model of a device that is absent"),
        (SelfBlend(), "must not mix the old model of a device that is absent"),
    ],
)
def test_rules_that_a_blind_server_cannot_apply_are_refused(rule, why):
    with pytest.raises(ValueError, match=f"privacy.blind = true: the aggregator {type(rule).__name__} .* {why}"):
        check_rule(rule, Graph.from_rooms(["hall"] * 4))


@pytest.mark.filterwarnings("ignore:paper_literal")
def test_the_papers_equation_is_refused():
    with pytest.raises(ValueError, match="PaperLiteral"):
        check_rule(PaperLiteral(), Graph.from_rooms(["hall"] * 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregator": {"name": "gfedfilt", "signal": "updates"}}, "the aggregator GFedFilt does not do for it"),
        ({"scheduler": {"name": "everything", "density": 0.3}}, "needs whole rows, density 1: .* got 0.3"),
        ({"evaluation": {"trained": True}}, "evaluation.trained must be false"),
        (OWN | {"graph": {"name": "homes", "rooms": 2, "devices": 4, "between": "updates"}}, "cannot learn a graph"),
        ({"events": [{"round": 2, "join": 1}]}, 'a device must join with start = "own"'),
        (OWN | {"graph": {"name": "empty", "rooms": 100, "devices": 600}}, "at most 512 devices"),
    ],
)
def test_experiments_that_cannot_be_blind_are_refused_before_they_begin(changes, message):
    with pytest.raises(ValueError, match=f"privacy.blind = true.*{message}"):
        Run(from_table(SMALL | BLIND | changes))


def test_unlike_sensors_are_refused():
    table = unlike_run().config.table() | BLIND
    with pytest.raises(ValueError, match=r"kinds need kinds\.mix"):
        Run(from_table(table), data=unlike_run().data)


# --- runs ---------------------------------------------------------------------------------------------------------


def test_an_experiment_that_is_not_blind_keeps_its_hash():
    assert from_table(SMALL).hash() == from_table(SMALL | {"privacy": {"blind": False}}).hash()
    assert from_table(SMALL).hash() != from_table(SMALL | BLIND).hash()


def test_a_blind_run_is_as_accurate_sends_twice_as_much_and_goes_on_after_a_stop_with_the_same_bits(tmp_path):
    opened, hidden = finish(tmp_path / "open"), finish(tmp_path / "blind", **BLIND)
    assert hidden["global"]["last"]["mean"] == pytest.approx(opened["global"]["last"]["mean"], abs=1e-3)
    size = Run(from_table(SMALL)).layout.size
    assert hidden["totals"]["bytes"] == 6 * 20 * (16 + 8 * (size + 4))
    assert opened["totals"]["bytes"] == 6 * 20 * (16 + 4 * size)
    as_far_as(4, tmp_path / "stopped", **BLIND)
    assert finish(tmp_path / "stopped", resume=True, **BLIND)["models_sha256"] == hidden["models_sha256"]


def test_an_update_that_is_too_long_is_cut_by_its_device():
    """A learning rate at which open training goes wild leaves no row beyond what fixed point can hold."""
    run = Run(from_table(SMALL | BLIND | {"training": {"learning_rate": 30.0}, "rounds": 1}))
    model = run.start().models[0]
    with run.experiment() as experiment:
        (reply,) = experiment.engine.train([Job(1, 0, model, Plan(epochs=1))], np.inf)
    assert np.linalg.norm(reply.update) == pytest.approx(2 * max(1.0, np.linalg.norm(model)), rel=1e-5)


COMING_AND_GOING = [
    {"round": 2, "leave": 0},
    {"round": 2, "offline": 3, "until": 3},
    {"round": 3, "join": 0, "start": "own"},
]


@pytest.mark.slow(3)
def test_flowers_simulation_gives_the_bits_and_records_of_the_local_engine(tmp_path):
    pytest.importorskip("flwr")
    found = []
    for name in ("local", "flower"):
        table = ROOM | BLIND | {"scheduler": "everything", "evaluation": {"every": 1}, "events": COMING_AND_GOING}
        for _ in play_in_folder(Run(from_table(table | {"engine": {"name": name, "workers": 1}})), tmp_path / name):
            pass
        lines = [{**line, "seconds": 0} for line in read_lines(tmp_path / name)]
        found.append((lines, json.loads((tmp_path / name / "result.json").read_text())["models_sha256"]))
    assert found[0] == found[1]
