from dataclasses import dataclass

from fedfilt._types import Array
from fedfilt.clients import _keeping
from fedfilt.training.client import Kept, Sent, Task
from fedfilt.training.rows import Layout


@dataclass(frozen=True)
class LGFedAvg:
    """LG-FedAvg (Liang et al. 2020): every device has its own representation, and only the last layer is mixed.

    `share` names the layers that are trained together.

    >>> from fedfilt.training.client import example
    >>> LGFedAvg()(example(LGFedAvg())).state["kept"].shape  # the only layer of this model is its head, which is shared
    (0,)
    """

    share: tuple[str, ...] = ("head",)  # layers that are trained together
    rule = "fedavg"

    def check(self, layout: Layout) -> None:
        """Refuse a model without such layers."""
        layout.columns(self.share)

    def start(self, task: Task) -> Kept:
        """The representation starts as received."""
        return _keeping.kept(task, ~task.columns(self.share))

    def __call__(self, task: Task) -> Sent:
        columns = ~task.columns(self.share)
        row = _keeping.own(task, columns)
        loss = task.train(row)
        return _keeping.sent(task, row, columns, loss)

    def personal(self, task: Task) -> Array:
        """Its own representation, with the layers it received."""
        return _keeping.own(task, ~task.columns(self.share))
