from dataclasses import dataclass

from fedfilt._checks import check_number
from fedfilt._types import Array


@dataclass(frozen=True)
class Floor:
    """Low-pass response with a floor, h(λ) = (1 - m) / (1 + μλ) + m: a share m of every model stays personal.

    >>> import numpy as np
    >>> Floor(mu=1.0, floor=0.5)(np.array([0.0, 1.0]))
    array([1.  , 0.75])
    """

    mu: float = 10.0  # strength of mixing
    floor: float = 0.3  # share of every model that stays personal

    def __post_init__(self) -> None:
        check_number("mu", self.mu, low=0)
        check_number("floor", self.floor, low=0, high=1)

    def __call__(self, frequencies: Array) -> Array:
        return (1 - self.floor) / (1 + self.mu * frequencies) + self.floor

    def partial_fractions(self) -> tuple[float, tuple[tuple[float, float], ...]]:
        """See `Tikhonov.partial_fractions`."""
        return self.floor, ((1 - self.floor, self.mu),)
