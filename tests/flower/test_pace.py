"""When rounds are played."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from fedfilt.flower.deploy.pace import NEXT, Pace, pace, wait_turn


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 1439))
def test_rounds_begin_within_the_hours_given(begin, end, minute):
    """Against a walk over the clock, minute by minute."""
    inside, at = set(), begin
    while at != end:
        inside.add(at)
        at = (at + 1) % 1440
    now = datetime(2026, 3, 3, minute // 60, minute % 60).timestamp()
    assert Pace(between=(begin, end)).due(None, now) == (minute in inside)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_round_begins_no_sooner_than_the_time_after_the_last(every, last, passed):
    assert Pace(every).due(last, last + passed) == ((last + passed) - last >= every)


def test_a_round_can_be_asked_for(tmp_path):
    assert not wait_turn(tmp_path, pace("6h"), last=datetime.now().timestamp(), look=0.0)
    (tmp_path / NEXT).touch()
    assert wait_turn(tmp_path, pace("6h"), last=datetime.now().timestamp(), look=0.0)
    assert not (tmp_path / NEXT).exists()  # for one round only


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "6 hours"}, "engine.every must be a time such as"),
        ({"every": "-1h"}, "engine.every must be a time such as"),
        ({"between": ("23:00",)}, "engine.between must be two times of day"),
        ({"between": ("23:00", "25:00")}, "engine.between must be times of day"),
    ],
)
def test_times_that_are_none_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        pace(**options)


def test_enough_corrections_ask_for_a_round(tmp_path):
    pytest.importorskip("paho.mqtt")
    from fedfilt.flower.home import asking

    corrected = asking(tmp_path, 3)
    for expected in (False, False, True):
        corrected()
        assert (tmp_path / NEXT).exists() is expected
    asking(tmp_path / "nowhere", 0)()  # never
    with pytest.raises(ValueError, match="round_after must be"):
        asking(tmp_path, -1)
