"""`fit`: what is held out, what is said about it, when it has diverged, and that its result is a run like others."""

import logging
import subprocess
import sys
from collections import Counter
from textwrap import dedent

import networkx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import fedfilt
from fedfilt.aggregators import FedAvg, Local
from fedfilt.data.deal import hold_out
from fedfilt.engines import local
from fedfilt.models import MLP, Logistic
from fedfilt.runs.lines import read_lines
from fedfilt.show.dashboard.app import make_app
from fedfilt.show.dashboard.folders import Watch
from helpers import SLOW

RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((4, 40, 3)).astype(np.float32)
TRAIN = [(x, (x[:, 0] > 0).astype(int)) for x in INPUTS]
PATH = fedfilt.Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])
MODEL = Logistic((3,), 2)


# --- what is held out ---------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 4), max_size=40), min_size=1, max_size=4), st.floats(0, 0.9), st.integers(0, 9))
def test_what_is_held_out_is_a_stratified_part_that_depends_on_the_seed_alone(labels, share, seed):
    if not any(labels):
        return
    data = fedfilt.FederatedData.from_arrays([(np.zeros((len(y), 2)), np.array(y, int)) for y in labels])
    held, again = hold_out(data, share, seed), hold_out(data, share, seed)
    assert held.hash == again.hash
    for device, rows in enumerate(data.train):
        train, test = held.train[device], held.local_test[device]
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), rows)
        assert len(test) == (min(max(round(share * len(rows)), 1), len(rows) - 1) if share and len(rows) else 0)
        counts, left = Counter(data.y[rows].tolist()), Counter(data.y[train].tolist())
        spare = len(rows) - len(counts)
        if spare >= len(test):  # there are enough to leave one of each label, and to take all labels alike
            assert set(left) == set(counts)
            for label, count in counts.items():
                exact = len(test) * (count - 1) / spare if spare else 0
                assert abs(count - left[label] - exact) < 1 + 1e-6
    np.testing.assert_array_equal(held.global_test, np.concatenate(held.local_test))


def test_another_seed_holds_out_others():
    data = fedfilt.FederatedData.from_arrays(TRAIN)
    assert hold_out(data, 0.2, 0).hash != hold_out(data, 0.2, 1).hash
    for wrong in (-0.1, 1.0, "half"):
        with pytest.raises(ValueError, match=r"holdout must be a finite number >= 0 and <= 0\.9"):
            hold_out(data, wrong, 0)


def test_numbers_are_held_out_without_labels():
    data = fedfilt.FederatedData.from_arrays(TRAIN)
    object.__setattr__(data, "y", RNG.standard_normal(160))
    assert [len(rows) for rows in hold_out(data, 0.25, 0).local_test] == [10] * 4


def test_accuracy_is_that_on_samples_nobody_trained_on(caplog):
    """Labels drawn at random can be learnt by heart, and nothing else: accuracy must be that of a guess."""
    rng = np.random.default_rng(1)
    train = [(rng.standard_normal((40, 100)).astype(np.float32), rng.integers(0, 2, 40)) for _ in range(4)]
    with caplog.at_level(logging.INFO, "fedfilt"):
        fitted = fedfilt.fit(train, Logistic((100,), 2), PATH, Local(), learning_rate=0.5)
    assert "tested on 20% of each device's samples, held out: 32 of 160" in caplog.text
    assert "held out: 32 of 160" in repr(fitted)
    assert fitted.accuracy["local"].mean() < 0.8
    for device, rows in enumerate(fitted.data.train):
        seen = fitted.predict(device, fitted.data.x[rows]).argmax(axis=1) == fitted.data.y[rows]
        assert seen.mean() == 1.0
        kept = fitted.data.local_test[device]
        assert not set(rows) & set(kept)
        right = fitted.predict(device, fitted.data.x[kept]).argmax(axis=1) == fitted.data.y[kept]
        assert right.mean() == pytest.approx(fitted.accuracy["local"][device])


def test_without_anything_held_out_there_is_no_accuracy(tmp_path):
    fitted = fedfilt.fit(TRAIN, MODEL, PATH, holdout=0, rounds=2)
    assert fitted.tested == ""
    assert sum(map(len, fitted.data.train)) == 160
    with pytest.raises(ValueError, match=r"there is no score: nothing was held out"):
        _ = fitted.accuracy
    assert "not tested" in repr(fitted)
    assert "local_mean" not in fitted.history()
    assert "not tested yet" in str(fitted.plot())
    assert fitted.save(tmp_path / "run").tested("local") == []


