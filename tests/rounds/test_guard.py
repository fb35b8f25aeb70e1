"""Bounded influence: what one device may do to others, how offenders are named, and how a spoilt run recovers."""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import Graph, Guard, aggregators
from fedfilt._draws import generator
from fedfilt.filters import Heat, Tikhonov
from fedfilt.mixing import mixing_matrix
from fedfilt.models import Logistic
from fedfilt.rounds.kinds import ByKind
from fedfilt.rounds.play import play
from fedfilt.rounds.robust import Robust, clipped, geometric, matrices, usual
from fedfilt.rounds.types import Happening, State, Updates
from fedfilt.runs.build import Run
from fedfilt.runs.checkpoint import load_state, save_state
from fedfilt.runs.config import from_table, load, load_begun
from fedfilt.runs.fit import fit
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records
from fedfilt.show.words import dated
from fedfilt.training.sgd import Diverged
from helpers import ROOT, SMALL

TABLE = {**SMALL, "rounds": 12, "evaluation": {"every": 1}, "checkpoint": {"every": 3}}


class Hostile:
    """An engine whose device 0 sends something else than it learned in some rounds."""

    def __init__(self, inner, change):
        self._inner, self._change, self.test = inner, change, inner.test

    def train(self, jobs, deadline):
        for reply in self._inner.train(jobs, deadline):
            if reply.device == 0 and not reply.absent:
                with np.errstate(over="ignore"):
                    sent = np.asarray(self._change(jobs[0].round, reply.update), np.float32)
                reply = reply._replace(update=sent)
            yield reply


def once(round, update):
    return np.full_like(update, 1e30) if round == 5 else update


def flip(round, update):
    return -10 * update


def played(change=None, **table):
    """(last state, records) of a run with a hostile device 0."""
    run = Run(from_table({**TABLE, **table}))
    with run.experiment() as experiment:
        hostile = experiment if change is None else replace(experiment, engine=Hostile(experiment.engine, change))
        steps = list(play(run.start(), hostile))
    return steps[-1][0], [record for _, record in steps]


def told(records, *what):
    events = [event for record in records for event in record.events]
    return [(event.round, event.device, event.what) for event in events if event.what in what]


def accuracy(record):
    """Of the others, on everybody's test."""
    matrices = record.mixed.global_test[1:]
    return float(np.mean([np.trace(m) / m.sum() for m in matrices]))


def drawn(seed, count, size=7):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, size)).astype(np.float32), rng.integers(1, 50, count).astype(float)


# --- limits -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_what_is_within_all_limits_passes_with_the_same_bits(seed, count):
    rows, weights = drawn(seed, count)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    updates = Updates(rows, np.minimum(weights, 5 * np.median(weights)))
    seen = Guard().watch(State(3, np.zeros_like(rows)), updates)
    assert seen.updates.rows is rows
    np.testing.assert_array_equal(seen.updates.weights, updates.weights)
    assert seen.events == ()
    assert seen.back is None


@given(st.integers(0, 2**32), st.integers(3, 12), st.floats(1e-30, 1e37), st.floats(0, 1e9), st.floats(1, 5))
def test_whatever_one_device_sends_its_update_weight_and_model_are_bounded(seed, count, scale, claimed, clip):
    rows, weights = drawn(seed, count)
    with np.errstate(over="ignore"):
        rows[0] = np.clip(rows[0] * np.float32(scale), -3e38, 3e38)
    weights[0] = claimed
    guard = Guard(clip=clip, cap=10.0)
    seen = guard.watch(State(0, np.ones_like(rows)), Updates(rows, weights))
    lengths = np.linalg.norm(seen.updates.rows.astype(float), axis=1)
    honest = np.linalg.norm(rows[1:].astype(float), axis=1)
    assert lengths[0] <= clip * honest.max() * 1.00001  # the median of all is at most the longest honest one
    assert seen.updates.weights[0] <= 10 * weights[1:].max()
    assert np.abs(1 + seen.updates.rows).max() <= 10.0001


