"""What people say becomes the device's own data: the newest word, quotas, ageing, the split, and forgetting."""

import errno
import os
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import _files
from fedfilt.data import own
from fedfilt.data.own import BadData, Decide, Making, owner, read
from fedfilt.home import corrections
from fedfilt.home.corrections import DAY, Corrections, Kept, forget, parts, since_of
from fedfilt.home.stream import Window
from fedfilt.home.topics import Correction
from helpers import call

MAKING = Making(shape=(2, 4), labels=("walk", "rest", "cook"), rate=1.0)
NOW = 1e6


def some(*begins, seed=0):
    """Windows of 3 s that begin at these times."""
    rng = np.random.default_rng(seed)
    return [Window(float(t), t + 3.0, rng.standard_normal((2, 4)).astype(np.float32)) for t in begins]


def made(folder, **quotas):
    return Corrections(folder, MAKING, Decide(**quotas))


def told(kept):
    return {(begin, str(label)) for (begin, _), label in zip(kept.time.tolist(), kept.y, strict=True)}


def test_windows_of_the_time_are_kept_raw_and_read_for_training(tmp_path):
    windows = some(*range(0, 40, 2))
    assert made(tmp_path).add(Correction("rest", 9.5, 23.0), windows) == 6
    kept = made(tmp_path).read()
    assert told(kept) == {(float(t), "rest") for t in range(10, 22, 2)}
    np.testing.assert_array_equal(kept.x, [one.values for one in windows[5:11]])
    held = read(tmp_path, Making(MAKING.shape, MAKING.labels, scale=False))
    np.testing.assert_array_equal(held.train_x, kept.x)
    assert held.train_y.tolist() == [1] * 6
    assert sorted(os.listdir(tmp_path / "data")) == ["corrections.npz"]


