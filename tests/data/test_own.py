"""A device's own data: every format, the split, the scaling, and everything that can be wrong with it."""

import csv
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from fedfilt.data import _tables, own
from fedfilt.data.own import BadData, Making, Owner, Public, Report, Scaling, Source, owner, read
from fedfilt.data.samples import FederatedData
from fedfilt.data.store import Store
from fedfilt.data.windows import part_ends
from fedfilt.datasets import Own, Watch
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table, load
from fedfilt.runs.split import split
from helpers import ROOM, ROOT, call, finish, real, sure

MAKING = Making(shape=(2, 4), labels=("walk", "rest"), rate=10.0)
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((20, 2, 4)).astype(np.float32), np.repeat([0, 1], 10)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(own, "PAUSE", 0.0)


def same(one, other):
    assert type(one) is type(other)
    for a, b in zip(one[:-1], other[:-1], strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    assert (one.scaling is None) == (other.scaling is None)
    if one.scaling:
        assert one.scaling.to_json() == other.scaling.to_json()


def rows_of(count=60, label="walk", start=0.0, rate=10.0, seed=0):
    values = np.random.default_rng(seed).standard_normal((count, 2)).tolist()
    return [[start + i / rate, *row, label] for i, row in enumerate(values)]


def write_csv(path, rows, head=("time", "a", "b", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


# --- samples ------------------------------------------------------------------------------------------------------


def test_every_format_of_samples_gives_the_same(folder):
    data = folder / "data"
    found = []
    np.savez(data / "a.npz", x=X, y=Y)
    found.append(read(folder, MAKING))
    np.savez_compressed(data / "a.npz", x=X.astype(np.float64), y=Y.astype(np.uint8))
    found.append(read(folder, MAKING))
    np.savez(data / "a.npz", x=np.asfortranarray(X), y=np.array(MAKING.labels)[Y])
    found.append(read(folder, MAKING))
    (data / "a.npz").unlink()
    for start in range(0, 20, 7):  # several files, in the order of their names
        save_file({"x": X[start : start + 7], "y": Y[start : start + 7]}, data / f"{start:02}.safetensors")
    (data / "notes.tmp").write_text("ignored")
    (data / "30.npz.part").write_text("ignored")
    (data / ".31.npz").write_text("ignored")
    found.append(read(folder, MAKING))
    for other in found[1:]:
        same(found[0], other)
    assert [len(part) for part in found[0][:6]] == [14, 14, 2, 2, 4, 4]
    assert found[0].train_y.tolist() == [0] * 7 + [1] * 7
    np.testing.assert_allclose(found[0].train_x.mean(axis=(0, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(found[0].train_x.std(axis=(0, 2)), 1, atol=1e-6)


def test_part_says_the_split_and_scale_false_leaves_samples_as_they_are(folder):
    part = np.arange(20) % 3
    np.savez(folder / "data" / "a.npz", x=X, y=Y, part=part)
    held = read(folder, Making(MAKING.shape, MAKING.labels, scale=False))
    assert held.scaling is None
    for which in range(3):
        np.testing.assert_array_equal(held[2 * which], X[part == which])
        np.testing.assert_array_equal(held[2 * which + 1], Y[part == which])


def test_pixels_are_not_scaled(folder):
    np.savez(folder / "data" / "a.npz", x=np.full((3, 2, 4), 7, np.uint8), y=[0, 0, 1])
    held = read(folder, MAKING)
    assert held.train_x.dtype == np.uint8
    assert held.scaling is None
    np.savez(folder / "data" / "b.npz", x=X, y=Y)
    with pytest.raises(BadData, match="all uint8 or all floating-point"):
        read(folder, MAKING)


@given(st.lists(st.integers(0, 2), max_size=60), st.floats(0, 0.45), st.floats(0, 0.45))
def test_the_split_is_in_time_for_every_label(labels, validation, test):
    making = Making((1,), ("a", "b", "c"), validation_share=validation, test_share=test, scale=False)
    y = np.array(labels, np.int64)
    held = own._made([own.Chunk(np.arange(len(y), dtype=np.float32)[:, None], y, np.full(len(y), -1))], making)
    assert sorted(np.concatenate(held[0:6:2])[:, 0]) == list(range(len(y)))
    for label in range(3):
        times = [held[2 * part][held[2 * part + 1] == label, 0] for part in range(3)]
        joined, total = np.concatenate(times), (y == label).sum()
        assert (np.diff(joined) > 0).all(), "training comes first, the test last"
        assert len(times[0]) >= min(total, 1)
        assert abs(len(times[2]) - test * total) <= 1
        assert abs(len(times[1]) - validation * total) <= 1.01


@given(st.integers(0, 10**6), st.floats(0, 0.45), st.floats(0, 0.45))
def test_part_ends_are_in_order(total, validation, test):
    train, later, end = part_ends(total, validation, test)
    assert min(total, 1) <= train <= later <= end == total


@given(st.integers(0, 2**32 - 1), st.sampled_from([(3,), (2, 5), (2, 3, 4)]), st.sampled_from([0.0, 2.0]))
def test_scaling_is_kept_exactly_as_text(seed, shape, soft):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((6, *shape)) * 10.0 ** rng.integers(-3, 4) + rng.integers(-5, 5)).astype(np.float32)
    scaling = Scaling.of(x, soft)
    again = Scaling.from_json(scaling.to_json())
    np.testing.assert_array_equal(again.apply(x), scaling.apply(x))
    assert scaling.mean.shape == (shape[0],)
    scaled = Scaling.of(x).apply(x).astype(float)
    expected = np.arcsinh(soft * scaled) if soft else scaled
    np.testing.assert_allclose(scaling.apply(x), expected, rtol=1e-5, atol=1e-6)
    axes = (0, *range(2, x.ndim))
    np.testing.assert_allclose(scaled.mean(axis=axes), 0, atol=1e-4)
    np.testing.assert_allclose(scaled.std(axis=axes), 1, atol=1e-3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"mean": [1], "spread": [0], "soft": 0}',
        '{"mean": [[1]], "spread": [[1]], "soft": 0}',
        '{"mean": [NaN], "spread": [1], "soft": 0}',
        '{"mean": [1, 2], "spread": [1], "soft": 0}',
    ],
)
def test_a_text_that_is_no_scaling_is_refused(text):
    with pytest.raises(ValueError, match="not a scaling"):
        Scaling.from_json(text)


def test_samples_that_are_not_finite_are_left_out_and_said(folder, caplog):
    x = X.astype(np.float64)
    x[3, 0, 0], x[4, 1, 1], x[5, 0, 0] = np.nan, np.inf, 1e300
    np.savez(folder / "data" / "a.npz", x=x, y=Y)
    held = read(folder, MAKING)
    assert sum(map(len, held[0:6:2])) == 17
    assert all(np.isfinite(part).all() for part in held[0:6:2])
    assert "3 samples that are not finite" in caplog.text


# --- recordings ---------------------------------------------------------------------------------------------------


def slow_windows(rows, making):
    """An independent reading of the rules: [(label, part, rows of the window)], a row being its number."""
    size, step = making.shape[1], making.stride
    runs: list[tuple[int, list[int]]] = []
    for number, (moment, *_, name) in enumerate(rows):
        fresh = not number or name != rows[number - 1][-1] or moment - rows[number - 1][0] > 0.15
        if fresh:
            runs.append((making.labels.index(name) if name else -1, []))
        runs[-1][1].append(number)
    found = []
    for label in range(len(making.labels)):
        mine = [numbers for one, numbers in runs if one == label]
        total = sum(map(len, mine))
        train = max(round((1 - making.test_share - making.validation_share) * total), min(total, 1))
        ends = train, max(train, round((1 - making.test_share) * total)), total
        seen = 0
        for numbers in mine:
            parts = [sum(seen + i >= end for end in ends) for i in range(len(numbers))]
            seen += len(numbers)
            for part in range(3):
                inside = [number for number, one in zip(numbers, parts, strict=True) if one == part]
                found += [(label, part, inside[i : i + size]) for i in range(0, len(inside) - size + 1, step)]
    return found


@given(
    st.lists(st.tuples(st.sampled_from(["walk", "rest", ""]), st.integers(1, 30), st.booleans()), max_size=6),
    st.integers(0, 5),
    st.sampled_from([(0.1, 0.2), (0.0, 0.3), (0.3, 0.0), (0.0, 0.0)]),
)
def test_recordings_are_cut_as_a_slow_reading_of_the_rules_does(tmp_path_factory, bouts, step, shares):
    validation, test = shares
    making = Making((1, 4), ("walk", "rest"), step, 10.0, (), validation, test, scale=False)
    rows, now = [], 0.0
    for label, count, gap in bouts:
        now += 1.0 if gap else 0.0
        for _ in range(count):
            now = round(now + 0.1, 1)
            rows.append([now, float(len(rows)), label])
    folder = tmp_path_factory.mktemp("device")
    (folder / "data").mkdir()
    write_csv(folder / "data" / "a.csv", rows, ("time", "v", "label"))
    if len(rows) > 1 and np.median(np.diff([row[0] for row in rows])) > 0.11:  # more gaps than rows
        with pytest.raises(BadData, match="rows per second"):
            read(folder, making)
        return
    held = read(folder, making)
    expected = slow_windows(rows, making)
    for part in range(3):
        wanted = [(label, numbers) for label, one, numbers in expected if one == part]
        assert held[2 * part + 1].tolist() == [label for label, _ in wanted]
        assert held[2 * part].reshape(-1, 4).tolist() == [numbers for _, numbers in wanted]


def test_csv_and_parquet_and_times_of_any_kind_give_the_same(folder):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [*rows_of(), *rows_of(40, "", 6.0), *rows_of(50, "rest", 10.0, seed=1)]
    path = folder / "data" / "a.csv"
    write_csv(path, rows)
    wanted = read(folder, MAKING)
    assert wanted.train_y.tolist() == [0] * 20 + [1] * 16
    moments = [np.datetime64("2024-05-01") + np.timedelta64(round(1e6 * row[0]), "us") for row in rows]
    for zone in ("", "Z", "+02:00"):
        write_csv(path, [[f"{moment}{zone}", *row[1:]] for moment, row in zip(moments, rows, strict=True)])
        same(read(folder, MAKING), wanted)
    path.write_text("\ufeff" + path.read_text() + "\n", encoding="utf-8")  # as spreadsheets write it
    same(read(folder, MAKING), wanted)
    path.unlink()
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("time", "a", "b", "label"))}
    labels = pyarrow.array([name or None for name in columns["label"]]).dictionary_encode()
    for change in (
        {},
        {"label": labels},
        {"time": pyarrow.array(np.array(moments)).cast(pyarrow.timestamp("ns", "UTC"))},
        {"time": [str(moment) for moment in moments]},
    ):
        parquet.write_table(pyarrow.table({**columns, **change}), folder / "data" / "a.parquet")
        same(read(folder, MAKING), wanted)
    for bad, message in [
        ({"time": [None, *columns["time"][1:]]}, "row 2: time must increase"),
        ({"a": ["x"] * len(rows)}, "a.parquet cannot be read"),
    ]:
        parquet.write_table(pyarrow.table({**columns, **bad}), folder / "data" / "a.parquet")
        with pytest.raises(BadData, match=message):
            read(folder, MAKING)


def test_a_parquet_file_without_pyarrow_says_what_to_install(folder, monkeypatch):
    (folder / "data" / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadData, match=r"pip install 'fedfilt\[parquet\]'") as caught:
        read(folder, MAKING)
    assert caught.value.said == "its data needs a package that is not installed"


def test_a_parquet_file_that_unpacks_to_much_is_refused(folder, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    zeros = np.zeros(100_000)
    table = {"time": np.arange(100_000) / 10, "a": zeros, "b": zeros, "label": ["walk"] * 100_000}
    parquet.write_table(pyarrow.table(table), folder / "data" / "a.parquet", compression="zstd")
    monkeypatch.setattr(_tables, "LIMIT", 3 << 20)
    assert (folder / "data" / "a.parquet").stat().st_size < 3 << 20
    with pytest.raises(BadData, match="more than 3 MiB"):
        read(folder, MAKING)


def test_channels_are_chosen_by_name_and_columns_may_have_other_names(folder):
    rows = rows_of()
    write_csv(folder / "data" / "a.csv", rows)
    wanted = read(folder, MAKING)
    write_csv(
        folder / "data" / "a.csv",
        [[row[3], "x", row[2], row[0], row[1]] for row in rows],
        ("what", "note", "b", "when", "a"),
    )
    (folder / "own.toml").write_text('time = "when"\nlabel = "what"')
    same(read(folder, Making((2, 4), ("walk", "rest"), channels=("a", "b"))), wanted)


def test_a_window_with_a_missing_value_is_left_out(folder, caplog):
    rows = rows_of()
    rows[9][1] = ""
    write_csv(folder / "data" / "a.csv", rows)
    held = read(folder, MAKING)
    assert len(held.train_x) == 20 - 2
    assert "2 windows with samples that are not finite" in caplog.text


@pytest.mark.slow(3)
def test_real_recordings_as_csv_are_the_windows_of_the_data_set(tmp_path):
    samples = real("watch")
    config = from_table({**load(ROOT / "experiments/watch.toml").table(), "rounds": 2})
    everybody = from_table(
        {**config.table(), "partition": "wearers", "graph": {"name": "homes", "rooms": 10, "devices": 20}}
    )
    experiment = load(split(everybody, tmp_path / "homes", recordings=True))
    assert experiment.data.channels == Watch.channels
    data = Run(experiment).data
    for device in range(20):
        mine = samples.devices == device
        for rows, test in ((data.train[device], False), (data.local_test[device], True)):
            np.testing.assert_array_equal(data.x[rows], samples.x[mine & (samples.test == test)])
            np.testing.assert_array_equal(data.y[rows], samples.y[mine & (samples.test == test)])
        assert not len(data.validation[device])


# --- what is wrong ------------------------------------------------------------------------------------------------


def npz(**arrays):
    return lambda path: np.savez(path / "secret.npz", **{"x": X, "y": Y, **arrays})


def table(rows, head=("time", "a", "b", "label")):
    return lambda path: write_csv(path / "secret.csv", rows, head)


def text(name, content):
    return lambda path: (path / name).write_bytes(content)


def changed(row, column, value):
    rows = rows_of()
    rows[row][column] = value
    return table(rows)


def cut_short(path):
    npz()(path)
    (path / "secret.npz").write_bytes((path / "secret.npz").read_bytes()[:-200])


def lying(path):
    """A .npz file whose header promises far more than there is."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 2, 4)})
    with zipfile.ZipFile(path / "secret.npz", "w") as archive:
        archive.writestr("x.npy", content.getvalue())


BAD = {
    "another shape": (npz(x=X[:, :, :3]), r"x must have shape \(n, 2, 4\), got \(20, 2, 3\)", "have the shape"),
    "no samples' axis": (npz(x=X[0]), "x must have shape", "have the shape"),
    "whole numbers": (npz(x=X.astype(int)), "x must be uint8 or floating-point", "have the shape"),
    "too few labels": (npz(y=Y[:5]), r"y must have shape \(20,\) like x", "have the shape"),
    "label too high": (npz(y=Y + 1), "labels from 0 to 1, got 1 to 2", "a label that"),
    "label too low": (npz(y=Y - 1), "labels from 0 to 1, got -1 to 0", "a label that"),
    "label as fraction": (npz(y=Y / 2), "y must be whole numbers or names", "a label that"),
    "unknown name": (npz(y=np.where(Y, "walks", "rest")), "unknown label 'walks'; did you", "a label that"),
    "bad part": (npz(part=np.full(20, 3)), r"part must be 0 \(train\)", "cannot be read"),
    "misspelt array": (npz(parts=Y), "unknown array 'parts'; did you mean 'part'", "cannot be read"),
    "no y": (lambda path: np.savez(path / "secret.npz", x=X), "must have the arrays x and y, got x", "cannot be read"),
    "pickled": (npz(y=np.array([{}] * 20, object)), "Python objects, which are not loaded", "cannot be read"),
    "cut short": (cut_short, "cannot be read", "cannot be read"),
    "lying header": (lying, "more than 1024 MiB", "too large"),
    "no zip": (text("secret.npz", b"hello"), "cannot be read: File is not a zip file", "cannot be read"),
    "no tensors": (text("secret.safetensors", b"hello" * 9), "cannot be read", "cannot be read"),
    "no table": (text("secret.parquet", b"hello"), "cannot be read", "cannot be read"),
    "a folder": (lambda path: (path / "secret.csv").mkdir(), "cannot be read|regular file", "cannot be read"),
    "a fifo": (lambda path: os.mkfifo(path / "secret.csv"), "is not a regular file", "cannot be read"),
    "a link to nothing": (lambda path: (path / "secret.npz").symlink_to("x"), "No such file", "cannot be read"),
    "empty file": (text("secret.csv", b""), "unknown column 'time'", "lack a column"),
    "no label": (table(rows_of(), ("time", "a", "b", "Label")), "unknown column 'label'; did you mean 'Label'", "lack"),
    "column twice": (table(rows_of(), ("time", "a", "a", "label")), "different names", "a column"),
    "too few channels": (
        table([[r[0], r[1], r[3]] for r in rows_of()], ("time", "a", "label")),
        "2 channels, got a",
        "shape",
    ),
    "too few cells": (table([*rows_of(), [6.0, 1]]), "line 62: it must have 4 cells, got 2", "cannot be read"),
    "no number": (changed(5, 1, "secret"), "line 7: could not convert string to float", "cannot be read"),
    "no time": (changed(5, 0, "noon"), "line 7: time must be seconds or an ISO 8601", "cannot be read"),
    "time stands still": (changed(5, 0, 0.4), "line 7: time must increase", "order of time"),
    "time is NaN": (changed(5, 0, "nan"), "line 7: time must increase", "order of time"),
    "other rate": (table(rows_of(rate=12.0)), "must have about 10 rows per second, got 12", "have the rate"),
    "unknown label": (changed(5, 3, "walks"), "line 7: unknown label 'walks'; did you mean 'walk'", "a label that"),
    "no text": (text("secret.csv", b"time,a,b,label\n\xff\xfe,1,2,walk\n"), "utf-8", "cannot be read"),
    "open quote": (text("secret.csv", b'time,a,b,label\n"1,1,2,walk\n'), "unexpected end of data", "cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_one_clear_line_and_the_server_hears_no_name(folder, case):
    make, message, said = BAD[case]
    make(folder / "data")
    with pytest.raises(BadData, match=message) as caught:
        read(folder, MAKING)
    error = caught.value
    assert said in error.said
    assert "secret" in str(error)
    assert "\n" not in str(error)
    private = {"secret", "walk", "rest", str(folder)}
    assert not any(word in error.said for word in private)
    assert not re.search(r"\d", error.said)
    again = pickle.loads(pickle.dumps(error))  # as it travels from a worker process of this machine
    assert (str(again), again.said) == (str(error), error.said)


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=20),
    st.text(max_size=20),
)
@settings(max_examples=30)
def test_the_server_hears_of_no_label_and_no_file(tmp_path_factory, stem, label):
    folder = tmp_path_factory.mktemp("device")
    (folder / "data").mkdir()
    np.savez(folder / "data" / f"x{stem}.npz", x=X[:1], y=np.array([f"not {label}"]))
    with pytest.raises(BadData) as caught:
        read(folder, MAKING)
    assert caught.value.said == own.UNKNOWN_LABEL
    assert len(str(caught.value).splitlines()) == 1


@given(st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255), st.booleans()), min_size=1, max_size=4))
def test_a_damaged_header_is_bad_data_whatever_it_makes_numpy_raise(tmp_path_factory, damage):
    folder = tmp_path_factory.mktemp("device")
    (folder / "data").mkdir()
    content = io.BytesIO()
    np.save(content, X)
    header = bytearray(content.getvalue())
    for place, byte, insert in [*damage, (20, ord("("), False)]:
        header[place : place + (not insert)] = bytes([byte])
    with zipfile.ZipFile(folder / "data" / "a.npz", "w") as archive:  # whose checksums are right
        archive.writestr("x.npy", bytes(header))
    with pytest.raises(BadData):
        read(folder, MAKING)


def test_files_of_one_folder_must_have_the_same_channels(folder):
    write_csv(folder / "data" / "a.csv", rows_of())
    write_csv(folder / "data" / "b.csv", rows_of(), ("time", "b", "a", "label"))
    with pytest.raises(BadData, match=r"b\.csv must have the channels of a\.csv"):
        read(folder, MAKING)


def test_a_folder_that_is_missing_or_unreadable_is_bad_and_an_empty_one_is_a_device_without_samples(tmp_path, caplog):
    with pytest.raises(BadData, match="there is no folder") as caught:
        read(tmp_path, MAKING)
    assert caught.value.said == "it has no data folder"
    (tmp_path / "data").write_text("a file")
    with pytest.raises(BadData, match="cannot be read: Not a directory"):
        read(tmp_path, MAKING)
    (tmp_path / "data").unlink()
    (tmp_path / "data").mkdir()
    empty = read(tmp_path, MAKING)
    write_csv(tmp_path / "data" / "a.csv", rows_of(label=""))
    unlabelled = read(tmp_path, MAKING)
    write_csv(tmp_path / "data" / "a.csv", [])
    for held in (empty, unlabelled, read(tmp_path, MAKING)):
        assert [part.shape for part in held[:6]] == [(0, 2, 4), (0,)] * 3
        assert held.train_x.dtype == np.float32
    assert not caplog.records
    (tmp_path / "data" / "notes.txt").write_text("hello")
    write_csv(tmp_path / "data" / "a.csv", rows_of(3))
    assert not len(read(tmp_path, MAKING).train_x)
    assert "notes.txt is ignored" in caplog.text
    assert "no recording is as long as a window of 4 rows" in caplog.text


def test_large_files_and_folders_are_refused_before_they_are_read(folder, monkeypatch):
    for name in "ab":
        np.savez(folder / "data" / f"{name}.npz", x=np.zeros((6000, 2, 4), np.float32), y=np.zeros(6000, int))
    write_csv(folder / "data" / "c.csv", rows_of(40_000))
    monkeypatch.setattr(_tables, "LIMIT", 1 << 20)
    with pytest.raises(BadData, match=r"c\.csv takes more than 1 MiB") as caught:
        read(folder, MAKING)
    assert caught.value.said == "its data is too large"
    (folder / "data" / "c.csv").unlink()
    read(folder, MAKING)
    for name in "cdefgh":
        shutil.copy(folder / "data" / "a.npz", folder / "data" / f"{name}.npz")
    with pytest.raises(BadData, match="data takes more than 1 MiB"):
        read(folder, MAKING)
    for name in "abcdefgh":
        (folder / "data" / f"{name}.npz").unlink()
    write_csv(folder / "data" / "c.csv", rows_of(5000))
    with pytest.raises(BadData, match="cut into windows, takes more than 1 MiB"):
        read(folder, Making((2, 1000), ("walk", "rest"), step=1))


def test_a_packed_member_that_unpacks_to_much_is_refused(folder, monkeypatch):
    np.savez_compressed(folder / "data" / "a.npz", x=np.zeros((50_000, 2, 4)), y=np.zeros(50_000, int))
    monkeypatch.setattr(_tables, "LIMIT", 1 << 20)
    assert (folder / "data" / "a.npz").stat().st_size < 1 << 20
    with pytest.raises(BadData, match="more than 1 MiB"):
        read(folder, MAKING)


# --- changes ------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_again_only_when_it_has_changed(folder):
    source = Source(folder, MAKING)
    first = source.held()
    assert source.held() is first
    np.savez(folder / "data" / "a.npz", x=X, y=Y)
    second = source.held()
    assert len(second.train_x) == 14
    assert source.held() is second
    os.utime(folder / "data" / "a.npz", ns=(1, 1))
    assert source.held() is not second
    (folder / "data" / "b.csv").write_text("broken")
    for _ in range(2):
        with pytest.raises(BadData, match=r"b\.csv"):
            source.held()
    (folder / "data" / "b.csv").unlink()
    same(source.held(), second)
    (folder / "own.toml").write_text('data = "elsewhere"')
    with pytest.raises(BadData, match=r"there is no folder .*elsewhere"):
        source.held()
    (folder / "data").rename(folder / "elsewhere")
    same(source.held(), second)


@pytest.mark.parametrize("often", [1, 99])
def test_a_file_that_changes_while_it_is_read_is_read_again(folder, monkeypatch, often):
    path, calls = folder / "data" / "a.npz", []
    np.savez(path, x=X, y=Y)
    given = own.read_samples

    def meddling(name):
        found = given(name)
        calls.append(name)
        if len(calls) <= often:
            np.savez(path, x=X[: 20 - len(calls)], y=Y[: 20 - len(calls)])
            os.utime(path, ns=(len(calls), len(calls)))
        return found

    monkeypatch.setattr(own, "read_samples", meddling)
    source = Source(folder, MAKING)
    if often == 1:
        assert sum(map(len, source.held()[0:6:2])) == 19
        assert len(calls) == 2
    else:
        with pytest.raises(BadData, match="keeps changing while it is read") as caught:
            source.held()
        assert caught.value.said == "its data changes while it is read"
        assert len(calls) == own.TRIES


def test_a_file_that_is_broken_only_while_it_is_written_is_no_problem(folder, monkeypatch):
    path = folder / "data" / "a.npz"
    path.write_bytes(b"half")
    monkeypatch.setattr(own.time, "sleep", lambda seconds: None)
    given = own.read_samples

    def later(name):
        if path.stat().st_size == 4:
            np.savez(path, x=X, y=Y)
            raise BadData("half a file")
        return given(name)

    monkeypatch.setattr(own, "read_samples", later)
    assert len(read(folder, MAKING).train_x) == 14


# --- the owner ----------------------------------------------------------------------------------------------------


def test_the_owner_says_where_the_data_is_and_what_is_reported(folder):
    assert owner(folder) == Owner()
    (folder / "own.toml").write_text('data = "here"\n[report]\nloss = false\ntest = false\n')
    assert owner(folder) == Owner(data="here", report=Report(loss=False, test=False))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('dada = "x"', "unknown key 'dada'; did you mean 'data'"),
        ("data = 3", "data must be a text, got 3"),
        ("report = 3", "report must be a table"),
        ("[report]\nlos = true", "unknown key 'los'; did you mean 'loss'"),
        ('[report]\nloss = "no"', "loss must be true or false"),
        ('reader = "mine"', "reader must be module:Class"),
        ("data = ", "Invalid value"),
        ("\udcff", "utf-8"),
    ],
)
def test_settings_that_are_wrong_are_named(folder, content, message):
    (folder / "own.toml").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(BadData, match=message) as caught:
        owner(folder)
    assert "own.toml" in str(caught.value)
    assert caught.value.said == "its settings are wrong or cannot be read"


READERS = """
    import numpy as np
    from fedfilt.data.windows import Recording

    class Samples:
        def __init__(self, place):
            self.place = place
        def __call__(self, making):
            with np.load(self.place / "a.npz") as file:
                return file["x"], file["y"]

    class Recordings:
        version = lambda self: VERSION
        def __init__(self, place): ...
        def __call__(self, making):
            rows = np.random.default_rng(0).standard_normal((60, 2))
            return [Recording(7, 7, 0, rows, making.rate)]

    class Meddling(Samples):
        def __call__(self, making):
            found = super().__call__(making)
            (self.place / f"{len(list(self.place.iterdir()))}.npz").touch()
            return found

    class Failing:
        def __init__(self, place): ...
        def __call__(self, making):
            raise ZeroDivisionError("secret")

    class Odd(Failing):
        def __call__(self, making):
            return 5

    class Wrong(Failing):
        def __call__(self, making):
            return [Recording(0, 0, 5, np.zeros((9, 2)))]

    VERSION = 1
"""


def test_a_reader_of_the_owners_choice_reads_the_data(folder, monkeypatch, tmp_path, trusted):
    (tmp_path / "own_readers.py").write_text(textwrap.dedent(READERS))
    monkeypatch.syspath_prepend(tmp_path)
    np.savez(folder / "data" / "a.npz", x=X, y=Y)
    write_csv(folder / "b.csv", rows_of())
    wanted = read(folder, MAKING)

    def choose(name):
        (folder / "own.toml").write_text(f'reader = "own_readers:{name}"')

    choose("Samples")
    same(read(folder, MAKING), wanted)
    choose("Recordings")
    source = Source(folder, MAKING)
    found = source.held()
    assert source.held() is found
    monkeypatch.setattr(sys.modules["own_readers"], "VERSION", 2)
    again = source.held()
    assert again is not found
    (folder / "data" / "a.npz").unlink()
    (folder / "b.csv").rename(folder / "data" / "b.csv")
    (folder / "own.toml").unlink()
    same(read(folder, MAKING), again)
    np.savez(folder / "data" / "a.npz", x=X, y=Y)
    for name, message, said in [
        ("Failing", r"own_readers:Failing failed: ZeroDivisionError\('secret'\)", "reader of its data failed"),
        ("Odd", "own_readers:Odd failed", "reader of its data failed"),
        ("Missing", "cannot load 'own_readers:Missing'", "reader of its data failed"),
        ("Wrong", "a recording has the label 5", "a label that"),
        ("Meddling", "keeps changing", "changes while it is read"),
    ]:
        choose(name)
        with pytest.raises(BadData, match=message) as caught:
            read(folder, MAKING)
        assert said in caught.value.said


def test_a_light_device_needs_no_more_than_numpy_and_safetensors():
    heavy = "scipy", "torch", "pandas", "pyarrow", "sklearn"
    code = f"import sys, fedfilt.data.own, fedfilt.datasets.own; assert not set({heavy}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the experiment -----------------------------------------------------------------------------------------------


def test_what_an_experiment_may_not_say_is_named():
    for options, message in [
        ({"shape": (0, 4)}, r"data\.shape must be a whole number >= 1"),
        ({"labels": ("a", "a")}, "different names"),
        ({"labels": ("",)}, "different names"),
        ({"channels": ("a", "a")}, "different names"),
        ({"shape": (3, 4), "channels": ("a",)}, "must name 3 columns"),
        ({"step": -1}, r"data\.step"),
        ({"rate": -1.0}, r"data\.rate"),
        ({"test_share": 0.95}, r"data\.test_share"),
        ({"test_share": 0.5, "validation_share": 0.5}, "leave at least 0.1"),
        ({"soft": 1.0, "scale": False}, "needs data.scale"),
    ]:
        with pytest.raises(ValueError, match=message):
            Own(**options)
    with pytest.raises(ValueError, match=r'"own" needs the shape and labels'):
        Own().federated(3)
    with pytest.raises(ValueError, match=r'"own" needs the shape and labels'):
        Source(Path(), Making())


def homes(place, count=3):
    for device in range(count):
        (place / f"home-{device}" / "data").mkdir(parents=True)
        if device != 1:
            np.savez(place / f"home-{device}" / "data" / "a.npz", x=X + device, y=Y)
    (place / "home-file").touch()
    return str(place / "home-*")


def test_folders_on_one_machine_are_what_the_devices_read(tmp_path):
    folders = homes(tmp_path)
    np.savez(tmp_path / "public.npz", x=X * 3, y=Y)
    public = Public(str(tmp_path / "public.npz"))
    part = Own(shape=(2, 4), labels=("walk", "rest"), folders=folders, public=public)
    data = part.federated(3)
    assert not data.elsewhere
    assert (data.name, data.classes, data.count) == ("own", 2, 3)
    for device in range(3):
        held = read(tmp_path / f"home-{device}", part)
        for rows, x, y in (
            (data.train[device], held.train_x, held.train_y),
            (data.validation[device], held.validation_x, held.validation_y),
            (data.local_test[device], held.test_x, held.test_y),
        ):
            np.testing.assert_array_equal(data.x[rows], x)
            np.testing.assert_array_equal(data.y[rows], y)
    np.testing.assert_array_equal(data.x[data.global_test], Scaling.of(X * 3).apply(X * 3))
    with pytest.raises(ValueError, match="finds 3 folders, but the graph has 4 devices"):
        part.federated(4)
    np.savez(tmp_path / "public.npz", x=np.zeros((1, 2, 4), np.uint8), y=[0])
    with pytest.raises(ValueError, match="all uint8 or all floating-point"):
        part.federated(3)


def test_without_folders_the_data_is_elsewhere(tmp_path):
    part = Own(shape=(2, 4), labels=("walk", "rest"), kinds=("a", "b", "a"))
    data = part.federated(3)
    assert isinstance(data, FederatedData)
    assert data.elsewhere
    assert data.x.shape == (0, 2, 4)
    assert [len(rows) for rows in (*data.train, *sure(data.local_test), data.global_test)] == [0] * 7
    assert data.kinds == ("a", "b", "a")
    np.savez(tmp_path / "public.npz", x=X, y=Y)
    data = Own(shape=(2, 4), labels=("walk", "rest"), public=Public(str(tmp_path / "public.npz"))).federated(2)
    assert data.elsewhere
    assert data.x.shape == (20, 2, 4)
    assert data.global_test.tolist() == list(range(20))
    with pytest.raises(ValueError, match="2 entries, one per device, got 3"):
        part.federated(2)


def test_an_experiment_with_own_data_comes_back_from_its_file():
    table = {"name": "own", "shape": [2, 4], "labels": ["walk", "rest"], "public": {"file": "p.npz"}}
    config = from_table({"data": table})
    assert config.data == Own(shape=(2, 4), labels=("walk", "rest"), public=Public("p.npz"))
    with pytest.raises(ValueError, match=r"unknown key in data\.public 'fil'; did you mean 'file'"):
        from_table({"data": {**table, "public": {"fil": "p.npz"}}})


# --- data split ---------------------------------------------------------------------------------------------------


def models_of(path, folder):
    assert call("run", path, "--out", folder).returncode == 0
    return json.loads((folder / "result.json").read_text())["models_sha256"]


@pytest.mark.slow(4)
def test_a_split_experiment_gives_the_same_models_with_recordings_too(tmp_path):
    real("watch")
    words: Any = ROOT / "experiments/watch.toml", "rounds=2", "evaluation.every=2"
    done = call("data", "split", *words, "--out", tmp_path / "homes")
    assert done.returncode == 0, done.stderr
    assert "16 devices" in done.stdout
    small = tmp_path / "small.toml"
    small.write_text(load(words[0], words[1:]).toml())
    assert models_of(tmp_path / "homes" / "experiment.toml", tmp_path / "a") == models_of(small, tmp_path / "b")
    done = call("data", "split", *words, "--out", tmp_path / "recorded", "--recordings")
    assert done.returncode == 0, done.stderr
    assert models_of(tmp_path / "recorded" / "experiment.toml", tmp_path / "c")


@pytest.mark.parametrize("test", [10, "whole"])
def test_any_data_set_can_be_split(tmp_path, monkeypatch, test):
    monkeypatch.chdir(tmp_path)
    room: dict[str, Any] = {
        **ROOM,
        "engine": {"workers": 1},
        "samples": {"train": 20, "local_test": test, "global_test": "whole"},
    }
    path = split(from_table(room), Path("homes"))
    names = ["device-000", "device-001", "device-002", "device-003", "experiment.toml", "public.npz"]
    assert sorted(one.name for one in path.parent.iterdir()) == names
    made, wanted = Run(load(path)), Run(from_table(room))
    np.testing.assert_array_equal(made.data.label_counts, wanted.data.label_counts)
    np.testing.assert_array_equal(made.data.x[made.data.global_test], wanted.data.x[wanted.data.global_test])
    for device in range(4):
        labels = set(made.data.y[made.data.local_test[device]])
        assert labels == set(np.flatnonzero(wanted.data.label_counts[device]))
    assert models_of(path, tmp_path / "a") == finish(tmp_path / "b", **room)["models_sha256"]


def test_a_split_is_all_or_nothing(tmp_path, monkeypatch):
    room = tmp_path / "room.toml"
    room.write_text(from_table(ROOM).toml())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    done = call("data", "split", room, "--out", tmp_path / "full")
    assert (done.returncode, done.stderr.count("new or empty folder")) == (1, 1)
    done = call("data", "split", room, "--out", tmp_path / "homes", "--recordings")
    assert "--recordings needs a data set of recordings" in done.stderr
    done = call("data", "split", room, "data=own", "data.shape=[2]", "data.labels=['a']", "--out", tmp_path / "homes")
    assert "already on its devices" in done.stderr

    def full(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr("fedfilt.runs.split.write_atomically", full)
    done = call("data", "split", room, "--out", tmp_path / "homes")
    assert done.stderr.strip().endswith("error: no space left")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["full", "room.toml"]


def test_kinds_of_devices_survive_a_split(tmp_path):
    line = ",".join(map(str, range(45)))
    with zipfile.ZipFile(tmp_path / "few.zip", "w") as archive:
        for segment in (1, 2, 3):
            archive.writestr(f"a01/p1/s0{segment}.txt", "\n".join([line] * 125))
    config = from_table(
        {
            "data": {"name": "dsads", "sensors": "mixed", "archive": str(tmp_path / "few.zip")},
            "partition": "wearers",
            "samples": {"train": 10, "local_test": "whole", "global_test": "whole"},
            "graph": {"name": "homes", "rooms": 1, "devices": 5},
            "model": "motifs",
        }
    )
    made = load(split(config, tmp_path / "homes"))
    assert made.data.kinds[:3] == ("watch", "phone", "unit")
    assert Run(made).data.kinds == made.data.kinds


def test_own_data_is_listed_and_cannot_be_fetched():
    done = call("data", "list")
    assert re.search(r"own\s*│\s*on devices", done.stdout)
    done = call("data", "get", "own")
    assert "own data stays on the devices" in done.stderr
    with pytest.raises(ValueError, match="stays on the devices"):
        Own().load(Store())


def test_recordings_are_split_in_the_order_of_time_whatever_their_files_are_called(folder, caplog):
    write_csv(folder / "data" / "rec-10.csv", rows_of(start=1000.0, seed=1))
    write_csv(folder / "data" / "rec-2.csv", rows_of(start=0.0, seed=2))
    found = read(folder, MAKING)
    for old, new in (("rec-10", "b"), ("rec-2", "a")):
        (folder / "data" / f"{old}.csv").rename(folder / "data" / f"{new}.csv")
    same(found, read(folder, MAKING))
    shutil.copyfile(folder / "data" / "a.csv", folder / "data" / "a (copy).csv")
    same(found, read(folder, MAKING))
    assert "a.csv is skipped: it is a copy of a (copy).csv" in caplog.text
    write_csv(folder / "data" / "c.csv", rows_of(start=3.0, seed=3))
    read(folder, MAKING)
    assert "overlap: they are used in order of their names" in caplog.text


FAILING = {
    "a label by name": "return [Recording(0, 0, 'walk', np.zeros((9, 2)))]",
    "half a label": "return [Recording(0, 0, 0.7, np.zeros((9, 2)))]",
    "texts": "return [Recording(0, 0, 0, np.full((9, 2), 'x'))]",
    "an exit": "raise SystemExit(3)",
    "no end": "time.sleep(900)",
}


@pytest.mark.parametrize("name", FAILING)
def test_a_reader_that_fails_in_any_way_is_bad_data(folder, monkeypatch, name, trusted):
    monkeypatch.setattr(own, "READING", 0.3)
    head = "import time\nimport numpy as np\nfrom fedfilt.data.windows import Recording\nclass Reader:\n"
    module = "reader_" + name.replace(" ", "_")
    methods = f" def __init__(self, folder): pass\n def __call__(self, making): {FAILING[name]}\n"
    (folder / f"{module}.py").write_text(head + methods)  # beside own.toml, where it is found
    (folder / "own.toml").write_text(f'reader = "{module}:Reader"\n')
    with pytest.raises(BadData) as caught:
        read(folder, MAKING)
    assert not any(letter.isdigit() for letter in caught.value.said)
