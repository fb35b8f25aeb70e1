from dataclasses import dataclass

from fedfilt._types import Array
from fedfilt.clients.fedper import FedPer
from fedfilt.training.client import Kept, Sent, Task
from fedfilt.training.rows import Layout

_NORMS = FedPer(keep=("norm",))


@dataclass(frozen=True)
class FedBN:
    """FedBN (Li et al. 2021): every device keeps its normalisation layers, with their means, to itself.

    >>> FedBN().check(Layout.of({"0.weight": (2, 3), "0.bias": (2,)}))
    Traceback (most recent call last):
    ValueError: the client fedbn needs a model with normalisation layers, but this one has none
    """

    rule = "fedavg"

    def check(self, layout: Layout) -> None:
        """Refuse a model without normalisation."""
        if not layout.columns(["norm"]).any():
            raise ValueError("the client fedbn needs a model with normalisation layers, but this one has none")

    def start(self, task: Task) -> Kept:
        """The layers start as received."""
        return _NORMS.start(task)

    def __call__(self, task: Task) -> Sent:
        return _NORMS(task)

    def personal(self, task: Task) -> Array:
        """What the device received, with its own normalisation."""
        return _NORMS.personal(task)
