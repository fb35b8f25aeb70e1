"""What happened to devices, in words: every kind has its sentence, and what a folder says of itself does no harm."""

import pytest

from fedfilt import Graph
from fedfilt.rounds.timeline import Event, Timeline
from fedfilt.rounds.types import Happening
from fedfilt.runs.records import LISTED
from fedfilt.show import words
from fedfilt.show.words import dated, happening
from fedfilt.training.goal import METRICS

SENTENCES = {
    ("join", ("start", "neighbours")): "device 5 joins from neighbours",
    ("join",): "device 5 joins",
    ("leave",): "device 5 leaves",
    ("move", ("links", (0, 2))): "device 5 moves to (0, 2)",
    ("move", ("links", (0,)), ("room", 0)): "device 5 moves to (0,) in room 0",
    ("offline",): "device 5 is offline",
    ("offline", ("until", 9)): "device 5 is offline until round 9",
    ("online",): "device 5 is back online",
    ("late",): "device 5 late",
    ("reject",): "device 5 rejected",
    ("reject", ("why", "refused: too large")): "device 5 rejected (refused: too large)",
    ("absent", ("why", "")): "device 5 absent",
    ("absent", ("why", "no answer")): "device 5 absent (no answer)",
    ("left_out", ("why", "infeasible_energy")): "device 5 left out (infeasible_energy)",
    ("return",): "device 5 takes part again",
    ("clipped", ("times", 12.5), ("strike", 2)): (
        "device 5 sent an update that was too large and was clipped: 12.5 times the median, strike 2"
    ),
    ("quarantined", ("times", 31.5), ("until", 16)): (
        "device 5 is quarantined for updates that were too large: 31.5 times the median until round 16"
    ),
    ("released",): "device 5 is out of quarantine, on probation",
    ("setback", ("suspects", "[0]")): (
        "device 5 most devices went bad at once: the models returned to a good state, without the largest updates "
        "of devices [0]"
    ),
    ("said", ("words", "plain words")): "device 5 plain words",
}


@pytest.mark.parametrize(("given", "sentence"), SENTENCES.items(), ids=SENTENCES.values())
def test_every_kind_of_event_is_a_sentence(given, sentence):
    what, *details = given
    assert happening(Happening(3, 5, what, dict(details))) == sentence
    assert dated(Happening(3, 5, what, dict(details))) == f"round 3: {sentence}"


def test_no_kind_of_event_is_left_out():
    assert {what for what, *_ in SENTENCES} == set(words.HAPPENED) >= set(LISTED.values())


def test_an_event_without_a_device_names_none():
    assert happening(Happening(1, None, "said", {"words": "the power failed"})) == "the power failed"
    assert happening(Happening(1, None, "renamed")) == "renamed"


def test_all_that_a_script_lets_happen_is_told():
    script = [
        Event(round=2, join=3),
        Event(round=2, offline=1, until=4),
        Event(round=3, move=0, links=((0, 2),), room=1),
        Event(round=4, leave=0),
    ]
    timeline = Timeline(script, Graph.from_rooms([0, 0, 1, 1]), rounds=5)
    assert [dated(event) for round in (2, 3, 4) for event in timeline.at(round).happened] == [
        "round 2: device 3 joins from neighbours",
        "round 2: device 1 is offline until round 4",
        "round 3: device 0 moves to [2] in room 1",
        "round 4: device 1 is back online",
        "round 4: device 0 leaves",
    ]


@pytest.mark.parametrize(
    "hostile", ["{}", "{0}", "{start.__class__}", "%s %d", "%(why)s", "<script>alert(1)</script>", "\0", "}{", [{}], {}]
)
def test_no_detail_is_taken_for_a_pattern(hostile):
    """Words of a run folder are told letter by letter; what shows them escapes them."""
    for key in words.DETAILS:
        for what in (*words.HAPPENED, "renamed"):
            assert str(hostile) in happening(Happening(1, 5, what, {key: hostile}))
    assert happening(Happening(1, 5, str(hostile))) == f"device 5 {hostile}"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            [("fedavg", 0.8, 0.9), ("local", 0.95, 0.2), ("mu=1", 0.92, 0.7)],
            "On its own data a device does best with local (95.0%), on everybody's with fedavg (90.0%); in between, "
            "mu=1 reaches 92.0% and 70.0%.",
        ),
        (
            [("fedavg", 0.8, 0.9), ("local", 0.9, 0.2), ("mu=1", 0.95, 0.7)],
            "On its own data a device does best with mu=1 (95.0%), on everybody's with fedavg (90.0%).",
        ),
        (
            [("fedavg", 0.8, 0.9), ("mu=1", 0.95, 0.91), ("mu=10", 0.9, 0.9)],
            "A device does best with mu=1, on its own data (95.0%) and on everybody's (91.0%).",
        ),
        (
            [("mu=1", 0.95, 0.5), ("mu=10", 0.9, 0.6), ("mu=100", 0.8, 0.7)],
            "On its own data a device does best with mu=1 (95.0%), on everybody's with mu=100 (70.0%); in between, "
            "mu=10 reaches 90.0% and 60.0%.",
        ),
        (
            [("local", 0.95, float("nan")), ("fedavg", 0.9, float("nan"))],  # no global test
            "A device does best with local, on its own data (95.0%) and on everybody's (–).",
        ),
    ],
)
def test_a_rule_is_not_between_itself(rows, sentence):
    assert words.comparison([words.Score(*row) for row in rows]) == sentence


def test_less_is_better_where_it_is():
    error = METRICS["rmse"]
    rows = [words.Score("fedavg", 2.5, 1.0), words.Score("local", 0.5, 3.0)]
    assert words.comparison(rows, error) == (
        "On its own data a device does best with local (RMSE 0.5), on everybody's with fedavg (RMSE 1)."
    )
