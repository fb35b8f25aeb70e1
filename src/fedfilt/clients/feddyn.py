from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_number
from fedfilt.training.client import Kept, Sent, Task


@dataclass(frozen=True)
class FedDyn:
    """FedDyn (Acar et al. 2021): a loss that changes each round, so that devices' optima agree with the shared one.

    w follows ∂loss(w) - g + alpha · (w - w₀) from the given w₀; then g -= alpha · (w - w₀). The rule of the same name
    belongs to it, with the same alpha.

    >>> from fedfilt.training.client import example
    >>> sent = FedDyn()(example(FedDyn()))
    >>> sent.state["gradient"].shape
    (6,)
    """

    alpha: float = 0.1  # pull towards the model that was given
    rule = "feddyn"
    search: ClassVar = {"alpha": (0.01, 1.0)}

    def __post_init__(self) -> None:
        check_number("client.alpha", self.alpha, low=0, above=True)

    def start(self, task: Task) -> Kept:
        """No gradient before the first round."""
        return {"gradient": np.zeros_like(task.model)}

    def __call__(self, task: Task) -> Sent:
        given, gradient = task.model.copy(), task.state["gradient"]
        loss = task.train(task.model, proximal=self.alpha, drift=-gradient)
        return Sent(task.model, loss, {"gradient": gradient - np.float32(self.alpha) * (task.model - given)})
