from dataclasses import dataclass

import numpy as np

from fedfilt._types import Array


@dataclass(frozen=True)
class AllPass:
    """Response h(λ) = 1: nothing is mixed, every device keeps its own model.

    >>> import numpy as np
    >>> AllPass()(np.array([0.0, 5.0]))
    array([1., 1.])
    """

    def __call__(self, frequencies: Array) -> Array:
        return np.ones_like(frequencies)

    def partial_fractions(self) -> tuple[float, tuple[tuple[float, float], ...]]:
        """See `Tikhonov.partial_fractions`."""
        return 1.0, ()
