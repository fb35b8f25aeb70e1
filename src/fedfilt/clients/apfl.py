from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.training.client import Kept, Sent, Task


@dataclass(frozen=True)
class APFL:
    """APFL (Deng et al. 2020) with a fixed alpha: the device decides with alpha · v + (1 - alpha) · w.

    On each batch the shared w takes a step down loss(w), and v one down loss(alpha · v + (1 - alpha) · w), of which w
    is held fixed. Because it goes step by step, momentum does not build up.

    >>> from fedfilt.training.client import example
    >>> APFL()(example(APFL())).state["own"].shape
    (6,)
    """

    alpha: float = 0.5  # share of the personal model
    rule = "fedavg"
    passes = 2.0
    momentum = False
    search: ClassVar = {"alpha": (0.1, 0.9)}

    def __post_init__(self) -> None:
        check_number("client.alpha", self.alpha, low=0, high=1, above=True)

    def start(self, task: Task) -> Kept:
        """v starts as the shared model."""
        return {"own": task.model.copy()}

    def __call__(self, task: Task) -> Sent:
        shared, own, losses = task.model, task.state["own"], []
        for batch in task.batches():
            before = self._blend(own, shared)
            after = before.copy()
            losses.append(task.train(shared, batch=batch))
            task.train(after, batch=batch, learning_rate=self.alpha * task.learning_rate)  # ∂/∂v has a factor alpha
            own += after - before
        return Sent(shared, float(np.mean(losses[-task.steps(1) :])), {"own": own})

    def personal(self, task: Task) -> Array:
        """The blend of its own model and the one it received."""
        return self._blend(task.state["own"], task.model)

    def _blend(self, own: Array, shared: Array) -> Array:
        alpha = np.float32(self.alpha)
        return alpha * own + (1 - alpha) * shared
