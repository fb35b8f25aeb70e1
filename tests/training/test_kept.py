"""The model a device decides with: taken, refused, rolled back."""

import logging

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from fedfilt._files import write_atomically
from fedfilt.training.kept import EARLIER, FILE, LAST, Kept, kept, roll_back, take
from fedfilt.training.rows import Layout

LAYOUT = Layout.of({"weight": (2, 2), "bias": (2,)})


def model(round, level=0.0, scaling=""):
    return Kept(np.full(LAYOUT.size, level, np.float32), round, scaling)


def first_number(row):
    """A judge for whom a row is as good as its first number says."""
    return float(row[0])


def test_a_model_comes_back_as_it_was(tmp_path):
    assert kept(tmp_path / FILE, LAYOUT) is None
    assert take(tmp_path, model(3, 0.5, "{}"), LAYOUT)
    found = kept(tmp_path / FILE, LAYOUT)
    assert (found.round, found.scaling, found.row.tolist()) == (3, "{}", [0.5] * 6)
    (tmp_path / FILE).write_bytes(b"damaged")
    assert kept(tmp_path / FILE, LAYOUT) is None


def test_several_models_whose_answers_are_averaged_are_in_one_file(tmp_path):
    rows = np.arange(3 * LAYOUT.size, dtype=np.float32).reshape(3, -1)
    assert take(tmp_path, Kept(rows, 4), LAYOUT)
    np.testing.assert_array_equal(kept(tmp_path / FILE, LAYOUT).row, rows)
    tensors = load_file(tmp_path / FILE)
    np.testing.assert_array_equal(LAYOUT.row(tensors), rows[0])  # plain PyTorch finds the first
    assert sorted(tensors)[:2] == ["also.1.bias", "also.1.weight"]
    assert take(tmp_path, model(5), LAYOUT)
    assert roll_back(tmp_path, LAYOUT).row.shape == rows.shape
    del tensors["also.2.bias"]
    write_atomically(tmp_path / FILE, save(tensors))
    assert kept(tmp_path / FILE, LAYOUT) is None


@pytest.mark.parametrize(("new", "taken"), [(0.9, True), (0.76, True), (0.74, False)])
def test_a_model_that_is_worse_by_more_than_the_margin_is_not_taken(tmp_path, caplog, new, taken):
    caplog.set_level(logging.INFO)
    take(tmp_path, model(1, 0.8), LAYOUT, first_number, margin=0.05)
    assert take(tmp_path, model(2, new), LAYOUT, first_number, margin=0.05) is taken
    assert kept(tmp_path / FILE, LAYOUT).round == (2 if taken else 1)
    assert ("the model of round 2 is not taken" in caplog.text) is not taken


def test_the_last_models_are_kept_and_can_be_gone_back_to(tmp_path):
    for round in range(1, 10):
        take(tmp_path, model(round, round / 10), LAYOUT)
        take(tmp_path, model(round, round / 10), LAYOUT)  # a model may be sent twice
    assert len(list((tmp_path / EARLIER).iterdir())) == LAST
    assert [roll_back(tmp_path, LAYOUT).round for _ in range(LAST)] == [8, 7, 6, 5, 4]
    assert kept(tmp_path / FILE, LAYOUT).row[0] == np.float32(0.4)
    with pytest.raises(ValueError, match="no earlier model"):
        roll_back(tmp_path, LAYOUT)


def test_a_model_that_the_owner_went_back_from_is_not_taken_again(tmp_path):
    for round in (1, 2, 3):
        take(tmp_path, model(round), LAYOUT)
    assert roll_back(tmp_path, LAYOUT).round == 2
    assert not take(tmp_path, model(3), LAYOUT)  # the next job begins with it
    assert roll_back(tmp_path, LAYOUT).round == 1
    assert not take(tmp_path, model(3), LAYOUT)
    assert not take(tmp_path, model(2), LAYOUT)
    assert take(tmp_path, model(4), LAYOUT)
    assert [roll_back(tmp_path, LAYOUT).round, kept(tmp_path / FILE, LAYOUT).left] == [1, 4]
