import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedfilt.training.description import Dense, Flatten, Layer


@dataclass(frozen=True)
class Logistic:
    """Logistic regression on the flattened input.

    >>> from fedfilt.training.description import described
    >>> described(Logistic((1, 8, 8), 10)).layout.size
    650
    """

    shape: tuple[int, ...]
    classes: int

    def layers(self) -> Iterator[Layer]:
        """The layers, from input to output."""
        yield Flatten()
        yield Dense(math.prod(self.shape), self.classes)
