from dataclasses import dataclass
from typing import ClassVar

from fedfilt._checks import check_number
from fedfilt.training.client import Sent, Task


@dataclass(frozen=True)
class FedProx:
    """FedProx (Li et al. 2020): like `plain`, with a pull of proximal / 2 · ‖w - w₀‖² towards the model w₀ it received.

    >>> from fedfilt.clients import Plain
    >>> from fedfilt.training.client import example
    >>> start = example(Plain()).model
    >>> far, near = (abs(client(example(client)).model - start).max() for client in (Plain(), FedProx(1.5)))
    >>> near < far
    np.True_
    """

    proximal: float = 0.1  # pull towards the model that was given
    rule = "fedavg"
    search: ClassVar = {"proximal": (0.001, 1.0)}

    def __post_init__(self) -> None:
        check_number("client.proximal", self.proximal, low=0)

    def __call__(self, task: Task) -> Sent:
        loss = task.train(task.model, proximal=self.proximal)
        return Sent(task.model, loss)
