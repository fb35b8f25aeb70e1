"""Mixing blind: exact, without overflow, and nothing to be seen in what the server has."""

import itertools

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
cuts = st.builds(blind.Cut, seeds, st.integers(20, 50), st.integers(1, 20))


def group(size, count=1, keys=(KEY,), first=None):
    cut = blind.Cut(0, size, count)
    return blind.Group(keys, cut, () if first is None else blind.hashes(first, cut))


def whole_row(row, keys, round, device):
    """What a device sends that sends its whole row as one piece."""
    return blind.masked(row, group(len(row), keys=tuple(keys)), (0,), "run", round, device)


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
    cut = data.draw(cuts)
    rows = np.random.default_rng(seed).normal(size=(count, cut.size)).astype(np.float32)
    weights = blind.whole_weights(matrix)
    open_rows = blind.floats(blind.mixed(weights, blind.whole(rows)))
    everything = cut.sent(3, 1.0)
    first = np.zeros(cut.size, np.float32)
    devices = blind.Group((KEY,), cut, blind.hashes(first, cut))
    sent = [blind.masked(row, devices, everything, "run", 3, device) for device, row in enumerate(rows)]
    held = np.stack([blind.sealed(content, cut, everything, 3, device) for device, content in enumerate(sent)])
    held[~brings] = 0  # nothing came
    mixed = np.concatenate([blind.mixed_sealed(weights, held[:, place]) for place in cut.places], axis=1)
    for row, wanted in zip(mixed, open_rows, strict=True):
        masks = [mask for place in cut.places for mask in blind.opened(row[place])[1]]
        assert {mask.device for mask in masks} <= set(np.flatnonzero(brings).tolist())
        found, _ = blind.taken_in(blind.handed_out(row, blind.Sealing(cut, first)), devices, "run")
        np.testing.assert_array_equal(found, wanted)
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
        content = whole_row(row.astype(np.float32), [KEY], 1, 0)
        bits = np.unpackbits(np.frombuffer(content, np.uint8, 8 * size, blind.SALT)).reshape(size, 64)
        assert abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(size)  # six standard deviations


@given(seeds, seeds, st.integers(0, 19))
def test_a_mask_never_covers_two_rows(seed, other, place):
    """Whatever was killed or lost in between: the same row gives the same bytes, another one has another mask."""
    row = np.random.default_rng(seed).normal(size=20).astype(np.float32)
    changed = row.copy()
    changed[place] += np.float32(0.5 + other / 2**32)
    first, again, different = (whole_row(one, [KEY], 4, 2) for one in (row, row, changed))
    assert first == again
    assert first[: blind.SALT] != different[: blind.SALT]
    masks = [
        np.frombuffer(content, "<u8", 20, blind.SALT) - blind.whole(one).view(np.uint64)
        for content, one in ((first, row), (different, changed))
    ]
    assert not (masks[0] == masks[1]).any()


def mixed_alone(row, keys=(KEY,), weight=2**24):
    """(masked values, the mask in them) of a row that device 2 sent in round 4, mixed with nothing."""
    sent = blind.sealed(whole_row(row, keys, 4, 2), blind.Cut(0, len(row)), (0,), 4, 2)
    values, (mask,) = blind.opened(blind.mixed_sealed(np.array([[weight]]), sent[None])[0])
    return values, mask


def opens(values, masks, **more):
    """Whether a device accepts them."""
    try:
        blind.unmasked(values, masks, 0, [KEY], "run", **more)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("change", "run"), [({"round": 5}, "run"), ({"device": 1}, "run"), ({}, "another"), ({"weight": 3}, "run")]
)
def test_a_row_of_another_round_device_or_run_is_refused(change, run):
    values, mask = mixed_alone(np.ones(1, np.float32))  # however short it is
    assert blind.unmasked(values, [mask], 0, [KEY], "run").tolist() == [1.0]
    with pytest.raises(ValueError, match="weights that sum to 1" if change == {"weight": 3} else "does not open"):
        blind.unmasked(values, [mask._replace(**change)], 0, [KEY], run)
    with pytest.raises(ValueError, match="does not open"):
        blind.unmasked(values, [mask], 1, [KEY], "run")  # as if it were another piece


def test_weights_that_do_not_sum_to_1_are_refused():
    values, mask = mixed_alone(np.ones(5, np.float32), weight=2**25)
    with pytest.raises(ValueError, match="weights that sum to 1"):
        blind.unmasked(values, [mask], 0, [KEY], "run")


