from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_count, check_number
from fedfilt._types import Array
from fedfilt.training.client import Sent, Task
from fedfilt.training.rows import Layout


@dataclass(frozen=True)
class FineTune:
    """Fine-tuning: trained like `plain`; a device decides with its row after some epochs on its own samples.

    It applies a `share` of the change (1: all, 0.5: half-way) to the named `layers` (none: all layers). What is mixed
    is never fine-tuned.

    >>> from fedfilt.training.client import example
    >>> client = FineTune(epochs=2)
    >>> task = example(client)
    >>> bool((client.personal(task) != task.model).any())
    True
    """

    epochs: int = 10  # on the device's own samples, after mixing
    layers: tuple[str, ...] = ()  # that are fine-tuned; none: all
    share: float = 1.0  # of the change: 1 is all, 0.5 half-way
    rule = "fedavg"
    like = "plain"
    search: ClassVar = {"epochs": (1, 30)}

    def __post_init__(self) -> None:
        check_count("client.epochs", self.epochs, low=0)
        check_number("client.share", self.share, low=0, high=1)

    def check(self, layout: Layout) -> None:
        """Refuse a model without such layers."""
        layout.columns(self.layers)

    def __call__(self, task: Task) -> Sent:
        loss = task.train(task.model)
        return Sent(task.model, loss)

    def personal(self, task: Task) -> Array:
        """The row it received, fine-tuned."""
        row = task.model.copy()
        task.train(row, epochs=self.epochs, trained=task.columns(self.layers) if self.layers else None)
        return row if self.share == 1 else task.model + np.float32(self.share) * (row - task.model)
