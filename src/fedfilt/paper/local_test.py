"""Local accuracy after 200 rounds: how well a device does on digits like its own."""

import numpy as np

from fedfilt.paper._cases import SETS, TABLE, Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import Gains, at_each_size, by_set, printed_gain, spread, verdict

place = "tab. local_test"
order = 60


def cases(scope: Scope) -> list[Case]:
    """All data sets under all rules, at every size; purely personal models, not in the paper, at the small one."""
    found = [case for size, _ in scope.sizes for case in scope.grid(SETS, TABLE, samples=size)]
    return found + scope.grid(SETS, ["local"])


def make(results: Results) -> Item:
    """A table per data set, and which gains over FedAvg reproduce."""
    return by_set(results, "local", _words)


def _words(results: Results, data: str) -> str:
    """How the best strength compares with FedAvg, at each size."""

    def tell(size: int, found: Gains) -> str:
        best = max(found, key=lambda rule: float(np.mean(found[rule])))
        paper = max(printed_gain(data, "local", rule) for rule in found)
        return (
            f"At {size} samples, the best is {WORDS[best]}, {spread(found[best], 2, True)} points against FedAvg "
            f"(paper: {paper:+.2f} at its best): {'a gain' if paper > 0 else 'a loss'} {verdict(paper, found[best])}."
        )

    return at_each_size(results, data, "local", tell)
