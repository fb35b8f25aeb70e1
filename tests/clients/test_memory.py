"""What a rule remembers is checked as it comes, with devices that come and go too, and before training where it can."""

from typing import Any

import numpy as np
import pytest

import fedfilt
from fedfilt import Graph, Guard, Privacy, Remembered
from fedfilt.aggregators import FedAdam, FedAvgM, FedDyn, FedYogi
from fedfilt.models import Logistic
from fedfilt.rounds.timeline import Event
from helpers import some_data

DATA = some_data(devices=3, sizes=(24, 18, 20))
AWAY = (Event(round=2, leave=(1,)), Event(round=3, join=(1,), start="own"))


def fitted(rule: Any, **options: Any) -> Any:
    arrays, graph = [(DATA.x[rows], DATA.y[rows]) for rows in DATA.train], Graph.from_edges(3, [(0, 1), (1, 2)])
    return fedfilt.fit(arrays, Logistic((1, 12, 12), 3), graph, rule, rounds=3, learning_rate=0.1, **options)


def rule(call: Any, start: Any = lambda models: Remembered({"m": np.zeros_like(models)})) -> Any:
    """A rule of functions."""

    class Odd:
        def start(self, models):
            return start(models)

        def __call__(self, models, updates, graph, before):
            return call(models, before)

    return Odd()


@pytest.mark.parametrize("events", [(), AWAY], ids=["all there", "come and go"])
@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (rule(lambda models, before: models), r"Odd remembers: it must return \(models, Remembered.*got ndarray"),
        (rule(lambda models, before: (models, {"m": models})), "Odd must keep Remembered.* got dict"),
        (rule(lambda models, before: (models, Remembered({"m": [1, 2, 3]}))), "got m as list"),  # type: ignore[dict-item]
        (rule(lambda models, before: (models, Remembered(everyone={"t": 3}))), "got t as int"),  # type: ignore[dict-item]
        (rule(lambda models, before: (models, Remembered({"m": models * np.nan}))), "NaN or infinity in m"),
        (rule(lambda models, before: (models, Remembered({"m": models[:1]}))), r"must keep m for \d devices"),
        (rule(lambda models, before: (models[:1], before)), "must return float32 models of shape"),
        (rule(lambda models, before: (models.astype(float), before)), "got float64"),
        (rule(lambda models, before: (models, before), lambda models: None), "got NoneType"),
    ],
)
def test_what_a_rule_remembers_is_checked(mine, message, events):
    with pytest.raises(ValueError, match=message):
        fitted(mine, events=events)


def test_a_rule_without_memory_is_checked_among_those_that_are_there_too():
    with pytest.raises(ValueError, match=r"must return float32 models of shape \(2,"):
        fitted(lambda models, updates, graph: models[:1] if len(models) < 3 else models, events=AWAY)


def test_what_is_remembered_may_have_other_names_from_round_to_round():
    found = []

    def call(models, before):
        found.append(sorted(before.devices))
        name, after = f"m{len(found)}", np.ones((len(models), 2))
        return models, Remembered({name: after})

    fitted(rule(call), events=AWAY)
    assert found == [["m"], ["m1"], ["m2"]]


@pytest.mark.parametrize("inner", [FedAvgM(), FedDyn()])
def test_a_server_optimiser_follows_a_rule_without_memory(inner):
    for outer in (FedAvgM, FedAdam, FedYogi):
        with pytest.raises(ValueError, match="must be a rule without memory of its own, got Fed"):
            outer(aggregator=inner)


@pytest.mark.parametrize("options", [{"guard": Guard(robust="filter")}, {"privacy": Privacy(clip=1.0)}])
def test_fit_refuses_what_needs_a_linear_rule_before_training(options):
    with pytest.raises(ValueError, match="the rule FedAdam has memory, which cannot be combined with"):
        fitted(FedAdam(), **options)


def test_fit_refuses_a_class_for_a_rule():
    with pytest.raises(ValueError, match="aggregator must be a rule such as"):
        fitted(FedAdam)


def test_a_first_model_from_neighbours_needs_a_rule_that_can_give_one_before_training():
    mine, events = rule(lambda models, before: pytest.fail("trained")), [Event(round=2, leave=(1,))]
    with pytest.raises(ValueError, match="rule Odd has memory: it needs a method interpolating"):
        fitted(mine, events=[*events, Event(round=3, join=(1,))])
