"""Computation on the devices before and after the schedule."""

from fedfilt.paper import system_heterogeneity as table_of
from fedfilt.paper._cases import POPULATIONS, SCHEDULES, Case, Scope
from fedfilt.paper._figures import bars
from fedfilt.paper._items import Item
from fedfilt.paper._printed import LESS_COMPUTATION
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, table

place = "fig. bargraph"
order = 120


def cases(scope: Scope) -> list[Case]:
    """The runs of the heterogeneity table."""
    return table_of.cases(scope)


def make(results: Results) -> Item:
    """Floating-point operations of all devices over all rounds, forward and backward."""
    scope, rounds = results.scope, 2 * results.scope.rounds
    every = [table_of.after(scope, h, schedule) for h in POPULATIONS for schedule in SCHEDULES]
    if not all(results.seeds(case) for case in [table_of.before(scope), *every]):
        return Item(NOTHING)
    base = table_of.totals(results, table_of.before(scope), "flops", rounds) / 1e9
    columns = {"before": [base] * len(POPULATIONS)}
    for schedule in SCHEDULES:
        columns[schedule] = [
            table_of.totals(results, table_of.after(scope, h, schedule), "flops", rounds) / 1e9 for h in POPULATIONS
        ]
    rows = [
        [f"{h}", *[f"{columns[name][i]:.0f} ({columns[name][i] / base - 1:+.1%})" for name in columns]]
        for i, h in enumerate(POPULATIONS)
    ]
    text = table(["H", *[f"{name}, GFLOP" for name in columns]], rows).replace(" (+0.0%)", "")
    most = {name: 100 * max(1 - value / base for value in columns[name]) for name in SCHEDULES}
    less = "reproduces" if min(most.values()) > 0 else "does not reproduce"
    text += (
        f"\n\nAfter {rounds} rounds, at {scope.small} samples per device. The paper prints no numbers in this figure; "
        f"its abstract says up to -{LESS_COMPUTATION} %. Less computation {less}: here up to "
        f"{', '.join(f'-{value:.1f} % under {name}' for name, value in most.items())}."
    )
    groups = [f"H = {h}" for h in POPULATIONS]
    return Item(text, {"computation_cost": bars(groups, columns, "GFLOP, all devices and rounds")})
