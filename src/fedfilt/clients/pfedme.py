from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_count, check_number
from fedfilt._types import Array
from fedfilt.training.client import Kept, Sent, Task


@dataclass(frozen=True)
class PFedMe:
    """pFedMe (Dinh et al. 2020): a personal model θ near the shared one w by a Moreau envelope, batch by batch.

    On each batch θ takes `steps` steps down loss(θ) + weight / 2 · ‖θ - w‖², then w moves to it: w -= pull · (w - θ),
    with the paper's η · λ as pull. Its λ = 15 and η = 0.005 are for tens of thousands of batches; few as they are here,
    w would hardly move. The device decides with θ. Because it goes step by step, momentum does not build up.

    >>> from fedfilt.training.client import example
    >>> sent = PFedMe()(example(PFedMe()))
    >>> sent.model.shape, sent.state["personal"].shape
    ((6,), (6,))
    """

    weight: float = 1.0  # how strongly the shared model holds the personal one
    steps: int = 5  # of the personal model on each batch
    pull: float = 0.5  # share of the way to the personal model that the shared one goes on each batch
    rule = "fedavg"
    momentum = False
    search: ClassVar = {"weight": (0.1, 15.0), "pull": (0.05, 1.0)}

    def __post_init__(self) -> None:
        check_number("client.weight", self.weight, low=0)
        check_count("client.steps", self.steps)
        check_number("client.pull", self.pull, low=0, high=1, above=True)

    @property
    def passes(self) -> float:
        """How many times it goes over the planned epochs."""
        return float(self.steps)

    def start(self, task: Task) -> Kept:
        """The personal model starts as the shared one."""
        return {"personal": task.model.copy()}

    def __call__(self, task: Task) -> Sent:
        shared, own, pull, losses = task.model, task.model.copy(), np.float32(self.pull), []
        for batch in task.batches():
            for _ in range(self.steps):
                loss = task.train(own, batch=batch, proximal=self.weight, around=shared)
            losses.append(loss)
            shared -= pull * (shared - own)
        return Sent(shared, float(np.mean(losses[-task.steps(1) :])), {"personal": own})

    def personal(self, task: Task) -> Array:
        """The personal model."""
        return task.state["personal"]
