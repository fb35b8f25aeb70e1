from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_count, check_number
from fedfilt._types import Array
from fedfilt.training.client import Sent, Task


@dataclass(frozen=True)
class PerFedAvg:
    """Per-FedAvg (Fallah et al. 2020), first order: a shared model from which one small step makes a personal one.

    Of two batches in turn, the first moves w by a step of `inner_rate` to w'; the gradient at w' on the second moves
    w itself. It draws the planned epochs twice, and so takes as many steps as FedAvg. The device decides with what
    `adapt` epochs of `inner_rate` make of w. Momentum does not build up.

    >>> from fedfilt.training.client import example
    >>> PerFedAvg()(example(PerFedAvg())).model.shape
    (6,)
    """

    inner_rate: float = 0.01  # of the step to the personal model
    adapt: int = 1  # epochs of it on the device's own samples
    rule = "fedavg"
    passes = 2.0
    momentum = False
    search: ClassVar = {"inner_rate": (0.001, 0.3), "adapt": (1, 10)}

    def __post_init__(self) -> None:
        check_number("client.inner_rate", self.inner_rate, low=0, above=True)
        check_count("client.adapt", self.adapt, low=0)

    def __call__(self, task: Task) -> Sent:
        losses, batches = [], list(task.batches(2 * task.epochs))
        for first, second in zip(batches[::2], batches[1::2], strict=True):
            moved = task.model.copy()
            task.train(moved, batch=first, learning_rate=self.inner_rate)
            before = moved.copy()
            losses.append(task.train(moved, batch=second))
            task.model += moved - before
        return Sent(task.model, float(np.mean(losses[-task.steps(1) :])))

    def personal(self, task: Task) -> Array:
        """The shared model after a few steps on the device's own samples."""
        task.train(task.model, epochs=self.adapt, learning_rate=self.inner_rate)
        return task.model