def test_they_are_read_beside_other_files_and_beside_a_reader(tmp_path, monkeypatch, trusted):
    made(tmp_path).add(Correction("rest", 0, 100), some(0, 2))
    np.savez(tmp_path / "data" / "a.npz", x=np.ones((3, 2, 4), np.float32), y=[0, 0, 0], part=[0, 0, 0])
    assert read(tmp_path, MAKING).train_y.tolist() == [0, 0, 0, 1, 1]
    (tmp_path / "own.toml").write_text('reader = "their_reader_here:Reader"')
    (tmp_path / "their_reader_here.py").write_text(
        "import numpy as np\nclass Reader:\n    def __init__(self, place): pass\n"
        "    def __call__(self, making): return np.ones((1, 2, 4)), np.array([2])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read(tmp_path, MAKING).train_y.tolist() == [2, 1, 1]


def test_the_newest_word_counts(tmp_path):
    here, windows = made(tmp_path), some(*range(0, 20, 2))
    here.add(Correction("walk", 0, 30), windows)
    here.add(Correction("rest", 8, 14), windows)
    # 6 to 9 and 12 to 15 lie across the ends of what was rest
    assert told(here.read()) == {(t, "walk") for t in (0.0, 2.0, 4.0, 16.0, 18.0)} | {(t, "rest") for t in (8.0, 10.0)}
    assert here.add(Correction("cook", 0, 30), []) == 7  # long after: the windows are only on disk
    assert {label for _, label in told(here.read())} == {"cook"}
    before = os.stat(tmp_path / "data" / "corrections.npz")
    here.add(Correction("cook", 0, 30), windows[4:6])  # said again: nothing changes
    assert os.stat(tmp_path / "data" / "corrections.npz") == before


def test_quotas_and_age(tmp_path, monkeypatch):
    here = made(tmp_path, per_label=5, in_all=8, days=2)
    here.add(Correction("walk", 0, 1e9), some(*range(0, 100, 10)))
    assert told(here.read()) == {(float(t), "walk") for t in range(50, 100, 10)}
    here.add(Correction("rest", 200, 1e9), some(*range(200, 300, 10)))
    assert told(here.read()) == {(float(t), "walk") for t in (70, 80, 90)} | {
        (float(t), "rest") for t in range(250, 300, 10)
    }
    monkeypatch.setattr(corrections, "MOST_BYTES", 7 * 32)
    assert here.tidy(75 + 2 * DAY) == 7
    assert here.tidy(1e9) == 0
    assert not (tmp_path / "data" / "corrections.npz").exists()
    assert here.tidy(1e9) == 0


def test_windows_kept_under_a_wrong_clock_do_not_fill_the_quota(tmp_path):
    here = made(tmp_path, per_label=5, in_all=8)
    here.add(Correction("walk", 4e9, 5e9), some(*range(4_000_000_000, 4_000_000_080, 10)))
    assert len(here.read().y) == 5
    here.add(Correction("walk", 100, 200), some(*range(100, 130, 10)))  # the clock is right again
    assert told(here.read()) == {(float(t), "walk") for t in (100, 110, 120, 4_000_000_060, 4_000_000_070)}
    here.add(Correction("walk", 100, 200), some(*range(130, 180, 10)))
    assert told(here.read()) == {(float(t), "walk") for t in range(130, 180, 10)}
    here.add(Correction("rest", 4e9, 5e9), some(*range(4_000_000_000, 4_000_000_080, 10)))
    here.add_late(some(190)[0], lambda: "cook")
    assert {(190.0, "cook"), (150.0, "walk"), (4_000_000_070.0, "rest")} < told(here.read())
    assert len(here.read().y) == 8


@given(
    st.lists(
        st.tuples(st.sampled_from(MAKING.labels), st.integers(0, 400), st.integers(1, 60)), min_size=1, max_size=25
    ),
    st.sampled_from([(0.1, 0.2), (0.0, 0.5), (0.3, 0.0)]),
)
def test_the_split_never_parts_windows_that_overlap(said, shares):
    making = Making(MAKING.shape, MAKING.labels, validation_share=shares[0], test_share=shares[1])
    here = Corrections(None, making, Decide(per_label=50, in_all=120))
    kept = Kept(np.empty((0, 2, 4)), np.empty(0, "U4"), np.empty((0, 2)), np.empty(0, int))
    for label, start, length in said:
        new = np.array([(t, t + 3.0) for t in range(start, start + length, 2)])
        more = Kept(np.zeros((len(new), 2, 4)), np.full(len(new), label), new, np.full(len(new), -1))
        fresh = ~np.isin(more.time[:, 0], kept.time[:, 0])
        joined = Kept(*(np.concatenate(pair) for pair in zip(kept, more.take(fresh), strict=True)))
        kept = here._within_limits(joined)
        assert (parts(kept, making) == kept.part).all(), "deterministic"
        assert set(kept.part.tolist()) <= {0, 1, 2}
        for (begin, end), part in zip(kept.time, kept.part, strict=True):
            near = (kept.time[:, 0] <= end) & (begin <= kept.time[:, 1])
            assert (kept.part[near] == part).all()


def test_the_split_keeps_its_shares_and_its_sides(tmp_path):
    here, sides = made(tmp_path, per_label=1000), {}
    for number in range(40):
        begin = 100 * number
        here.add(Correction("walk", begin, begin + 50), some(begin, begin + 2, begin + 4))
        kept = here.read()
        for (start, _), part in zip(kept.time.tolist(), kept.part.tolist(), strict=True):
            assert sides.setdefault(start, part) == part, "a window stays where it is"
    counts = np.bincount(here.read().part)
    np.testing.assert_allclose(counts / counts.sum(), [0.7, 0.1, 0.2], atol=0.02)
    assert [sides[100.0 * i] for i in range(5)] == [0, 0, 2, 0, 1]


# --- the disk -----------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_everything_as_it_was(tmp_path, monkeypatch):
    here = made(tmp_path)
    here.add(Correction("walk", 0, 9), some(0, 2))
    before = (tmp_path / "data" / "corrections.npz").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        here.add(Correction("rest", 0, 90), some(20, 22))
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == {"corrections.npz": before}


def test_a_damaged_file_is_put_aside(tmp_path, caplog):
    here = made(tmp_path)
    here.add(Correction("walk", 0, 9), some(0, 2))
    path = tmp_path / "data" / "corrections.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadData):
        here.read()
    here.add(Correction("rest", 0, 90), some(20))
    assert told(here.read()) == {(20.0, "rest")}
    assert len(caplog.records) == 1
    assert (tmp_path / "data" / "corrections.damaged").exists()
    np.savez(path, x=np.zeros((1, 3, 4), np.float32), y=["walk"], time=np.zeros((1, 2)), part=[0])
    with pytest.raises(BadData, match="must have shape"):
        here.read()
    np.savez(path, x=np.zeros((1, 2, 4), np.float32), y=["walk"], time=np.zeros(1), part=[0])
    with pytest.raises(BadData, match="does not hold corrections"):
        here.read()
    np.savez(path, x=np.zeros((1, 2, 4), np.float32), y=["walk"])
    with pytest.raises(BadData, match="lacks the array 'time'"):
        here.read()
    assert forget(tmp_path) == (0, 2)
    assert not list((tmp_path / "data").iterdir())


def test_time_in_a_file_of_samples_must_fit(tmp_path):
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "a.npz", x=np.zeros((2, 2, 4), np.float32), y=[0, 1], time=np.zeros(3))
    with pytest.raises(BadData, match="time must have 2 rows"):
        read(tmp_path, MAKING)


