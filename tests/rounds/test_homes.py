"""Graphs of homes and their controls; the room's vote."""

import json
import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

import fedfilt
from fedfilt import Graph, vote
from fedfilt._types import Table
from fedfilt.data.deal import Sizes
from fedfilt.data.samples import FederatedData
from fedfilt.data.windows import Recording, windows
from fedfilt.graph.similarity import alike
from fedfilt.partitions import Wearers
from fedfilt.rounds.rooms import Rooms
from fedfilt.rounds.voting import NOBODY
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.play import play_in_folder
from fedfilt.topologies import Homes
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer
from helpers import call, config_file

# --- graphs -------------------------------------------------------------------------------------------------------


def edges(**options):
    return Homes(**options)(seed=0).edges.tolist()


def table(name="homes", **options):
    """The table [graph] of a config."""
    return from_table({"graph": {"name": name, **options}}).graph


def test_devices_of_a_person_are_linked_and_people_in_many_ways(tmp_path):
    assert edges(rooms=2, devices=4) == [[0, 1], [2, 3]]
    assert edges(rooms=2, devices=4, between="same_place") == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert edges(rooms=2, devices=4, between="same_place", inside=False) == [[0, 2], [1, 3]]
    assert edges(rooms=2, devices=4, inside=False) == []
    assert len(edges(rooms=2, devices=4, between="everyone")) == 6
    assert edges(rooms=3) == []  # a person with one device has nobody to be linked with inside
    (tmp_path / "d.csv").write_text("a,b,distance\n0,1,1\n1,2,3\n0,2,9\n")
    options: Table = {"rooms": 3, "between": "distances", "file": str(tmp_path / "d.csv"), "k": 1}
    assert edges(**options) == [[0, 1], [1, 2]]
    graph = Homes(weight=0.5, **options)(seed=0)
    assert graph.adjacency[0, 1] == pytest.approx(0.5 * np.exp(-1 / 4))  # mean distance 2
    assert graph.adjacency[1, 2] == pytest.approx(0.5 * np.exp(-9 / 4))


