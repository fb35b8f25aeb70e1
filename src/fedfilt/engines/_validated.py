"""Validation: an engine that wraps another and also tests models on held-out training samples."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedfilt._types import Array
from fedfilt.data.samples import FederatedData
from fedfilt.rounds.types import Engine, Reply, State, Tests
from fedfilt.system.orders import Job
from fedfilt.training.work import Desk, Own, examine


class Validated:
    """Trains and tests on another engine; the validation samples are here, so no device is asked.


    `alone`: models are tested on these only.
    """

    def __init__(self, inner: Engine, data: FederatedData, desk: Desk, alone: bool = False) -> None:
        assert data.validation is not None
        self._inner, self._desk, self._alone = inner, desk, alone
        self._samples = [Own(data.x, data.y, rows) for rows in data.validation]

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Training runs on the other engine."""
        return self._inner.train(jobs, deadline)

    def test(self, state: State) -> Tests:
        """The other engine's tests, and those on the validation samples."""
        models = self.personal(state)
        pairs = enumerate(zip(models, self._samples, strict=True))
        found = [examine(row, own, self._desk.at(device)) for device, (row, own) in pairs]
        held = Tests.stack(None, found)
        others = Tests(None, np.zeros_like(held.global_test)) if self._alone else self._inner.test(state)
        return others._replace(validation=held.global_test, validation_loss=held.global_loss)

    def personal(self, state: State) -> Array:
        """The models that devices decide with, where the other engine knows them; else their rows."""
        known = getattr(self._inner, "personal", None)
        found: Array = state.models[:, : self._desk.size] if known is None else known(state)
        return found
