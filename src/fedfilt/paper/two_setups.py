"""Rooms whose devices have similar labels (Setup 1) against labels drawn at random (Setup 2)."""

from fedfilt.paper._cases import Case, Scope
from fedfilt.paper._figures import curves
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, differences, spread, table, tested, values, verdict

place = "fig. twosetups"
order = 90
SETUPS = {"Setup 1": "setup_1", "Setup 2": "mnist_4"}


def cases(scope: Scope) -> list[Case]:
    """FedAvg and G-Fedfilt with μ = 10; Setup 2 is MNIST_4."""
    return scope.grid(SETUPS.values(), ("fedavg", "mu=10"))


def setup_gains(results: Results, name: str) -> dict[int, float]:
    """G-Fedfilt minus FedAvg on the local test, by seed."""
    size, rounds = results.scope.small, results.scope.rounds
    one, base = (values(results, Case(SETUPS[name], rule, size, rounds), "local") for rule in ("mu=10", "fedavg"))
    return {seed: one[seed] - base[seed] for seed in one if seed in base}


def make(results: Results) -> Item:
    """Four curves on the local test, and the gains."""
    lines, rows, often = {}, [], results.often(cases(results.scope))
    for setup, data in SETUPS.items():
        row = [setup]
        for rule in ("fedavg", "mu=10"):
            case = Case(data, rule, results.scope.small, results.scope.rounds)
            lines[f"{rule}, {setup}"] = results.curve(case, "local", often=often)
            row.append(spread(values(results, case, "local").values()))
        rows.append([*row, spread(setup_gains(results, setup).values(), 2, sign=True)])
    one, two = (setup_gains(results, setup) for setup in SETUPS)
    more = differences(one, two)
    if not more:
        return Item(NOTHING)
    text = table(["", "FedAvg, local", "G-Fedfilt, local", "gain, paired"], rows)
    text += (
        f"\n\nG-Fedfilt's gain over FedAvg on the local test {verdict(1, [*one.values()])} in Setup 1 and "
        f"{verdict(1, [*two.values()])} in Setup 2. "
        f"A larger gain in Setup 1, where neighbours are similar, {verdict(1, more)} ({spread(more, 2, sign=True)} "
        "points). The paper says that FedAvg is the same in both setups. FedAvg ignores the graph but not the labels, "
        f"and the devices hold different labels. {tested(often)}"
    )
    return Item(text, {"two_setups": curves({"local test": lines}, "accuracy, %", low=60.0)})
