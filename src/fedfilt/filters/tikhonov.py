from dataclasses import dataclass
from typing import ClassVar

from fedfilt._checks import check_number
from fedfilt._types import Array


@dataclass(frozen=True)
class Tikhonov:
    """Low-pass response h(λ) = 1 / (1 + μλ), the paper's filter.

    μ = 0 keeps every model as it is; μ → ∞ averages every connected component (FedAvg).

    >>> import numpy as np
    >>> Tikhonov(mu=1.0)(np.array([0.0, 1.0, 3.0]))
    array([1.  , 0.5 , 0.25])
    """

    mu: float = 1.0  # strength of mixing: 0 is personal, ∞ one shared model
    search: ClassVar = {"mu": (0.1, 100.0)}

    def __post_init__(self) -> None:
        check_number("mu", self.mu, low=0)

    def __call__(self, frequencies: Array) -> Array:
        return 1 / (1 + self.mu * frequencies)

    def partial_fractions(self) -> tuple[float, tuple[tuple[float, float], ...]]:
        """(c, ((r, μ), ...)) with h(λ) = c + Σ r / (1 + μλ), so that large graphs are solved, not approximated."""
        return 0.0, ((1.0, self.mu),)
