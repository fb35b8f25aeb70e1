"""What a client keeps is its device's alone: whatever the client does with its arrays, and on every engine."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import fedfilt
from fedfilt import Graph, Sent
from fedfilt.aggregators import FedAvg
from fedfilt.clients import Ditto
from fedfilt.engines.local import Local
from fedfilt.models import Logistic
from fedfilt.rounds.types import State
from fedfilt.runs.checkpoint import load_state, save_state
from fedfilt.system.orders import Job, Plan
from fedfilt.training.sgd import Training
from helpers import some_data

DATA = some_data(devices=3, sizes=(24, 18, 20))
GRAPH, MODEL = Graph.from_edges(3, [(0, 1), (1, 2)]), Logistic((1, 12, 12), 3)


def fitted(client: Any, rounds: int = 3, **options: Any) -> Any:
    arrays = [(DATA.x[rows], DATA.y[rows]) for rows in DATA.train]
    return fedfilt.fit(arrays, MODEL, GRAPH, FedAvg(), client=client, rounds=rounds, learning_rate=0.1, **options)


@dataclass(frozen=True)
class Last:
    """Keeps what it sent, with or without a copy, and decides with it."""

    copies: bool

    def start(self, task):
        return {"last": task.model.copy() if self.copies else task.model}

    def __call__(self, task):
        loss = task.train(task.model)
        return Sent(task.model, loss, {"last": task.model.copy() if self.copies else task.model})

    def personal(self, task):
        return task.state["last"]


def test_what_is_kept_is_no_part_of_the_row_that_is_sent():
    np.testing.assert_array_equal(fitted(Last(False)).rows, fitted(Last(True)).rows)


@dataclass(frozen=True)
class InPlace:
    """Changes what it kept in place, in rounds and in tests."""

    seen: list[Any] = field(default_factory=list)

    def start(self, task):
        return {"times": np.zeros(())}

    def __call__(self, task):
        times = task.state["times"]
        assert times.shape == ()
        times += 1
        self.seen.append((task.round, task.device, float(times)))
        return Sent(task.model, task.train(task.model), {"times": times})

    def personal(self, task):
        task.state["times"][...] += 100
        return task.model


def test_a_test_changes_nothing_of_what_is_kept():
    client = InPlace()
    fitted(client, evaluate_every=1)
    assert sorted(client.seen) == [(round, device, round) for round in (1, 2, 3) for device in range(3)]


def test_a_round_that_does_not_count_leaves_no_trace_in_what_is_kept():
    client, kept = InPlace(), {"times": np.array(7.0)}
    with Local(DATA, MODEL, Training(), workers=1, client=client) as engine:
        row = np.zeros(engine.layout.size, np.float32)
        for _ in range(2):
            (reply,) = engine.train([Job(1, 0, row, Plan(epochs=1), state=kept)], np.inf)
            assert (float(kept["times"]), float(reply.state["times"])) == (7, 8)


def test_a_number_keeps_its_shape_in_a_checkpoint(tmp_path):
    models = np.zeros((2, 3), np.float32)
    state = State(1, models, clients={1: {"t": np.array(3), "turned": np.arange(6).reshape(2, 3).T}})
    save_state(tmp_path / "state.safetensors", state, "hash")
    found, _ = load_state(tmp_path / "state.safetensors", ["hash"], State(0, models))
    assert found.clients[1]["t"].shape == ()
    np.testing.assert_array_equal(found.clients[1]["turned"], state.clients[1]["turned"])


@dataclass(frozen=True)
class Forgetting:
    """Keeps something in odd rounds only."""

    seen: list[Any] = field(default_factory=list)

    def __call__(self, task):
        self.seen.append((task.round, sorted(task.state)))
        return Sent(task.model, task.train(task.model), {"a": np.ones(1)} if task.round % 2 else {})


def test_a_client_that_keeps_nothing_any_more_has_nothing():
    client = Forgetting()
    fitted(client, rounds=4)
    assert {(round, *kept) for round, kept in client.seen} == {(1,), (2, "a"), (3,), (4, "a")}


@dataclass(frozen=True)
class Swapping:
    """What travels is there when it begins and when it decides; what it sends may be views of one row."""

    travels = ("first", "second")

    def start(self, task):
        return {"first": task.travelling["first"]}

    def __call__(self, task):
        task.model[:], task.travelling["first"][:], task.travelling["second"][:] = 1, 2, 3
        sent = {"second": task.travelling["first"], "first": task.model}
        return Sent(task.travelling["second"], 0.0, {"first": task.travelling["first"]}, sent)

    def personal(self, task):
        return task.model + 10 * task.travelling["first"] + 100 * task.travelling["second"] + 1000 * task.state["first"]


def test_what_travels_is_there_when_a_device_decides():
    assert set(np.unique(fitted(Swapping(), rounds=1, guard=None).rows)) == {3 + 10 * 1 + 100 * 2 + 1000 * 2}


def odd(travels: Any = (), start: Any = None, personal: Any = None, call: Any = None) -> Any:
    """A client of functions."""
    parts = {"travels": travels, "__call__": lambda self, task: (call or (lambda task: Sent(task.model, 0.0)))(task)}
    for name, made in {"start": start, "personal": personal}.items():
        if made is not None:
            parts[name] = lambda self, task, made=made: made(task)
    return type("Odd", (), parts)()


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (odd(call=lambda task: Sent(task.model, None)), "client Odd must return its loss as a number, got NoneType"),
        (odd(call=lambda task: Sent(task.model, 0.0, None)), "client Odd must keep arrays by name, got NoneType"),
        (odd(call=lambda task: Sent(task.model, 0.0, {1: task.model})), "under names, got 1"),  # type: ignore[dict-item]
        (odd(call=lambda task: Sent(task.model, 0.0, {"a": np.array("b")})), "got a as <U1"),
        (odd(call=lambda task: Sent(task.model * np.float32(np.nan), 0.0)), "device 0 diverged in round 1"),
        (odd(call=lambda task: Sent(task.model, task.train(task.model, epochs=-1))), "epochs must be a whole number"),
        (odd(start=lambda task: [1]), "client Odd must keep arrays by name, got list"),
        (odd(personal=lambda task: task.model.astype(float)), "must decide with a model as float32 .* got float64"),
        (odd(personal=lambda task: task.model[:1]), "must decide with a model as float32"),
        (odd(personal=lambda task: task.model * np.float32(np.nan)), "must decide with a finite model"),
        (odd(travels="control"), "client Odd must have a tuple of names in travels, got 'control'"),
        (Ditto, r"client must be a client such as Ditto\(\), got <class"),
        ("ditto", r"client must be a client such as Ditto\(\), got 'ditto'"),
    ],
)
def test_what_cannot_be_is_named(client, message):
    with pytest.raises((ValueError, ArithmeticError), match=message):
        fitted(client, rounds=1)
