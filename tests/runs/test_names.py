"""Names and looks of many runs: each told from all others, as short as that allows."""

import itertools

import numpy as np
import pytest

from fedfilt._types import Table
from fedfilt.runs.config import from_table
from fedfilt.runs.names import APART, _lab, besides, differing, labels, looks, told
from fedfilt.runs.rules import look, rule_name

RULES = ("fedavg", "local", "mu=0.1", "mu=1", "mu=2", "mu=10", "ditto:weight=1", "fedprox:proximal=0.1+mu=1", "my:Rule")


def experiment(**changes):
    table: Table = from_table(changes).table()
    return rule_name(table), table


def test_a_rule_alone_is_its_name():
    runs = [experiment(aggregator=rule, seed=seed) for rule in ("fedavg", "local") for seed in range(3)]
    assert labels(runs) == ["fedavg"] * 3 + ["local"] * 3


def test_seed_and_workers_tell_nothing_apart():
    tables = [experiment(seed=seed, engine={"workers": seed + 1})[1] for seed in range(3)]
    assert differing(tables) == {}
    assert labels([("mu=1", table) for table in tables]) == ["mu=1"] * 3


def test_only_as_many_keys_as_needed_are_named():
    runs = [experiment(training={"learning_rate": rate, "momentum": rate / 2}, rounds=9) for rate in (0.1, 0.5)]
    assert labels(runs) == ["mu=1, learning_rate=0.1", "mu=1, learning_rate=0.5"]
    assert list(besides([table for _, table in runs])) == [
        "training.learning_rate",
        "training.momentum",
    ]  # all are listed
    crossed = [
        experiment(training={"learning_rate": rate, "momentum": more}) for rate in (0.1, 0.5) for more in (0.0, 0.9)
    ]
    assert labels(crossed)[1] == "mu=1, learning_rate=0.1, momentum=0.9"


def test_another_part_is_named_rather_than_its_options():
    runs = [experiment(model={"name": "mlp", "hidden": 8}), experiment(model="logistic")]
    assert labels(runs) == ["mu=1, model=mlp", "mu=1, model=logistic"]


def test_options_that_the_name_of_a_rule_leaves_out_are_named_where_they_differ():
    runs = [("mine", {"aggregator": {"name": "my:Rule", "own": own}}) for own in (0.2, 0.4)]
    runs.append(experiment(aggregator="fedavg"))
    assert labels(runs) == ["mine, own=0.2", "mine, own=0.4", "fedavg"]


def test_options_in_the_name_of_a_rule_are_not_said_twice():
    runs = [experiment(client={"name": "ditto", "weight": weight}, aggregator="fedavg") for weight in (1.0, 0.1)]
    assert labels(runs) == ["ditto:weight=1", "ditto"]


def test_keys_of_one_last_word_are_written_out():
    runs = [
        ("mu=1", {"data": {"step": step}, "partition": {"step": other}}) for step, other in ((1, 1), (1, 2), (2, 1))
    ]
    assert labels(runs)[2] == "mu=1, data.step=2, partition.step=1"


def test_values_are_told_once_and_in_their_order():
    assert told([10, 9, 10, 100.0]) == "9, 10, 100"
    assert told(["mlp", None, "cnn1d"]) == "cnn1d, mlp, none"
    assert len(told(["x" * 1000])) <= 40


@pytest.mark.parametrize("variants", [1, 3, 4])
def test_no_two_runs_look_alike(variants):
    names = {f"{rule}, learning_rate={rate}": rule for rule in RULES for rate in range(variants)}
    found = looks(names)
    colours = [_lab(one.colour) for one in found.values()]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(colours, 2)) >= APART
    assert all(colour[0] < 80 for colour in colours)  # seen on white
    if len(names) <= 32:
        assert len({one.symbol for one in found.values()}) == len(names)
    assert len({(one.dash, one.symbol) for one in found.values()}) == len(names)  # also in grey
    for rule in ("fedavg", "local"):  # what readers know keeps its colour
        assert found[f"{rule}, learning_rate=0"].colour == look(rule).colour


def test_lightness_is_that_of_cielab():
    np.testing.assert_allclose(_lab("#FFFFFF"), [100, 0, 0], atol=0.02)
    np.testing.assert_allclose(_lab("#FF0000"), [53.24, 80.09, 67.20], atol=0.05)  # as published
    np.testing.assert_allclose(_lab("#0000FF"), [32.30, 79.19, -107.86], atol=0.05)
