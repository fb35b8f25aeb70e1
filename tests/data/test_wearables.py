"""Recordings of wearables: read without running anything, cut in time, scaled device by device."""

import gzip
import hashlib
import io
import os
import pickle
import sys
import tarfile
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import _parts as parts
from fedfilt.data._pickles import frame_columns, read_arrays, read_npy_dict
from fedfilt.data.deal import Sizes
from fedfilt.data.store import DataFile, DataMissing, Package, Store
from fedfilt.data.windows import Recording, windows
from fedfilt.datasets import Dsads, Hapt, Watch
from fedfilt.partitions import Wearers
from helpers import real, sure


def recording(device=0, label=0, length=40, person=None, channels=2, **options):
    rng = np.random.default_rng(1000 * device + label)
    signal = rng.standard_normal((length, channels))
    return Recording(device, device if person is None else person, label, signal, **options)


# --- pickles ------------------------------------------------------------------------------------------------------


class Hostile:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "call",
    [
        lambda mark: Hostile(os.system, f"touch {mark}"),
        lambda mark: Hostile(exec, f"import os; os.mkdir({str(mark)!r})"),
        lambda mark: Hostile(os.mkdir, str(mark)),
        lambda mark: {"X": [np.arange(3), Hostile(eval, f"__import__('os').mkdir({str(mark)!r})")]},
    ],
)
def test_a_hostile_pickle_does_nothing(tmp_path, call, protocol):
    mark = tmp_path / "was-run"
    content = pickle.dumps(call(mark), protocol=protocol)
    with pytest.raises(ValueError, match=r"x is refused: it names .*only arrays of numbers are read"):
        read_arrays(io.BytesIO(content), "x")
    assert not mark.exists()
    pickle.loads(content)  # and it would have: the test can fail
    assert mark.exists()


def test_a_pickle_cannot_reach_into_what_it_names():
    # BUILD on a stand-in, as in {"__defaults__": ...} on a function; numpy arrays of objects hold only what is read
    build = b"\x80\x02c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb."
    with pytest.raises(ValueError, match="may not change what it names"):
        read_arrays(io.BytesIO(build), "x")
    with pytest.raises(ValueError, match=r"arrays with fields|arrays of type"):
        read_arrays(io.BytesIO(pickle.dumps(np.zeros(2, [("a", "f8")]), protocol=2)), "x")
    with pytest.raises(ValueError, match=r"x is refused|x is damaged"):
        read_arrays(io.BytesIO(b"\x80\x02cnumpy\nndarray\nK\x00\x85R(K\x01M\xe8\x03\x85NK\x00Ntb."), "x")
    loop = b"\x80\x02]q\x00h\x00a."  # a list that holds itself
    with pytest.raises(ValueError, match="x is refused"):
        read_arrays(io.BytesIO(loop), "x")
    laughs: Any = np.arange(2)
    for _ in range(60):  # 2^60 arrays, if each was looked at
        laughs = [laughs, laughs]
    assert len(read_arrays(io.BytesIO(pickle.dumps(laughs, protocol=2)), "x")) == 2
    with pytest.raises(ValueError, match=r"x is (refused|damaged)"):
        read_arrays(io.BytesIO(pickle.dumps([1, 2, 3])[:-2]), "x")
    with pytest.raises(ValueError, match=r"not a \.npy file"):
        read_npy_dict(b"nothing", "x")


@given(
    st.sampled_from(["f8", "f4", "i8", "u1", "i2", "b1", ">f8"]), st.integers(0, 5), st.booleans(), st.integers(2, 4)
)
def test_arrays_come_through_with_their_bits(kind, size, fortran, protocol):
    array = np.random.default_rng(0).integers(0, 2, (size, 3)).astype(kind)
    array = np.asfortranarray(array) if fortran else array
    content = pickle.dumps({"a": [array], "b": ("text", None, 1.5)}, protocol=protocol)
    found = read_arrays(io.BytesIO(content), "x")
    np.testing.assert_array_equal(found["a"][0], array)
    assert found["a"][0].dtype == array.dtype
    assert found["b"] == ("text", None, 1.5)


