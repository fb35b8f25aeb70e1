"""Columns that a device keeps to itself: it uses its own instead of those it receives, and does not send them."""

import numpy as np

from fedfilt._types import Array
from fedfilt.training.client import Kept, Sent, Task


def kept(task: Task, columns: Array) -> Kept:
    """What a device keeps before its first round: the columns of the model it received."""
    return {"kept": task.model[columns]}


def own(task: Task, columns: Array) -> Array:
    """(B,) the model of a device: what it received, with its own columns."""
    row = task.model.copy()
    row[columns] = task.state["kept"]
    return row


def sent(task: Task, row: Array, columns: Array, loss: float) -> Sent:
    """A trained model without the device's own columns, which it keeps."""
    return Sent(np.where(columns, task.given, row), loss, {"kept": row[columns]})
