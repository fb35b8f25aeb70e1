"""Random numbers: every draw depends on the seed and on a key that says what it is for, and on nothing else.

So serial, parallel, resumed and deployed runs draw the same numbers. All keys are listed here; those of different
length never meet.
"""

from enum import IntEnum

import numpy as np


class Key(IntEnum):
    """What is drawn once per run: `generator(seed, key)`."""

    PARTITION = 2**30  # who holds which samples
    START = 2**30 + 1  # the first model
    DEVICES = 2**30 + 2  # hardware
    SHUFFLE = 2**30 + 3  # links given to other devices, as a control
    PIECES = 2**30 + 4  # which columns are sent together, where the server must not learn which are large
    VALIDATION = 2**30 + 5  # which training samples are held out
    HOLDOUT = 2**30 + 6  # before a device: which of its samples test it instead
    STARTS = 2**30 + 10  # before a number: further first models, of methods with several
    TUNING = 2**30 + 20  # before a key of the experiment: values of it that are tried
    ADVICE = (
        2**30 + 21
    )  # alone: shuffled links and devices drawn anew; before a device: which samples are in which half


class RoundKey(IntEnum):
    """What is drawn in every round, where a device or an epoch would stand: `in_round(seed, round, ...)`."""

    SPEED = 2**30  # of all devices: how fast they are, as the plan knows
    SURPRISE = 2**30 + 1  # of all devices: what the plan does not know
    PRIVACY = 2**30 + 2  # of all devices: noise and rounding of rows
    PARTICIPATION = 2**30 + 3  # of all devices: who takes part
    LAYERS = 2**31  # after a device: layers that draw themselves, such as dropout
    HALVES = 2**31 + 1  # after a device: which of its samples are in which half


def generator(seed: int, *key: int) -> np.random.Generator:
    """Random numbers of a seed and a key.

    >>> generator(0, Key.PARTITION).integers(1000) == generator(0, Key.PARTITION).integers(1000)
    np.True_
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(int(part) for part in key)))


def in_round(seed: int, round: int, *key: int) -> np.random.Generator:
    """Random numbers of a round, counted from 1, and what is drawn in it: (device,), (device, epoch), (RoundKey,)."""
    return generator(seed, round - 1, *key)
