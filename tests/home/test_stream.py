"""Windows of a stream are those of training; every rule for bad readings, against an independent slow oracle."""

import logging
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt.data._tables import Rows
from fedfilt.data.own import Making, _recordings
from fedfilt.data.store import Store
from fedfilt.data.windows import Recording, cut_windows
from fedfilt.datasets import Watch
from fedfilt.home.readings import Inbox, Reading
from fedfilt.home.stream import Stream
from helpers import real

LABELS = ("walk", "rest")


def making(rows=4, channels=2, rate=10.0, step=0):
    return Making(shape=(channels, rows), labels=LABELS, rate=rate, step=step)


def played(stream, readings):
    return [window for reading in readings if (window := stream.push(reading)) is not None]


def some(count, start=1.7e9, rate=10.0, seed=0, channels=2):
    values = np.random.default_rng(seed).standard_normal((count, channels))
    return [Reading(start + i / rate, row) for i, row in enumerate(values)]


# --- as in training -----------------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(2, 9), st.integers(0, 9), st.sampled_from([0.0, 10.0]), st.data())
def test_clean_readings_give_the_windows_of_training(count, rows, hop, rate, data):
    hop = min(hop, rows)
    readings = some(count, seed=data.draw(st.integers(0, 99)))
    signal = np.array([reading.values for reading in readings]).reshape(count, 2)
    bad = data.draw(st.sets(st.integers(0, max(count - 1, 0)), max_size=3))
    for place in bad & set(range(count)):
        signal[place, 0] = readings[place].values[0] = np.nan
    how = making(rows, rate=rate)
    found = played(Stream(how, hop), readings)
    wanted = cut_windows("made", [Recording(0, 0, 0, signal)], rows, hop or how.stride, 0.0)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours.values, theirs.window.astype(np.float32))
        assert ours.values.dtype == np.float32
        assert ours.begin == readings[theirs.start].time
        assert ours.end == readings[theirs.start + rows - 1].time


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 99))
def test_windows_start_anew_after_a_pause_as_in_training(lengths, seed):
    how, readings, start = making(5), [], 1000.0
    for number, length in enumerate(lengths):
        readings += some(length, start, seed=seed + number)
        start = readings[-1].time + 0.5
    times, values = np.array([r.time for r in readings]), np.array([r.values for r in readings])
    codes = np.zeros(len(times), np.int64)
    if sum(length == 1 for length in lengths) > len(times) / 4:
        return  # the median of a whole file is then that of its pauses
    rows = Rows(("a", "b"), times, values, {"walk": 0}, codes, codes, "row")
    wanted = cut_windows("made", _recordings([(Path("file"), rows)], how), 5, how.stride, 0.0)
    found = played(Stream(how), readings)
    np.testing.assert_array_equal(
        np.array([window.values for window in found]), np.array([c.window.astype(np.float32) for c in wanted])
    )


def test_real_recordings_give_the_windows_of_the_data_set():
    """Replayed one after the other, with a pause between, as if they were read from the watch."""
    real("watch")
    recordings = [one for one in Watch().recordings(Store()) if one.device == 0]
    how = Making(shape=(6, 100), labels=tuple(map(str, range(20))), rate=recordings[0].rate)
    wanted = cut_windows("watch", recordings, 100, 50, 0.0)
    stream, start, found = Stream(how), 1.7e9, []
    for recording in recordings:
        times = start + np.arange(len(recording.signal)) / recording.rate
        rows = zip(times.tolist(), recording.signal, strict=True)
        found += played(stream, (Reading(time, row, str(recording.label)) for time, row in rows))
        start = times[-1] + 60
    order = sorted(range(len(wanted)), key=lambda i: wanted[i].recording.label)
    assert len(found) == len(wanted) > 100
    by_label = sorted(found, key=lambda window: int(window.label))
    for ours, place in zip(by_label, order, strict=True):
        np.testing.assert_array_equal(ours.values, wanted[place].window.astype(np.float32))


# --- an oracle ----------------------------------------------------------------------------------------------------


