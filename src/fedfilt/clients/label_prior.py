from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.training.client import Sent, Task
from fedfilt.training.rows import Layout


@dataclass(frozen=True)
class LabelPrior:
    """Own labels at inference: trained like `plain`; a device decides with its row and the shares of its own labels.

    It adds log((nᶜ + smoothing) / (n + smoothing · C)) to the bias of label c in the last layer, where nᶜ of its n
    samples have that label. So it expects what it has seen: nothing else is learnt, and it gets worse on labels that it
    has not seen. `smoothing` is a number of pretended samples for every label.

    >>> from fedfilt.training.client import example
    >>> task = example(LabelPrior())  # four samples of each of two labels
    >>> (-task.model + LabelPrior().personal(task)).round(2)
    array([ 0.  ,  0.  ,  0.  ,  0.  , -0.69, -0.69], dtype=float32)
    """

    smoothing: float = 1.0  # samples that a device pretends to have of every label
    rule = "fedavg"
    like = "plain"

    def __post_init__(self) -> None:
        check_number("client.smoothing", self.smoothing, low=0, above=True)

    def check_run(self, layout: Layout, kind: str, outputs: int, devices: int) -> None:
        """Refuse targets that are not labels, and a model whose last layer has no bias for each of them."""
        if kind != "labels":
            raise ValueError(f"the client label_prior needs labels to count, got {kind} as targets")
        if layout.columns(["head.bias"]).sum() < outputs:
            raise ValueError(f"the client label_prior needs a last layer with a bias for each of {outputs} labels")

    def __call__(self, task: Task) -> Sent:
        loss = task.train(task.model)
        return Sent(task.model, loss)

    def personal(self, task: Task) -> Array:
        """The row it received, with the device's label shares in the biases of the last layer."""
        labels, biases = task.targets, task.columns(["head.bias"])
        classes = int(biases.sum())
        known = labels[(labels >= 0) & (labels < classes)]
        if not len(known):
            return task.model
        counts = np.bincount(known, minlength=classes) + self.smoothing
        task.model[biases] += np.log(counts / counts.sum()).astype(np.float32)
        return task.model
