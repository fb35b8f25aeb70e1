"""Random numbers: every draw depends only on the seed and on a key that says what it is for.

Therefore serial, parallel, resumed and deployed runs draw the same numbers. All keys are listed here; keys of different
lengths never collide.
"""

from enum import IntEnum

import numpy as np


class Key(IntEnum):
    """What is drawn once per run: `generator(seed, key)`."""

    PARTITION = 2**30  # which device holds which samples
    START = 2**30 + 1  # the first model
    DEVICES = 2**30 + 2  # hardware
    SHUFFLE = 2**30 + 3  # links moved to other devices, as a control
    PIECES = 2**30 + 4  # which columns are sent together, if the server must not learn which are large
    VALIDATION = 2**30 + 5  # which training samples are held out
    HOLDOUT = 2**30 + 6  # before a device: which of its samples are for testing
    STARTS = 2**30 + 10  # before a number: further first models, for methods with several
    TUNING = 2**30 + 20  # before a key of the experiment: the values to try
    ADVICE = 2**30 + 21  # alone: shuffled links and resampled devices; before a device: which samples are in which half


class RoundKey(IntEnum):
    """What is drawn in every round, in place of a device or an epoch: `in_round(seed, round, ...)`."""

    SPEED = 2**30  # for all devices: how fast they are, as the plan knows
    SURPRISE = 2**30 + 1  # for all devices: what the plan does not know
    PRIVACY = 2**30 + 2  # for all devices: noise and rounding of rows
    PARTICIPATION = 2**30 + 3  # for all devices: which take part
    LAYERS = 2**31  # after a device: layers that draw numbers, such as dropout
    HALVES = 2**31 + 1  # after a device: which of its samples are in which half


def generator(seed: int, *key: int) -> np.random.Generator:
    """Random numbers for a seed and a key.

    >>> generator(0, Key.PARTITION).integers(1000) == generator(0, Key.PARTITION).integers(1000)
    np.True_
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(int(part) for part in key)))


def in_round(seed: int, round: int, *key: int) -> np.random.Generator:
    """Random numbers for a round, counted from 1, and a key in it: (device,), (device, epoch), (RoundKey,)."""
    return generator(seed, round - 1, *key)
