"""What rooms decide: who has a say, the vote against a loop of its own, smoothing against a recursion of its own."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt.home.rooms import (
    DOUBT,
    FORGET,
    MOST_DEVICES,
    MOST_ROOMS,
    MOST_TRUSTED,
    UNKNOWN,
    Household,
    Voting,
    counted,
)
from fedfilt.home.topics import Decision, Status

LABELS = ("rest", "walk", "cook")


@st.composite
def shares(draw, count=3):
    """Probabilities of so many labels."""
    raw = draw(st.lists(st.floats(0.001, 1), min_size=count, max_size=count))
    return tuple(one / sum(raw) for one in raw)


def home(rooms, moving=(), more=(), **options):
    """A home of devices that are online, by name and room."""
    voting = Voting(**{"gather_seconds": 0.0, "threshold": 0.0} | options)
    found = Household(LABELS, rooms, voting, moving, more)
    for name in rooms:
        found.status(name, Status(online=True), 0.0)
    return found


def weighed(said, accuracies):
    """The vote, once more: in plain Python, a label at a time."""
    accuracies = [None if one is None else min(one, 0.9) for one in accuracies]
    known = [one for one in accuracies if one is not None]
    weights = [1.0] * len(said)
    if known:
        filled = [sum(known) / len(known) if one is None else one for one in accuracies]
        filled = [min(max(one, 0.001), 0.999) for one in filled]
        weights = [max(0.0, math.log(one * (len(LABELS) - 1) / (1 - one))) for one in filled]
        if not any(weights):
            weights = [1.0] * len(said)
    counted = [sum(w * own[label] for w, own in zip(weights, said, strict=True)) for label in range(len(LABELS))]
    return [one / sum(counted) for one in counted]


@given(
    st.lists(st.tuples(shares(), st.none() | st.floats(0, 1)), min_size=1, max_size=6),
    st.sampled_from(["mean", "weighted"]),
    st.floats(0, 1),
    st.randoms(use_true_random=False),
)
def test_the_vote_equals_a_loop_in_any_order_of_arrival(given_, how, threshold, shuffled):
    names = [f"device-{place}" for place in range(len(given_))]
    found = home(dict.fromkeys(names, "hall"), how=how, threshold=threshold)
    order = list(zip(names, given_, strict=True))
    shuffled.shuffle(order)
    for name, (said, accuracy) in order:
        found.status(name, Status(online=True, accuracy=accuracy), 0.0)
        assert found.hear(name, Decision(0.0, 1, said), 0.0)
    state = found.vote(0.0)["hall"]
    wanted = weighed([said for said, _ in given_], [a if how == "weighted" else None for _, a in given_])
    assert list(state.probabilities.values()) == pytest.approx(wanted, abs=1e-4)
    assert state.confidence == pytest.approx(max(wanted), abs=1e-4)
    assert state.devices == len(given_)
    if abs(max(wanted) - threshold) > 1e-9 and sorted(wanted)[-1] - sorted(wanted)[-2] > 1e-9:
        assert state.activity == (LABELS[wanted.index(max(wanted))] if max(wanted) > threshold else UNKNOWN)


@given(
    st.integers(2, 30),
    st.lists(st.floats(0.8, 1), min_size=2, max_size=2),
    st.lists(st.floats(0.9, 1), min_size=2, max_size=2),
    st.none() | st.floats(0, 1),
    st.floats(0, 1),
)
def test_whatever_accuracy_a_device_claims_two_good_ones_outvote_it(labels, accuracies, sure, claimed, lie):
    right, wrong = np.eye(labels)[:2]
    honest = [one * right + (1 - one) * wrong for one in sure]
    said = np.array([*honest, lie * wrong + (1 - lie) * right])[:, None, :]
    assert counted(said, [*accuracies, claimed]).argmax() == 0


@given(st.floats(MOST_TRUSTED, 1), st.floats(0, 1))
def test_no_device_counts_as_more_accurate_than_is_believed(claimed, other):
    said = np.array([[[0.2, 0.5, 0.3]], [[0.6, 0.1, 0.3]]])
    np.testing.assert_array_equal(counted(said, [claimed, other]), counted(said, [MOST_TRUSTED, other]))


@given(
    st.floats(0.5, 100),
    st.lists(st.tuples(st.floats(0.01, 5), st.lists(st.none() | shares(), min_size=2, max_size=2)), max_size=12),
)
def test_smoothing_equals_a_recursion_in_plain_python(switch_seconds, steps):
    """Over a matrix of transitions, which is the exponential of a rate matrix: here by its series."""
    found = home({"watch": "hall", "phone": "hall"}, switch_seconds=switch_seconds, fresh_seconds=100.0)
    count, now, last, belief = len(LABELS), 0.0, None, [1 / 3] * 3
    for passed, said in steps:
        now += passed
        new = [one for one in said if one is not None]
        if not new:
            continue
        for name, own in zip(("watch", "phone"), said, strict=True):
            if own is not None:
                assert found.hear(name, Decision(now, 1, own), now)
        state = found.vote(now)["hall"]
        if last is not None:
            moves = transitions(now - last, switch_seconds, count)
            belief = [sum(belief[a] * moves[a][b] for a in range(count)) for b in range(count)]
        seen = [max(DOUBT, one) for one in weighed(new, [None] * len(new))]
        belief = [prior * one for prior, one in zip(belief, seen, strict=True)]
        belief = [one / sum(belief) for one in belief]
        last = now
        assert list(state.probabilities.values()) == pytest.approx(belief, abs=1e-4)


def transitions(seconds, switch_seconds, count):
    """exp(Q seconds) for the rates Q of a home that leaves an activity after `switch_seconds` on average."""
    pieces = 2 ** max(0, math.ceil(math.log2(max(seconds / switch_seconds, 1e-9))) + 4)
    leave = seconds / switch_seconds / pieces
    small = [[-leave if a == b else leave / (count - 1) for b in range(count)] for a in range(count)]
    total = [[float(a == b) for b in range(count)] for a in range(count)]
    term = total
    for order in range(1, 12):
        term = [[value / order for value in row] for row in product(term, small)]
        total = [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(total, term, strict=True)]
    for _ in range(int(math.log2(pieces))):
        total = product(total, total)
    return total


def product(left, right):
    columns = list(zip(*right, strict=True))
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in left]


@given(st.permutations([Decision(at, 1, (p, 1 - p, 0.0)) for at in (1.0, 2.0, 3.0) for p in (0.2, 0.7)]))
def test_the_newest_say_of_a_device_counts_however_they_arrive(arriving):
    found = home({"watch": "hall"})
    heard = [found.hear("watch", decision, 3.0) for decision in arriving]
    assert found.vote(3.0)["hall"].probabilities["rest"] == 0.7
    assert found.dropped.total() == heard.count(False)


def test_says_that_are_stale_or_of_the_future_do_not_count():
    found = home({"watch": "hall", "phone": "hall"}, fresh_seconds=10.0, ahead_seconds=2.0)
    said = (0.0, 1.0, 0.0)
    assert not found.hear("watch", Decision(90.0, 1, said), 100.0)
    assert not found.hear("watch", Decision(102.1, 1, said), 100.0)
    assert found.dropped == {"stale": 1, "from the future": 1}
    assert found.hear("watch", Decision(95.0, 1, said), 100.0)
    assert found.hear("phone", Decision(99.0, 1, said), 100.0)
    assert found.vote(100.0)["hall"].devices == 2
    assert found.wait(100.0) == 5.0
    assert found.vote(104.9) == {}
    assert found.vote(105.0)["hall"].devices == 1  # one is stale now
    left = found.vote(109.0)["hall"]
    assert (left.activity, left.confidence, left.devices) == (UNKNOWN, 0.0, 0)
    assert found.vote(200.0) == {}  # said once
    assert found.wait(200.0) == math.inf


def test_a_clock_that_is_set_back_or_on_keeps_nobody_silent():
    found = home({"watch": "hall"})
    assert found.hear("watch", Decision(5000.0, 1, (0.0, 1.0, 0.0)), 5000.0)
    assert found.vote(5000.0)["hall"].activity == "walk"
    assert found.vote(1000.0)["hall"].activity == UNKNOWN  # what was said is of the future now
    assert found.hear("watch", Decision(1000.0, 1, (1.0, 0.0, 0.0)), 1000.0)
    assert found.vote(1000.0)["hall"].activity == "rest"
    assert found.vote(9000.0)["hall"].activity == UNKNOWN


def test_devices_come_go_and_change_rooms():
    found = home({"watch": "hall", "phone": "hall"}, moving=["phone"], more=["bath"])
    for name in ("watch", "phone"):
        found.hear(name, Decision(0.0, 1, (0.0, 1.0, 0.0)), 0.0)
    assert found.vote(0.0)["hall"].devices == 2
    found.status("phone", Status(online=True, room="bath"), 1.0)
    assert found.vote(1.0)["hall"].devices == 1
    assert found.members("bath") == ["phone"]
    assert found.hear("phone", Decision(1.0, 1, (1.0, 0.0, 0.0)), 1.0)
    assert found.vote(1.0)["bath"].activity == "rest"
    found.status("phone", Status(online=False), 1.5)  # as a last will says it, without a room
    assert found.members("bath") == ["phone"]
    found.status("watch", Status(online=False), 2.0)
    assert {room: state.activity for room, state in found.vote(2.0).items()} == {"hall": UNKNOWN, "bath": UNKNOWN}
    found.status("phone", Status(online=True), 3.0)  # names no room: back to its own
    assert found.members("bath") == []
    assert not found.status("stranger", Status(online=True), 3.0)
    assert not found.hear("stranger", Decision(3.0, 1, (1.0, 0.0, 0.0)), 3.0)
    assert found.dropped["unknown device"] == 2
    found.forget(4.0)
    assert found.rooms == ["hall", "bath"]
    found.forget(5.0 + FORGET)
    assert found.rooms == ["hall"]


def test_only_a_device_that_moves_changes_rooms_and_only_to_those_that_there_are():
    found = home({"spy": "bath", "watch": "kitchen", "phone": "kitchen"}, moving=["phone"], more=["garden"])
    for name in ("watch", "phone"):
        assert found.hear(name, Decision(1.0, 1, (0.9, 0.1, 0.0)), 1.0)
    assert found.status("spy", Status(online=True, room="kitchen", accuracy=1.0), 1.0), "what else it says counts"
    assert found.devices["spy"].status.accuracy == 1.0
    assert found.hear("spy", Decision(1.0, 1, (0.0, 1.0, 0.0)), 1.0)
    assert {room: state.devices for room, state in found.vote(1.0).items()} == {"kitchen": 2, "bath": 1}
    assert found.dropped == {"another room": 1}
    for number in range(3000):
        found.status("spy", Status(online=True, room=f"room-{number}"), 2.0)
        found.status("phone", Status(online=True, room=f"room-{number}"), 2.0)
    assert found.rooms == ["bath", "kitchen"]
    assert found.dropped == {"another room": 6001}
    for room in ("garden", "bath", "kitchen"):
        found.status("phone", Status(online=True, room=room), 3.0)
        assert "phone" in found.members(room)
    found.status("phone", Status(online=False), 4.0)
    assert found.dropped == {"another room": 6001}


def test_where_a_device_is_found_it_may_have_been_for_long():
    found = Household(LABELS, {"phone": "hall", "watch": "bath"}, Voting(), moving=["phone"])
    assert found.hear("phone", Decision(100.0, 1, (1.0, 0.0, 0.0)), 100.0)
    found.status("phone", Status(online=True, room="bath"), 100.0)  # retained since before the edge server started
    assert (found.devices["phone"].room, found.devices["phone"].since) == ("bath", -math.inf)
    found.status("phone", Status(online=True, room="hall"), 200.0)
    assert (found.devices["phone"].room, found.devices["phone"].since) == ("hall", 200.0)


def test_the_list_of_devices_may_change():
    found = home({"watch": "hall", "phone": "hall"}, moving=["phone"], more=["bath"])
    for name in ("watch", "phone"):
        found.hear(name, Decision(0.0, 1, (0.0, 1.0, 0.0)), 0.0)
    found.status("phone", Status(online=True, room="bath"), 0.0)
    found.enlist({"phone": "attic", "lamp": "hall"}, 1.0, moving=["phone"], rooms=["bath"])
    assert (found.members("hall"), found.members("bath")) == (["lamp"], ["phone"]), "a device knows where it is"
    assert found.vote(1.0)["hall"].activity == UNKNOWN, "the watch has no say any more"
    assert not found.hear("watch", Decision(1.0, 1, (0.0, 1.0, 0.0)), 1.0)
    assert found.hear("lamp", Decision(1.0, 1, (0.0, 0.0, 1.0)), 1.0)
    found.enlist({"phone": "attic", "lamp": "hall"}, 1.2)
    assert found.members("attic") == ["phone"], "it moves no more"
    found.enlist({"lamp": "bath"}, 1.5)
    assert found.members("bath") == ["lamp"]
    assert found.vote(1.5)["hall"].devices == 0


def test_nothing_grows_without_bound():
    found = Household(LABELS, voting=Voting(switch_seconds=5.0))
    rng = random.Random(0)
    for number in range(3 * MOST_DEVICES):
        name = f"device-{number}"
        now = float(number)
        found.status(name, Status(online=True, room=f"room-{rng.randrange(3 * MOST_ROOMS)}"), now)
        found.hear(name, Decision(now, 1, (0.2, 0.3, 0.5)), now)
        found.status(name, Status(online=False), now)
    assert len(found.devices) == MOST_DEVICES
    assert len(found.rooms) == MOST_ROOMS
    assert len(found.dropped) <= 5
    found.forget(now)
    found.forget(now + 2 * FORGET)
    found.forget(now + 4 * FORGET)
    assert not found.devices
    assert not found.rooms


def test_labels_and_settings_are_checked():
    for labels in (["rest"], ["rest", "rest"], ["rest", UNKNOWN]):
        with pytest.raises(ValueError, match="labels must be"):
            Household(labels)
    for devices, options, said in (
        ({"watch": "a+b"}, {}, "a room must be .* got 'a\\+b'"),
        ({"watch": 5}, {}, "a room must be"),
        ({"a/b": "hall"}, {}, "a device must be"),
        ({"watch": "hall"}, {"rooms": ["living room"]}, "a room must be"),
        ({"watch": "hall"}, {"moving": ["phone"]}, "moving must name listed devices .watch., got 'phone'"),
    ):
        with pytest.raises(ValueError, match=said):
            Household(LABELS, devices, **options)
    with pytest.raises(ValueError, match="threshold"):
        Voting(threshold=1.5)
    with pytest.raises(ValueError, match="fresh_seconds"):
        Voting(fresh_seconds=0)
