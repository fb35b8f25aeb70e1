from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfilt._checks import check_count, check_number
from fedfilt._types import Array
from fedfilt.data.deal import Numbers, Sizes
from fedfilt.data.samples import FederatedData, Samples
from fedfilt.partitions.labels import Labels


@dataclass(frozen=True)
class Cold:
    """A random `share` of the devices has only `low` to `high` training samples, as if new to the home.

    `partition` deals the samples. A cold device never has more samples than without this.

    >>> Cold(share=0.5).draw(np.array([45, 45, 45, 45]), np.random.default_rng(0)).tolist()
    [4, 45, 2, 45]
    """

    share: float = 0.3  # of devices that are cold
    low: int = 2  # training samples of a cold device, at least
    high: int = 10  # at most
    partition: Any = Labels()  # deals the samples

    def __post_init__(self) -> None:
        check_number("partition.share", self.share, low=0, high=1)
        check_count("partition.low", self.low, low=0)
        check_count("partition.high", self.high, low=max(self.low, 1))

    def draw(self, numbers: Array, rng: np.random.Generator) -> Array:
        """(K,) training samples of every device, given the numbers they would have otherwise."""
        count = round(self.share * len(numbers))
        chosen = np.sort(rng.permutation(len(numbers))[:count])
        few = numbers.copy()
        few[chosen] = np.minimum(numbers[chosen], rng.integers(self.low, self.high + 1, size=count))
        return few

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        numbers = self.draw(sizes.draw(len(rooms), rng), rng)
        return self.partition(samples, rooms, Numbers.of(sizes, numbers), rng)
