"""45 and 450 training samples per device: which one gives the paper's level."""

import numpy as np

from fedfilt.paper._cases import SETS, TABLE, Case, Scope
from fedfilt.paper._figures import scatter
from fedfilt.paper._items import Item
from fedfilt.paper._printed import ACCURACY, WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, sizes, table, values

place = "not in the paper"
order = 160


def cases(scope: Scope) -> list[Case]:
    """The runs of the tables."""
    return [case for size, _ in scope.sizes for case in scope.grid(SETS, TABLE, samples=size)]


def make(results: Results) -> Item:
    """How far the tables are from the printed ones at each size."""
    rows = []
    dots: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes(results)}
    for data in SETS:
        for test in ("local", "global"):
            row = [WORDS[data], test]
            for size in sizes(results):
                pairs = []
                for rule in TABLE:
                    ours = list(values(results, Case(data, rule, size, results.scope.rounds), test).values())
                    if ours:
                        pairs.append((ACCURACY[test][data, rule][0], float(np.mean(ours))))
                dots[size] += pairs
                off = np.array([ours - printed for printed, ours in pairs])
                row.append(f"{off.mean():+.1f} ({abs(off).mean():.1f})" if pairs else "-")
            rows.append(row)
    found = {size: np.array(pairs) for size, pairs in dots.items() if pairs}
    if not found:
        return Item(NOTHING)
    text = table(
        ["data", "test", *[f"{size} samples: ours minus paper (mean distance)" for size in sizes(results)]], rows
    )
    far = {size: float(abs(pairs[:, 1] - pairs[:, 0]).mean()) for size, pairs in found.items()}
    if len(far) > 1:
        near = min(far, key=lambda size: far[size])
        text += (
            "\n\nMean over the five rules of each table. "
            + " ".join(
                f"At {size} samples the numbers are {value:.1f} points from the printed ones on average."
                for size, value in far.items()
            )
            + f" {near} samples come closer to the paper's "
            f"level{', although the paper states 450' if near == 45 else ''}."
        )
    named = {f"{size} samples": pairs for size, pairs in found.items()}
    return Item(text, {"samples": scatter(named, ("paper, %", "here, %"))})
