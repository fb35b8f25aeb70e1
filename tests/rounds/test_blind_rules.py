"""Rules in fixed point and on masked rows; runs whose server could not look; what is refused."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfilt import Graph, filters
from fedfilt.aggregators import SFL, FedAvg, FedU, GFedFilt, Local, PaperLiteral, RoomAverage, SelfBlend
from fedfilt.rounds.blind import Blind, check_rule, matrix_of
from fedfilt.rounds.play import play
from fedfilt.rounds.types import Updates
from fedfilt.runs.build import Run, averages
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
KEYS = (bytes(32),)


def masked(rows, round, densities, cut):
    """What the server gets in a round: sealed rows of those that bring something."""
    found = np.zeros((len(rows), cut.sealed_width), np.uint64)
    for i in np.flatnonzero(densities):
        sent = cut.sent(round, densities[i])
        content = blind.masked(rows[i], blind.Group(KEYS, cut), sent, "run", round, int(i))
        found[i] = blind.sealed(content, cut, sent, round, int(i))
    return found


def opened(server, first, cut):
    """The rows that a server cannot read, for those who can."""
    given = (blind.handed_out(row, blind.Sealing(cut, first)) for row in server)
    group = blind.Group(KEYS, cut, blind.hashes(first, cut))
    return [blind.taken_in(fields, group, "run")[0] for fields in given]


def in_part(rows, round, densities, cut):
    """Rows with NaN where a device of its density does not send."""
    found = rows.copy()
    for row, density in zip(found, densities, strict=True):
        sent = cut.sent(round, density) if density else range(cut.count)
        row[[c for piece in range(cut.count) if piece not in sent for c in cut.columns[piece]]] = np.nan
    return found


@settings(max_examples=40)
@given(weighted_graphs(zeros=True), st.sampled_from(LINEAR), st.integers(0, 2**32 - 1), st.data())
def test_masked_rows_come_to_the_same_bits_and_near_the_open_rule(case, rule, seed, data):
    """Two rounds, in the second of which others are absent: rows that stay are still under the masks of the first."""
    pytest.importorskip("cryptography")
    graph, weights, _ = case
    rng = np.random.default_rng(seed)
    here, cut = np.asarray(weights, float), blind.Cut(0, 7)
    others = np.where(data.draw(st.lists(st.booleans(), min_size=graph.count, max_size=graph.count)), here, 0.0)
    first = rng.normal(size=cut.size).astype(np.float32)
    models = open_models = np.tile(first, (graph.count, 1))
    server = np.zeros((graph.count, cut.sealed_width), np.uint64)
    for round, weighing in enumerate((here, others), start=1):
        rows = np.where(weighing[:, None] > 0, rng.normal(size=models.shape), 0).astype(np.float32)
        sent = Updates(masked(models + rows, round, weighing > 0, cut), weighing)
        server = Blind(rule, cut, sealed=True)(server, sent, graph)
        updates = Updates(rows, weighing)
        models, open_models = Blind(rule, cut)(models, updates, graph), rule(open_models, updates, graph)
        np.testing.assert_array_equal(opened(server, first, cut), models)
        np.testing.assert_allclose(models, open_models, atol=1e-5)


@given(weighted_graphs(zeros=True), st.sampled_from(LINEAR))
def test_a_rule_that_is_said_to_average_has_no_negative_weights(case, rule):
    graph, weights, _ = case
    assert averages(rule) == ("Ideal" not in str(rule))
    if averages(rule):
        assert blind.whole_weights(matrix_of(rule, np.asarray(weights, float), graph)[0]).min() >= 0


def by_columns(rule, models, updates, round, densities, graph, cut):
    """(K, B) float64: every column by itself, by the open rule among the devices that sent it; the oracle."""
    result = models.astype(float)
    for piece, columns in enumerate(cut.columns):
        sent = np.array([bool(density) and piece in cut.sent(round, density) for density in densities])
        among = Updates(np.where(sent[:, None], updates.rows, 0).astype(float), np.where(sent, updates.weights, 0.0))
        mixed = rule(models.astype(float), among, graph)
        for i in range(graph.count):
            if sent[i] or not updates.weights[i]:  # who was there and did not send it keeps its own
                result[i, columns] = mixed[i, columns]
    return result


@settings(max_examples=40)
@given(weighted_graphs(zeros=True), st.sampled_from(LINEAR), st.integers(0, 2**32 - 1), st.data())
def test_pieces_come_to_the_same_bits_whoever_sends_how_many_and_near_the_open_rule_among_those(case, rule, seed, data):
    """Three rounds; every device has another density in each, and some are absent. Rows are then of several rounds."""
    pytest.importorskip("cryptography")
    graph, weights, _ = case
    rng, cut = np.random.default_rng(seed), blind.Cut(seed % 97, 11, 5)
    first = rng.normal(size=cut.size).astype(np.float32)
    models = np.tile(first, (graph.count, 1))
    server = np.zeros((graph.count, cut.sealed_width), np.uint64)
    for round in (1, 2, 3):
        some = st.lists(st.sampled_from([0, 0.2, 0.5, 1]), min_size=graph.count, max_size=graph.count)
        densities = np.where(np.asarray(weights) > 0, data.draw(some), 0)
        weighing = np.where(densities > 0, weights, 0.0)
        rows = np.where(densities[:, None] > 0, 0.1 * rng.normal(size=models.shape), 0).astype(np.float32)
        wanted = by_columns(rule, models, Updates(rows, weighing), round, densities, graph, cut)
        sent = Updates(masked(models + rows, round, densities, cut), weighing)
        server = Blind(rule, cut, sealed=True)(server, sent, graph)
        models = Blind(rule, cut)(models, Updates(in_part(rows, round, densities, cut), weighing), graph)
        np.testing.assert_array_equal(opened(server, first, cut), models)
        np.testing.assert_allclose(models, wanted, atol=1e-5)


def test_pieces_at_the_limits_do_not_overflow_whoever_sends_them():
    """The largest values of both signs in every column, with few and many senders: as in whole numbers without end."""
    graph, cut = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)]), blind.Cut(1, 12, 4)
    rule, densities = SFL(hops=2), np.array([1.0, 0.75, 0.5, 0.25])
    rows = (1e30 * np.sign(np.random.default_rng(0).normal(size=(4, 12)))).astype(np.float32)
    weights, models = np.array([1.0, 5.0, 1.0, 3.0]), np.zeros((4, 12), np.float32)
    found = Blind(rule, cut)(models, Updates(in_part(rows, 1, densities, cut), weights), graph)
    for piece, columns in enumerate(cut.columns):
        sent = np.array([piece in cut.sent(1, density) for density in densities])
        matrix = matrix_of(rule, np.where(sent, weights, 0.0), graph)[0]
        whole = blind.whole_weights(np.where(sent[:, None], matrix, 0.0))
        assert abs(whole).sum(axis=1).max() <= 16 * 2**24
        for i, column in ((i, c) for i in np.flatnonzero(sent) for c in columns):
            exact = sum(int(whole[i, j]) * int(blind.whole(rows)[j, column]) for j in range(4))
            assert abs(exact) <= 2**62
            assert found[i, column] == np.float32(exact / 2.0**48)
        np.testing.assert_array_equal(found[~sent][:, columns], 0)


def test_a_room_is_averaged_blind_too():
    graph = Graph.from_rooms(["a", "a", "b"])
    check_rule(RoomAverage(), graph)
    updates = Updates(np.array([[1.0], [3.0], [9.0]], np.float32), np.array([1.0, 1.0, 0.0]))
    mixed = Blind(RoomAverage(), blind.Cut(0, 1))(np.zeros((3, 1), np.float32), updates, graph)
    np.testing.assert_array_equal(mixed, [[2], [2], [0]])


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
    with pytest.raises(
        ValueError, match=f"privacy.blind = true does not allow the aggregator {type(rule).__name__}: it {why}"
    ):
        check_rule(rule, Graph.from_rooms(["hall"] * 4))


@pytest.mark.filterwarnings("ignore:paper_literal")
def test_the_papers_equation_is_refused():
    with pytest.raises(ValueError, match="PaperLiteral"):
        check_rule(PaperLiteral(), Graph.from_rooms(["hall"] * 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregator": {"name": "gfedfilt", "signal": "updates"}}, "does not allow the aggregator GFedFilt"),
        ({"scheduler": {"name": "everything", "density": 0.04}}, "needs a density of at least 1/20, got 0.04"),
        ({"sparsifier": {"name": "top_k", "half": True}}, "sparsifier must be top_k, with half = false"),
        ({"evaluation": {"trained": True}}, "evaluation.trained must be false"),
        (OWN | {"graph": {"name": "homes", "rooms": 2, "devices": 4, "between": "updates"}}, "cannot learn a graph"),
        ({"events": [{"round": 2, "join": 1}]}, 'devices must join with start = "own"'),
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


def sparse(**changes):
    return BLIND | {"scheduler": {"name": "everything", "density": 0.1}} | changes


def test_a_sparse_blind_run_sends_a_tenth_and_goes_on_after_a_stop_with_the_same_bits(tmp_path):
    whole, tenth = finish(tmp_path / "whole", **BLIND), finish(tmp_path / "tenth", **sparse())
    size = Run(from_table(SMALL)).layout.size
    sent = [line["time"]["devices"]["bytes"] for line in read_lines(tmp_path / "tenth")]
    cut = blind.Cut(0, size, 20)
    assert [set(one) for one in sent] == [{cut.bytes_of(cut.sent(round, 0.1))} for round in range(1, 7)]
    assert tenth["totals"]["bytes"] == pytest.approx(0.1 * whole["totals"]["bytes"], rel=0.1)  # few values
    as_far_as(4, tmp_path / "stopped", **sparse())
    assert finish(tmp_path / "stopped", resume=True, **sparse())["models_sha256"] == tenth["models_sha256"]


def test_what_is_not_sent_comes_later_and_is_in_the_model_only_then():
    """In each round the columns of two pieces move; what the others learnt is left over, unless it is not kept."""
    for keep in (True, False):
        run = Run(from_table(SMALL | sparse(sparsifier={"name": "top_k", "error_feedback": keep})))
        before = run.start()
        with run.experiment() as experiment:
            for state, _ in islice(play(before, experiment), 2):
                columns = np.concatenate([run.cut.columns[piece] for piece in run.cut.sent(state.round, 0.1)])
                other = np.setdiff1d(np.arange(run.cut.size), columns)
                assert (state.models != before.models).any(axis=0)[columns].any()
                np.testing.assert_array_equal(state.models[:, other], before.models[:, other])
                if keep:
                    np.testing.assert_array_equal(state.residuals[:, columns], 0)
                    assert state.residuals[:, other].any()
                else:
                    assert state.residuals is None
                before = state


def test_a_plan_is_kept_to_the_byte_so_that_nobody_is_late_by_sending():
    table = SMALL | BLIND | {"scheduler": {"name": "same_deadline", "density_min": 0.1}, "late": {"policy": "deadline"}}
    run = Run(from_table(table))
    with run.experiment() as experiment:
        for _, record in islice(play(run.start(), experiment), 2):
            planned = np.array([plan.density for plan in record.schedule.plans])
            assert len(set(planned.tolist())) > 1
            assert (record.sizes <= planned * run.update_bytes * (1 + 1e-9)).all()
            assert record.sizes.all()
            assert not record.late.any()


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
@pytest.mark.parametrize(
    ("scheduler", "client"),
    [
        ({"name": "everything"}, "plain"),
        ({"name": "same_deadline", "density_min": 0.1}, "plain"),
        ({"name": "everything", "density": 0.3}, "scaffold"),  # whose rows are twice as wide
    ],
)
def test_flowers_simulation_gives_the_bits_and_records_of_the_local_engine(tmp_path, scheduler, client):
    pytest.importorskip("flwr")
    found = []
    for name in ("local", "flower"):
        table = ROOM | BLIND | {"scheduler": scheduler, "client": client, "evaluation": {"every": 1}}
        table |= {"events": COMING_AND_GOING}
        for _ in play_in_folder(Run(from_table(table | {"engine": {"name": name, "workers": 1}})), tmp_path / name):
            pass
        lines = [{**line, "seconds": 0} for line in read_lines(tmp_path / name)]
        found.append((lines, json.loads((tmp_path / name / "result.json").read_text())["models_sha256"]))
    assert found[0] == found[1]
