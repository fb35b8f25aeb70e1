"""Scores of tests: accuracy per device and the paper's I_1 .. I_4, from confusion matrices."""

import math
from typing import Any, NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.data import FederatedData
from fedfilt.rounds.types import Tests


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


def summary(tests: Tests, data: FederatedData) -> dict[str, Any]:
    """Accuracy of every device on its own and the global test, and the paper's I_1 .. I_4 of the summed confusion."""
    if tests.local_test is None:
        width = tests.global_test.shape[1] - data.classes  # labels that the model knows and nobody has
        own, confusion = local_from_global(tests.global_test, np.pad(data.shares, ((0, 0), (0, width))))
    else:
        own, confusion = accuracy(tests.local_test), tests.local_test
    both = {"local": (own, confusion), "global": (accuracy(tests.global_test), tests.global_test)}
    result = {}
    for name, (per_device, matrices) in both.items():
        tested = np.isfinite(per_device)
        if not tested.any():
            continue
        total = matrices.sum(axis=0)
        worst = int(np.nanargmin(per_device))
        result[name] = {
            "mean": float(per_device[tested].mean()),
            "std": float(per_device[tested].std()),
            "worst": float(per_device[worst]),
            "worst_device": worst,
            **dict(zip(("I_1", "I_2", "I_3", "I_4"), scores(total), strict=True)),
            "devices": [round(float(value), 6) if math.isfinite(value) else None for value in per_device],
            "confusion": total.round(4).tolist(),
        }
        losses = getattr(tests, f"{name}_loss")
        if losses is not None and np.isfinite(losses).any():
            result[name]["loss"] = float(np.nanmean(losses))
    return result
