from dataclasses import dataclass

import numpy as np

from fedfilt._types import Array
from fedfilt.data.deal import WHOLE, Sizes, draw_global_test
from fedfilt.data.samples import FederatedData, Samples


@dataclass(frozen=True)
class Uniform:
    """Every device gets a random part of all samples, regardless of targets; no training sample is dealt twice.

    >>> Uniform()
    Uniform()
    """

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        numbers = sizes.draw(len(rooms), rng)
        pool, tests = rng.permutation(np.flatnonzero(~samples.test)), np.flatnonzero(samples.test)
        asked = len(tests) if sizes.local_test == WHOLE else int(sizes.local_test)
        for key, number, held in (("train", int(numbers.sum()), len(pool)), ("local_test", asked, len(tests))):
            if number > held:
                raise ValueError(f"samples.{key} asks for {number} samples, but {samples.name} has {held}; use fewer")
        train = tuple(np.split(pool[: numbers.sum()], np.cumsum(numbers)[:-1]))
        local = tuple(np.sort(rng.choice(tests, asked, replace=False)) for _ in rooms)
        test = draw_global_test(samples, sizes, rng)
        return FederatedData(samples.name, samples.x, samples.y, samples.classes, train, local, test)
