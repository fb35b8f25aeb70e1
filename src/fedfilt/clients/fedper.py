from dataclasses import dataclass

from fedfilt._types import Array
from fedfilt.clients import _keeping
from fedfilt.training.client import Kept, Sent, Task
from fedfilt.training.rows import Layout


@dataclass(frozen=True)
class FedPer:
    """FedPer (Arivazhagan et al. 2019): some layers are personal, the others are trained together and mixed.

    `keep` names the layers that stay on the device, by default the last one with weights.

    >>> from fedfilt.training.client import example
    >>> client = FedPer()
    >>> task = example(client)
    >>> sent = client(task)
    >>> (sent.model == task.model).all(), sent.state["kept"].shape  # the only layer of this model is its head
    (np.True_, (6,))
    """

    keep: tuple[str, ...] = ("head",)  # layers that stay on the device; "head" is the last one with weights
    rule = "fedavg"

    def check(self, layout: Layout) -> None:
        """Refuse a model without such layers."""
        layout.columns(self.keep)

    def start(self, task: Task) -> Kept:
        """The personal layers start as received."""
        return _keeping.kept(task, task.columns(self.keep))

    def __call__(self, task: Task) -> Sent:
        columns = task.columns(self.keep)
        row = _keeping.own(task, columns)
        loss = task.train(row)
        return _keeping.sent(task, row, columns, loss)

    def personal(self, task: Task) -> Array:
        """What the device received, with its own layers."""
        return _keeping.own(task, task.columns(self.keep))
