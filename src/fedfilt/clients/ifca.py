from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.aggregators.ifca import IFCA as Rule
from fedfilt.training.client import Sent, Task
from fedfilt.training.rows import Layout


@dataclass(frozen=True)
class IFCA:
    """IFCA (Ghosh et al. 2020): several models travel, and a device trains the one with the lowest loss on its samples.

    It also decides with that model (with the first of equal losses). All models travel both ways, so messages are
    `clusters` times as large. What travels as cluster j is how far that model has moved from its own random start,
    which every device draws for itself; the first cluster starts from the run's first model.

    >>> from fedfilt.training.client import example
    >>> sent = IFCA(clusters=3)(example(IFCA(clusters=3)))
    >>> sorted(sent.travelling), sent.state
    (['cluster_1', 'cluster_2'], mappingproxy({}))
    """

    clusters: int = 2  # models that travel
    rule = "ifca"
    search: ClassVar = {"clusters": (2, 5)}

    def __post_init__(self) -> None:
        check_count("client.clusters", self.clusters, low=2, high=100)

    @property
    def travels(self) -> tuple[str, ...]:
        """Names of the models that go with the first."""
        return Rule(self.clusters).travels

    def check_run(self, layout: Layout, kind: str, outputs: int, devices: int) -> None:
        """Refuse more clusters than devices."""
        check_count("client.clusters of ifca, at most the number of devices,", self.clusters, low=2, high=devices)

    def __call__(self, task: Task) -> Sent:
        moved = {name: array.copy() for name, array in task.travelling.items()}
        name, row = self._chosen(task)
        before = row.copy()
        loss = task.train(row)
        if name:
            moved[name] += row - before
        return Sent(task.model if name else row, loss, travelling=moved)

    def personal(self, task: Task) -> Array:
        """The model with the lowest loss on its own samples."""
        return self._chosen(task)[1]

    def _chosen(self, task: Task) -> tuple[str, Array]:
        """(what travels with the model as, the model) of the cluster of a device; its name is empty for the first."""
        rows = {"": task.model.copy()}
        for number, name in enumerate(self.travels, start=1):
            rows[name] = task.another_start(number) + task.travelling[name]
        losses = [task.loss(row) for row in rows.values()]
        best = list(rows)[0 if np.isnan(losses).any() else int(np.argmin(losses))]
        return best, rows[best]
