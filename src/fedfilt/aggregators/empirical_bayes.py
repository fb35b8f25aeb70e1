from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_choice, check_number
from fedfilt._types import Array
from fedfilt.aggregators.fedavg import FedAvg
from fedfilt.aggregators.gfedfilt import GFedFilt
from fedfilt.filters.tikhonov import Tikhonov
from fedfilt.graph import Graph
from fedfilt.mixing.bayes import MOST_DEVICES, Measured, combined, empirical_bayes, mean_cosines
from fedfilt.rounds.remembering import Remembered
from fedfilt.rounds.types import Rule, Updates


@dataclass(frozen=True)
class EmpiricalBayes:
    """The rule of the client `two_level`: a shared model by FedAvg, and personal ones by empirical Bayes.

    A row is the shared model, the device's personal model (zeros: none yet) and two arrays that only devices fill. When
    devices send their changes D by fine-tuning, and those on two halves of their samples, the personal model of device
    k becomes the model it received plus (H D)ₖ; see `fedfilt.mixing.bayes`. Other devices keep theirs.

    `reading` is "personal" (a device's own signal keeps its size) or "balanced" (closer to the shared model). `links`
    replaces the cosines between devices by two means: over the links of the graph, and over the other pairs.

    With `mu`, a third model of every device follows the shared one in its row, as its difference from it. These models
    are mixed in every round, as G-Fedfilt does with that strength.

    >>> models = np.zeros((2, 8), np.float32)  # two numbers each: shared, personal, first half, second half
    >>> updates = Updates(np.array([[1, 0] * 4, [0, 1] * 4], np.float32), np.ones(2))
    >>> rule, graph = EmpiricalBayes(), Graph.from_edges(2, [])
    >>> models, kept = rule(models, updates, graph, rule.start(models))
    >>> models.round(3)
    array([[0.5, 0.5, 1. , 0. , 0. , 0. , 0. , 0. ],
           [0.5, 0.5, 0. , 1. , 0. , 0. , 0. , 0. ]], dtype=float32)
    """

    reading: str = "personal"  # "personal" (a device's own signal keeps its size) or "balanced"
    links: bool = False  # of the cosines between devices, take only their mean over links and over other pairs
    mu: float = 0.0  # strength of the filter on the third models, as of the client two_level; 0: there are none
    client = "two_level"
    like = "fedavg"

    def __post_init__(self) -> None:
        check_choice("aggregator.reading", self.reading, ("personal", "balanced"))
        check_number("aggregator.mu", self.mu, low=0)

    @property
    def travels(self) -> tuple[str, ...]:
        """Names of what follows the shared model in a row."""
        return ("filtered",) * (self.mu > 0) + ("personal", "first", "second")

    def start(self, models: Array) -> Remembered:
        """Nothing measured yet; see `_measured`."""
        if len(models) > MOST_DEVICES:
            raise ValueError(f"empirical Bayes mixes at most {MOST_DEVICES} devices, got {len(models)}")
        names = "halves", "linked", "linked_pairs", "unlinked", "unlinked_pairs"
        return Remembered({"reliability": np.zeros(len(models), np.float32)}, {name: np.zeros(()) for name in names})

    def interpolating(self) -> Rule:
        """For devices without an update: the shared model."""
        return FedAvg()

    def __call__(self, models: Array, updates: Updates, graph: Graph, before: Remembered) -> tuple[Array, Remembered]:
        updates.check(models, graph)
        result, parts = models.copy(), 1 + len(self.travels)
        size = models.shape[1] // parts
        shared, *filtered, personal, first, second = (slice(part * size, (part + 1) * size) for part in range(parts))
        result[:, shared] = Updates(updates.rows[:, shared], updates.weights).averaged(models[:, shared])
        for own in filtered if updates.weights.any() else ():
            trained = Updates(updates.rows[:, shared] + updates.rows[:, own], updates.weights)
            third = GFedFilt(Tikhonov(self.mu))(models[:, shared] + models[:, own], trained, graph)
            result[:, own] = third - result[:, shared]
        came = (updates.weights > 0) & updates.rows[:, personal.start :].any(axis=1)
        if not came.any():
            return result, before
        rows, near = updates.rows[came], graph.subgraph(came)
        changes = np.ascontiguousarray(rows[:, personal])
        given = changes, rows[:, first], rows[:, second], updates.weights[came]
        h, found = empirical_bayes(*given, near if self.links else None, self.reading == "balanced")
        result[came, personal] = models[came, shared] + combined(h, changes)
        return result, _remembered(found, came, near, np.asarray(changes.any(axis=1)))


def _remembered(found: Measured, came: Array, near: Graph, changed: Array) -> Remembered:
    """What a measurement found: the cosine of halves, mean cosines and their numbers of pairs, and reliabilities."""
    linked, unlinked = np.nan_to_num(mean_cosines(found.cosines, near, changed))  # of no pair: 0
    links, devices = int((changed[near.edges].all(axis=1)).sum()), int(changed.sum())
    numbers = {"halves": found.halves, "linked": linked, "linked_pairs": links, "unlinked": unlinked}
    numbers["unlinked_pairs"] = devices * (devices - 1) // 2 - links
    reliability = np.zeros(len(came), np.float32)
    reliability[came] = found.reliability
    return Remembered({"reliability": reliability}, {name: np.array(float(one)) for name, one in numbers.items()})
