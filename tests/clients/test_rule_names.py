"""Names of methods with their options, as they stand in `--rules`, in docs and in folders."""

from pathlib import Path

import pytest

from fedfilt.runs.config import from_table
from fedfilt.runs.rules import rule_name, rules, with_rule
from helpers import SMALL

MINE = """
from dataclasses import dataclass
from fedfilt import Sent

@dataclass(frozen=True)
class Method:
    alpha: float = 0.25
    layers: tuple[str, ...] = ("head",)
    widths: tuple[int, ...] = (1,)
    rule = "feddyn"

    def __call__(self, task):
        return Sent(task.model, task.train(task.model))

@dataclass(frozen=True)
class Bare:
    def __call__(self, task):
        return Sent(task.model, task.train(task.model))
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "named_methods.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


def table(rule, **changes):
    return with_rule(from_table({**SMALL, **changes}), rule).table()


def test_one_layer_is_a_list_of_one():
    """As docs/clients.md has it."""
    assert "fedper:keep=head" in (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
    assert table("fedper:keep=head")["client"]["keep"] == ["head"]
    assert table("fedper:keep=0+mu=1")["client"]["keep"] == ["0"]
    for keep in (["0"], ["0", "head"]):
        made = from_table({**SMALL, "client": {"name": "fedper", "keep": keep}, "aggregator": "fedavg"}).table()
        assert table(rule_name(made)) == made


@pytest.mark.parametrize("rule", ["mu=1e+06", "fedprox:proximal=1e+06", "ditto:weight=2+mu=1e+06", "mu=1e-07"])
def test_large_and_small_numbers_are_read_as_they_are_written(rule):
    assert rule_name(table(rule)) == rule


def test_options_that_differ_have_names_that_differ():
    assert rule_name(table("ditto:weight=0.12345678")) == "ditto:weight=0.12345678"


def test_a_client_from_outside_brings_its_rule_and_the_options_they_share(mine):
    found = table("named_methods:Method")
    assert found["aggregator"] == {"name": "feddyn", "alpha": 0.25}
    assert table("named_methods:Method:alpha=2")["aggregator"]["alpha"] == 2
    assert rule_name(found) == "named_methods:Method:alpha=0.25:layers=head:widths=1+feddyn:alpha=0.25"
    assert table("named_methods:Method+fedavg")["aggregator"] == {"name": "fedavg"}
    assert table("named_methods:Bare")["aggregator"] == {"name": "fedavg"}


def test_lists_of_a_client_from_outside_are_what_it_says(mine):
    found = table("named_methods:Method:layers=0:widths=3|4")["client"]
    assert (found["layers"], found["widths"]) == (["0"], [3, 4])
    assert table("named_methods:Method:widths=3")["client"]["widths"] == [3]


@pytest.mark.parametrize("rule", ["ditto:name=plain", "ditto:weight=1:weight=2"])
def test_an_option_that_is_named_twice_is_refused(rule):
    with pytest.raises(ValueError, match="each once"):
        table(rule)


def test_a_name_is_one_folder():
    with pytest.raises(ValueError, match="must not contain /"):
        rules("fedavg,mine:Method:path=../../x")
