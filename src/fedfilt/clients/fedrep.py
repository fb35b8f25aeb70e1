from dataclasses import dataclass

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.clients import _keeping
from fedfilt.training.client import Kept, Sent, Task
from fedfilt.training.rows import Layout


@dataclass(frozen=True)
class FedRep:
    """FedRep (Collins et al. 2021): first the personal layers are trained, then the shared ones; only these are sent.

    `keep` names the personal layers; they are trained for `head_epochs`, or as planned if that is 0. A fixed
    number of epochs is charged to a device's time, but not planned.

    >>> from fedfilt.training.client import example
    >>> FedRep()(example(FedRep())).state["kept"].shape
    (6,)
    """

    keep: tuple[str, ...] = ("head",)  # layers that stay on the device
    head_epochs: int = 0  # epochs of these layers; 0: as planned
    rule = "fedavg"

    def __post_init__(self) -> None:
        check_count("client.head_epochs", self.head_epochs, low=0)

    @property
    def passes(self) -> float:
        """How many times it goes over the planned epochs."""
        return 1.0 if self.head_epochs else 2.0

    def extra(self, round: int, rounds: int) -> float:
        """Epochs of the personal layers, in every round, if they are not as many as planned."""
        return float(self.head_epochs)

    def check(self, layout: Layout) -> None:
        """Refuse a model without such layers."""
        layout.columns(self.keep)

    def start(self, task: Task) -> Kept:
        """The personal layers start as received."""
        return _keeping.kept(task, task.columns(self.keep))

    def __call__(self, task: Task) -> Sent:
        columns = task.columns(self.keep)
        row = _keeping.own(task, columns)
        task.train(row, epochs=self.head_epochs or task.epochs, trained=columns)
        loss = task.train(row, trained=~columns)
        return _keeping.sent(task, row, columns, loss)

    def personal(self, task: Task) -> Array:
        """What the device received, with its own layers."""
        return _keeping.own(task, task.columns(self.keep))
