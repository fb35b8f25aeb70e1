"""Devices come, go and move: the graph, the models, the plans, the records and a resumed run follow."""

import numpy as np
import pytest
import torch

from fedfilt import Graph, fit, mixing
from fedfilt.aggregators import FedAvg, GFedFilt, Local, RoomAverage
from fedfilt.filters import Tikhonov
from fedfilt.mixing import mixing_matrix
from fedfilt.populations import Paper
from fedfilt.rounds import types
from fedfilt.rounds.play import play
from fedfilt.rounds.scores import summary
from fedfilt.rounds.timeline import Event, Timeline
from fedfilt.rounds.types import Evaluation, Experiment, Happening, Reply, State
from fedfilt.runs.build import Run
from fedfilt.runs.checkpoint import load_state
from fedfilt.runs.config import from_table, load
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.schedulers import Everything, SameDeadline
from fedfilt.show.words import happening
from helpers import ENDLESS, SMALL, as_far_as, command, finish, killed, some_data, sure

PATH = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)], rooms=["a", "a", "b", "b"])


class Steps:
    """An engine for exact arithmetic: a device's training adds its own number plus one to its model."""

    def train(self, jobs, deadline):
        for job in jobs:
            yield Reply(job.device, np.full(2, job.device + 1, np.float32), 10, 0.0, 8)

    def test(self, state):
        models = state.models
        hits = np.zeros((len(models), 2, 2), np.int64)
        hits[:, 0, 0] = 10
        return types.Tests(hits, hits, np.arange(len(models)) + 0.5, np.arange(len(models)) + 1.5)


def played(events, rule=None, last=6):
    hardware = Paper().draw(np.full(4, 10), 8, np.random.default_rng(0))
    rule = rule or GFedFilt(Tikhonov(1.0))
    evaluation, timeline = Evaluation(every=1), Timeline(events, PATH, last)
    experiment = Experiment(PATH, rule, Everything(1), Steps(), hardware, last, 8, evaluation, events=timeline)
    return list(play(State(0, np.zeros((4, 2), np.float32)), experiment))


def by_hand(models, present, online, links, mu=1.0):
    """A round in plain linear algebra: (N + μL) x = N (models + steps) among the devices that are there."""
    links = np.asarray(links, float)
    there = np.flatnonzero(present)
    a = links[np.ix_(there, there)]
    n = np.asarray(online, float)[there]
    n = n / n.mean()
    trained = models[there] + (np.asarray(online) * (np.arange(len(models)) + 1))[there, None]
    result = models.copy()
    result[there] = np.linalg.solve(np.diag(n) + mu * (np.diag(a.sum(axis=1)) - a), n[:, None] * trained)
    return result