def test_a_device_that_is_ordered_to_do_more_may_send_more():
    rows, work = np.ones((5, 3), np.float32), np.array([1.0, 1, 1, 1, 10])
    rows[4] = 9
    seen = Guard().watch(State(0, 0 * rows), Updates(rows, np.ones(5)), work=work)
    assert seen.updates.rows is rows
    assert [event.device for event in Guard().watch(State(0, 0 * rows), Updates(rows, np.ones(5))).events] == [4]


def test_the_median_may_not_jump():
    """Of two devices nobody can say who is right; but what was usual the round before is known."""
    state = State(0, np.zeros((2, 3), np.float32))
    rows = np.ones((2, 3), np.float32)
    seen = Guard().watch(state, Updates(rows, np.ones(2)))
    rows[0] = 1e30
    after = Guard().watch(state._replace(round=1, memory=seen.memory), Updates(rows, np.ones(2)))
    assert after.updates.rows.max() <= 6.0001
    np.testing.assert_array_equal(after.updates.rows[1], 1)


@pytest.mark.parametrize("wrong", [{"clip": -1.0}, {"clip": 0.5}, {"strikes": -1}, {"robust": "some"}, {"reach": 0.0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=f"guard.{next(iter(wrong))}"):
        Guard(**wrong)


# --- quarantine -------------------------------------------------------------------------------------------------------


def life(sent, guard, count=5):
    """What happens to device 0 if it sends updates of such lengths: (round, what), and its weight in every round."""
    state, events, weights = State(0, np.zeros((count, 2), np.float32)), [], []
    for length in sent:
        rows = np.full((count, 2), 1.0, np.float32)
        rows[0] = length
        seen = guard.watch(state, Updates(rows, np.full(count, 8.0)))
        events += [(event.round, event.what) for event in seen.events]
        weights.append(float(seen.updates.weights[0]))
        if not weights[-1]:
            assert not seen.updates.rows[0].any()
        state = State(state.round + 1, state.models, memory=seen.memory)
    return events, weights


def test_a_repeat_offender_counts_less_then_nothing_and_has_a_way_back():
    guard = Guard(strikes=3, quarantine=4)
    events, weights = life([9, 9, 9, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1, 9, 9], guard)
    assert events == [
        *[(1, "clipped"), (2, "clipped"), (3, "quarantined"), (8, "released")],
        *[(14, "clipped"), (15, "clipped")],  # probation is over: it starts anew
    ]
    assert weights == [8, 4, *[0] * 5, *[8] * 7, 4]


def test_on_probation_one_offence_is_enough_and_counts_twice():
    events, weights = life([9] * 25, Guard(strikes=2, quarantine=3))
    assert events == [
        *[(1, "clipped"), (2, "quarantined")],
        *[(6, "released"), (6, "quarantined")],
        *[(13, "released"), (13, "quarantined")],
    ]
    assert weights == [8] + [0] * 24


def test_an_honest_outlier_now_and_then_is_only_clipped():
    events, weights = life([9, 1, 1, 9, 1, 1] * 4, Guard())
    assert {what for _, what in events} == {"clipped"}
    assert set(weights) == {8}


def test_who_alternates_is_caught_all_the_same():
    events, _ = life([9, 9, 1] * 4, Guard())
    assert "quarantined" in {what for _, what in events}


# --- in a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [once, flip, lambda round, update: np.full_like(update, 3e38)])
@pytest.mark.parametrize("rule", ["gfedfilt", "fedavg"])
def test_a_hostile_device_does_not_spoil_the_others_and_is_named(change, rule):
    honest, spoilt = (accuracy(played(how, aggregator=rule)[1][-1]) for how in (None, change))
    assert spoilt > honest - 0.1
    _, records = played(change, aggregator=rule)
    assert told(records, "clipped")[0][1] == 0
    if change is not once:
        assert told(records, "quarantined")[0][1] == 0
    with suppress(Diverged):
        assert accuracy(played(change, aggregator=rule, guard=False)[1][-1]) < honest - 0.15


def test_without_clipping_the_run_goes_back_and_names_who_caused_it():
    state, records = played(once, guard={"clip": 0})
    assert told(records, "setback", "quarantined", "released")[:2] == [(6, None, "setback"), (6, 0, "quarantined")]
    assert [record.round for record in records] == list(range(1, 13))
    assert np.isfinite(state.models).all()
    assert accuracy(records[-1]) > accuracy(records[3])
    assert np.median(records[4].mixed.global_loss) > 100  # it was spoilt


def test_a_device_whose_reply_does_not_count_keeps_what_it_had():
    """In quarantine, or in a round that is taken back: its client's state and its unsent rest stay as they were."""
    scheduler = {"name": "everything", "epochs": 1, "density": 0.5}
    for change, guard, first in ((flip, {"strikes": 1}, 1), (once, {"clip": 0.0, "cap": 0.0}, 6)):
        run = Run(
            from_table({**TABLE, "client": "ditto", "aggregator": "fedavg", "guard": guard, "scheduler": scheduler})
        )
        with run.experiment() as experiment:
            hostile = replace(experiment, engine=Hostile(experiment.engine, change))
            states, records = zip(*islice(play(run.start(), hostile), 7), strict=True)
        events = told(records, "quarantined", "setback")
        assert events[0][0] == first
        before = states[first - 2] if first > 1 else run.start()
        shut = [0] if change is flip else range(len(before.models))
        for device in shut:
            assert states[first - 1].accepted[device] == first - 1
            kept = [state.clients.get(device, {}).get("personal") for state in (before, states[first - 1])]
            np.testing.assert_array_equal(*kept)
        left = [np.zeros(1) if state.residuals is None else state.residuals[0] for state in (before, states[first - 1])]
        assert not (left[0] - left[1]).any()
        others = states[first - 1].accepted[1:]
        assert (others == (first if change is flip else first - 1)).all()


def test_a_run_that_cannot_get_well_says_who_is_the_likely_cause():
    with pytest.raises(Diverged, match=r"round \d+, and going back did not help; .* device 0 \(\S+ times the median\)"):
        played(lambda round, update: np.full_like(update, 1e30), guard={"clip": 0, "cap": 0, "quarantine": 0})


@pytest.mark.parametrize("guard", [{}, {"clip": 0}, {"robust": "filter"}])
@pytest.mark.parametrize("stop", [4, 6, 8])
def test_a_killed_run_recovers_with_the_same_bits(tmp_path, guard, stop):
    def run_in(folder, until=99, resume=False):
        run = Run(from_table({**TABLE, "guard": guard}))
        with run.engine() as engine:
            for line in play_in_folder(run, folder, resume, Hostile(engine, once)):
                if line["round"] == until:
                    return ""
        return json.loads((folder / "result.json").read_text())["models_sha256"]

    whole = run_in(tmp_path / "whole")
    run_in(tmp_path / "part", stop)
    assert run_in(tmp_path / "part", resume=True) == whole
    lines = [[{**line, "seconds": 0} for line in read_lines(tmp_path / name)] for name in ("whole", "part")]
    assert lines[0] == lines[1]
    words = [dated(event) for event in Records(tmp_path / "part").events]
    if guard == {"clip": 0}:
        assert any(text.startswith("round 6: device 0 is quarantined for updates") for text in words)
        assert any("returned to a good state, without the largest updates of devices [0]" in text for text in words)
    else:
        start = "round 5: device 0 sent an update that was too large and was clipped:"
        assert any(text.startswith(start) for text in words)


def test_a_run_in_which_nobody_trains_at_the_end_has_no_result(tmp_path):
    class Gone:
        def __init__(self, inner):
            self._inner, self.test = inner, inner.test

        def train(self, jobs, deadline):
            for reply in self._inner.train(jobs, deadline):
                yield reply if reply.update is None or jobs[0].round < 5 else reply._replace(absent="offline")

    run = Run(from_table(SMALL))
    with run.engine() as engine, pytest.raises(ValueError, match=r"no device has trained since round 4 \(offline\)"):
        list(play_in_folder(run, tmp_path / "run", engine=Gone(engine)))
    assert not (tmp_path / "run" / "result.json").exists()
    list(play_in_folder(Run(from_table(SMALL)), tmp_path / "run", resume=True))  # they are back
    assert (tmp_path / "run" / "result.json").exists()


def test_devices_that_come_and_go_are_guarded(tmp_path):
    events = [{"round": 4, "leave": 0}, {"round": 7, "join": 0}, {"round": 5, "join": 3}]
    state, records = played(flip, events=events)
    quarantined = told(records, "quarantined")
    assert quarantined
    assert {device for _, device, _ in quarantined} == {0}
    assert np.isfinite(state.models).all()
    save_state(tmp_path / "state", state, "abc")
    back, _ = load_state(tmp_path / "state", ["abc"], state)
    assert back.memory.keys() == state.memory.keys()
    for name, array in state.memory.items():
        np.testing.assert_array_equal(back.memory[name], array)
    more = State(0, np.concatenate([state.models, state.models[:2] + 1]))
    grown, _ = load_state(tmp_path / "state", ["abc"], more)
    assert grown.memory["guard.strikes"].shape == (22,)
    np.testing.assert_array_equal(grown.memory["guard.good.1"][-2:], more.models[-2:])


def test_fit_is_guarded_too():
    rng = generator(0, 1)
    inputs, labels = rng.standard_normal((40, 4)).astype(np.float32), rng.integers(0, 2, 40)
    bad = (inputs * 1e4, labels)  # as if its sensor counted in other units
    graph = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    fitted = {
        guard: fit([bad, *[(inputs, labels)] * 3], Logistic((4,), 2), graph, guard=guard, rounds=8)
        for guard in (Guard(), None)
    }
    sizes = {guard: np.linalg.norm(found.rows[2]) for guard, found in fitted.items()}
    assert sizes[Guard()] < 0.1 * sizes[None]
    assert told(fitted[Guard()].records, "quarantined")[0][1] == 0


# --- configs ----------------------------------------------------------------------------------------------------------


def test_a_guard_that_is_off_leaves_the_hash_as_it_was():
    finished = ROOT / "tests" / "fixtures" / "before_rooms" / "finished"
    off, on = from_table({"guard": False}), from_table({})
    assert off.hash() == from_table({"guard": {"on": False, "clip": 7}}).hash() == "7a2dc4592af6f6d1"
    assert len({config.hash() for config in (off, on, from_table({"guard": {"clip": 2}}))}) == 3
    assert not load_begun(finished / "config.toml", load(None)).guard.on
    assert from_table({"guard": True}) == on


# --- robust rules -----------------------------------------------------------------------------------------------------

RULES = [
    aggregators.GFedFilt(Tikhonov(1.0)),
    aggregators.GFedFilt(Tikhonov(10.0), signal="updates"),
    aggregators.GFedFilt(Heat(0.5)),
    aggregators.FedAvg(),
    aggregators.SFL(),
    aggregators.Local(),
    aggregators.SelfBlend(),
]
GRAPH = Graph.from_edges(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 4), (4, 5)])


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(seed=st.integers(0, 2**32))
def test_a_robust_filter_that_clips_nothing_is_the_rule(rule, seed):
    models, weights = drawn(seed, 6)
    updates = Updates(drawn(seed + 1, 6)[0], weights)
    found = Robust(rule, "filter", reach=1e9)(models, updates, GRAPH)
    np.testing.assert_allclose(found, rule(models, updates, GRAPH), atol=2e-5)
    assert found.dtype == np.float32


