import math

from torch import nn


class MLP(nn.Sequential):
    """A hidden layer of ReLU neurons on the flattened input.

    >>> sum(p.numel() for p in MLP((1, 8, 8), 10, hidden=32).parameters())
    2410
    """

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 64) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))
