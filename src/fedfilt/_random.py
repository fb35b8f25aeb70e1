"""Random numbers: every draw depends on the seed and on a key that says what it is for, and on nothing else.

So serial, parallel, resumed and deployed runs draw the same numbers. All keys are listed here; no two may meet.
"""

from enum import IntEnum

import numpy as np


class Key(IntEnum):
    """What is drawn once per run, and what is drawn once per round for all devices (`SPEED`, `SURPRISE`)."""

    PARTITION = 2**30  # who holds which samples
    START = 2**30 + 1  # the first model
    DEVICES = 2**30 + 2  # hardware
    SHUFFLE = 2**30 + 3  # links given to other devices, as a control
    SPEED = 2**30  # after a round: how fast devices are in it, as the plan knows
    SURPRISE = 2**30 + 1  # after a round: what the plan does not know
    LAYERS = 2**31  # after a round and a device: layers that draw themselves, such as dropout


def generator(seed: int, *key: int) -> np.random.Generator:
    """Random numbers of a seed and a key.

    >>> generator(0, Key.PARTITION).integers(1000) == generator(0, Key.PARTITION).integers(1000)
    np.True_
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(int(part) for part in key)))


def in_round(seed: int, round: int, *key: int) -> np.random.Generator:
    """Random numbers of a round, counted from 1, and what is drawn in it: (device,), (device, epoch), (SPEED,), ..."""
    return generator(seed, round - 1, *key)
