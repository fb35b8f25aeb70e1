"""Differences between rules, seed by seed: with the same data, first model and batches, shared effects cancel."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

SURE = 0.95  # level of confidence intervals


class Paired(NamedTuple):
    """How a rule differs from another over the seeds that both have; the interval is NaN with one seed."""

    name: str
    seeds: list[int]
    differences: list[float]
    mean: float
    low: float
    high: float


def paired(scores: Mapping[str, Mapping[int, float]], baseline: str) -> list[Paired]:
    """Differences of every rule's scores, by seed, from those of a baseline: mean ± t(0.975, n - 1) s / √n.

    >>> [row] = paired({"fedavg": {0: 0.8, 1: 0.7}, "mu=1": {0: 0.9, 1: 0.82}}, "fedavg")
    >>> row.name, round(row.mean, 3), round(row.low, 3), round(row.high, 3)
    ('mu=1', 0.11, -0.017, 0.237)
    """
    base, found = scores.get(baseline, {}), []
    for name, own in scores.items():
        seeds = sorted(set(own) & set(base))
        if name == baseline or not seeds:
            continue
        each = [own[seed] - base[seed] for seed in seeds]
        found.append(Paired(name, seeds, each, float(np.mean(each)), *interval(each)))
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The confidence interval of a mean, by Student's t.

    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    if len(values) < 2:
        return float("nan"), float("nan")
    half = float(stdtrit(len(values) - 1, (1 + SURE) / 2) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return float(np.mean(values)) - half, float(np.mean(values)) + half
