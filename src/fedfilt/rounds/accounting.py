"""How much privacy Gaussian noise gives: epsilon at a delta, computed by Google's dp-accounting.

It uses the distribution of the privacy loss, discretised and rounded up.
"""

import math
from functools import lru_cache
from typing import Any

from scipy.special import ndtri

FINENESS = 1e-3  # interval of the privacy loss, as a share of epsilon
LARGEST = 1e4  # epsilons above this count as infinite: neither guarantees anything
RANGE = 5e-3, 1e3  # noise multipliers for one round that are searched


def check_accountant() -> Any:
    """The library that computes epsilon; if it is missing, a ValueError says how to install it."""
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError:
        raise ValueError("privacy.noise and privacy.epsilon need: pip install 'fedfilt[privacy]'") from None
    return dp_accounting, pld


@lru_cache(maxsize=4096)
def epsilon(noise: float, rounds: int, delta: float) -> float:
    """Epsilon of `rounds` rounds of a Gaussian mechanism, each with noise of `noise` times its sensitivity.

    >>> round(epsilon(noise=10.0, rounds=40, delta=1e-5), 2)
    2.59
    """
    if not rounds:
        return 0.0
    library, pld = check_accountant()
    strength = math.sqrt(rounds) / noise  # of a single Gaussian mechanism that reveals as much
    roughly = strength**2 / 2 - strength * float(ndtri(delta))
    if roughly > LARGEST:
        return math.inf
    accountant = pld.PLDAccountant(value_discretization_interval=FINENESS * roughly)
    accountant.compose(library.GaussianDpEvent(noise), rounds)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=64)
def noise_for(target: float, rounds: int, delta: float) -> float:
    """The smallest noise multiplier with which `rounds` rounds stay within epsilon `target`, to 0.1 %.

    >>> round(noise_for(epsilon(10.0, 40, 1e-5), 40, 1e-5), 1)
    10.0
    """
    low, high = (math.log(limit * math.sqrt(rounds)) for limit in RANGE)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(math.exp(middle), rounds, delta) > target else (low, middle)
    return math.exp(high)
