import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedfilt.training.description import Dense, Flatten, Layer, Relu


@dataclass(frozen=True)
class MLP:
    """A hidden layer of ReLU neurons on the flattened input.

    >>> from fedfilt.training.description import described
    >>> described(MLP((1, 8, 8), 10, hidden=32)).layout.size
    2410
    """

    shape: tuple[int, ...]
    classes: int
    hidden: int = 64  # neurons

    def layers(self) -> Iterator[Layer]:
        """The layers, from input to output."""
        yield Flatten()
        yield Dense(math.prod(self.shape), self.hidden)
        yield Relu()
        yield Dense(self.hidden, self.classes)