@given(st.integers(0, 2**32), st.floats(0.1, 3))
def test_the_robust_filter_keeps_the_weighted_mean(seed, reach):
    rows, weights = drawn(seed, 6)
    found = Robust(RULES[0], "filter", reach)(np.zeros_like(rows), Updates(rows, weights), GRAPH)
    np.testing.assert_allclose(weights @ found, weights @ rows, rtol=1e-4, atol=1e-3)


@given(st.integers(0, 2**32), st.integers(0, 5), st.floats(0.01, 3), st.floats(-1e6, 1e6))
def test_no_device_moves_another_further_than_twice_the_bound_times_its_share(seed, who, most, far):
    rows, weights = drawn(seed, 6)
    matrix = mixing_matrix(GRAPH, Tikhonov(1.0), weights)
    rows = rows.astype(float)
    moved = rows.copy()
    moved[who] = far * moved[who] + far
    mixed = []
    for given_rows in (rows, moved):
        distances = np.linalg.norm(given_rows[:, None] - given_rows[None], axis=2)
        mixed.append(clipped(matrix, distances, most) @ given_rows)
    shift = np.linalg.norm(mixed[0] - mixed[1], axis=1)
    others = np.arange(6) != who
    assert (shift[others] <= 2 * most * matrix[others, who] * (1 + 1e-6) + 1e-9 * abs(far)).all()


