"""The room's vote: devices that saw the same moment say how likely each label is, and the edge server decides."""

from itertools import combinations
from typing import Any

import numpy as np

from fedfilt._checks import check_choice, check_count, check_weights
from fedfilt._types import Array
from fedfilt.data.samples import FederatedData
from fedfilt.training.trainer import Trainer

HOW = ("majority", "mean", "weighted")
NOBODY = -1  # the decision about a moment that no device saw


def vote(probabilities: Any, how: str = "mean", accuracy: Any = None) -> Array:
    """The room's decision about every moment (M,) from its devices' probabilities (devices, M, labels).

    A device that did not see a moment has NaN there. "mean" takes the label of the largest mean probability; "majority"
    the label most devices think likeliest, ties by the mean; "weighted" weighs a device's probabilities by the log-odds
    of its validated `accuracy` against guessing, ln(a (C - 1) / (1 - a)). About a moment nobody saw it says -1.

    >>> vote([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [np.nan, np.nan]], [[0.4, 0.6], [np.nan, np.nan]]])
    array([0, 1])
    >>> vote([[[0.9, 0.1]], [[0.2, 0.8]], [[0.4, 0.6]]], how="majority")
    array([1])
    """
    check_choice("how", how, HOW)
    try:
        given = np.asarray(probabilities, np.float64)
    except ValueError:
        raise ValueError(
            "probabilities must have as many moments and labels for every device; a moment that one did not see is NaN"
        ) from None
    if given.ndim != 3 or not given.shape[0] or given.shape[2] < 2:
        raise ValueError(
            f"probabilities must have shape (devices, moments, labels), one device and two labels at least, "
            f"got {given.shape}"
        )
    if np.isinf(given).any() or (given < 0).any():
        raise ValueError("probabilities must be >= 0 and finite, or NaN for a moment that a device did not see")
    seen = np.asarray(~np.isnan(given).any(axis=2))
    shares = np.where(seen[:, :, None], given, 0)
    if how == "weighted":
        if accuracy is None:
            raise ValueError('how="weighted" needs accuracy, one number from 0 to 1 per device')
        shares = shares * _weights(accuracy, *given.shape[::2])[:, None, None]
    elif accuracy is not None:
        raise ValueError(f"accuracy means nothing for how={how!r}; leave it out")
    total = shares.sum(axis=0)
    if how == "majority":
        mean = total / np.maximum(seen.sum(axis=0), 1)[:, None]
        ballots = np.eye(given.shape[2])[shares.argmax(axis=2)] * seen[:, :, None]
        total = ballots.sum(axis=0) + mean / (2 * max(1.0, float(mean.max(initial=0))))
    return np.where(seen.any(axis=0), total.argmax(axis=1), NOBODY)


def _weights(accuracy: Any, count: int, labels: int) -> Array:
    values = check_weights("accuracy", accuracy, count)
    if (values > 1).any():
        raise ValueError(f"accuracy must be from 0 to 1, got {values.max():g}")
    odds = np.clip(values, 1e-3, 1 - 1e-3)
    weights = np.maximum(np.log(odds * (labels - 1) / (1 - odds)), 0)
    return weights if weights.any() else np.ones(count)  # all no better than guessing: all alike


class Rooms:
    """What the devices of every room say about the moments of their local tests, ready to vote."""

    def __init__(self, models: Array, trainer: Trainer, data: FederatedData, rooms: Any) -> None:
        """`models` (K, B), one row per device; `rooms` (K,) says who votes with whom."""
        if data.moments is None or data.local_test is None:
            raise ValueError(f"{data.name} does not know which samples are of the same moment, so no room can vote")
        if len(rooms) != data.count or len(models) != data.count:
            raise ValueError(f"rooms and models must have one entry per device, {data.count}, got {len(rooms)}")
        self.rooms = []  # per room (devices, probabilities (D, M, C), labels (M,))
        for room in dict.fromkeys(np.asarray(rooms).tolist()):
            devices = np.flatnonzero(np.asarray(rooms) == room)
            moments = np.unique(np.concatenate([data.moments[data.local_test[d]] for d in devices]))
            said, labels = np.full((len(devices), len(moments), data.classes), np.nan), np.zeros(len(moments), int)
            for place, device in enumerate(devices.tolist()):
                rows = data.local_test[device]
                when = np.searchsorted(moments, data.moments[rows])
                said[place, when] = trainer.predict(models[device], data.x[rows])[:, : data.classes]
                labels[when] = data.y[rows]
            self.rooms.append((devices, said, labels))
        self._validated = np.full(data.count, np.nan)
        for device, rows in enumerate(data.validation or ()):
            if len(rows):
                guess = trainer.predict(models[device], data.x[rows]).argmax(axis=1)
                self._validated[device] = (guess == data.y[rows]).mean()

    def single(self) -> Array:
        """Accuracy of every device alone (K,) on what it saw."""
        result = np.full(len(self._validated), np.nan)
        for devices, said, labels in self.rooms:
            for device, own in zip(devices, said, strict=True):
                seen = ~np.isnan(own).any(axis=1)
                if seen.any():
                    result[device] = (own[seen].argmax(axis=1) == labels[seen]).mean()
        return result

    def accuracy(self, how: str = "mean", missing: int = 0) -> Array:
        """Accuracy of every room's vote with so many of its devices missing: the mean over all choices of them.

        A room that has no device left cannot vote: that is an error. A moment nobody saw counts as a wrong decision.
        """
        check_count("missing", missing, low=0)
        result = []
        for devices, said, labels in self.rooms:
            left = len(devices) - missing
            if left < 1:
                raise ValueError(f"a room of {len(devices)} devices has no vote left with {missing} missing")
            scores = []
            for chosen in combinations(range(len(devices)), left):
                known = self._known(devices[list(chosen)]) if how == "weighted" else None
                scores.append(float((vote(said[list(chosen)], how, known) == labels).mean()))
            result.append(np.mean(scores))
        return np.array(result)

    def _known(self, devices: Array) -> Array:
        if np.isnan(self._validated[devices]).any():
            raise ValueError('how="weighted" needs samples for validation: ask for fewer samples.train than there are')
        return self._validated[devices]
