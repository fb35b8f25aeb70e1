"""How well rooms vote: the devices of a run, on the moments of their local tests."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.data.samples import FederatedData
from fedfilt.rounds.voting import vote
from fedfilt.training.trainer import Trainer


class Rooms:
    """The answers of each room's devices about the moments of their local tests, ready for a vote.

    >>> import fedfilt
    >>> from dataclasses import replace
    >>> table = {"data": "digits", "model": "logistic", "samples": {"train": 9, "local_test": 9}}
    >>> run = fedfilt.Run(fedfilt.from_table(table))
    >>> data = replace(run.data, moments=np.arange(len(run.data.y)))  # every digit is a moment of its own
    >>> Rooms(run.start().models, run.trainer, data, run.graph.rooms).accuracy().shape
    (4,)
    """

    def __init__(self, models: Array, trainer: Trainer | Sequence[Trainer], data: FederatedData, rooms: Any) -> None:
        """`models` (K, B), one row per device; `rooms` (K,) says which devices vote together.

        If kinds of devices have encoders, pass a trainer for every device: `run.trainers`.
        """
        trainers = [trainer] * data.count if isinstance(trainer, Trainer) else trainer
        if data.moments is None or data.local_test is None:
            raise ValueError(f"{data.name} does not know which samples are from the same moment, so rooms cannot vote")
        if len(rooms) != data.count or len(models) != data.count:
            raise ValueError(f"rooms and models must have {data.count} entries, one per device, got {len(rooms)}")
        self.rooms = []  # per room (devices, probabilities (D, M, C), labels (M,))
        for room in dict.fromkeys(np.asarray(rooms).tolist()):
            devices = np.flatnonzero(np.asarray(rooms) == room)
            moments = np.unique(np.concatenate([data.moments[data.local_test[d]] for d in devices]))
            said, labels = np.full((len(devices), len(moments), data.classes), np.nan), np.zeros(len(moments), int)
            for place, device in enumerate(devices.tolist()):
                rows = data.local_test[device]
                when = np.searchsorted(moments, data.moments[rows])
                said[place, when] = trainers[device].predict(models[device], data.x[rows])[:, : data.classes]
                labels[when] = data.y[rows]
            self.rooms.append((devices, said, labels))
        self._validated = np.full(data.count, np.nan)
        for device, rows in enumerate(data.validation or ()):
            if len(rows):
                guess = trainers[device].predict(models[device], data.x[rows]).argmax(axis=1)
                self._validated[device] = (guess == data.y[rows]).mean()

    def single(self) -> Array:
        """(K,) accuracy of every device alone on what it saw."""
        result = np.full(len(self._validated), np.nan)
        for devices, said, labels in self.rooms:
            for device, own in zip(devices, said, strict=True):
                seen = ~np.isnan(own).any(axis=1)
                if seen.any():
                    result[device] = (own[seen].argmax(axis=1) == labels[seen]).mean()
        return result

    def accuracy(self, how: str = "mean", missing: int = 0) -> Array:
        """Accuracy of every room's vote if `missing` of its devices are missing, averaged over all choices.

        A room without devices cannot vote, which is an error. A moment that no device saw counts as a wrong decision.
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
            raise ValueError('how="weighted" needs validation samples: set samples.train lower than what devices have')
        return self._validated[devices]
