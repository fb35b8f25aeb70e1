from dataclasses import dataclass

from fedfilt.training.client import Sent, Task


@dataclass(frozen=True)
class Plain:
    """Train the row the device received and send it, as devices do in FedAvg and G-Fedfilt.

    >>> from fedfilt.training.client import example
    >>> sent = Plain()(example(Plain()))
    >>> sent.model.shape, round(sent.loss, 2), dict(sent.state)
    ((6,), 0.84, {})
    """

    def __call__(self, task: Task) -> Sent:
        loss = task.train(task.model)
        return Sent(task.model, loss)