def test_a_device_joins_leaves_moves_and_is_offline_exactly_as_by_hand():
    events = [
        Event(round=2, join=3),
        Event(round=3, move=3, links=((3, 0),)),
        Event(round=4, offline=1, until=6),
        Event(round=5, leave=2),
    ]
    found = played(events)
    links = PATH.adjacency.toarray()
    moved = links.copy()
    moved[3], moved[:, 3] = 0, 0
    moved[3, 0] = moved[0, 3] = 1
    on = np.ones(4, bool)
    models = np.zeros((4, 2))
    no_3, no_1, no_2 = on.copy(), on.copy(), on.copy()
    no_3[3], no_1[1], no_2[2] = False, False, False
    models = by_hand(models, no_3, no_3, links)  # round 1
    np.testing.assert_allclose(found[0][0].models, models, rtol=1e-5)
    # Device 3 starts from the filter's interpolation: its neighbours' models, mixed with nothing of its own
    weights = np.array([10.0, 10, 10, 0])
    models[3] = (mixing_matrix(PATH, Tikhonov(1.0), weights) @ models)[3]
    assert 0 < models[3, 0] < models[:3].max()
    models = by_hand(models, on, on, links)  # round 2
    np.testing.assert_allclose(found[1][0].models, models, rtol=1e-5)
    models = by_hand(models, on, on, moved)  # round 3
    np.testing.assert_allclose(found[2][0].models, models, rtol=1e-5)
    models = by_hand(models, on, no_1, moved)  # round 4: offline, but the server mixes its row on
    np.testing.assert_allclose(found[3][0].models, models, rtol=1e-5)
    left = models[2].copy()
    models = by_hand(models, no_2, no_1 & no_2, moved)  # round 5
    np.testing.assert_allclose(found[4][0].models, models, rtol=1e-5)
    models = by_hand(models, no_2, no_2, moved)  # round 6: back online, still without device 2
    np.testing.assert_allclose(found[5][0].models, models, rtol=1e-5)
    np.testing.assert_allclose(found[5][0].models[2], left, rtol=1e-5)  # its row waits
    records = [record for _, record in found]
    happened = [
        (),
        (Happening(2, 3, "join", {"start": "neighbours"}),),
        (Happening(3, 3, "move", {"links": [0]}),),
        (Happening(4, 1, "offline", {"until": 6}),),
        (Happening(5, 2, "leave"),),
        (Happening(6, 1, "online"),),
    ]
    assert [record.events for record in records] == happened
    assert [happening(event) for events in happened for event in events] == [
        "device 3 joins from neighbours",
        "device 3 moves to [0]",
        "device 1 is offline until round 6",
        "device 2 leaves",
        "device 1 is back online",
    ]
    assert [record.away for record in records] == [(3,), (), (), (1,), (1, 2), (2,)]
    assert records[0].schedule.plans[3].outcome == "away"
    assert records[3].schedule.plans[1].outcome == "offline"
    assert records[0].mixed.local_test.sum(axis=(1, 2)).tolist() == [
        10,
        10,
        10,
        0,
    ]  # a device that is away is not counted
    assert records[3].mixed.local_test.sum(axis=(1, 2)).tolist() == [10] * 4
    assert np.isnan(records[3].losses[1])


def test_losses_of_tests_survive_events_and_are_nan_for_devices_that_are_away():
    records = [record for _, record in played([Event(round=2, join=3), Event(round=3, offline=1), Event(4, leave=2)])]
    for record, away in zip(records, [[3], [], [], [2], [2], [2]], strict=True):  # offline devices are tested
        for found, first in ((record.mixed.local_loss, 0.5), (record.mixed.global_loss, 1.5)):
            expected = np.arange(4) + first
            expected[away] = np.nan
            np.testing.assert_array_equal(found, expected)
    losses = summary(records[0].mixed, some_data(classes=2))
    assert losses["local"]["loss"] == pytest.approx((0.5 + 1.5 + 2.5) / 3)
    assert losses["global"]["loss"] == pytest.approx((1.5 + 2.5 + 3.5) / 3)


def test_an_offline_device_catches_up():
    events = [Event(round=2, offline=3, until=6)]
    with_graph, alone = played(events), played(events, Local())
    others = with_graph[4][0].models[2]
    assert abs(with_graph[4][0].models[3] - others).max() < 1e-4  # its row followed its neighbour's
    np.testing.assert_array_equal(alone[4][0].models[3], alone[0][0].models[3])  # nobody to catch up with


@pytest.mark.parametrize("rule", [GFedFilt(), GFedFilt(signal="updates"), FedAvg(), Local()])
@pytest.mark.parametrize("start", ["neighbours", "mean", "own"])
def test_where_a_device_starts(rule, start):
    before = played([Event(round=5, join=3)], rule)[1][0]
    state = before._replace(residuals=np.ones_like(before.models))
    timeline = Timeline([Event(round=3, join=3, start=start)], PATH, 6)
    hardware = Paper().draw(np.full(4, 10), 8, np.random.default_rng(0))
    experiment = Experiment(PATH, rule, Everything(1), Steps(), hardware, 6, 8, events=timeline)
    found = timeline.begin(state, experiment)
    np.testing.assert_array_equal(found.models[:3], before.models[:3])  # nobody else is touched
    assert (sure(found.residuals)[3] == 0).all()
    assert (sure(found.residuals)[:3] == 1).all()
    mean = before.models[:3].mean(axis=0)
    if start == "own" or (isinstance(rule, Local) and start == "neighbours"):
        assert (found.models[3] == 0).all()
    elif start == "mean" or isinstance(rule, FedAvg):
        np.testing.assert_allclose(found.models[3], mean, rtol=1e-6)
    else:
        models = before.models.astype(float)
        weights = np.array([10.0, 10, 10, 0])
        np.testing.assert_allclose(found.models[3], (mixing_matrix(PATH, Tikhonov(), weights) @ models)[3], rtol=1e-5)


