"""Random keys: no two purposes draw the same numbers, and rounds are counted from 1."""

import itertools

import numpy as np

from fedfilt._draws import Key, RoundKey, generator, in_round
from fedfilt.training.sgd import orders


def drawn(rng):
    return tuple(rng.integers(2**62, size=3).tolist())


def test_no_two_purposes_draw_the_same_numbers():
    once = [(key,) for key in (Key.PARTITION, Key.START, Key.DEVICES, Key.SHUFFLE, Key.PIECES)]
    found = {("once", *key): drawn(generator(7, *key)) for key in once}
    for round in (1, 2, 3):
        of_all = [(RoundKey.SPEED,), (RoundKey.SURPRISE,)]
        of_one = [(device, *rest) for device in range(4) for rest in ((), (0,), (1,), (2,), (RoundKey.LAYERS,))]
        found |= {(round, *key): drawn(in_round(7, round, *key)) for key in (*of_all, *of_one)}
    assert len(set(found.values())) == len(found) == 5 + 3 * (2 + 4 * 5)
    others = {drawn(generator(8, *key)) for key in once}
    assert not others & set(found.values())


def test_keys_are_numbers_that_no_device_epoch_or_round_reaches():
    for keys in (Key, RoundKey):
        assert min(keys) >= 2**30  # a run has fewer devices, epochs and rounds
        assert len(set(keys)) == len(keys.__members__)


def test_round_1_is_the_first_and_keeps_the_bits_of_earlier_versions():
    assert drawn(in_round(3, 1, 5, 0)) == drawn(np.random.default_rng(np.random.SeedSequence(3, spawn_key=(0, 5, 0))))
    assert drawn(generator(3, Key.START)) == drawn(
        np.random.default_rng(np.random.SeedSequence(3, spawn_key=(2**30 + 1,)))
    )


def test_orders_differ_between_rounds_devices_and_epochs():
    found = []
    for round, device in itertools.product((1, 2), (0, 1)):
        chosen, order = orders(0, round, device, held=50, samples=20, epochs=2)
        assert len(set(chosen.tolist())) == 20
        assert sorted(order[0].tolist()) == sorted(order[1].tolist()) == list(range(20))
        found += [tuple(chosen.tolist()), *map(tuple, order.tolist())]
    assert len(set(found)) == len(found)
    chosen, _ = orders(0, 1, 0, held=5, samples=5, epochs=1)
    assert chosen.tolist() == [0, 1, 2, 3, 4]  # all of them: nothing is drawn
