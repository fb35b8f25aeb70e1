"""How much privacy Gaussian noise leaves: epsilon at a delta, counted by Google's dp-accounting.

It works with the distribution of the privacy loss, cut into intervals, and rounds up.
"""

import math
from functools import lru_cache
from typing import Any

from scipy.stats import norm

FINENESS = 1e-3  # interval of the privacy loss, as a share of epsilon
LARGEST = 1e4  # epsilon that is told apart from infinity: either promises nothing
RANGE = 5e-3, 1e3  # noise multipliers for one round among which one is looked for


def check_accountant() -> Any:
    """The library that counts epsilon; ValueError says how to get it."""
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError:
        raise ValueError("privacy.noise and privacy.epsilon need: pip install 'fedfilt[privacy]'") from None
    return dp_accounting, pld


@lru_cache(maxsize=4096)
def epsilon(noise: float, rounds: int, delta: float) -> float:
    """Epsilon of so many rounds of a Gaussian mechanism, each with noise `noise` times its sensitivity.

    >>> round(epsilon(noise=10.0, rounds=40, delta=1e-5), 2)
    2.59
    """
    if not rounds:
        return 0.0
    library, pld = check_accountant()
    strength = math.sqrt(rounds) / noise  # of a single Gaussian mechanism that says as much
    roughly = strength**2 / 2 + strength * float(norm.isf(delta))
    if roughly > LARGEST:
        return math.inf
    accountant = pld.PLDAccountant(value_discretization_interval=FINENESS * roughly)
    accountant.compose(library.GaussianDpEvent(noise), rounds)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=64)
def noise_for(target: float, rounds: int, delta: float) -> float:
    """The least noise multiplier by which so many rounds stay within epsilon `target`, to a tenth of a per cent.

    >>> round(noise_for(epsilon(10.0, 40, 1e-5), 40, 1e-5), 1)
    10.0
    """
    low, high = (math.log(limit * math.sqrt(rounds)) for limit in RANGE)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(math.exp(middle), rounds, delta) > target else (low, middle)
    return math.exp(high)
