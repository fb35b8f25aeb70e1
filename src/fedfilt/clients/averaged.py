from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfilt._types import Array
from fedfilt.clients.finetune import FineTune
from fedfilt.training.client import Sent, Task, is_personal

PASSED_ON = ("rule", "like", "travels", "seldom", "passes", "extra", "start", "check")


@dataclass(frozen=True)
class Averaged:
    """Any `client` with a personal model, but its device answers with the mean of two models' probabilities.

    They are its personal model and the row it received. This takes two forward passes and keeps more of what others
    know. It trains, sends and keeps whatever the inner client does.

    >>> from fedfilt.training.client import example
    >>> client = Averaged(FineTune(epochs=2))
    >>> task = example(client)
    >>> client.personal(task).shape
    (2, 6)
    """

    client: Any = FineTune()  # one with a personal model

    def __post_init__(self) -> None:
        if not is_personal(self.client):
            name = type(self.client).__name__
            raise ValueError(f"client.client must have a personal model, such as finetune or ditto, got {name}")

    def __getattr__(self, name: str) -> Any:
        if name in PASSED_ON:
            return getattr(self.client, name)
        raise AttributeError(name)

    def __call__(self, task: Task) -> Sent:
        sent: Sent = self.client(task)
        return sent

    def personal(self, task: Task) -> Array:
        """The inner client's model, and the row it received."""
        given = task.model.copy()
        return np.vstack([self.client.personal(task), given])