def test_what_cannot_be_a_home_is_named(tmp_path):
    cases: list[tuple[Table, str]] = [
        ({"rooms": 3, "devices": 4}, "multiple of the 3 rooms"),
        ({"between": "distances"}, "file of the distances"),
        ({"between": "friends"}, r"unknown graph\.between 'friends'"),
        ({"weight": -1.0, "between": "everyone"}, r"graph\.weight must be"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            table(**options).graph(seed=0)
    with pytest.raises(ValueError, match="unknown key in graph for paper 'between'"):
        table("paper", between="everyone")
    for text, message in [
        ("a,b\n0,1\n", "header must be a,b,distance"),
        ("a,b,distance\n0,7,1\n", "line 2: must be two people from 0 to 2"),
        ("a,b,distance\n0,1,nan\n", "line 2"),
        ("a,b,distance\n0,1,x\n", "line 2"),
    ]:
        (tmp_path / "d.csv").write_text(text)
        with pytest.raises(ValueError, match=message):
            Homes(rooms=3, between="distances", file=str(tmp_path / "d.csv"))(seed=0)


def test_updates_that_are_alike_link_people():
    rng = np.random.default_rng(0)
    taste = rng.standard_normal((2, 40))
    updates = np.concatenate([taste[[0, 0]], taste[[1, 1]], taste[[0, 0]], taste[[1, 1]]])  # people 0 and 2, 1 and 3
    updates = updates + 0.1 * rng.standard_normal(updates.shape) + 5  # what all share says nothing
    topology = table(rooms=4, devices=8, between="updates", k=1)
    assert topology.learned
    graph = topology.graph(0, updates)
    between = {(i // 2, j // 2) for i, j in graph.edges.tolist() if i // 2 != j // 2}
    assert between == {(0, 2), (1, 3)}
    assert topology.graph(0).edges.tolist() == edges(rooms=4, devices=8)  # without updates only what is not learned
    strong = table(rooms=4, devices=8, between="everyone", reweigh=True).graph(0, updates)
    assert strong.adjacency[0, 4] > 10 * strong.adjacency[0, 2] > 0
    # An independent way: SciPy's cosine distance of the centred rows
    centred = updates - updates.mean(axis=0)
    cosine = np.clip(1 - cdist(centred, centred, "cosine"), 0, 1) * (1 - np.eye(8))
    np.testing.assert_allclose(alike(updates), cosine, atol=1e-12)


@given(st.integers(2, 5), st.integers(1, 3), st.integers(0, 100))
def test_a_shuffled_graph_is_the_same_graph_of_other_devices(people, each, seed):
    options = {"rooms": people, "devices": people * each, "between": "same_place", "weight": 0.5}
    graph = table(**options).graph(seed)
    other = table(shuffle=True, **options).graph(seed)
    np.testing.assert_allclose(other.frequencies, graph.frequencies, atol=1e-9)
    assert other.rooms.tolist() == graph.rooms.tolist()
    assert table(shuffle=True, **options).graph(seed).hash == other.hash
    assert table("paper", shuffle=True).graph(seed).hash != Graph.paper().hash


def made_home(people=3, each=2, labels=3, length=40):
    rng = np.random.default_rng(5)
    shapes = rng.standard_normal((labels, 8, 2))
    found = []
    for person, label in product(range(people), range(labels)):
        signal = np.tile(shapes[label], (length // 8, 1))
        for unit in range(each):
            noisy = signal + (0.3 + 0.5 * unit) * rng.standard_normal(signal.shape)
            found.append(Recording(each * person + unit, person, label, noisy, moment=labels * person + label))
    return windows("made", found, window=8, step=8, test_share=0.4)


HOME = {
    "rounds": 4,
    "partition": {"name": "wearers"},
    "samples": {"train": 6, "local_test": "whole", "global_test": "whole"},
    "graph": {"name": "homes", "rooms": 3, "devices": 6, "between": "updates", "k": 1},
    "model": {"name": "mlp", "hidden": 8},
    "training": {"learning_rate": 0.2, "batch_size": 4},
    "evaluation": {"every": 2},
    "engine": {"workers": 1},
}


def home_run():
    """Three people with two devices each, linked by what the devices learn first."""
    config = from_table(HOME)
    data = Wearers()(made_home(), np.arange(6) // 2, config.samples, np.random.default_rng(0))
    return Run(config, data=data)


def test_a_run_learns_its_graph_and_says_which(tmp_path):
    one, two = home_run(), home_run()
    for run, folder in ((one, tmp_path / "a"), (two, tmp_path / "b")):
        assert len(list(play_in_folder(run, folder))) == 4
    assert one.graph.hash == two.graph.hash
    assert len(one.graph.edges) > 3
    assert json.loads((tmp_path / "a" / "environment.json").read_text())["graph_hash"] == one.graph.hash
    first, second = (json.loads((tmp_path / x / "result.json").read_text())["models_sha256"] for x in "ab")
    assert first == second


def test_to_build_a_run_trains_nothing_and_a_graph_is_learned_once(monkeypatch):
    trained, train = [], Trainer.train

    def count(*arguments, **where):
        trained.append((where["round"], where["device"], where["epochs"]))
        return train(*arguments, **where)

    monkeypatch.setattr(Trainer, "train", count)
    run = home_run()
    assert trained == []
    assert not run.learned
    assert len(run.graph.edges) == 3  # what is not learned is there
    with pytest.raises(ValueError, match=r"call learn_graph\(\) first"), run.experiment():
        pass
    run.learn_graph()
    assert trained == [(1, device, 1) for device in range(6)]  # one epoch on every device
    graph = run.graph
    assert len(graph.edges) > 3
    run.learn_graph()
    assert len(trained) == 6
    assert run.graph is graph
    with run.experiment() as experiment:
        assert experiment.graph is graph


def test_a_plan_of_a_learned_graph_trains_nothing(tmp_path, monkeypatch):
    def refuse(*arguments, **where):
        raise AssertionError("nothing may be trained")

    monkeypatch.setattr(Trainer, "train", refuse)
    learned = {"name": "homes", "rooms": 4, "devices": 20, "between": "updates"}
    done = call("plan", config_file(tmp_path, graph=learned), "--out", tmp_path / "plan.html", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["devices"]) == 20
    with pytest.raises(AssertionError, match="nothing may be trained"):  # and a run does train
        call("run", config_file(tmp_path, graph=learned), "--out", tmp_path / "run")


# --- the vote -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 6), st.integers(2, 4), st.integers(0, 10_000))
def test_vote_against_a_loop(devices, moments, labels, seed):
    rng = np.random.default_rng(seed)
    said = rng.dirichlet(np.ones(labels), (devices, moments))
    said[rng.random((devices, moments)) < 0.3] = np.nan
    accuracy = rng.uniform(0, 1, devices)
    odds = np.maximum(np.log(np.clip(accuracy, 1e-3, 0.999) * (labels - 1) / (1 - np.clip(accuracy, 1e-3, 0.999))), 0)
    odds = odds if odds.any() else np.ones(devices)
    for how in ("mean", "majority", "weighted"):
        found = vote(said, how, accuracy if how == "weighted" else None)
        for moment in range(moments):
            there = [d for d in range(devices) if not np.isnan(said[d, moment, 0])]
            if not there:
                assert found[moment] == NOBODY
            elif how == "majority":
                ballots = np.bincount([said[d, moment].argmax() for d in there], minlength=labels)
                assert ballots[found[moment]] == ballots.max()
                tied = np.flatnonzero(ballots == ballots.max())
                mean = np.mean([said[d, moment] for d in there], axis=0)
                assert mean[found[moment]] == pytest.approx(mean[tied].max())
            else:
                weight = odds if how == "weighted" else np.ones(devices)
                total = sum(weight[d] * said[d, moment] for d in there)
                assert total[found[moment]] == pytest.approx(total.max())


def test_bad_votes_are_named():
    good = np.full((2, 3, 2), 0.5)
    cases: list[tuple[Any, str]] = [
        ((np.zeros((0, 3, 2)),), r"at least one device and two labels, got \(0, 3, 2\)"),
        ((np.zeros((2, 3)),), "must have shape"),
        ((-good,), "must be finite and >= 0"),
        ((good * np.inf,), "must be finite and >= 0"),
        ((good, "medain"), "unknown how 'medain'; did you mean 'mean'"),
        ((good, "weighted"), "needs accuracy"),
        ((good, "weighted", [0.5]), r"accuracy must have shape \(2,\)"),
        ((good, "weighted", [0.5, 1.5]), "accuracy must be from 0 to 1"),
        ((good, "mean", [0.5, 0.5]), "accuracy has no meaning"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            vote(*arguments)
    assert vote(np.full((1, 2, 2), np.nan)).tolist() == [NOBODY, NOBODY]


def a_room(validation=True, moments=True):
    samples = made_home(people=2, each=3)
    data = Wearers()(samples, np.arange(6) // 3, Sizes(4, "whole", "whole"), np.random.default_rng(0))
    if not validation:
        data = FederatedData(**{**data.__dict__, "validation": None})
    if not moments:
        data = FederatedData(**{**data.__dict__, "moments": None})
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    rng = np.random.default_rng(2)
    trainer = Trainer(module, Training(), data.x.shape[1:])
    return rng.standard_normal((6, trainer.layout.size)).astype(np.float32), trainer, data


def test_a_room_votes_about_the_same_moments():
    models, trainer, data = a_room()
    rooms = Rooms(models, trainer, data, np.arange(6) // 3)
    alone = rooms.single()
    for device, rows in enumerate(data.local_test):
        said = trainer.predict(models[device], data.x[rows])
        np.testing.assert_allclose(said.sum(axis=1), 1, rtol=1e-5)
        assert alone[device] == pytest.approx((said.argmax(axis=1) == data.y[rows]).mean())
    # All but one missing is the mean of the devices alone
    for how in ("mean", "majority"):
        np.testing.assert_allclose(rooms.accuracy(how, missing=2), alone.reshape(2, 3).mean(axis=1))
    whole = rooms.accuracy("mean")
    for room in (0, 1):
        stacked = [trainer.predict(models[d], data.x[data.local_test[d]]) for d in range(3 * room, 3 * room + 3)]
        labels = data.y[data.local_test[3 * room]]
        assert whole[room] == pytest.approx((np.mean(stacked, axis=0).argmax(axis=1) == labels).mean())
    assert rooms.accuracy("weighted").shape == (2,)


def test_rooms_that_cannot_vote_are_named():
    models, trainer, data = a_room()
    rooms = Rooms(models, trainer, data, np.arange(6) // 3)
    with pytest.raises(ValueError, match="a room of 3 devices has no vote left with 3 missing"):
        rooms.accuracy("mean", missing=3)
    lone = Rooms(models, trainer, data, np.arange(6))  # a person with one device votes alone
    np.testing.assert_allclose(lone.accuracy("mean"), lone.single())
    with pytest.raises(ValueError, match="no vote left with 1 missing"):
        lone.accuracy("mean", missing=1)
    with pytest.raises(ValueError, match="6 entries, one per device"):
        Rooms(models, trainer, data, np.arange(5))
    models, trainer, data = a_room(moments=False)
    with pytest.raises(ValueError, match="does not know which samples are from the same moment"):
        Rooms(models, trainer, data, np.arange(6) // 3)
    models, trainer, data = a_room(validation=False)
    with pytest.raises(ValueError, match="needs validation samples"):
        Rooms(models, trainer, data, np.arange(6) // 3).accuracy("weighted")


def test_vote_is_a_public_name():
    assert fedfilt.vote is vote


def test_the_vote_needs_numpy_only():
    """An edge server loads it, which has neither torch nor the memory for scipy."""
    script = "import sys, fedfilt; fedfilt.vote; print({'torch', 'scipy', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'numpy'}"