def test_with_tests_that_are_given_nothing_is_held_out():
    fitted = fedfilt.fit(TRAIN, MODEL, PATH, local_test=TRAIN[::-1], rounds=2)
    assert [len(rows) for rows in fitted.data.train] == [40] * 4
    assert fitted.tested == "the tests that were given"
    shared = fedfilt.fit(TRAIN, MODEL, PATH, FedAvg(), global_test=TRAIN[0], rounds=2)
    assert shared.data.local_test is None
    assert "the device's own labels" in shared.tested
    assert set(shared.accuracy) == {"local", "global"}


# --- what has diverged --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", [fedfilt.Guard(), None])
@pytest.mark.parametrize("rate", [1e6, 1e19])
def test_steps_that_are_far_too_long_are_a_divergence(rate, guard):
    labels = [(x, (x[:, 0] * x[:, 1] > 0).astype(int)) for x in INPUTS]
    with pytest.raises(fedfilt.Diverged, match=r"device \d diverged in round 20: .*lower learning_rate \(1e\+"):
        fedfilt.fit(labels, MODEL, PATH, learning_rate=rate, guard=guard)


def test_one_device_with_numbers_of_another_scale_is_no_divergence_of_all():
    odd = (INPUTS[0] * 300, TRAIN[0][1])
    assert fedfilt.fit([odd, *TRAIN[1:]], MODEL, PATH, Local(), learning_rate=1.0).accuracy["local"].min() > 0.5


# --- a result like others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "graph",
    [
        networkx.path_graph(4),
        PATH.adjacency,
        sp.coo_array(PATH.adjacency),
        PATH.adjacency.toarray(),
        PATH.adjacency.toarray().tolist(),
        [(0, 1), (1, 2), (2, 3)],
        np.array([[0, 1], [1, 2], [2, 3]]),
    ],
)
def test_whatever_says_a_graph_is_taken_for_one(graph):
    assert fedfilt.Graph.of(graph, 4).hash == PATH.hash
    assert fedfilt.strength(graph, fedfilt.filters.Tikhonov(1.0), np.ones(4)).neighbours > 0
    mixed = fedfilt.mix(graph, fedfilt.filters.Tikhonov(1.0), np.eye(4))
    np.testing.assert_allclose(mixed, fedfilt.mixing_matrix(PATH, fedfilt.filters.Tikhonov(1.0)), atol=1e-12)
    fitted = fedfilt.fit(TRAIN, MODEL, graph, rounds=1)
    np.testing.assert_array_equal(fitted.rows, fedfilt.fit(TRAIN, MODEL, PATH, rounds=1).rows)


def test_what_says_no_graph_is_named():
    assert fedfilt.Graph.of([], 3).count == 3
    assert fedfilt.Graph.of([(0, 1), (1, 2)]).count == 3, "two links are no 2 x 2 matrix"
    assert fedfilt.Graph.of([[0, 2.5], [2.5, 0]]).count == 2
    for wrong in ("path", 7, [], [(0, 1, 2)], [[0.5, 1.5]], np.zeros((2, 3))):
        with pytest.raises(ValueError, match="graph must be a Graph, a networkx graph, a square matrix or a list of"):
            fedfilt.Graph.of(wrong)
    with pytest.raises(ValueError, match="edges must name devices from 0 to 3"):
        fedfilt.fit(TRAIN, MODEL, [(0, 7)])


def test_a_saved_fit_is_a_run_that_report_and_dashboard_open(tmp_path):
    def mine(models, updates, graph):
        return models + updates.rows

    events = [fedfilt.Event(round=3, leave=1)]
    model = MLP((3,), 2, hidden=4)
    fitted = fedfilt.fit(TRAIN, model, PATH, mine, rounds=6, evaluate_every=2, seed=5, events=events)
    run = fitted.save(tmp_path / "run")
    assert (run.status, run.notes, run.seed, run.count, run.planned) == ("finished", [], 5, 4, 6)
    assert run.rule.endswith("mine")
    assert run.graph.hash == PATH.hash
    assert [event.what for event in run.events] == ["leave"]
    assert "held out" in run.config["data"]["tested"]
    assert run.config["model"] == {"name": "mlp", "hidden": 4}
    assert read_lines(tmp_path / "run") == fitted._lines
    assert run.history().equals(fitted.history())
    np.testing.assert_allclose(run.accuracies("local"), fitted.accuracy["local"], atol=1e-6)
    tensors = [path.name for path in sorted((tmp_path / "run" / "models").iterdir())]
    assert tensors == [f"device-{device:03d}.safetensors" for device in range(4)]
    page = fedfilt.report(run)
    assert page == (tmp_path / "run" / "report.html").resolve()
    assert "mine" in page.read_text()
    assert make_app(Watch([tmp_path])).server.test_client().get("/_dash-layout").status_code == 200
    with pytest.raises(ValueError, match="holds a run already"):
        fitted.save(tmp_path / "run")
    with pytest.raises(ValueError, match=r"pass the result of fitted\.save\(folder\)"):
        fedfilt.report(fitted)


