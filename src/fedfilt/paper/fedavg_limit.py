"""G-Fedfilt with μ = 10⁴ is FedAvg."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedfilt.paper._cases import PART, Case, Scope
from fedfilt.paper._figures import curves
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, spread, table, tested, values

place = "fig. AvgvsG-FedFilt"
order = 40
RULES = ("fedavg", "mu=1e4")
SETS = ("writers", "mnist_2")
MOST = 0.2  # points
# Chance is the larger the fewer pictures: there are 10,000 in all
MOST_OF_PART = MOST * float(np.sqrt(10_000 / PART))


def cases(scope: Scope) -> list[Case]:
    """Digits by writer, as in the paper's figure, and the most unlike devices, MNIST_2."""
    return scope.grid(SETS, RULES)


def largest(results: Results, data: str, often: bool = False) -> float | None:
    """Largest difference of the two on the global test over all seeds and tested rounds, in points.

    On all pictures; or `often`, on the part of them that curves are tested on.
    """
    found = []
    for case in results.scope.grid([data], ["mu=1e4"]):
        both = [_global(results.record(replace(case, rule=rule)), often) for rule in RULES]
        found += [100 * abs(both[1][round] - both[0][round]) for round in both[0] if round in both[1]]
    return max(found, default=None)


def _global(record: Mapping[str, Any] | None, often: bool) -> dict[int, float]:
    """Global accuracy by tested round."""
    if record is None:
        return {}
    if often:
        drawn = record.get("drawn", {"round": [], "global mean": []})
        return dict(zip(drawn["round"], drawn["global mean"], strict=True))
    return {point["round"]: point["global"]["mean"] for point in record["curve"]}


def verdict(whole: float, part: float | None) -> bool:
    """Whether both differences are small enough."""
    return whole <= MOST and (part is None or part <= MOST_OF_PART)


def make(results: Results) -> Item:
    """Both curves, and how far they ever are apart."""
    rows, figures, holds = [], {}, True
    for data in SETS:
        far, part = (largest(results, data, often) for often in (False, True))
        if far is None:
            continue
        case = Case(data, "", results.scope.small, results.scope.rounds)
        row = [values(results, Case(data, rule, case.samples, case.rounds), "global") for rule in RULES]
        cells = [spread(by_seed.values(), 2) for by_seed in row]
        rows.append([WORDS[data], *cells, f"{far:.2f}", "-" if part is None else f"{part:.2f}"])
        holds &= verdict(far, part)
    if not rows:
        return Item(NOTHING)
    lines, often = {}, results.often(results.scope.grid(["writers"], RULES))
    for rule in RULES:
        case = Case("writers", rule, results.scope.small, results.scope.rounds)
        lines[rule] = results.curve(case, "global", often=often)
    figures["fedavg_limit"] = curves({"digits by writer, global test": lines}, "accuracy, %")
    head = ["data", "FedAvg, global", "μ = 10⁴, global", "largest difference on all pictures"]
    text = table([*head, f"on the {PART:,} pictures of curves"], rows)
    text += (
        f"\n\n{'Reproduces' if holds else 'Does not reproduce'}, by our criterion: at most {MOST} points apart on all "
        f"pictures, and {MOST_OF_PART:.2f} on the {PART:,} of curves, where chance is √{10_000 // PART} times as large "
        f"and a picture is {100 / PART} points. Each difference is the largest of any tested round of any "
        "seed. The paper attributes the gap between its curves to TensorFlow; with the same seed for both, there is "
        f"next to none. The curves in the picture coincide. {tested(often)}"
    )
    return Item(text, figures)
