"""Precision, recall and F1 on MNIST_2."""

from fedfilt.paper._cases import TABLE, Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import SCORES, WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, sizes, spread, table

place = "tab. F1"
order = 80
KEYS = ("I_2", "I_3", "I_4")


def cases(scope: Scope) -> list[Case]:
    """The runs of the accuracy tables."""
    return [case for size, _ in scope.sizes for case in scope.grid(["mnist_2"], TABLE, samples=size)]


def make(results: Results) -> Item:
    """A table per test."""
    parts = []
    for test in ("local", "global"):
        rows: list[list[str]] = []
        orders: dict[int, dict[str, float]] = {}
        for rule in TABLE:
            printed = SCORES[test, rule]
            row = [WORDS[rule], " / ".join(f"{value:.1f}" for value in printed)]
            for size in sizes(results):
                case = Case("mnist_2", rule, size, results.scope.rounds)
                found = [list(results.values(case, test, key).values()) for key in KEYS]
                row.append(" / ".join(map(spread, found)) if found[0] else "-")
                if found[0]:
                    orders.setdefault(size, {})[rule] = sum(found[2]) / len(found[2])
            rows.append(row)
        head = ["rule", "paper: precision / recall / F1", *[f"{size} samples" for size in sizes(results)]]
        parts += [f"**{test} test**", table(head, rows)]
        for size, scores in orders.items():
            if len(scores) == len(TABLE):
                strengths = [scores[rule] for rule in TABLE[1:]]
                falls = strengths == sorted(strengths, reverse=test == "local")
                way = "better" if test == "local" else "worse"
                parts.append(
                    f"At {size} samples, F1 on the {test} test {'gets' if falls else 'does not always get'} {way} as μ "
                    f"gets smaller: the paper's order {'reproduces' if falls else 'does not reproduce exactly'}."
                )
    return Item("\n\n".join(parts) if any("At" in part for part in parts) else NOTHING)