def mixed_of_two(weights, rounds=(4, 4), size=20):
    """(masked values, the masks in them) of two rows of different devices."""
    rng, cut = np.random.default_rng(0), blind.Cut(0, size)
    rows = rng.normal(size=(2, size)).astype(np.float32)
    sent = zip(rows, rounds, range(2), strict=True)
    held = [blind.sealed(whole_row(row, [KEY], *where), cut, (0,), *where) for row, *where in sent]
    return blind.opened(blind.mixed_sealed(np.array([weights]) * 2**24, np.stack(held))[0])


def test_weights_are_no_larger_than_those_of_the_rule():
    """A device whose rule averages opens averages only; another one, as much as fits."""
    for weights, spread, allowed in (
        ((0.5, 0.5), 1, True),
        ((1.5, -0.5), 1, False),
        ((1.5, -0.5), 2, True),
        ((8.5, -7.5), 16, True),
        ((8.75, -7.75), 16, False),
    ):
        whole = [int(weight * 2**24) for weight in weights]
        assert opens(*mixed_of_two(np.array(whole) / 2**24), spread=spread) == allowed


def test_a_mixture_of_two_rounds_is_refused():
    """Both rows are honest, and both masks; each round has factors of its own."""
    assert opens(*mixed_of_two((0.5, 0.5)))
    values, masks = mixed_of_two((0.5, 0.5), rounds=(4, 5))
    with pytest.raises(ValueError, match="of one round"):
        blind.unmasked(values, masks, 0, [KEY], "run")


@given(seeds, st.integers(0, 23), st.integers(1, 2**64 - 1))
@example(0, 0, 1)
@example(0, 3, 2**63)
@example(0, 23, 1)
def test_a_row_that_was_changed_is_refused_whatever_is_in_it(seed, place, change):
    """One value or check, by as little or as much as may be: that it is refused says nothing about the row."""
    values, mask = mixed_alone(np.random.default_rng(seed).normal(size=20).astype(np.float32))
    values[place : place + 1] += np.uint64(change)
    with pytest.raises(ValueError, match="does not open"):
        blind.unmasked(values, [mask], 0, [KEY], "run")


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=20),
    st.integers(1, 25),
)
def test_checks_are_exact_whatever_the_factors_and_values(pairs, block):
    """Largest and smallest numbers, also in several blocks: as in whole numbers without end."""
    factors, values = np.array([f for f, _ in pairs], np.uint64), np.array([v for _, v in pairs], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blind, "BLOCK", block)
        assert blind._product(factors, values) == sum(f * v for f, v in pairs)


def test_checks_of_many_large_numbers_are_exact():
    """As many of the largest numbers as float64 adds up at once."""
    size = blind.BLOCK + 1
    factors, values = np.full(size, 2**64 - 1, np.uint64), np.full(size, -(2**63))
    assert blind._product(factors, values) == -size * (2**64 - 1) * 2**63


@pytest.mark.parametrize(("bits", "more"), [(4, 1), (4, 3), (5, 4), (2, 6)])
def test_of_all_factors_one_in_as_many_fits_a_forgery_whatever_was_changed(bits, more):
    """The proof's lemma, counted out: values of `bits` bits, factors of `more`, sums of both together."""
    for change in set(range(-(2**bits) + 1, 2**bits)) - {0}:
        sums = [factor * change % 2 ** (bits + more) for factor in range(2**more)]
        assert len(set(sums)) == 2**more
    weak = [factor * 2 ** (bits - 1) % 2**bits for factor in range(2**more)]  # without those bits: one in two
    assert len(set(weak)) == 2


POWERS = (62, 61, 60, 40, 0)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("guess", [0, 5])
def test_a_forgery_is_accepted_as_often_as_its_factor_is_guessed(power, guess, monkeypatch):
    """With factors of three bits: one in eight, for powers of two as well, whatever the change of the check."""
    factors = blind._factors
    monkeypatch.setattr(blind, "_factors", lambda *where: factors(*where) & np.uint64(7))
    accepted, tries = 0, 600
    for number in range(tries):
        key, row = number.to_bytes(32, "big"), np.array([-1.0, 0.5], np.float32)
        values, mask = mixed_alone(row, [key])
        values[:1] += np.uint64(2**power)
        change = guess * 2**power
        values[-blind.CHECKS :] += np.array([change >> 32 * i & 2**32 - 1 for i in range(4)], np.uint64)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blind, "CAP", 2.0**28)  # so that none is refused because it is too large
            try:
                blind.unmasked(values, [mask], 0, [key], "run")
                accepted += 1
            except ValueError:
                pass
    assert abs(accepted - tries / 8) < 6 * np.sqrt(tries * 7 / 64)


