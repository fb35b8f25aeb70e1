"""Mixing blind: exact, without overflow, and nothing to be seen in what the server has."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedfilt.system import blind

pytest.importorskip("cryptography")

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
EDGE = 2**34  # the largest value in fixed point
VALUES = st.floats(-2e3, 2e3, width=32) | st.sampled_from([1024.0, -1024.0, 1e30, -1e30, 0.0, 2.0**-24, 2.0**-30])
seeds = st.integers(0, 2**32 - 1)


@st.composite
def mixtures(draw):
    """(K, K) weights whose rows sum to 1; their magnitudes to less than 14."""
    count = draw(st.integers(1, 8))
    matrix = draw(arrays(np.float64, (count, count), elements=st.floats(-0.9, 0.9)))
    matrix[np.arange(count), np.arange(count)] += 1 - matrix.sum(axis=1)
    return matrix


def exact(weights, rows):
    """What whole numbers without end come to."""
    return [[sum(int(w) * int(q) for w, q in zip(row, column, strict=True)) for column in rows.T] for row in weights]


@given(mixtures())
def test_weights_sum_exactly_and_are_close(matrix):
    weights = blind.whole_weights(matrix)
    assert (weights.sum(axis=1) == 2**24).all()
    assert abs(weights / 2**24 - matrix).max() <= len(matrix) * 2.0**-24
    assert not weights[matrix == 0].any()  # who is left out stays out


def test_weights_that_could_overflow_are_refused():
    with pytest.raises(ValueError, match="must sum to at most 16, got 17"):
        blind.whole_weights(np.array([[9.0, -8.0]]))


@given(mixtures(), st.data())
@example(np.array([[8.5, -7.5], [1.0, 0.0]]), None)
def test_mixing_does_not_overflow_whatever_the_rows(matrix, data):
    """The largest weights on the largest values, of both signs: modulo 2^64 is the same as in whole numbers."""
    shape = len(matrix), 3
    extreme = arrays(
        np.int64, shape, elements=st.sampled_from([EDGE, -EDGE, EDGE - 1, 1, 0]) | st.integers(-EDGE, EDGE)
    )
    rows = np.array([[EDGE, -EDGE, EDGE], [-EDGE, EDGE, EDGE]]) if data is None else data.draw(extreme)
    weights = blind.whole_weights(matrix)
    found = blind.mixed(weights, rows).view(np.int64)
    assert found.tolist() == exact(weights, rows)
    assert abs(found).max() <= 2**62


@given(st.lists(VALUES, min_size=1, max_size=20))
def test_fixed_point_is_near_and_never_beyond_the_cap(values):
    row = np.array(values, np.float32)
    held = np.clip(row.astype(float), -1024, 1024)
    assert abs(blind.whole(row)).max() <= EDGE
    assert abs(blind.whole(row) / 2**24 - held).max() <= 2.0**-25


def test_a_row_that_is_not_finite_has_no_fixed_point():
    with pytest.raises(ValueError, match="must be finite"):
        blind.whole(np.array([1.0, np.nan], np.float32))


@given(mixtures(), seeds, st.data())
@settings(deadline=None)
def test_masked_mixing_is_open_mixing_bit_for_bit_and_near_that_of_floats(matrix, seed, data):
    """Some are absent, as the server says; what is left of their weights goes to the others."""
    count = len(matrix)
    brings = data.draw(arrays(bool, count)) if count > 1 else np.ones(1, bool)
    brings[0] = True
    matrix = np.where(brings, abs(matrix), 0) + np.eye(count)[:1]
    matrix /= matrix.sum(axis=1, keepdims=True)
    rows = np.random.default_rng(seed).normal(size=(count, 50)).astype(np.float32)
    weights = blind.whole_weights(matrix)
    open_rows = blind.floats(blind.mixed(weights, blind.whole(rows)))
    sent = [blind.masked(row, [KEY], "run", 3, device) for device, row in enumerate(rows)]
    held = np.stack([blind.sealed(content, 50, 3, device) for device, content in enumerate(sent)])
    held[~brings] = 0  # nothing came
    for row, wanted in zip(blind.mixed_sealed(weights, held), open_rows, strict=True):
        values, masks = blind.opened(row)
        masks = blind.masks_from_bytes(blind.masks_to_bytes(masks))
        assert {mask.device for mask in masks} <= set(np.flatnonzero(brings).tolist())
        np.testing.assert_array_equal(blind.unmasked(values, masks, [KEY], "run"), wanted)
    np.testing.assert_allclose(open_rows, matrix @ rows.astype(float), atol=1e-5)


@given(seeds, seeds)
def test_every_view_of_the_server_fits_every_models(seed, other):
    """For any other rows there are masks under which the server sees, and hands on, the very same bytes."""
    rng, weights = np.random.default_rng(seed), blind.whole_weights(np.full((3, 3), 1 / 3))
    mine, masks = rng.normal(size=(3, 20)), rng.integers(0, 2**64, (3, 20), np.uint64, endpoint=False)
    theirs = blind.whole(1000 * np.random.default_rng(other).normal(size=(3, 20))).view(np.uint64)
    seen = blind.whole(mine).view(np.uint64) + masks
    fitting = seen - theirs
    np.testing.assert_array_equal(theirs + fitting, seen)
    mixed = blind.mixed(weights, seen)
    wanted = blind.floats(blind.mixed(weights, theirs))
    np.testing.assert_array_equal(blind.floats(mixed - blind.mixed(weights, fitting)), wanted)


def test_what_the_server_sees_looks_like_noise_whatever_the_row():
    """Bits of masked rows of zeros, ones and a real range: half of them set, at each of the 64 places, as in noise."""
    size = 4000
    for row in (np.zeros(size), np.ones(size), np.linspace(-1, 1, size)):
        content = blind.masked(row.astype(np.float32), [KEY], "run", 1, 0)
        bits = np.unpackbits(np.frombuffer(content, np.uint8, 8 * size, blind.SALT)).reshape(size, 64)
        assert abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(size)  # six standard deviations


@given(seeds, seeds, st.integers(0, 19))
def test_a_mask_never_covers_two_rows(seed, other, place):
    """Whatever was killed or lost in between: the same row gives the same bytes, another one has another mask."""
    row = np.random.default_rng(seed).normal(size=20).astype(np.float32)
    changed = row.copy()
    changed[place] += np.float32(0.5 + other / 2**32)
    where = [KEY], "run", 4, 2
    first, again, different = (blind.masked(one, *where) for one in (row, row, changed))
    assert first == again
    assert first[: blind.SALT] != different[: blind.SALT]
    masks = [
        np.frombuffer(content, "<u8", 20, blind.SALT) - blind.whole(one).view(np.uint64)
        for content, one in ((first, row), (different, changed))
    ]
    assert not (masks[0] == masks[1]).any()


def mixed_alone(row, keys=(KEY,), weight=2**24):
    """(masked values, the mask in them) of a row that device 2 sent in round 4, mixed with nothing."""
    sent = blind.sealed(blind.masked(row, keys, "run", 4, 2), len(row), 4, 2)
    values, (mask,) = blind.opened(blind.mixed_sealed(np.array([[weight]]), sent[None])[0])
    return values, mask


@pytest.mark.parametrize(
    ("change", "run"), [({"round": 5}, "run"), ({"device": 1}, "run"), ({}, "another"), ({"weight": 3}, "run")]
)
def test_a_row_of_another_round_device_or_run_is_refused(change, run):
    values, mask = mixed_alone(np.ones(1, np.float32))  # however short it is
    assert blind.unmasked(values, [mask], [KEY], "run").tolist() == [1.0]
    with pytest.raises(ValueError, match="does not open"):
        blind.unmasked(values, [mask._replace(**change)], [KEY], run)


def test_weights_that_do_not_sum_to_1_are_refused():
    values, mask = mixed_alone(np.ones(5, np.float32), weight=2**25)
    with pytest.raises(ValueError, match="does not open"):
        blind.unmasked(values, [mask], [KEY], "run")


@given(seeds, st.integers(0, 23), st.integers(1, 2**64 - 1))
@example(0, 0, 1)
@example(0, 3, 2**63)
@example(0, 23, 1)
def test_a_row_that_was_changed_is_refused_whatever_is_in_it(seed, place, change):
    """One value or check, by as little or as much as may be: that it is refused says nothing about the row."""
    values, mask = mixed_alone(np.random.default_rng(seed).normal(size=20).astype(np.float32))
    values[place : place + 1] += np.uint64(change)
    with pytest.raises(ValueError, match="does not open"):
        blind.unmasked(values, [mask], [KEY], "run")


def test_a_row_under_another_key_is_refused_and_keys_can_be_renewed_one_device_at_a_time():
    before, after = [KEY], [OTHER, KEY]  # a new key goes on top of the file
    content = [blind.masked(np.full(9, device), keys, "run", 4, device) for device, keys in enumerate((before, after))]
    held = np.stack([blind.sealed(one, 9, 4, device) for device, one in enumerate(content)])
    values, masks = blind.opened(blind.mixed_sealed(blind.whole_weights(np.full((1, 2), 0.5)), held)[0])
    with pytest.raises(ValueError, match="a group key that this device does not have"):
        blind.unmasked(values, masks, before, "run")
    np.testing.assert_array_equal(blind.unmasked(values, masks, after, "run"), np.full(9, 0.5))


@pytest.mark.parametrize("content", [b"", bytes(23), bytes(8 * 9 + blind.SALT + 1)])
def test_a_masked_row_of_another_length_is_refused(content):
    with pytest.raises(ValueError, match="must be 88 bytes long"):
        blind.sealed(content, 5, 1, 0)


@pytest.mark.parametrize("content", [bytes(31), bytes(32 * 513)])
def test_a_list_of_masks_that_is_none_is_refused(content):
    with pytest.raises(ValueError, match="masks must be up to 512"):
        blind.masks_from_bytes(content)


@pytest.mark.parametrize("text", ["", "zz", "00" * 31, f"{'00' * 32}\nno"])
def test_a_file_without_group_keys_is_refused(text):
    with pytest.raises(ValueError, match="must be 64 hexadecimal digits"):
        blind.read_keys(text)


def test_several_group_keys_may_stand_in_a_file():
    assert blind.read_keys(f"{OTHER.hex()}\n\n{KEY.hex()}\n") == [OTHER, KEY]


@given(arrays(np.float32, 6, elements=VALUES), arrays(np.float32, 6, elements=VALUES))
def test_an_update_is_no_longer_than_its_model_allows(update, model):
    found = blind.bounded(update, model)
    most = 2 * max(1.0, np.linalg.norm(model.astype(float)))
    assert np.linalg.norm(found.astype(float)) <= most * (1 + 1e-6)
    if np.linalg.norm(update.astype(float)) <= most:
        assert found is update
