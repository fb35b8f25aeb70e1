"""What happened to devices, in words: every kind has its sentence, and what a folder says of itself does no harm."""

import pytest

from fedfilt import Graph
from fedfilt.rounds.timeline import Event, Timeline
from fedfilt.rounds.types import Happening
from fedfilt.runs.records import LISTED
from fedfilt.show import words
from fedfilt.show.words import dated, happening

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
        "device 5 sent too large an update, which was clipped: 12.5 times the median, strike 2"
    ),
    ("quarantined", ("times", 31.5), ("until", 16)): (
        "device 5 is in quarantine for updates that were too large: 31.5 times the median until round 16"
    ),
    ("released",): "device 5 is out of quarantine, on probation",
    ("setback", ("suspects", "[0]")): (
        "device 5 most devices were spoilt at once: the models went back to a good state, without the largest updates "
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
