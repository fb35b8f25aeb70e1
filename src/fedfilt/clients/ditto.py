from dataclasses import dataclass
from typing import ClassVar

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.training.client import Kept, Sent, Task


@dataclass(frozen=True)
class Ditto:
    """Ditto (Li et al. 2021): a shared model as in `plain`, and a personal one that is pulled towards it.

    v follows ∂loss(v) + weight · (v - w), where w is the shared model the device received. It decides with v.

    >>> from fedfilt.training.client import example
    >>> sent = Ditto()(example(Ditto()))
    >>> sent.model.shape, sent.state["personal"].shape
    ((6,), (6,))
    """

    weight: float = 0.1  # pull of the personal model towards the shared one
    rule = "fedavg"
    like = "plain"
    passes = 2.0
    search: ClassVar = {"weight": (0.01, 10.0)}

    def __post_init__(self) -> None:
        check_number("client.weight", self.weight, low=0)

    def start(self, task: Task) -> Kept:
        """The personal model starts as the shared one."""
        return {"personal": task.model.copy()}

    def __call__(self, task: Task) -> Sent:
        given, own = task.model.copy(), task.state["personal"]
        loss = task.train(task.model)
        task.train(own, proximal=self.weight, around=given)
        return Sent(task.model, loss, {"personal": own})

    def personal(self, task: Task) -> Array:
        """The personal model."""
        return task.state["personal"]
