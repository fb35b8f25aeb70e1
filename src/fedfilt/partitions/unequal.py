from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfilt._checks import check_count, check_number
from fedfilt._types import Array
from fedfilt.data.deal import Numbers, Sizes
from fedfilt.data.samples import FederatedData, Samples
from fedfilt.partitions.labels import Labels


@dataclass(frozen=True)
class Unequal:
    """Unequal numbers of training samples, log-normal: samples.train · exp(`spread` · z) with z standard normal.

    So samples.train is the median. No device has fewer than `least` (unless samples.train is smaller) or more than
    `most` times samples.train. `partition` deals the samples.

    >>> Unequal().draw(np.full(6, 45), np.random.default_rng(0)).tolist()
    [51, 39, 85, 50, 26, 65]
    """

    spread: float = 1.0  # of the logarithm of the numbers
    least: int = 2  # samples of a device
    most: float = 10.0  # times samples.train
    partition: Any = Labels()  # deals the samples

    def __post_init__(self) -> None:
        check_number("partition.spread", self.spread, low=0, high=10)
        check_count("partition.least", self.least, low=0)
        check_number("partition.most", self.most, low=1)

    def draw(self, numbers: Array, rng: np.random.Generator) -> Array:
        """(K,) training samples of every device, given the numbers they would have otherwise."""
        drawn = np.rint(numbers * np.exp(self.spread * rng.standard_normal(len(numbers))))
        found: Array = np.clip(drawn, np.minimum(self.least, numbers), self.most * numbers).astype(np.int64)
        return found

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        numbers = self.draw(sizes.draw(len(rooms), rng), rng)
        return self.partition(samples, rooms, Numbers.of(sizes, numbers), rng)
