"""Who takes part in a round: how many, how often each, what the others do, and the same bits however it is played."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import Event, Graph, Guard, Participation, Privacy, fit
from fedfilt.aggregators import FedAvg, GFedFilt
from fedfilt.engines.flower import messages
from fedfilt.filters import Tikhonov
from fedfilt.models import Logistic
from fedfilt.rounds.participation import Drawing, read_trace
from fedfilt.rounds.play import play
from fedfilt.rounds.types import Engine
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.preview import first_round
from fedfilt.runs.records import Records
from helpers import ROOM, SMALL, as_far_as, call, config_file, contents, finish

DEVICES = 20


def made(participation, **changes):
    return Run(from_table({**SMALL, "participation": participation, **changes}))


def rows_of(run):
    """Models and records of all rounds."""
    with run.experiment() as experiment:
        return [(state.models, record) for state, record in play(run.start(), experiment)]


# --- the draw ---------------------------------------------------------------------------------------------------------


@given(
    st.floats(0.001, 1.0),
    st.integers(1, 30),
    st.sampled_from(["equal", "samples"]),
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=30, max_size=30),
    st.integers(1, 1000),
)
def test_never_fewer_than_the_minimum_and_only_devices_that_can(fraction, minimum, weights, devices, round):
    samples, able = (np.array(column) for column in zip(*devices, strict=True))
    participation = Participation(fraction, minimum, weights)
    taken = participation.drawn(3, round, samples, able)
    can = able & (samples > 0)
    assert not (taken & ~can).any()
    wanted = max(minimum, int(fraction * can.sum() + 0.5))
    assert taken.sum() == (wanted if can.sum() >= minimum else 0)
    np.testing.assert_array_equal(taken, participation.drawn(3, round, samples, able))  # of (seed, round) alone


def test_everybody_is_drawn_equally_often_or_by_samples():
    rounds, everybody = 2000, np.ones(10, bool)
    samples = np.array([100.0, *[10.0] * 9])
    equal = np.sum([Participation(0.3).drawn(0, round, samples, everybody) for round in range(1, rounds + 1)], axis=0)
    assert equal.sum() == 0.3 * 10 * rounds
    assert abs(equal - 0.3 * rounds).max() < 5 * np.sqrt(rounds * 0.3 * 0.7)  # five standard deviations
    by_samples = Participation(0.1, weights="samples")  # one of ten: the chance is the share of samples
    found = np.sum([by_samples.drawn(0, round, samples, everybody) for round in range(1, rounds + 1)], axis=0)
    share = samples / samples.sum()
    assert (abs(found - share * rounds) < 5 * np.sqrt(rounds * share * (1 - share))).all()


@given(st.integers(1, 500), st.integers(0, DEVICES - 1))
def test_a_device_that_is_away_is_replaced_by_one_other(round, away):
    samples, able = np.full(DEVICES, 9), np.ones(DEVICES, bool)
    participation = Participation(0.25)
    before = participation.drawn(0, round, samples, able)
    able[away] = False
    after = participation.drawn(0, round, samples, able)
    assert (before & ~after).sum() == before[away]  # nobody else loses a place
    more = Participation(0.25).drawn(0, round, np.full(DEVICES + 4, 9), np.arange(DEVICES + 4) < DEVICES)
    np.testing.assert_array_equal(more[:DEVICES], before)  # nor by devices that are new to the graph


# --- a round ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["everything", "same_deadline"])
def test_devices_that_are_not_drawn_do_and_cost_nothing(scheduler):
    run = made({"fraction": 0.2}, scheduler=scheduler, rounds=3)
    for _, record in rows_of(run):
        assert record.drawn is not None
        others = np.setdiff1d(np.arange(DEVICES), record.drawn)
        assert len(record.drawn) == 4
        assert not record.costs[others].any()
        assert not record.sizes[others].any()
        assert not record.samples[others].any()
        assert (record.samples[list(record.drawn)] > 0).all()
        assert np.isnan(record.losses[others]).all()
        assert {record.schedule.plans[i].outcome for i in others} == {"not_drawn"}


def test_the_deadline_is_that_of_the_drawn_alone():
    """A device that is much slower than all others sets no deadline in rounds in which it is not drawn."""
    run = made({"fraction": 0.2}, scheduler="same_deadline", rounds=8)
    slow = replace(run.hardware, clock_hz=np.where(np.arange(DEVICES) == 6, run.hardware.clock_hz / 1000, 1e9))
    run.hardware = slow
    deadlines = {6 in (record.drawn or ()): record.schedule.deadline for _, record in rows_of(run)}
    assert deadlines[True] > 100 * deadlines[False]


def test_everybody_is_as_before(tmp_path):
    plain = finish(tmp_path / "plain", rounds=2)
    written = finish(tmp_path / "written", rounds=2, participation={"fraction": 1.0, "absent": "kept"})
    assert plain["models_sha256"] == written["models_sha256"]
    assert "drawn" not in read_lines(tmp_path / "plain")[0]


def test_what_absent_devices_get():
    rules = {"fedavg": "the mean", "local": "kept", "gfedfilt": "mixed"}
    for rule, words in rules.items():
        mixed = rows_of(made({"fraction": 0.2}, aggregator=rule, rounds=2))
        kept = rows_of(made({"fraction": 0.2, "absent": "kept"}, aggregator=rule, rounds=2))
        first, second = (set(range(DEVICES)) - set(record.drawn or ()) for _, record in kept)
        still = sorted(first & second)
        start = made({}).start().models
        np.testing.assert_array_equal(kept[-1][0][still], start[still])
        if words == "kept":
            np.testing.assert_array_equal(mixed[-1][0], kept[-1][0])
        else:
            assert (mixed[-1][0][still] != start[still]).any(axis=1).all()
        if words == "the mean":
            assert (mixed[-1][0] == mixed[-1][0][0]).all()


def test_kept_rows_beside_devices_without_samples_that_join_and_leave():
    """A relay, which has no samples, is never drawn and still gets its row; one that joins starts from neighbours."""
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((9, 3)).astype(np.float32), rng.integers(0, 2, 9)) for _ in range(5)]
    data[2] = (np.zeros((0, 3), np.float32), np.zeros(0, int))
    graph = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    events = [Event(2, leave=0), Event(3, join=0)]
    fitted = fit(
        data,
        Logistic((3,), 2),
        graph,
        GFedFilt(Tikhonov(1.0)),
        rounds=4,
        events=events,
        participation=Participation(0.5, absent="kept"),
    )
    for record in fitted.records:
        assert 2 not in (record.drawn or ())
        assert (0 in record.away) == (record.round == 2)
    relay, start = fitted.rows[2], Logistic((3,), 2)
    untrained = fit(data, start, graph, rounds=1, epochs=0).rows[2]
    assert (relay != untrained).any()


def test_offline_devices_are_not_drawn_and_others_are_in_their_place():
    events = [{"round": 1, "offline": list(range(15)), "until": 3}]
    found = rows_of(made({"fraction": 0.2, "minimum": 3}, rounds=3, events=events))
    drawn = [set(record.drawn or ()) for _, record in found]
    assert [len(some) for some in drawn] == [3, 3, 4]
    assert (drawn[0] | drawn[1]) <= set(range(15, 20))
    outcomes = [plan.outcome for plan in found[0][1].schedule.plans]
    assert outcomes[:15] == ["offline"] * 15
    assert sorted(outcomes[15:]) == ["", "", "", "not_drawn", "not_drawn"]


def test_with_guard_privacy_and_deadlines_all_at_once(tmp_path):
    changes = {
        "participation": {"fraction": 0.3, "absent": "kept"},
        "scheduler": "same_deadline",
        "devices": "prescribed",
        "late": {"policy": "quorum", "quorum": 0.8},
        "privacy": {"clip": 1.0, "noise": 1.0},
        "events": [{"round": 2, "offline": 4}],
    }
    finish(tmp_path / "run", **changes)
    lines = read_lines(tmp_path / "run")
    took_part = np.zeros(DEVICES, int)
    for line in lines:
        took_part += np.array(line["time"]["devices"]["samples"]) > 0
        assert len(line["drawn"]) == 6
    spent = lines[-1]["privacy"]
    assert spent["rounds"] == took_part.tolist()  # a device pays for the rounds in which it took part, no less
    noise = Privacy(clip=1.0, noise=1.0)
    assert spent["epsilon"] == pytest.approx(noise.spent(1.0, int(took_part.max())), rel=1e-5)


@pytest.mark.parametrize("rule", ["fedavgm", "fedadam"])
def test_rules_and_clients_that_remember(tmp_path, rule):
    """Rows that are kept keep what the rule remembers of them; clients that are not drawn keep their own state."""
    found = {}
    for absent in ("mixed", "kept"):
        changes = {"participation": {"fraction": 0.2, "absent": absent}, "aggregator": rule, "client": "ditto"}
        run = made(**changes, rounds=2)
        with run.experiment() as experiment:
            found[absent] = list(play(run.start(), experiment))
        whole = as_far_as(4, tmp_path / absent / "whole", **changes)
        as_far_as(2, tmp_path / absent / "parts", **changes)
        assert as_far_as(4, tmp_path / absent / "parts", **changes) == whole
    (first, record), (second, after) = found["kept"]
    drawn = [set(one.drawn or ()) for one in (record, after)]
    assert set(first.clients) == drawn[0]
    assert set(second.clients) == drawn[0] | drawn[1]
    never = sorted(set(range(DEVICES)) - drawn[0] - drawn[1])
    for name, array in second.memory.items():
        if name.startswith("rule.devices."):
            assert (array[never] == array[never[0]]).all()
            assert (array[sorted(drawn[1])] != array[never[0]]).any()
    assert (found["mixed"][1][0].models[never] != second.models[never]).any()


# --- traces -----------------------------------------------------------------------------------------------------------


def test_a_trace_says_who_is_available(tmp_path):
    for number, text in enumerate(("device,round\n0,1\n2,1\n2,2\n2,3\n", "device,from,until\n0,1,2\n\n2,1,\n")):
        path = tmp_path / f"{number}.csv"
        path.write_text(text)
        trace = read_trace(path, 3)
        found = [trace.available(round).tolist() for round in (1, 2, 3)]
        assert found == [[True, False, True], [False, False, True], [False, False, True]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device,when\n0,1\n", "header must be device,round or device,from,until, got 'device,when'"),
        ("", "header must be"),
        ("device,round\n0,1\n20,1\n", "line 3: device must be a whole number from 0 to 19, got 20"),
        ("device,round\n0,0\n", "line 2: round must be a whole number from 1"),
        ("device,round\n0\n", "line 2: must be 2 whole numbers, got '0'"),
        ("device,round\n0,soon\n", "must be 2 whole numbers, got '0,soon'"),
        ("device,from,until\n0,4,4\n", "line 2: until must be a whole number from 5"),
        ("device,round\n0," + "9" * 30 + "\n", "round must be a whole number from 1"),
    ],
)
def test_bad_traces_are_named(tmp_path, text, words):
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(ValueError, match=words.split("'")[0].replace("(", r"\(")) as error:
        made({"trace": str(tmp_path / "trace.csv")})
    assert words in str(error.value)


def test_rounds_follow_the_trace_and_may_pass_without_anybody_except_the_last(tmp_path):
    (tmp_path / "trace.csv").write_text("device,from,until\n0,1,3\n1,1,3\n2,2,3\n0,4,5\n1,4,5\n")
    changes = {"participation": {"minimum": 2, "trace": str(tmp_path / "trace.csv")}, "rounds": 3}
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"run has no result: no device has trained since round 2 \(too few"):
            finish(tmp_path / "run", resume=resume, **changes)
    assert not (tmp_path / "run" / "result.json").exists()
    finish(tmp_path / "run", resume=True, **{**changes, "rounds": 4})
    lines = read_lines(tmp_path / "run")
    assert [line["drawn"] for line in lines] == [[0, 1], [0, 1, 2], [], [0, 1]]
    assert lines[2]["time"]["devices"]["outcome"] == ["unavailable"] * DEVICES
    whole = finish(tmp_path / "whole", **{**changes, "rounds": 4})
    assert whole["models_sha256"] == json.loads((tmp_path / "run" / "result.json").read_text())["models_sha256"]
    (tmp_path / "trace.csv").write_text("device,from,until\n0,1,\n1,1,\n")
    with pytest.raises(ValueError, match="another trace"):
        finish(tmp_path / "run", resume=True, **{**changes, "rounds": 4})


# --- the same bits ----------------------------------------------------------------------------------------------------


class Shuffled:
    """An engine whose replies come in any order."""

    def __init__(self, inner: Engine) -> None:
        self._inner, self._random = inner, random.Random(1)
        self.test = inner.test

    def train(self, jobs, deadline):
        replies = [reply._replace(update=reply.update.copy()) for reply in self._inner.train(jobs, deadline)]
        self._random.shuffle(replies)
        return iter(replies)


def test_the_order_of_arrival_does_not_matter():
    run = made({"fraction": 0.4}, rounds=3)
    plain = rows_of(run)
    with run.experiment() as experiment:
        other = list(play(run.start(), replace(experiment, engine=Shuffled(experiment.engine))))
    np.testing.assert_array_equal(plain[-1][0], other[-1][0].models)


@pytest.mark.parametrize("absent", ["mixed", "kept"])
def test_a_resumed_and_a_parallel_run_have_the_same_bits(tmp_path, absent):
    changes = {"participation": {"fraction": 0.3, "absent": absent}, "sparsifier": {"half": True}}
    whole = as_far_as(6, tmp_path / "whole", **changes)
    as_far_as(2, tmp_path / "parts", **changes)
    as_far_as(4, tmp_path / "parts", **changes)
    assert as_far_as(6, tmp_path / "parts", **changes) == whole
    assert as_far_as(6, tmp_path / "many", **changes, engine={"workers": 2}) == whole


@pytest.mark.slow(3)
def test_flower_gives_the_same_bits_and_sends_only_the_drawn_a_message(tmp_path, monkeypatch):
    found, sent, addressed = [], list[tuple[int, str]](), messages.addressed

    def noted(kind, node, content, round, seconds):
        sent.append((round, kind))
        return addressed(kind, node, content, round, seconds)

    monkeypatch.setattr(messages, "addressed", noted)
    for name in ("local", "flower"):
        table = ROOM | {"participation": {"fraction": 0.5}, "engine": {"name": name, "workers": 1}}
        table |= {"evaluation": {"every": 3}}
        for _ in play_in_folder(Run(from_table(table)), tmp_path / name):
            pass
        found.append([{**line, "seconds": 0} for line in read_lines(tmp_path / name)])
    assert found[0] == found[1]
    assert [len(line["drawn"]) for line in found[0]] == [2, 2, 2]
    sent = [one for one in sent if one[0]]  # before the first round, nodes say which devices they are
    assert sent == [*2 * [(1, "train")], *2 * [(2, "train")], *2 * [(3, "train")], *4 * [(3, "test")]]
    models = [contents(tmp_path / name / "models") for name in ("local", "flower")]
    assert models[0] == models[1]


class Asked:
    """An engine that remembers whom it was to send a job."""

    def __init__(self, inner: Engine) -> None:
        self._inner, self.devices = inner, list[tuple[int, ...]]()
        self.test = inner.test

    def train(self, jobs, deadline):
        self.devices.append(tuple(job.device for job in jobs))
        return self._inner.train(jobs, deadline)


def test_a_blind_server_plays_among_the_drawn_and_only_they_get_a_job():
    for absent in ("mixed", "kept"):
        run = made({"fraction": 0.3, "absent": absent}, privacy={"blind": True}, rounds=3)
        with run.experiment() as experiment:
            engine = Asked(experiment.engine)
            found = list(play(run.start(), replace(experiment, engine=engine)))
        assert engine.devices == [record.drawn for _, record in found]
        assert np.isfinite(found[-1][0].models).all()


# --- elsewhere --------------------------------------------------------------------------------------------------------


def test_fit_takes_a_share_or_a_participation():
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((9, 3)).astype(np.float32), rng.integers(0, 2, 9)) for _ in range(6)]
    graph = Graph.from_edges(6, [(i, i + 1) for i in range(5)])
    found = [
        fit(data, Logistic((3,), 2), graph, FedAvg(), rounds=3, guard=Guard(), participation=given)
        for given in (0.5, Participation(0.5), 1.0)
    ]
    np.testing.assert_array_equal(found[0].rows, found[1].rows)
    assert [len(record.drawn or ()) for record in found[0].records] == [3, 3, 3]
    assert all(record.drawn is None for record in found[2].records)
    with pytest.raises(ValueError, match=r"participation.fraction must be a finite number > 0 and <= 1, got 0"):
        fit(data, Logistic((3,), 2), graph, participation=0)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("participation.fraction=0", "participation.fraction must be a finite number > 0 and <= 1, got 0"),
        ("participation.fraction=1.5", "participation.fraction must be"),
        ("participation.minimum=21", "participation.minimum must be at most the number of devices, 20, got 21"),
        ("participation.minimum=0", "participation.minimum must be a whole number >= 1"),
        ("participation.weights=sample", "did you mean 'samples'?"),
        ("participation.absent=keep", "did you mean 'kept'?"),
        ("participation.fracton=0.2", "did you mean 'fraction'?"),
        ("participation.trace=nowhere.csv", "nowhere.csv"),
    ],
)
def test_bad_settings_are_named(tmp_path, override, words):
    done = call("run", config_file(tmp_path), override, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert words in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()


def test_devices_that_were_not_drawn_are_no_news(tmp_path):
    finish(tmp_path / "run", participation={"fraction": 0.2})
    assert Records(tmp_path / "run").events == []


def test_the_plan_shows_the_first_draw():
    run = made({"fraction": 0.2})
    assert isinstance(run.script, Drawing)
    planned = [device["device"] for device in first_round(run)["devices"] if device["epochs"]]
    assert tuple(planned) == rows_of(run)[0][1].drawn