@given(st.integers(0, 2**32))
def test_the_geometric_median_has_the_smallest_sum_of_distances(seed):
    rows, weights = drawn(seed, 6)
    rows = rows.astype(float)
    matrix = mixing_matrix(GRAPH, Tikhonov(1.0), weights)
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    found = geometric(matrix, distances) @ rows

    def cost(point, share):
        return share @ np.linalg.norm(rows - point, axis=1)

    rng = np.random.default_rng(seed)
    for i, share in enumerate(matrix):
        best = cost(found[i], share)
        for other in [matrix[i] @ rows, *rows, *(found[i] + 0.1 * rng.standard_normal((5, 7)))]:
            assert best <= cost(other, share) * 1.001


@pytest.mark.parametrize("how", ["filter", "geometric"])
def test_equal_models_stay_equal_and_one_far_away_changes_little(how):
    rows, weights = np.ones((6, 3), np.float32), np.ones(6)
    rule = Robust(aggregators.GFedFilt(Tikhonov(10.0)), how)
    np.testing.assert_allclose(rule(rows, Updates(0 * rows, weights), GRAPH), 1, rtol=1e-6)
    near = rows + drawn(0, 6, 3)[0] / 10
    far = near.copy()
    far[5] = 1e6
    found = [rule(given_rows, Updates(0 * rows, weights), GRAPH)[:5] for given_rows in (near, far)]
    assert np.abs(found[0] - found[1]).max() < 1