@pytest.mark.slow(3)
def test_a_source_archive_is_opened_and_its_set_up_code_never_run(tmp_path, monkeypatch):
    mark = tmp_path / "was-run"
    place = tmp_path / "carrier-1.0.tar.gz"
    with tarfile.open(place, "w:gz") as archive:
        for name, content in {
            "setup.py": f"open({str(mark)!r}, 'w')\nfrom setuptools import setup\nsetup(name='carrier', version='1.0')",
            "PKG-INFO": "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n",
            "x.bin": "hello",
        }.items():
            member = tarfile.TarInfo(f"carrier-1.0/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.delenv("FEDFILT_DATA", raising=False)
    sha256 = hashlib.sha256(place.read_bytes()).hexdigest()
    for known, inside, error in [
        (sha256, "carrier-1.0/x.bin", None),
        ("0" * 64, "carrier-1.0/x.bin", "wrong sha256"),
        (sha256, "carrier-1.0/y.bin", "y.bin"),
    ]:
        package = Package("carrier", "1.0", known, inside, source=True)
        file = DataFile("set", "x.bin", 5, hashlib.sha256(b"hello").hexdigest(), package=package)
        store = Store(cache=tmp_path / str(error))
        if error:
            with pytest.raises(DataMissing, match=error):
                store.path(file)
        else:
            assert store.path(file).read_bytes() == b"hello"
    assert not mark.exists()


# --- the data sets ------------------------------------------------------------------------------------------------


def test_watch_is_twenty_devices_with_seven_exercises():
    samples = real("watch")
    assert samples.x.shape[1:] == (6, 100)
    assert samples.classes == 7
    for device in range(20):
        own = samples.devices == device
        assert set(sure(samples.writers)[own]) == {device // 2}
        assert set(samples.y[own & ~samples.test]) == set(samples.y[own & samples.test]) == set(range(7))
    assert samples.moments is None


@pytest.mark.slow(2)
def test_hapt_is_thirty_phones_and_needs_no_pandas():
    before = "pandas" in sys.modules
    samples = real("hapt")
    assert ("pandas" in sys.modules) == before
    assert samples.x.shape[1:] == (6, 128)
    assert len(np.unique(sure(samples.devices))) == 30
    assert np.bincount(samples.y).min() > 1000
    more = real("hapt", transitions=True, window=64, step=32)
    assert set(more.y) == set(range(12))


@pytest.mark.slow(4)
def test_dsads_is_five_units_on_eight_people_at_the_same_moments():
    samples = real("dsads")
    assert samples.x.shape == (8 * 5 * 19 * 15, 9, 125)
    moments, seen = np.unique(sure(samples.moments), return_counts=True)
    assert (seen == 5).all()
    assert len(moments) == 8 * 19 * 15
    for moment in moments[::97]:
        same = samples.moments == moment
        assert len(set(sure(samples.writers)[same])) == len(set(samples.y[same])) == 1
        assert sorted(sure(samples.devices)[same] % 5) == [0, 1, 2, 3, 4]
        assert len(set(samples.test[same])) == 1


@pytest.mark.slow(4)
def test_dsads_with_unlike_sensors_zeroes_what_a_kind_does_not_measure():
    samples = real("dsads", sensors="unlike")
    assert sure(samples.kinds)[:5] == ("phone", "watch", "watch", "unit", "unit")
    for device, channels in enumerate([6, 3, 3, 9, 9]):
        own = samples.x[samples.devices == device]
        assert (own[:, channels:] == 0).all()
        assert (own[:, :channels].std(axis=(0, 2)) > 0.1).all()


@pytest.mark.slow(4)
def test_dsads_with_mixed_sensors_has_every_kind_in_every_home_and_place():
    samples = real("dsads", sensors="mixed")
    kinds = np.array(samples.kinds).reshape(8, 5)
    for group in (*kinds, *kinds.T):
        assert set(group) == {"watch", "phone", "unit"}
    for device, kind in enumerate(sure(samples.kinds)):
        used = (samples.x[samples.devices == device] != 0).any(axis=(0, 2))
        assert used.sum() == {"watch": 3, "phone": 6, "unit": 9}[kind]


def small_dsads(path, shape=(125, 45), name="data/a01/p1/s01.txt", text=None):
    with zipfile.ZipFile(path, "w") as archive:
        for segment in ("s01", "s02", "s03"):
            table = np.random.default_rng(0).random(shape)
            lines = "\n".join(",".join(f"{v:.4f}" for v in row) for row in table)
            archive.writestr(name.replace("s01", segment), lines if text is None else text)
    return str(path)


def test_dsads_reads_any_archive_of_that_layout_and_names_what_is_wrong(tmp_path):
    samples = Dsads(archive=small_dsads(tmp_path / "a.zip")).load(Store())
    assert samples.x.shape == (15, 9, 125)
    assert samples.test.sum() == 5
    for archive, message in [
        (small_dsads(tmp_path / "b.zip", shape=(125, 36)), "must hold 125 lines of 45 numbers"),  # a unit is missing
        (small_dsads(tmp_path / "c.zip", text="a,b"), "must hold 125 lines of 45 numbers"),
        (small_dsads(tmp_path / "d.zip", name="other/s01.txt"), "holds no segments"),
        (str(tmp_path / "nothing.zip"), "cannot be read as a zip archive"),
    ]:
        with pytest.raises(ValueError, match=message):
            Dsads(archive=archive).load(Store())
    with pytest.raises(ValueError, match=r"unknown data\.sensors 'alike'.*did you mean 'unlike'"):
        Dsads(sensors="alike")


def test_dsads_keeps_the_channels_and_the_rate_of_every_kind_or_fills_them_up(tmp_path):
    archive = small_dsads(tmp_path / "a.zip")
    kinds = {"sensors": "mixed", "watch_rate": 12.5, "archive": archive}
    plain = Dsads(archive=archive).recordings(Store())
    own, filled = (Dsads(**kinds, pad=pad).recordings(Store()) for pad in (False, True))
    for full, one, other in zip(plain, own, filled, strict=True):
        channels, every = [(3, 2), (6, 1), (9, 1)][(one.person + one.device % 5) % 3]  # watch, phone, unit
        np.testing.assert_array_equal(one.signal, full.signal[::every, :channels])
        assert (one.rate, other.rate) == (25 / every, 25)
        assert other.signal.shape == (125, 9)
        np.testing.assert_array_equal(other.signal[::every, :channels], one.signal)
        if every == 2:  # every value of a watch twice
            np.testing.assert_array_equal(other.signal[1::2], other.signal[:-1:2])
        assert not other.signal[:, channels:].any()
    with pytest.raises(ValueError, match=r"data\.watch_rate must be 25 or 12\.5, got 50"):
        Dsads(watch_rate=50.0)


def test_a_missing_dsads_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDFILT_DATA", raising=False)
    with pytest.raises(DataMissing, match="UCI data set 256"):
        Dsads().load(Store(cache=tmp_path, offline=True))


@pytest.mark.parametrize("kind", [Watch, Hapt])
def test_a_hostile_file_in_place_of_a_data_set_does_nothing(tmp_path, monkeypatch, kind):
    mark = tmp_path / "was-run"
    content = pickle.dumps(Hostile(os.system, f"touch {mark}"))
    if kind is Watch:
        buffer = io.BytesIO()
        np.save(buffer, np.array({"X": Hostile(os.system, f"touch {mark}")}, dtype=object), allow_pickle=True)
        content = buffer.getvalue()
    folder, name = kind.files[0].folder, kind.files[0].name
    content = gzip.compress(content) if name.endswith(".gz") else content
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(kind, "files", (DataFile(folder, name, len(content), hashlib.sha256(content).hexdigest()),))
    with pytest.raises(ValueError, match="is refused"):
        kind().load(Store(cache=tmp_path / "cache", folder=tmp_path, offline=True))
    assert not mark.exists()


def test_a_table_of_another_shape_is_named():
    with pytest.raises(ValueError, match="x is damaged: it is no table with the columns a"):
        frame_columns({"no": "frame"}, ("a",), "x")


# --- windows ------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(5, 60), min_size=1, max_size=4), st.integers(2, 12), st.integers(1, 12), st.floats(0.1, 0.6)
)
def test_no_window_of_the_test_overlaps_one_of_training(lengths, window, step, share):
    """Every sample of a recording is its own number: what a test window holds, no training window may hold."""
    start, parts_of_time = 0, []
    for length in lengths:
        parts_of_time.append(Recording(0, 0, 0, np.arange(start, start + length, dtype=float)[:, None]))
        start += length
    cut = round((1 - share) * start)
    try:
        samples = windows("made", parts_of_time, window, step, share)
    except ValueError as error:
        assert "no whole window" in str(error)  # noqa: PT017
        return
    # Undo the scaling, which is one line for all samples of the device
    raw = samples.x[:, 0].astype(float)
    slope = raw[0, 1] - raw[0, 0]
    times = np.round((raw - raw[0, 0]) / slope)
    train, test = times[~samples.test], times[samples.test]
    assert not np.isin(test, train).any()
    if len(test):
        assert train.max() < test.min(), "the test is later than training"
        assert train.max() < cut
    assert (np.diff(times, axis=1) == 1).all(), "no window runs over the end of a recording"


def test_every_device_is_scaled_by_its_own_training_windows():
    loud = recording(0)._replace(signal=100 + 50 * recording(0).signal)
    samples = windows("made", [loud, recording(1)], window=4, step=4, test_share=0.25)
    for device in (0, 1):
        known = samples.x[(samples.devices == device) & ~samples.test]
        np.testing.assert_allclose(known.mean(axis=(0, 2)), 0, atol=1e-5)
        np.testing.assert_allclose(known.std(axis=(0, 2)), 1, atol=1e-5)
    louder = loud._replace(signal=np.concatenate([loud.signal[:30], 1e6 + loud.signal[30:]]))
    shifted = windows("made", [louder, recording(1)], window=4, step=4, test_share=0.25)
    np.testing.assert_array_equal(shifted.x[~shifted.test], samples.x[~samples.test])  # the test does not scale
    assert shifted.x.max() == 10


def test_bad_recordings_are_named():
    for bad, message in [
        ([], "must have recordings, got none"),
        (
            [recording(0), recording(1, rate=25.0)],
            "device 1 has 25 samples per second, others 50; bring all to one rate",
        ),
        ([recording(0), recording(1, channels=1)], r"device 1 must have 2 channels like others, got shape \(40, 1\)"),
        ([recording(0), recording(1)._replace(signal=np.zeros(40))], "device 1 must have 2 channels"),
        ([recording(0), recording(2)], r"devices must be numbered 0, 1, 2, ..., got \[0, 2\]"),
        ([recording(0), recording(0, person=3)], "belongs to person 3, others to person 0"),
        ([recording(0, label=3)._replace(label=-1)], "the label of made: .* device 0 must be a whole number >= 0"),
        ([recording(0), recording(1, length=3)], "device 1 has no whole window for training"),
        ([recording(0)._replace(signal=np.full((40, 2), np.nan))], "device 0 has no whole window for training"),
    ]:
        with pytest.raises(ValueError, match=message):
            windows("made", bad, window=4, step=2)
    cases: list[Any] = [((1, 1), "window must be"), ((4, 0), "step must be"), ((4, 1, 0.95), "test_share must")]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            windows("made", [recording()], *options)


def test_windows_with_samples_that_are_not_finite_are_left_out_and_said(caplog):
    signal = recording().signal.copy()
    signal[9, 1] = np.nan
    samples = windows("made", [recording()._replace(signal=signal)], window=4, step=2)
    whole = windows("made", [recording()], window=4, step=2)
    assert len(whole.x) - len(samples.x) == 2  # windows 6..9 and 8..11
    assert np.isfinite(samples.x).all()
    assert "2 windows with samples that are not finite" in caplog.text


def test_soft_windows_are_the_asinh_of_scaled_ones():
    hard, soft = (windows("made", [recording()], window=4, step=2, soft=soft) for soft in (0.0, 3.0))
    np.testing.assert_allclose(soft.x, np.arcsinh(3 * hard.x.astype(float)), rtol=1e-5)
    assert soft.x.dtype == np.float32
    with pytest.raises(ValueError, match="soft must be"):
        windows("made", [recording()], window=4, step=2, soft=-1.0)


def test_a_channel_that_never_changes_is_zero():
    signal = recording().signal.copy()
    signal[:, 1] = 7
    assert (windows("made", [recording()._replace(signal=signal)], window=4, step=2).x[:, 1] == 0).all()


# --- who holds what -----------------------------------------------------------------------------------------------


def home(people=4, labels=3):
    """Two devices a person; label 2 is seen by device 0 only."""
    found = [
        recording(2 * person + side, label, person=person)
        for person in range(people)
        for side in (0, 1)
        for label in range(labels)
        if label != 2 or (person, side) == (0, 0)
    ]
    return windows("made", found, window=4, step=2)


def test_unseen_people_are_in_no_training_and_are_the_global_test():
    samples = home()
    rng = np.random.default_rng(3)
    data = Wearers(unseen=1)(samples, np.zeros(6, int), Sizes(450, "whole", "whole"), rng)
    assert data.count == 6
    held = np.concatenate([*data.train, *sure(data.local_test)])
    strangers = set(samples.writers[data.global_test])
    assert len(strangers) == 1
    assert not strangers & set(samples.writers[held])
    assert samples.test[data.global_test].all()
    for own, test in zip(data.train, sure(data.local_test), strict=True):
        assert set(samples.devices[own]) == set(samples.devices[test])
        assert len(set(samples.devices[own])) == 1
        assert not samples.test[own].any()
        assert samples.test[test].all()


def test_at_most_so_many_windows_with_all_labels():
    data = Wearers()(home(), np.zeros(8, int), Sizes(9, 4, 6), np.random.default_rng(0))
    assert [len(rows) for rows in data.train] == [9] * 8
    assert (data.label_counts[:, :2] >= 3).all()
    assert data.label_counts[0].tolist() == [3, 3, 3]  # a label that only one device has is kept
    assert data.classes == 3
    assert [len(rows) for rows in sure(data.local_test)] == [4] * 8
    few = Wearers()(home(), np.zeros(8, int), Sizes(450, "whole", "whole"), np.random.default_rng(0))
    assert max(len(rows) for rows in few.train) < 450  # all it has


def test_wearers_refuse_what_does_not_fit():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="graph must have 8 devices, as made has with 0 people unseen, got 5"):
        Wearers()(home(), np.zeros(5, int), Sizes(), rng)
    with pytest.raises(ValueError, match=r"unseen must be less than 4, the people of made, got 4"):
        Wearers(unseen=4)(home(), np.zeros(8, int), Sizes(), rng)
    uneven = windows("made", [recording(device, person=min(device, 1)) for device in range(4)], window=4, step=2)
    Wearers()(uneven, np.array([0, 1, 1, 1]), Sizes(4, "whole", "whole"), rng)  # a person with one device
    with pytest.raises(ValueError, match=r"the people of made, who have 1, 3 devices; got rooms \[0, 0, 1, 1\]"):
        Wearers()(uneven, np.array([0, 0, 1, 1]), Sizes(), rng)
    with pytest.raises(ValueError, match="unseen must be a whole number"):
        Wearers(unseen=-1)
    digits = parts.find("datasets", "digits")().load(Store())
    with pytest.raises(ValueError, match="needs recordings of devices"):
        Wearers()(digits, np.zeros(8, int), Sizes(), rng)