def test_forgeries_that_sums_modulo_2_to_the_64_let_through_are_refused():
    """The largest weights, and a change of 2^62 in one value or two, of either sign: 8 bits would decide about each."""
    values, masks = mixed_of_two((8.5, -7.5))
    assert opens(values, masks)
    size = len(values) - blind.CHECKS
    places = [(i,) for i in range(size)] + list(itertools.combinations(range(size), 2))
    for power, some, sign in itertools.product((62, 63, 61), places, (1, -1)):
        forged = values.copy()
        forged[list(some)] += np.uint64(sign * 2**power % 2**64)
        assert not opens(forged, masks)


@given(seeds, st.integers(0, 63), st.integers(1, 20), st.sampled_from([(8.5, -7.5), (0.5, 0.5)]))
def test_random_powers_of_two_are_refused(seed, power, count, weights):
    rng, (values, masks) = np.random.default_rng(seed), mixed_of_two(weights)
    places = rng.choice(len(values) - blind.CHECKS, count, replace=False)
    values[places] += rng.choice(np.array([1, 2**64 - 1], np.uint64), count) << np.uint64(power)
    values[-blind.CHECKS :] += rng.integers(0, 3, blind.CHECKS, np.uint64)
    assert not opens(values, masks)


def test_a_row_under_another_key_is_refused_and_keys_can_be_renewed_one_device_at_a_time():
    before, after = [KEY], [OTHER, KEY]  # a new key goes on top of the file
    content = [whole_row(np.full(9, device), keys, 4, device) for device, keys in enumerate((before, after))]
    held = np.stack([blind.sealed(one, blind.Cut(0, 9), (0,), 4, device) for device, one in enumerate(content)])
    values, masks = blind.opened(blind.mixed_sealed(blind.whole_weights(np.full((1, 2), 0.5)), held)[0])
    with pytest.raises(ValueError, match="a group key that this device does not have"):
        blind.unmasked(values, masks, 0, before, "run")
    np.testing.assert_array_equal(blind.unmasked(values, masks, 0, after, "run"), np.full(9, 0.5))


@pytest.mark.parametrize("content", [b"", bytes(23), bytes(8 * 9 + blind.SALT + 1)])
def test_a_masked_row_of_another_length_is_refused(content):
    with pytest.raises(ValueError, match="must be 88 bytes long"):
        blind.sealed(content, blind.Cut(0, 5), (0,), 1, 0)


def note(pieces):
    return np.array([(0, 1, 2**24, bytes(16), pieces)], blind.NOTE).tobytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"masks": bytes(35)}, "masks must be up to 1024"),
        ({"masks": note(1) * 1025}, "masks must be up to 1024"),
        ({"masks": note(1) * 513}, "at most 512 masks"),
        ({"masks": note(0)}, "pieces 0 to 1"),
        ({"masks": note(4)}, "pieces 0 to 1"),
        ({"masks": note(1)}, "masked must be 56 bytes"),
        ({"masks": note(1), "masked": bytes(56)}, "row must be 12 bytes"),
        ({"masks": note(3), "masked": bytes(112), "row": bytes(4)}, "row must be 0 bytes"),
        ({"row": np.full(6, np.nan, "<f4").tobytes()}, "must be that of the first model"),
        ({"row": np.full(6, 1, "<f4").tobytes()}, "must be that of the first model"),
    ],
)
def test_a_row_that_was_not_handed_out_so_is_refused(fields, message):
    devices = group(6, 2, first=np.zeros(6, np.float32))
    with pytest.raises(ValueError, match=message):
        blind.taken_in({"row": b"", "masked": b"", "masks": b"", **fields}, devices, "run")


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


# --- rows in pieces -------------------------------------------------------------------------------------------------