def test_histories_say_what_was_measured():
    fitted = fedfilt.fit(TRAIN, MODEL, PATH, rounds=5, evaluate_every=2)
    history = fitted.history()
    assert history["round"].tolist() == [1, 2, 3, 4, 5]
    assert history["local_mean"].notna().tolist() == [False, True, False, True, True]
    assert history["local_mean"].iloc[-1] == pytest.approx(fitted.accuracy["local"].mean())
    np.testing.assert_allclose(history["loss"], [record.losses.mean() for record in fitted.records])
    assert {"seconds", "samples", "local_std", "local_worst", "global_mean", "latency", "bytes"} <= set(history)
    devices = fitted.history(devices=True)
    assert list(devices) == ["round", "device", "local", "global"]
    assert len(devices) == 3 * 4
    np.testing.assert_allclose(devices["local"][-4:], fitted.accuracy["local"], atol=1e-6)


def test_a_model_and_a_client_defined_at_the_prompt_are_trained_by_all_workers(tmp_path):
    """Other processes cannot import them and get them whole; the bits are those of one worker."""
    code = """
    import os
    from dataclasses import dataclass
    import numpy as np, torch, fedfilt

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.only, self.dropout = torch.nn.Linear(3, 2), torch.nn.Dropout(0.2)

        def forward(self, x):
            return self.dropout(torch.tanh(self.only(x)))

    @dataclass(frozen=True)
    class Mine:
        def __call__(self, task):
            loss = task.train(task.model)
            return fedfilt.Sent(task.model, loss, {"process": np.array([os.getpid()])})

    torch.manual_seed(0)
    net, x = Net(), np.random.default_rng(0).standard_normal((2, 20, 3)).astype(np.float32)
    train = [(one, (one[:, 0] > 0).astype(int)) for one in x]
    fits = [fedfilt.fit(train, net, [(0, 1)], rounds=2, workers=workers, client=Mine()) for workers in (1, 2)]
    print((fits[0].rows == fits[1].rows).all())
    print([any(kept["process"] == os.getpid() for kept in one.state.clients.values()) for one in fits])
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=SLOW, check=False, cwd=tmp_path
    )
    assert done.stdout.split("\n")[:2] == ["True", "[True, False]"], done.stderr
    assert "one worker" not in done.stderr


def test_what_no_process_can_be_sent_is_trained_here(tmp_path, monkeypatch, caplog):
    class Net(torch.nn.Linear):
        def forward(self, x):
            return torch.tanh(super().forward(x))

    net = Net(3, 2)
    find = local.find_spec
    monkeypatch.setattr(local, "find_spec", lambda name: None if name == "cloudpickle" else find(name))
    local.Local(fedfilt.FederatedData.from_arrays(TRAIN), net, fedfilt.Training(), workers=2).close()
    assert "one worker trains instead of 2: this model or client cannot be sent" in caplog.text
    assert "pip install cloudpickle" in caplog.text
    monkeypatch.undo()
    net.log = (tmp_path / "log").open("w")
    with pytest.raises(ValueError, match="this model or client cannot be sent"):
        local._sent(net)
    net.log.close()


@pytest.mark.parametrize("client", [fedfilt.clients.Ditto(), fedfilt.clients.Scaffold()])
def test_a_fit_with_a_client_is_saved_as_its_devices_decide(tmp_path, client):
    """Ditto decides with another model than it sends; what travels with SCAFFOLD's is no part of one."""
    fitted = fedfilt.fit(TRAIN, MODEL, PATH, FedAvg(), client=client, rounds=3)
    assert fitted.rows.shape == (4, 8)
    run = fitted.save(tmp_path / "run")
    assert run.config["client"]["name"] == type(client).__name__.lower()
    for device, row in enumerate(fitted.rows):
        tensors = load_file(tmp_path / "run" / "models" / f"device-{device:03d}.safetensors")
        np.testing.assert_array_equal(
            np.concatenate([tensors[name].ravel() for name in fitted.trainer.layout.tensors(row)]), row
        )
