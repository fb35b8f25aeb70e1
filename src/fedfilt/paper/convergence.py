"""Accuracy against rounds on MNIST_2 and MNIST_4, local and global."""

import numpy as np

from fedfilt.paper._cases import TABLE, Case, Scope
from fedfilt.paper._figures import curves
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, strengths, table, tested

place = "fig. R2 a-d"
order = 50
SETS = ("mnist_2", "mnist_4")


def cases(scope: Scope) -> list[Case]:
    """The runs of the tables."""
    return scope.grid(SETS, TABLE)


def monotone(results: Results, data: str, test: str, size: int, slack: float = 0.1) -> bool | None:
    """Whether accuracy falls (local) or rises (global) with μ, up to some slack in points; None: not computed."""
    found = strengths(results, Case(data, "", size, results.scope.rounds), test)
    if not all(found):
        return None
    steps = np.diff([np.mean(list(by_seed.values())) for by_seed in found])
    return bool((steps <= slack).all() if test == "local" else (steps >= -slack).all())


def make(results: Results) -> Item:
    """Four panels as in the paper, and what can be read from them."""
    panels, rows, words, often = {}, [], [], results.often(cases(results.scope))
    ends: dict[str, list[float]] = {data: [] for data in SETS}  # after the last round, of every rule
    for data in SETS:
        for test in ("local", "global"):
            lines = {}
            for rule in TABLE:
                case = Case(data, rule, results.scope.small, results.scope.rounds)
                points = results.curve(case, test)
                lines[rule] = results.curve(case, test, often=often)
                if not len(points):
                    return Item(NOTHING)
                if test == "local":
                    ends[data].append(float(points[-1, 1]))
                middle = points[np.searchsorted(points[:, 0], points[-1, 0] / 2)]
                rows.append([WORDS[data], test, WORDS[rule], f"{middle[1]:.1f}", f"{points[-1, 1]:.1f}"])
            panels[f"{WORDS[data]}, {test} test"] = lines
            way = "falls" if test == "local" else "rises"
            holds = monotone(results, data, test, results.scope.small)
            words.append(
                f"on {WORDS[data]} the {test} accuracy {way if holds else f'does not always {way[:-1]}'} with μ"
            )
    wide = {data: max(means) - min(means) for data, means in ends.items()}
    half = results.scope.rounds // 2
    text = table(["data", "test", "rule", f"after about {half} rounds", f"after {results.scope.rounds}"], rows)
    text += (
        "\n\nThe paper says that a smaller μ is better on the local test and worse on the global one. Here, "
        f"{'; '.join(words)}. On the local test the rules are {wide['mnist_2']:.1f} points apart on MNIST_2 and "
        f"{wide['mnist_4']:.1f} on MNIST_4 (paper: less on MNIST_4). {tested(often)} Lines are means over seeds, and "
        "bands reach from the lowest to the highest seed; the paper prints no numbers for these curves."
    )
    return Item(text, {"convergence": curves(panels, "accuracy, %")})