@given(cuts, st.integers(1, 1000), st.floats(0.01, 1), st.floats(0.01, 1))
def test_pieces_hold_every_column_once_and_of_two_devices_one_sends_all_that_the_other_does(cut, round, one, other):
    assert sorted(np.concatenate(cut.columns).tolist()) == list(range(cut.size))
    assert {len(columns) for columns in cut.columns} <= {cut.size // cut.count, -(-cut.size // cut.count)}
    few, many = (set(cut.sent(round, density)) for density in sorted((one, other)))
    assert few <= many <= set(range(cut.count))
    assert cut.sent(round, 1.0) == tuple(range(cut.count))
    assert blind.Cut(cut.seed, cut.size, cut.count).sent(round, one) == cut.sent(round, one)  # on any machine


@given(cuts, st.integers(1, 100), st.floats(0.001, 1))
def test_a_device_sends_no_more_than_its_density_allows(cut, round, density):
    """Where that is at least one piece: the plan counts with these bytes, and a device that sends more is late."""
    sent = cut.sent(round, density)
    assert len(sent) == max(1, int(density * cut.count + 1e-9))
    if density * cut.count >= 1:
        assert cut.bytes_of(sent) <= density * cut.whole_bytes * (1 + 1e-9)
    row = np.ones(cut.size, np.float32)
    assert len(blind.masked(row, blind.Group((KEY,), cut), sent, "run", round, 0)) == cut.bytes_of(sent)


@pytest.mark.parametrize("most", range(1, 21))
def test_every_piece_has_its_turn_as_often_and_soon_whatever_the_density(most):
    cut = blind.Cut(5, 100, 20)
    sent = np.array([[piece in cut.sent(round, most / 20) for piece in range(20)] for round in range(1, 2001)])
    assert (sent.sum(axis=1) == most).all()
    assert abs(sent.sum(axis=0) - 100 * most).max() <= 2
    waits = [np.diff(np.flatnonzero(column), prepend=-1).max() for column in sent.T]
    assert max(waits) <= 2 * 20 / most  # in a fixed cycle it would be half of that


@given(cuts, arrays(np.float32, 50, elements=st.floats(-2, 2, width=32)), st.floats(0.05, 1), st.integers(1, 99))
def test_what_is_sent_and_what_is_left_are_the_update_and_what_was_left(cut, values, density, round):
    """Nothing is lost: to the bit, unless it is bounded."""
    update, left = values[: cut.size], values[-cut.size :]
    sent = cut.sent(round, density)
    columns = np.concatenate([cut.columns[piece] for piece in sent])
    found, rest = blind.taken(update, left, np.full(cut.size, 1e3, np.float32), cut, sent)
    assert np.flatnonzero(~np.isnan(found)).tolist() == sorted(columns.tolist())
    total = update + left
    np.testing.assert_array_equal(np.nan_to_num(found) + (0 if rest is None else rest), total)
    assert (rest is None) == (len(columns) == cut.size)
    bound, same = blind.taken(update, left, np.zeros(cut.size, np.float32), cut, sent)
    assert np.linalg.norm(np.nan_to_num(bound).astype(float)) <= 2 * (1 + 1e-6)
    np.testing.assert_array_equal(same, rest)
    assert blind.taken(update, left, update, cut, sent, keep=False)[1] is None


@given(cuts, seeds, seeds, st.floats(0.05, 1))
def test_a_view_of_pieces_fits_every_models_and_its_length_and_places_are_known_before(cut, seed, other, density):
    """The server sees a salt and masked pieces. With masks to suit they are those of any other rows; nothing else in
    what is sent depends on a row: neither how long it is, nor which columns are in it."""
    sent = cut.sent(3, density)
    rows = [np.random.default_rng(one).normal(size=cut.size).astype(np.float32) for one in (seed, other)]
    seen = [blind.masked(row, blind.Group((KEY,), cut), sent, "run", 3, 1) for row in rows]
    assert len(seen[0]) == len(seen[1]) == cut.bytes_of(sent)
    start = blind.SALT
    for piece in sent:
        columns = cut.columns[piece]
        mine, theirs = (blind.whole(row[columns]).view(np.uint64) for row in rows)
        view = np.frombuffer(seen[0], "<u8", len(columns), start)
        fitting = view - theirs  # the masks under which the other rows give this view
        np.testing.assert_array_equal(theirs + fitting, view)
        assert not (fitting == view - mine).all() or (mine == theirs).all()
        start += 8 * (len(columns) + blind.CHECKS)


def masks_of(row, devices, sent, round=4, device=2):
    """{(piece, place): mask} that is on a row."""
    content, start, found = blind.masked(row, devices, sent, "run", round, device), blind.SALT, {}
    for piece in sent:
        values = blind.whole(row[devices.cut.columns[piece]]).view(np.uint64)
        drawn = np.frombuffer(content, "<u8", len(values), start) - values
        found |= {(piece, i): int(mask) for i, mask in enumerate(drawn)}
        start += 8 * (len(values) + blind.CHECKS)
    return found


def test_no_mask_covers_two_pieces_rounds_devices_densities_or_values():
    """Also if the server asks again for the same round with another density, or the row differs in another piece."""
    devices = group(40, 8)
    row = np.random.default_rng(0).normal(size=40).astype(np.float32)
    changed = row.copy()
    changed[devices.cut.columns[7][0]] += 1  # a piece that the first ones of these do not send
    cases = [
        (row, (0, 3), 4, 2),
        (row, (0, 3, 5), 4, 2),
        (row, tuple(range(8)), 4, 2),
        (changed, tuple(range(8)), 4, 2),
        (row, (0, 3), 5, 2),
        (row, (0, 3), 4, 1),
    ]
    drawn = [mask for one, *where in cases for mask in masks_of(one, devices, *where).values()]
    assert len(drawn) == len(set(drawn)) > 100
    assert masks_of(row, devices, (0, 3)) == masks_of(row.copy(), devices, (0, 3))  # the same again: the same bytes


def test_pieces_of_several_rounds_open_together_and_those_never_sent_are_the_first_model():
    """Two pieces of round 1, one of which is sent again in round 2; absent pieces cost four bytes a value."""
    first = np.arange(40, dtype=np.float32)
    devices = group(40, 4, first=first)
    cut, one = devices.cut, np.array([[2**24]])
    state = np.zeros(cut.sealed_width, np.uint64)
    wanted = first.copy()
    for round, sent, value in ((1, (0, 2), 0.5), (2, (2,), -7.0)):
        row = np.full(40, value, np.float32)
        held = blind.sealed(blind.masked(row, devices, sent, "run", round, 0), cut, sent, round, 0)
        for piece in sent:
            state[cut.places[piece]] = blind.mixed_sealed(one, held[None, cut.places[piece]])[0]
            wanted[cut.columns[piece]] = value
    fields = blind.handed_out(state, blind.Sealing(cut, first))
    found, newest = blind.taken_in(fields, devices, "run")
    np.testing.assert_array_equal(found, wanted)
    assert [piece.round for piece in newest] == [1, 0, 2, 0]
    assert [len(fields[name]) for name in ("row", "masked", "masks")] == [4 * 20, 8 * 2 * 14, 2 * 36]
    swapped = state.copy()
    swapped[cut.places[0]], swapped[cut.places[2]] = state[cut.places[2]], state[cut.places[0]]
    with pytest.raises(ValueError, match="does not open"):
        blind.taken_in(blind.handed_out(swapped, blind.Sealing(cut, first)), devices, "run")


# --- rows that come again ---------------------------------------------------------------------------------------------


def handed(row, round, devices, sealing, sent=(0, 1)):
    """The fields that hand out a row of which some pieces are of that round, and the others of the first model."""
    held = blind.sealed(blind.masked(row, devices, sent, "run", round, 0), devices.cut, sent, round, 0)
    for piece in sent:
        place = devices.cut.places[piece]
        held[place] = blind.mixed_sealed(np.array([[2**24]]), held[None, place])[0]
    return blind.handed_out(held, sealing)


def test_what_a_device_has_trained_from_comes_again_as_it_was_or_newer():
    first, one, other = (np.full(6, value, np.float32) for value in (0.5, 1, 2))
    devices = group(6, 2, first=first)
    sealing = blind.Sealing(devices.cut, first)
    public = {"row": np.concatenate([first[c] for c in devices.cut.columns]).tobytes(), "masked": b"", "masks": b""}
    row, nothing = blind.taken_in(public, devices, "run")
    np.testing.assert_array_equal(row, first)
    assert nothing == (blind.Newest(),) * 2
    half = blind.taken_in(handed(one, 3, devices, sealing, sent=(1,)), devices, "run", nothing)[1]
    both = blind.taken_in(handed(one, 4, devices, sealing), devices, "run", half)[1]
    assert [[piece.round for piece in newest] for newest in (half, both)] == [[0, 3], [4, 4]]
    for fields, before, may in (
        (handed(one, 4, devices, sealing), both, True),  # the same again
        (handed(other, 5, devices, sealing), both, True),
        (handed(other, 4, devices, sealing), both, False),  # another one of that round
        (handed(one, 3, devices, sealing), both, False),
        (handed(one, 5, devices, sealing, sent=(1,)), both, False),  # one piece newer, one the first model
        (handed(one, 3, devices, sealing, sent=(1,)), half, True),
        (public, nothing, True),
        (public, half, False),
        (public, both, False),
    ):
        if may:
            blind.taken_in(fields, devices, "run", before)
        else:
            with pytest.raises(ValueError, match="a piece is of round"):
                blind.taken_in(fields, devices, "run", before)


def test_a_device_that_was_not_told_the_first_model_takes_no_row_without_masks():
    fields = {"row": bytes(24), "masked": b"", "masks": b""}
    with pytest.raises(ValueError, match="must be that of the first model"):
        blind.taken_in(fields, group(6), "run")