def test_a_device_that_joins_without_links_starts_from_the_first_model():
    found = played([Event(round=3, join=3, links=())])
    np.testing.assert_allclose(found[2][0].models[3], [4, 4])  # 0 + its own step
    rejoined = played([Event(round=2, leave=3), Event(round=4, join=3)])
    assert rejoined[3][1].events == (Happening(4, 3, "join", {"start": "neighbours"}),)
    assert (rejoined[3][0].models[3] > rejoined[1][0].models[3]).all()


def test_a_device_moves_into_another_room():
    found = played([Event(round=2, move=1, room="b")], RoomAverage(), last=2)
    models = found[1][0].models
    np.testing.assert_array_equal(models[1], models[2])
    assert (models[0] != models[1]).all()
    with pytest.raises(ValueError, match="needs a graph with rooms"):
        Timeline([Event(round=2, move=1, room="b")], Graph.from_edges(4, []), 5)
    with pytest.raises(ValueError, match="must be named like others, such as 0, got 'b'"):
        Timeline([Event(round=2, move=1, room="b")], Graph.from_edges(2, [], rooms=[0, 1]), 5)


def test_the_deadline_is_that_of_the_devices_that_are_there():
    hardware = Paper().draw(np.array([10, 10, 10, 100_000]), 8, np.random.default_rng(0))
    timeline = Timeline([Event(round=3, join=3)], PATH, 5)
    experiment = Experiment(PATH, GFedFilt(), SameDeadline(), Steps(), hardware, 5, 8, Evaluation(), events=timeline)
    records = [record for _, record in play(State(0, np.zeros((4, 2), np.float32)), experiment)]
    assert records[1].schedule.deadline < records[2].schedule.deadline


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([{"round": 3, "join": 1}, {"round": 4, "join": 1}], "device 1 cannot join in round 4: it is already there"),
        (
            [{"round": 3, "leave": 1}, {"round": 3, "join": 9}],
            "device 9 cannot join: the next new device must have the number 4",
        ),
        ([{"round": 3, "join": 4}], "device 4 is new to the graph: its event of round 3 must have links"),
        ([{"round": 3, "leave": 9}], "from 0 to 3, got 9"),
        ([{"round": 99, "leave": 1}], "an event of round 99 is after the last round, 6"),
        ([{"round": 0, "leave": 1}], r"events\.round must be a whole number >= 1, got 0"),
        ([{"round": 3, "leave": 1}, {"round": 4, "leave": 1}], "device 1 cannot leave in round 4: it is not there"),
        ([{"round": 3, "leave": 1}, {"round": 4, "offline": 1}], "device 1 cannot be offline in round 4"),
        ([{"round": 2}], "must name a device that joins, leaves, moves or is offline"),
        ([{"round": 2, "join": 1, "leave": 1}], "must name each device once"),
        ([{"round": 2, "move": 1}], "a move needs new links"),
        ([{"round": 2, "move": 1, "links": [[1, 1]]}], "two devices from 0 to 3, got"),
        ([{"round": 2, "move": 1, "links": [[1, 7]]}], "two devices from 0 to 3, got"),
        ([{"round": 2, "move": 1, "links": [[1]]}], "two devices from 0 to 3, got"),
        ([{"round": 2, "move": 1, "links": [[2, 3]]}], r"neither 2 nor 3 joins or moves"),
        ([{"round": 2, "move": 1, "links": [[1, 2, -1]]}], "weight must be"),
        ([{"round": 2, "leave": 1, "links": [[1, 2]]}], "need a device that joins or moves"),
        ([{"round": 2, "offline": 1, "until": 2}], r"events\.until must be a round after 2"),
        ([{"round": 2, "leave": 1, "until": 4}], r"events\.until must be"),
        ([{"round": 2, "join": 1, "start": "neighbors"}], "did you mean 'neighbours'"),
        ([{"round": 2, "leave": [0, 1, 2, 3]}], "events leave no device in round 2"),
        ([{"round": 2, "join": [0, 1, 2, 3]}], "events leave no device to start with"),
        ([{"round": 2, "joins": 1}], "did you mean 'join'"),
        ([{"round": 2, "join": "one"}], r"events\[0\]\.join must be a whole number or a list of a whole number"),
        ({"round": 2}, r"events must be a list of tables \[\[events\]\]"),
    ],
)
def test_events_that_cannot_happen_are_named(events, message):
    with pytest.raises(ValueError, match=message):
        Timeline(from_table({"rounds": 6, "events": events}).events, PATH, 6)


