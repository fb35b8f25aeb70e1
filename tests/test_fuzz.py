"""Readers of bytes from outside raise ValueError or nothing, soon, and with little memory: see fuzz.py."""

import io
import logging
import pickle
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fuzz
from fedfilt.data._pickles import read_arrays


@pytest.fixture(autouse=True)
def quiet():
    """Thousands of bad inputs are thousands of warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_corpus(name, tmp_path):
    """What was found once stays fixed, and what is valid can be read."""
    inputs = fuzz.corpus(name)
    assert len(inputs) >= len(list(fuzz.TARGETS[name].seeds()))
    for content in inputs:
        fuzz.check(name, content, tmp_path)


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_changed_inputs(name, tmp_path_factory):
    folder, inputs = tmp_path_factory.mktemp(name), fuzz.corpus(name)
    for content in inputs:  # what is loaded for the first time is no input's memory
        fuzz.check(name, content, folder)

    @settings(max_examples=150)
    @given(st.sampled_from(inputs), st.integers(0, 2**32))
    def change(content, seed):
        fuzz.check(name, fuzz.mutated(content, random.Random(seed), fuzz.TARGETS[name].form), folder)

    change()


def test_every_kind_of_failure_is_seen(tmp_path, monkeypatch):
    """The net itself: another exception, too much memory and too much time are not passed over."""

    def reads(what):
        monkeypatch.setitem(fuzz.TARGETS, "wire", fuzz.TARGETS["wire"]._replace(read=what))
        fuzz.check("wire", b"", tmp_path)

    def greedy(content, folder):
        try:
            bytearray(2 * fuzz.MEMORY)
        except MemoryError as error:
            raise ValueError("refused") from error

    def slow(content, folder):
        while True:
            pass

    def fine(content, folder):
        raise ValueError("refused")

    def wrong(content, folder):
        raise KeyError("key")

    reads(fine)
    with pytest.raises(KeyError):
        reads(wrong)
    with pytest.raises(fuzz.Greedy):
        reads(greedy)
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    with pytest.raises(fuzz.Hang):
        reads(slow)


def test_changes_reach_what_is_inside():
    """Changed inputs are not all broken: trees keep their form, safetensors their length, archives their checksums."""
    rng = random.Random(0)
    for name in ("graph", "config", "checkpoint", "messages"):
        target = fuzz.TARGETS[name]
        inputs, whole = fuzz.corpus(name), 0
        for _ in range(100):
            try:
                target.form.read(fuzz.mutated(rng.choice(inputs), rng, target.form))
                whole += 1
            except Exception:
                continue
        assert whole > 40, name


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02)r" + struct.pack("<I", 2**31) + b".",  # the number of an object in the unpickler's memo
        b"\x80\x05\x96" + struct.pack("<Q", 2**33) + b".",  # an array of bytes of any length
        b"\x80\x02}" + b")" + 60 * b"2\x86" + b"K\x01s.",  # a key that takes for ever to hash
        b"\x80\x04\x8f(" + b")" + 60 * b"2\x86" + b"\x90.",  # the same in a set
        b"\x80\x02(" + b")" + 60 * b"2\x86" + b"K\x01d.",
    ],
)
def test_small_pickles_that_ask_for_much(content):
    with fuzz.bounded(), fuzz.refusing():
        read_arrays(io.BytesIO(content), "a pickle")


def test_pickles_keep_their_keys():
    held = {"x": 1, 2: "y", b"z": None, 1.5: [True]}
    for protocol in range(5):
        assert read_arrays(io.BytesIO(pickle.dumps(held, protocol)), "a pickle") == held


CELL = b"a" * 140_000  # longer than Python's reader of CSV takes


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("building", b"device,room,x,y,z\n" + CELL + b",hall,1,2,3\n"),
        ("csv_source", b'time,left,right\n1,"' + CELL + b"\n"),
        ("own", fuzz.folder_of({"data/b.csv": b'time,left,right,label\n0,"' + CELL})),
    ],
)
def test_a_cell_that_is_too_long(name, content, tmp_path):
    fuzz.check(name, content, tmp_path)
