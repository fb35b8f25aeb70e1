from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array


@dataclass(frozen=True)
class Ideal:
    """Ideal low-pass response: h(λ) = 1 up to the cut-off, 0 above it.

    A cut-off below the first non-zero frequency is FedAvg per component; one above the last keeps everything.

    >>> import numpy as np
    >>> Ideal(cutoff=1.0)(np.array([0.0, 1.0, 1.5]))
    array([1., 1., 0.])
    """

    cutoff: float = 1.0  # highest graph frequency that passes

    def __post_init__(self) -> None:
        check_number("cutoff", self.cutoff, low=0)

    def __call__(self, frequencies: Array) -> Array:
        return np.where(frequencies <= self.cutoff, 1.0, 0.0)