def slow(readings, rows, hop, rate, channels):
    """All windows, by the rules in words: looks at everything again for every reading."""
    found, run, last = [], [], None
    for time, values, _ in readings:
        if math.isnan(time) or abs(time) > 1e11:
            continue
        if last is not None and time < last - max(10, 10 / rate):
            run = []
        elif last is not None and time <= last:
            continue
        last = time
        run.append((time, values if len(values) == channels else [math.nan] * channels))
        if len(run) < rows:
            continue
        assert len(run) == rows
        steps = sorted(b[0] - a[0] for a, b in pairwise(run))
        middle = steps[(rows - 2) // 2]
        if not 0.9 * rate - 1e-9 <= 1 / middle <= 1.1 * rate + 1e-9:
            run = run[hop:]
            continue
        pause = max((i for i in range(1, rows) if run[i][0] - run[i - 1][0] > 1.5 * middle), default=0)
        if pause:
            run = run[pause:]
            continue
        if all(math.isfinite(value) for _, row in run for value in row):
            found.append((run[0][0], run[-1][0], [[row[k] for _, row in run] for k in range(channels)]))
        run = run[hop:]
    return found


STEPS = st.sampled_from(
    [1.0] * 12 + [0.95, 1.07, 1.6, 2.5, 30.0, 0.0, -1.0, -0.5, -3.0, -500.0, 0.5, math.nan, math.inf, 1e300]
)
VALUES = st.sampled_from([[1.0, 2.0]] * 12 + [[math.nan, 0.0], [1.0], [], [1.0, 2.0, 3.0], [math.inf, 1.0]])


@given(
    st.lists(st.tuples(STEPS, VALUES), max_size=80),
    st.integers(3, 6),
    st.integers(1, 6),
    st.sampled_from([10.0, 0.05]),
    st.sampled_from([1.0, 1.02, 0.5, 2.0]),
)
def test_bad_readings_against_an_oracle(steps, rows, hop, rate, speed):
    hop, time, readings = min(hop, rows), 1e6, []
    for number, (step, values) in enumerate(steps):
        moment = time + step * speed / rate
        if abs(moment) < 1e11:
            time = moment
        readings.append(Reading(moment, np.array([value + number for value in values])))
    found = played(Stream(making(rows, rate=rate), hop), readings)
    wanted = slow(readings, rows, hop, rate, 2)
    assert [(window.begin, window.end) for window in found] == [(begin, end) for begin, end, _ in wanted]
    for window, (_, _, values) in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(window.values, np.array(values, np.float32))


# --- every rule, by name ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "count"),
    [
        (lambda r: r, None, 9),
        (lambda r: [*r[:8], r[9], r[8], *r[10:]], "late", 3 + 4),  # it leaves a pause
        (lambda r: [*r[:8], r[7], *r[8:]], "twice", 9),
        (lambda r: r[:8] + r[12:], "gap", 3 + 3),
        (lambda r: [*r[:8], r[8]._replace(values=np.array([np.nan, 1.0])), *r[9:]], "not finite", 7),
        (lambda r: [*r[:8], r[8]._replace(values=np.array([1e39, 1.0])), *r[9:]], "not finite", 7),
        (lambda r: [*r[:8], r[8]._replace(values=np.array([1.0])), *r[9:]], "channels", 7),
        (lambda r: [*r[:8], r[8]._replace(values="ab"), *r[9:]], "channels", 7),
        (lambda r: [*r[:8], r[8]._replace(values=[None, {}]), *r[9:]], "channels", 7),
        (lambda r: [*r[:8], r[8]._replace(time=np.nan), *r[9:]], "time", 3 + 4),
        (lambda r: [*r[:8], r[8]._replace(time="noon"), *r[9:]], "time", 3 + 4),
        (lambda r: [*r[:8], *(one._replace(time=one.time - 3600) for one in r[8:])], "jump", 3 + 5),
        (lambda r: [*r[:8], *(one._replace(time=one.time + 3600) for one in r[8:])], "gap", 3 + 5),
        (lambda r: [one._replace(time=one.time * 2) for one in r], "rate", 0),
        (lambda r: [one._replace(time=one.time * 1.05) for one in r], None, 9),
    ],
)
def test_a_rule_for_everything_that_can_be_wrong(change, kind, count, caplog):
    stream = Stream(making())
    with caplog.at_level(logging.WARNING, "fedfilt"):
        found = played(stream, change(some(20, start=1e4)))
    assert len(found) == count
    assert (kind in stream.counts) if kind else not stream.counts
    assert len(caplog.records) == len(stream.counts), "one line for each kind"


def test_the_rate_may_come_back():
    slow_ones, good = some(40, 100.0, rate=5.0), some(20, 108.0)
    stream = Stream(making())
    assert not played(stream, slow_ones)
    assert len(played(stream, good)) >= 7


def test_labels_are_carried_where_all_readings_agree():
    readings = [one._replace(label="walk" if i < 7 else "rest") for i, one in enumerate(some(12))]
    assert [window.label for window in played(Stream(making(), hop=2), readings)] == ["walk", "walk", "", "", "rest"]


def test_only_windows_can_be_cut():
    with pytest.raises(ValueError, match=r"windows need data\.shape"):
        Stream(Making(shape=(3,), labels=LABELS))
    with pytest.raises(ValueError, match="hop must be a whole number from 0 to 4"):
        Stream(making(), hop=5)


def test_an_inbox_is_bounded_in_number_and_bytes():
    inbox = Inbox("lamp", most=10, most_bytes=100)
    for number in range(50):
        inbox.put(float(number), "t", b"x" * 30)
    assert len(inbox._waiting) == 3
    assert inbox._bytes == 90
    assert inbox.complaints.counts == {"full": 47}
