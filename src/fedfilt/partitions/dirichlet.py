from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.data.deal import Sizes, deal_by_shares
from fedfilt.data.samples import FederatedData, Samples


@dataclass(frozen=True)
class Dirichlet:
    """Every device's label shares are drawn from a Dirichlet distribution: a small alpha makes devices differ.

    >>> Dirichlet(alpha=0.5).draw(count=3, classes=10, rng=np.random.default_rng(0)).sum(axis=1).round(6).tolist()
    [1.0, 1.0, 1.0]
    """

    alpha: float = 0.5  # small: devices are unlike; large: alike

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, low=0, above=True)

    def draw(self, count: int, classes: int, rng: np.random.Generator) -> Array:
        """(count, classes) shares of labels."""
        shares = rng.dirichlet(np.full(classes, self.alpha), size=count)
        bad = ~np.isfinite(shares).all(axis=1)  # a tiny alpha may underflow to 0/0: such a device has one label
        shares[bad] = np.eye(classes)[rng.integers(classes, size=bad.sum())]
        return shares

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        return deal_by_shares(samples, self.draw(len(rooms), samples.classes, rng), sizes, rng)
