"""The paper's classification metrics I_1 .. I_4 from confusion matrices."""

from typing import NamedTuple

import numpy as np

from fedfilt.checks import Array


class Scores(NamedTuple):
    """Accuracy, macro precision, macro recall and F1 of a confusion matrix."""

    accuracy: float
    precision: float
    recall: float
    f1: float


def scores(confusion: Array) -> Scores:
    """I_1 .. I_4 of a confusion matrix (true label by row); labels that never occur do not count.

    F1 is the harmonic mean of the macro precision and the macro recall, as in the paper.

    >>> [round(value, 4) for value in scores(np.array([[8, 2], [1, 9]]))]
    [0.85, 0.8535, 0.85, 0.8518]
    """
    hits = np.diagonal(confusion).astype(float)
    given, true = confusion.sum(axis=0), confusion.sum(axis=1)
    occurs = true > 0
    if not occurs.any():
        return Scores(*[float("nan")] * 4)
    precision = float((hits / np.where(given > 0, given, 1))[occurs].mean())
    recall = float((hits / np.where(true > 0, true, 1))[occurs].mean())
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return Scores(float(hits.sum() / true.sum()), precision, recall, f1)


def local_from_global(confusion: Array, shares: Array) -> tuple[Array, Array]:
    """Local accuracy and confusion of every device from a test on everything, (K, C, C): only its own labels count.

    The accuracy is the mean of the recalls of the device's labels, weighted by their share (K, C) of its data; the
    confusion matrix is weighted alike, so that it sums to 1 for each device.
    """
    true = confusion.sum(axis=2)
    recall = np.diagonal(confusion, axis1=1, axis2=2) / np.maximum(true, 1)
    weight = shares * (true > 0)
    total = weight.sum(axis=1, keepdims=True)
    weight = weight / np.where(total > 0, total, 1)
    mean = np.where(total[:, 0] > 0, (weight * recall).sum(axis=1), np.nan)  # NaN where nothing was tested
    return mean, confusion * (weight / np.maximum(true, 1))[:, :, None]


def accuracy(confusion: Array) -> Array:
    """Accuracy of every device of a (K, C, C) stack; NaN where nothing was tested."""
    tested = confusion.sum(axis=(1, 2))
    hits = np.trace(confusion, axis1=1, axis2=2)
    return np.where(tested > 0, hits / np.maximum(tested, 1), np.nan)