# --- forgetting ---------------------------------------------------------------------------------------------------


def test_forgetting_all_or_since_a_time(tmp_path):
    assert forget(tmp_path) == forget(tmp_path, 5.0) == (0, 0)
    (tmp_path / "own.toml").write_text('data = "mine"')
    here = made(tmp_path)
    here.add(Correction("walk", 0, 90), some(*range(0, 50, 10)))
    np.savez(tmp_path / "mine" / "a.npz", x=np.zeros((2, 2, 4), np.float32), y=[0, 1])
    assert forget(tmp_path, 30.0) == (2, 0)
    assert told(here.read()) == {(t, "walk") for t in (0.0, 10.0, 20.0)}
    assert forget(tmp_path) == (3, 0)
    assert os.listdir(tmp_path / "mine") == ["a.npz"]


def test_forgetting_removes_damaged_files_since_whatever_time(tmp_path):
    data = tmp_path / "data"
    made(tmp_path).add(Correction("walk", 0, 90), some(0, 10))
    whole = (data / "corrections.npz").read_bytes()
    for name in ("corrections.damaged", ".corrections.npz.tmp"):
        (data / name).write_bytes(whole)
    done = call("device", "forget", tmp_path, "--since", "1970-01-01T00:00:05")
    assert done.stdout == f"removed 1 corrected window and 2 damaged files of such windows from {tmp_path}\n"
    assert os.listdir(data) == ["corrections.npz"]
    (data / "corrections.npz").write_bytes(whole[:100])
    done = call("device", "forget", tmp_path, "--since", "1h")
    assert (done.returncode, done.stdout) == (
        0,
        f"removed 0 corrected windows and 1 damaged file of such windows from {tmp_path}\n",
    )
    assert not os.listdir(data)


def test_the_command_to_forget(tmp_path):
    now = datetime.now(UTC).timestamp()
    made(tmp_path).add(Correction("walk", 0, now), some(now - 3 * DAY, now - 5000, now - 100))
    done = call("device", "forget", tmp_path, "--since", "2h")
    assert (done.returncode, done.stdout) == (0, f"removed 2 corrected windows from {tmp_path}\n")
    assert call("device", "forget", tmp_path, "--since", "2001-01-01").stdout.startswith("removed 1 corrected window ")
    assert call("device", "forget", tmp_path).stdout.startswith("removed 0 corrected windows ")
    done = call("device", "forget", tmp_path, "--since", "noon")
    assert done.returncode == 1
    assert "since must be a time such as 2d" in done.stderr
    done = call("device", "forget", tmp_path / "nowhere")
    assert done.returncode == 1
    assert "there is no folder" in done.stderr


def test_a_device_is_still_a_folder():
    done = call("device", "no/such/folder")
    assert done.returncode == 1
    assert "no/such/folder" in done.stderr
    shown = call("device", "--help").stdout
    assert "forget" in shown
    assert "FOLDER" in shown


@pytest.mark.parametrize("text", ["", "yesterday", "d", "-2d", "2y"])
def test_times_that_nobody_understands(text):
    with pytest.raises(ValueError, match="since must be"):
        since_of(text, NOW)


# --- the owner's settings -----------------------------------------------------------------------------------------


def test_own_settings_for_deciding(tmp_path):
    (tmp_path / "own.toml").write_text(
        "[decide]\nhop = 10\nkeep_minutes = 5\nper_label = 7\n[source]\nname = 'csv'\nfile = 'now.csv'"
    )
    found = owner(tmp_path)
    assert found.decide == Decide(hop=10, keep_minutes=5, per_label=7)
    assert found.source == {"name": "csv", "file": "now.csv"}
    assert own.Owner().source == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[decide]\nhopp = 3", "unknown key 'hopp'; did you mean 'hop'"),
        ("[decide]\nhop = 'a'", "hop must be a number"),
        ("[decide]\nhop = -1", "hop must be a whole number >= 0"),
        ("[decide]\nper_label = 0", "per_label must be a whole number >= 1"),
        ("[decide]\ndays = 0", "days must be a finite number > 0"),
        ("[decide]\nkeep_minutes = true", "keep_minutes must be"),
        ("decide = 3", "decide must be a table"),
        ("source = 'mqtt'", "source must be a table with a name"),
        ("[source]\ntopic = 'a'", "source must be a table with a name"),
    ],
)
def test_own_settings_that_are_wrong(tmp_path, text, said):
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(BadData, match=said):
        owner(tmp_path)


def test_the_file_is_changed_by_one_at_a_time(tmp_path):
    with corrections._alone(tmp_path):
        assert (tmp_path / "state" / "corrections.lock").exists()
