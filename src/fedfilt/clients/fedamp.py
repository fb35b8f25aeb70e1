from dataclasses import dataclass
from typing import ClassVar

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.training.client import Kept, Sent, Task


@dataclass(frozen=True)
class FedAMP:
    """FedAMP (Huang et al. 2021): a device's own model w, pulled to the message u from the rule of that name.

    w follows ∂loss(w) + proximal · (w - u), the paper's λ / α as proximal. The device sends w and decides with it.

    >>> from fedfilt.training.client import example
    >>> sent = FedAMP()(example(FedAMP()))
    >>> (sent.model == sent.state["own"]).all()
    np.True_
    """

    proximal: float = 0.1  # pull towards the message of the rule
    rule = "fedamp"
    search: ClassVar = {"proximal": (0.01, 10.0)}

    def __post_init__(self) -> None:
        check_number("client.proximal", self.proximal, low=0)

    def start(self, task: Task) -> Kept:
        """w starts as the first message."""
        return {"own": task.model.copy()}

    def __call__(self, task: Task) -> Sent:
        own = task.state["own"].copy()
        loss = task.train(own, proximal=self.proximal, around=task.model)
        return Sent(own, loss, {"own": own})

    def personal(self, task: Task) -> Array:
        """Its own model."""
        return task.state["own"]
