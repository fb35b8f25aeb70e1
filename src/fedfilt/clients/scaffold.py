from dataclasses import dataclass

import numpy as np

from fedfilt.training.client import Kept, Sent, Task


@dataclass(frozen=True)
class Scaffold:
    """SCAFFOLD (Karimireddy et al. 2020): steps corrected by control variates, c of all devices minus cₖ of this one.

    y follows ∂loss(y) + c - cₖ; then cₖ = cₖ - c + (x - y) / (steps · rate), the paper's option II. With momentum,
    which the paper does not have, (x - y) / rate is divided by how far the steps go instead of by their number. c
    travels with the model; the rule of the same name moves it as the paper does, any other mixes it as it mixes models.

    >>> from fedfilt.training.client import example
    >>> sent = Scaffold()(example(Scaffold()))
    >>> sorted(sent.state), sorted(sent.travelling)
    (['control'], ['control'])
    """

    rule = "scaffold"
    travels = ("control",)

    def start(self, task: Task) -> Kept:
        """No correction before the first round."""
        return {"control": np.zeros_like(task.model)}

    def __call__(self, task: Task) -> Sent:
        given, own, everyone = task.model.copy(), task.state["control"], task.travelling["control"]
        loss = task.train(task.model, drift=everyone - own)
        new = own - everyone + (given - task.model) / np.float32(task.reach(task.epochs) * task.rate)
        return Sent(task.model, loss, {"control": new}, {"control": everyone + new - own})