def test_events_in_a_config_come_through_toml(tmp_path):
    (tmp_path / "x.toml").write_text(
        "rounds = 60\n[[events]]\nround = 50\njoin = [3, 4]\nlinks = [[3, 1], [4, 2, 0.5]]\n"
        "[[events]]\nround = 9\nleave = 7\n"
    )
    config = load(tmp_path / "x.toml")
    assert config.events == (
        Event(round=50, join=(3, 4), links=((3, 1), (4, 2, 0.5))),
        Event(round=9, leave=(7,)),
    )
    (tmp_path / "y.toml").write_text(config.toml())
    assert load(tmp_path / "y.toml") == config
    assert load(tmp_path / "y.toml").hash() == config.hash() != from_table({"rounds": 60}).hash()


def test_events_from_python():
    rng = np.random.default_rng(0)
    train = [(rng.standard_normal((12, 3)), rng.integers(0, 2, 12)) for _ in range(4)]
    fitted = fit(train, torch.nn.Linear(3, 2), PATH, rounds=4, events=[Event(round=3, join=3)], evaluate_every=1)
    assert [record.events for record in fitted.records][2] == (Happening(3, 3, "join", {"start": "neighbours"}),)
    assert np.isnan(fitted.records[0].losses[3])
    assert np.isfinite(fitted.records[3].losses[3])


SCRIPT = [
    {"round": 4, "join": 3},
    {"round": 6, "offline": 1, "until": 9},
    {"round": 7, "move": 5, "links": [[5, 0]]},
    {"round": 10, "leave": 0},
]
TABLE = {
    **SMALL,
    "rounds": 12,
    "scheduler": {"name": "everything", "density": 0.3},
    "evaluation": {"every": 3},
    "checkpoint": {"every": 1},
    "events": SCRIPT,
}


def finished(folder, **changes):
    return finish(folder, resume=folder.exists(), **{**TABLE, **changes})["models_sha256"]


def test_a_run_with_events_says_so_and_counts_only_devices_that_are_there(tmp_path):
    finished(tmp_path / "run")
    found = {line["round"]: line for line in read_lines(tmp_path / "run")}
    assert found[4]["events"] == [{"what": "join", "device": 3, "start": "neighbours"}]
    assert found[7]["events"] == [{"what": "move", "device": 5, "links": [0]}]
    assert found[9]["events"] == [{"what": "online", "device": 1}]
    assert found[5]["events"] == []
    assert [found[r]["away"] for r in (1, 4, 6, 9, 10)] == [[3], [], [1], [], [0]]
    assert found[3]["mixed"]["local"]["devices"][3] is None
    assert found[6]["mixed"]["local"]["devices"][3] is not None
    assert found[12]["mixed"]["global"]["devices"][0] is None
    assert np.isfinite(found[3]["mixed"]["local"]["mean"])
    assert finished(tmp_path / "other", events=[]) != finished(tmp_path / "again")
    whole = {**TABLE["samples"], "local_test": "whole", "global_test": "whole"}
    finished(tmp_path / "whole", samples=whole)
    assert read_lines(tmp_path / "whole")[2]["mixed"]["local"]["devices"][3] is None


@pytest.mark.parametrize("stop", [3, 5, 6, 8, 10])
def test_resumed_between_events_gives_the_same_bits(tmp_path, stop):
    whole = finished(tmp_path / "whole")
    run = Run(from_table(TABLE))
    for line in play_in_folder(run, tmp_path / "part"):
        if line["round"] == stop:
            break
    saved = tmp_path / "part" / "checkpoint" / "state.safetensors"
    state = load_state(saved, [run.config.hash()], run.start())[0]
    assert state.round in (stop - 1, stop)
    assert finished(tmp_path / "part") == whole


