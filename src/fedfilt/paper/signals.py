"""Filtering the models against filtering the updates, which the paper leaves open."""

import numpy as np

from fedfilt._types import Array
from fedfilt.paper._cases import STRENGTHS, Case, Scope
from fedfilt.paper._figures import curves
from fedfilt.paper._items import Item
from fedfilt.paper._printed import ACCURACY, WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, spread, table, tested

place = "not in the paper"
order = 140


def cases(scope: Scope) -> list[Case]:
    """MNIST_2 at every strength, both ways."""
    return scope.grid(["mnist_2"], STRENGTHS) + scope.grid(["mnist_2"], STRENGTHS, signal="updates")


def distance(results: Results, signal: str) -> float:
    """How far from the paper's spread between devices on the global test, mean over strengths, in points."""
    found = []
    for rule in STRENGTHS:
        case = Case("mnist_2", rule, results.scope.small, results.scope.rounds, signal=signal)
        stds = list(results.values(case, "global", "std").values())
        found.append(abs(np.mean(stds) - ACCURACY["global"]["mnist_2", rule][1]))
    return float(np.mean(found))


def make(results: Results) -> Item:
    """Accuracy and spread between devices both ways."""
    rows, panels, often = [], {}, results.often(cases(results.scope))
    for signal in ("models", "updates"):
        lines = {}
        for rule in STRENGTHS:
            case = Case("mnist_2", rule, results.scope.small, results.scope.rounds, signal=signal)
            if not results.seeds(case):
                return Item(NOTHING)
            printed = [ACCURACY[test]["mnist_2", rule] for test in ("local", "global")]
            row = [signal, WORDS[rule], f"{printed[0][0]:.1f} / {printed[1][0]:.1f}"]
            row += [spread(results.values(case, test, "mean").values()) for test in ("local", "global")]
            rows.append([*row, f"{printed[1][1]:.2f}", spread(results.values(case, "global", "std").values(), 2)])
            lines[rule] = results.curve(case, "global", "std", often=often)
        panels[f"{signal} filtered"] = lines
    head = [
        "filtered",
        "rule",
        "paper, local / global",
        "local",
        "global",
        "between devices, paper",
        "between devices, here",
    ]
    text = table(head, rows)
    models, updates = distance(results, "models"), distance(results, "updates")
    growth = {title: np.mean([_growth(points) for points in lines.values()]) for title, lines in panels.items()}
    text += (
        "\n\nThe paper's equations filter updates, but the authors' program filters models. The spread between devices "
        f"on the global test shows which one made the tables: filtering models is on average {models:.1f} points from "
        f"the printed spread, filtering updates {updates:.1f}, so filtering "
        f"{'models' if models < updates else 'updates'} reproduces the tables better. In the second half of the "
        "rounds, the spread changes by "
        + " and ".join(f"{change:+.2f} points ({title})" for title, change in growth.items())
        + ", averaged over strengths: filtered updates add up, and nothing pulls the models together again. "
        + tested(often)
    )
    return Item(text, {"signals": curves(panels, "spread between devices, points")})


def _growth(points: Array) -> float:
    """Change of a curve in the second half of the rounds."""
    return float(points[-1, 1] - points[np.searchsorted(points[:, 0], points[-1, 0] / 2), 1])
