"""Sending a tenth of the update, with and without error feedback."""

from typing import Any

from fedfilt.paper._cases import Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, differences, spread, table

place = "text: 90 % of gradients can be ignored"
order = 125
KINDS = {"everything": (1.0, True), "a tenth": (0.1, True), "a tenth, without error feedback": (0.1, False)}


def case_of(scope: Scope, kind: str) -> Case:
    """MNIST_10 with μ = 10; sending everything is the run before the schedule, up to half of its rounds."""
    density, feedback = KINDS[kind]
    rounds = scope.rounds if density < 1 else 2 * scope.rounds
    options: dict[str, Any] = {"heterogeneity": 0.31, "density": density, "feedback": feedback}
    return Case("mnist_10", "mu=10", scope.small, rounds, **options)


def cases(scope: Scope) -> list[Case]:
    """Every kind with every seed."""
    return [one for kind in KINDS for one in scope.seeds(case_of(scope, kind))]


def costs(results: Results, kind: str) -> dict[int, float]:
    """Difference to sending everything on the global test in points, by seed."""
    rounds = results.scope.rounds
    base, found = (
        results.values(case_of(results.scope, one), "global", "mean", rounds) for one in ("everything", kind)
    )
    return {seed: found[seed] - base[seed] for seed in found if seed in base}


def make(results: Results) -> Item:
    """Accuracy on the global test."""
    rows = []
    for kind in KINDS:
        found = results.values(case_of(results.scope, kind), "global", "mean", results.scope.rounds)
        if not found:
            return Item(NOTHING)
        base = results.values(case_of(results.scope, "everything"), "global", "mean", results.scope.rounds)
        rows.append([kind, spread(found.values()), spread(differences(found, base), 2, sign=True)])
    text = table(["sent, of the bytes", f"global test after {results.scope.rounds} rounds", "to everything"], rows)
    words = (
        "MNIST_10 with μ = 10. The paper cites work in which almost 90 % of the gradients can be left out with nearly "
        "no loss. A tenth of the bytes carries 3,640 of 53,002 values, because positions need bytes too."
    )
    return Item(f"{text}\n\n{words}")