@pytest.mark.slow(6)
def test_killed_and_resumed_gives_the_same_bits(tmp_path):
    changes = {**TABLE, **ENDLESS}
    path, folder = tmp_path / "x.toml", tmp_path / "part"
    path.write_text(from_table(changes).toml())
    killed(command("run", path, "--out", folder), ready=lambda: len(read_lines(folder)) > 4)
    last = max(12, len(read_lines(folder)) + 1)
    assert as_far_as(last, folder, **changes) == as_far_as(last, tmp_path / "whole", **changes)


def test_a_changed_script_is_not_resumed(tmp_path):
    finished(tmp_path / "run")
    with pytest.raises(ValueError, match=r"another config.*events"):
        finished(tmp_path / "run", events=SCRIPT[:1])


def test_the_graph_is_factored_again_only_when_it_changes():
    mixing._prepare.cache_clear()
    played([Event(round=4, leave=3)], last=12)
    assert mixing._prepare.cache_info().misses == 2


def test_updates_of_nobody_leave_everyone_as_is():
    found = played([Event(round=1, offline=(0, 1, 2, 3))], last=2)
    assert (found[1][0].models == 0).all()


def test_a_big_graph_stays_sparse():
    count = 20_000
    graph = Graph.from_edges(count, [(i, i + 1) for i in range(count - 1)])
    timeline = Timeline([Event(round=2, join=5), Event(round=3, move=7, links=((7, 100),))], graph, 4)
    before, joined, moved = (timeline.at(round).among for round in (1, 2, 3))
    assert (before.count, joined.count, moved.count) == (count - 1, count, count)
    assert (len(before.edges), len(joined.edges), len(moved.edges)) == (count - 3, count - 1, count - 2)


def test_a_device_that_is_new_to_the_graph_has_a_row_of_its_own_from_the_start(tmp_path):
    """It holds samples like any other, is away until it joins, and starts from the models of its neighbours."""
    new = {"round": 4, "join": 20, "links": [[20, 0], [20, 3, 0.5]]}
    run = Run(from_table(TABLE | {"events": [new]}))
    assert (run.graph.count, run.begun.count, run.data.count, run.hardware.count) == (21, 20, 21, 21)
    before, after = run.events.at(3), run.events.at(4)
    assert (before.present[20], after.present[20]) == (False, True)
    assert dict(after.graph.adjacency[[20]].todok().items()) == {(0, 0): 1.0, (0, 3): 0.5}
    assert run.graph.rooms[20] == run.graph.rooms[0]
    lines = list(play_in_folder(run, tmp_path / "run"))
    assert [line["away"] for line in lines[2:4]] == [[20], []]
    assert lines[3]["time"]["devices"]["samples"][20] > 0


def test_events_may_be_added_to_a_run_for_rounds_that_are_still_to_come(tmp_path):
    events = TABLE["events"]
    added = [*events, {"round": 11, "leave": 7}]
    whole = finished(tmp_path / "whole", events=added)
    for line in play_in_folder(Run(from_table(TABLE)), tmp_path / "part"):
        if line["round"] == 9:
            break
    assert finished(tmp_path / "part", events=added) == whole
    for line in play_in_folder(Run(from_table(TABLE)), tmp_path / "late"):
        if line["round"] == 9:
            break
    with pytest.raises(ValueError, match=r"has played round .*: too late for the event"):
        finished(tmp_path / "late", events=[*events, {"round": 2, "leave": 7}])
    with pytest.raises(ValueError, match="was run with another config"):
        finished(tmp_path / "late", events=[{"round": 11, "leave": 7}, *events])


def test_a_device_that_comes_and_goes_before_the_same_round_keeps_its_row():
    graph = Graph.from_edges(3, [(0, 1), (1, 2)])
    timeline = Timeline([Event(2, join=2), Event(2, leave=2)], graph, rounds=4)
    assert timeline.at(2).joined == {}
    assert not timeline.at(2).present[2]