def test_robust_rules_by_kind_and_what_they_cannot_do():
    kinds = replace(GRAPH, kinds=("a", "a", "a", "b", "b", "b"))
    rows, weights = drawn(0, 6)
    rule = ByKind(Robust(aggregators.FedAvg(), "filter", 1e9), np.arange(7) < 3)
    plain = ByKind(aggregators.FedAvg(), np.arange(7) < 3)
    updates = Updates(rows, weights)
    np.testing.assert_allclose(rule(0 * rows, updates, kinds), plain(0 * rows, updates, kinds), atol=1e-5)
    with pytest.raises(ValueError, match=r"guard\.robust needs a rule that mixes models or updates linearly"):
        matrices(lambda models, updates, graph: 2 * models, weights, GRAPH)
    assert usual(np.eye(3), np.ones((3, 3))) == 0
    nobody = Updates(0 * rows, 0 * weights)
    np.testing.assert_array_equal(Robust(aggregators.FedAvg())(rows, nobody, GRAPH), rows)


def test_what_travels_seldom_has_no_usual_length():
    """Only the model in a row is measured and shortened; a device in quarantine still brings nothing."""
    rows = np.ones((5, 4), np.float32)
    rows[:, 2:] = 100  # in this round devices send something else too
    rows[4, :2] = 30
    state, guard = State(0, np.zeros((5, 4), np.float32)), Guard()
    seen = guard.watch(state, Updates(rows, np.ones(5)), size=2)
    np.testing.assert_array_equal(seen.updates.rows[:4], rows[:4])
    np.testing.assert_allclose(seen.updates.rows[4], [3, 3, 100, 100])
    assert [(event.device, event.what) for event in seen.events] == [(4, "clipped")]
    away = {**seen.memory, "guard.until": np.array([0, 0, 0, 0, 9])}
    again = guard.watch(state._replace(round=1, memory=away), Updates(rows, np.ones(5)), size=2)
    assert not again.updates.rows[4].any()


def test_words_about_the_guard():
    said = Happening(6, 0, "quarantined", {"times": 12.5, "until": 16})
    assert dated(said) == (
        "round 6: device 0 is quarantined for updates that were too large: 12.5 times the median until round 16"
    )
