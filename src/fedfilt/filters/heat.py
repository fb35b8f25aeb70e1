from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array


@dataclass(frozen=True)
class Heat:
    """Low-pass response h(λ) = exp(-tλ): models diffuse along the links for a time t.

    >>> import numpy as np
    >>> Heat(t=1.0)(np.array([0.0, 1.0])).round(3)
    array([1.   , 0.368])
    """

    t: float = 1.0  # how long models diffuse
    search: ClassVar = {"t": (0.1, 10.0)}

    def __post_init__(self) -> None:
        check_number("t", self.t, low=0)

    def __call__(self, frequencies: Array) -> Array:
        return np.exp(-self.t * frequencies)
