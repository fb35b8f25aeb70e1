"""Scores of tests, per device and for all: accuracy and the paper's I_1 .. I_4 for labels, others for other tasks."""

import math
from typing import Any

import numpy as np

from fedfilt._types import Array
from fedfilt.data import FederatedData
from fedfilt.rounds.types import Tests
from fedfilt.training.goal import ACCURACY, Goal, all_scores, scores

PAPERS = ("I_1", "I_2", "I_3", "I_4")


def local_from_global(confusion: Array, shares: Array) -> tuple[Array, Array]:
    """Each device's local accuracy and confusion from a test on everything (K, C, C): only its own labels count.

    The accuracy is the mean recall of the device's labels, weighted by their share (K, C) of its data. The confusion
    matrix has the same weights, so that it sums to 1 for each device.
    """
    true = confusion.sum(axis=2)
    recall = np.diagonal(confusion, axis1=1, axis2=2) / np.maximum(true, 1)
    weight = shares * (true > 0)
    total = weight.sum(axis=1, keepdims=True)
    weight = weight / np.where(total > 0, total, 1)
    mean = np.where(total[:, 0] > 0, (weight * recall).sum(axis=1), np.nan)  # NaN where nothing was tested
    return mean, confusion * (weight / np.maximum(true, 1))[:, :, None]


def accuracy(confusion: Array) -> Array:
    """Accuracy of every device from a (K, C, C) stack; NaN if nothing was tested."""
    tested = confusion.sum(axis=(1, 2))
    hits = np.trace(confusion, axis1=1, axis2=2)
    return np.where(tested > 0, hits / np.maximum(tested, 1), np.nan)


def summary(tests: Tests, data: FederatedData, goal: Goal = Goal()) -> dict[str, Any]:  # noqa: B008 (frozen)
    """The score of every device on its own and the global test, and the scores of all tests summed.

    For labels, these are the paper's I_1 .. I_4 and the summed confusion matrix. A metric other than accuracy is
    included by name. If training samples were held out, "validation" has the same on those.

    >>> import fedfilt
    >>> table = {"data": "digits", "model": "logistic", "rounds": 1, "samples": {"train": 9, "local_test": 9}}
    >>> run = fedfilt.Run(fedfilt.from_table({**table, "engine": {"workers": 1}}))
    >>> with run.experiment() as experiment:
    ...     [(state, record)] = fedfilt.play(run.start(), experiment)
    >>> sorted(summary(record.mixed, run.data))
    ['global', 'local']
    """
    usual = goal.metric == ACCURACY and goal.kind == "labels"
    both: dict[str, tuple[Array | None, Array]] = {}
    if tests.local_test is not None:
        both["local"] = None, tests.local_test
    elif goal.own is None:  # whose sums cannot be told apart by label
        width = tests.global_test.shape[1] - data.classes  # labels that the model knows but no device has
        both["local"] = local_from_global(tests.global_test, np.pad(data.shares, ((0, 0), (0, width))))
    both["global"] = None, tests.global_test
    if tests.validation is not None:
        both["validation"] = None, tests.validation
    result: dict[str, Any] = {}
    for name, (known, sums) in both.items():
        if not usual:
            per_device = np.array([all_scores(goal, one)[goal.metric.key] for one in sums])
        else:
            per_device = accuracy(sums) if known is None else known
        tested = np.isfinite(per_device)
        if not tested.any():
            continue
        total = sums.sum(axis=0)
        worst = int(np.nanargmax(per_device) if goal.metric.lower else np.nanargmin(per_device))
        result[name] = {
            "mean": float(per_device[tested].mean()),
            "std": float(per_device[tested].std()),
            "worst": float(per_device[worst]),
            "worst_device": worst,
        }
        if not usual:
            found = {key: value for key, value in all_scores(goal, total).items() if math.isfinite(value)}
            result[name] |= {"metric": goal.metric.key, "lower": goal.metric.lower, "scores": found}
        devices = [round(float(value), 6) if math.isfinite(value) else None for value in per_device]
        if goal.kind == "labels":
            matrix = total if goal.own is None else goal.parts(total)[0]
            result[name] |= dict(zip(PAPERS, scores(matrix), strict=True))
            result[name] |= {"devices": devices, "confusion": matrix.round(4).tolist()}
        else:
            result[name]["devices"] = devices
        losses = getattr(tests, f"{name}_loss")
        if losses is not None and np.isfinite(losses).any():
            result[name]["loss"] = float(np.nanmean(losses))
    return result
