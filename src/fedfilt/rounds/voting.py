"""The room's vote: devices that saw the same moment report how likely each label is, and the edge server decides.

NumPy only: the edge server of a home imports this.
"""

from typing import Any

import numpy as np

from fedfilt._checks import check_choice, check_weights
from fedfilt._types import Array

HOW = ("majority", "mean", "weighted")
NOBODY = -1  # the decision about a moment that no device saw


def vote(probabilities: Any, how: str = "mean", accuracy: Any = None) -> Array:
    """(M,) the room's decision about every moment, from its devices' probabilities (devices, M, labels).

    A device that did not see a moment has NaN there. "mean" takes the label with the largest mean probability;
    "majority" the label that most devices find most likely, with ties decided by the mean; "weighted" weighs a device's
    probabilities by the log-odds of its validated `accuracy` against guessing, ln(a (C - 1) / (1 - a)). The decision is
    -1 for a moment that no device saw.

    >>> vote([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [np.nan, np.nan]], [[0.4, 0.6], [np.nan, np.nan]]])
    array([0, 1])
    >>> vote([[[0.9, 0.1]], [[0.2, 0.8]], [[0.4, 0.6]]], how="majority")
    array([1])
    """
    total = tally(probabilities, how, accuracy)
    return np.where(np.isnan(total).any(axis=1), NOBODY, total.argmax(axis=1))


def tally(probabilities: Any, how: str = "mean", accuracy: Any = None) -> Array:
    """(M, labels) what `vote` counts for each label, of which the largest wins; NaN for a moment that no device saw.

    >>> tally([[[0.9, 0.1]], [[0.2, 0.8]]]).round(2)
    array([[1.1, 0.9]])
    """
    check_choice("how", how, HOW)
    try:
        given = np.asarray(probabilities, np.float64)
    except ValueError:
        raise ValueError(
            "probabilities must have the same moments and labels for every device, with NaN for moments it did not see"
        ) from None
    if given.ndim != 3 or not given.shape[0] or given.shape[2] < 2:
        raise ValueError(
            f"probabilities must have shape (devices, moments, labels), at least one device and two labels, "
            f"got {given.shape}"
        )
    if np.isinf(given).any() or (given < 0).any():
        raise ValueError("probabilities must be finite and >= 0, or NaN for a moment that a device did not see")
    seen = np.asarray(~np.isnan(given).any(axis=2))
    shares = np.where(seen[:, :, None], given, 0)
    if how == "weighted":
        if accuracy is None:
            raise ValueError('how="weighted" needs accuracy, one number from 0 to 1 per device')
        shares = shares * _weights(accuracy, *given.shape[::2])[:, None, None]
    elif accuracy is not None:
        raise ValueError(f"accuracy has no meaning for how={how!r}; leave it out")
    total = shares.sum(axis=0)
    if how == "majority":
        mean = total / np.maximum(seen.sum(axis=0), 1)[:, None]
        ballots = np.eye(given.shape[2])[shares.argmax(axis=2)] * seen[:, :, None]
        total = ballots.sum(axis=0) + mean / (2 * max(1.0, float(mean.max(initial=0))))
    return np.where(seen.any(axis=0, keepdims=True).T, total, np.nan)


def _weights(accuracy: Any, count: int, labels: int) -> Array:
    values = check_weights("accuracy", accuracy, count)
    if (values > 1).any():
        raise ValueError(f"accuracy must be from 0 to 1, got {values.max():g}")
    odds = np.clip(values, 1e-3, 1 - 1e-3)
    weights = np.maximum(np.log(odds * (labels - 1) / (1 - odds)), 0)
    return weights if weights.any() else np.ones(count)  # none is better than guessing: equal weights
