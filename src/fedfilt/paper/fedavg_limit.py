"""G-Fedfilt with μ = 10⁴ is FedAvg."""

from fedfilt.paper._cases import Case, Scope
from fedfilt.paper._figures import curves
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, spread, table, tested, values

place = "fig. AvgvsG-FedFilt"
order = 40
RULES = ("fedavg", "mu=1e4")
SETS = ("writers", "mnist_2")


def cases(scope: Scope) -> list[Case]:
    """Digits by writer, as in the paper's figure, and the most unlike devices, MNIST_2."""
    return scope.grid(SETS, RULES)


def largest(results: Results, data: str) -> float | None:
    """Largest difference of the two on the global test over all seeds and tested rounds, in points."""
    found = []
    for case in results.scope.grid([data], ["mu=1e4"]):
        other = Case(data, "fedavg", case.samples, case.rounds, case.seed)
        one, base = results.record(case), results.record(other)
        if one and base:
            known = {point["round"]: point["global"]["mean"] for point in base["curve"]}
            for point in one["curve"]:
                if point["round"] in known:
                    found.append(100 * abs(point["global"]["mean"] - known[point["round"]]))
    return max(found, default=None)


def make(results: Results) -> Item:
    """Both curves, and how far they ever are apart."""
    rows, figures = [], {}
    for data in SETS:
        far = largest(results, data)
        if far is None:
            continue
        case = Case(data, "", results.scope.small, results.scope.rounds)
        row = [values(results, Case(data, rule, case.samples, case.rounds), "global") for rule in RULES]
        rows.append([WORDS[data], *[spread(by_seed.values(), 2) for by_seed in row], f"{far:.2f}"])
    if not rows:
        return Item(NOTHING)
    lines, often = {}, results.often(results.scope.grid(["writers"], RULES))
    for rule in RULES:
        case = Case("writers", rule, results.scope.small, results.scope.rounds)
        lines[rule] = results.curve(case, "global", often=often)
    figures["fedavg_limit"] = curves({"digits by writer, global test": lines}, "accuracy, %")
    text = table(
        ["data", "FedAvg, global", "μ = 10⁴, global", "largest difference on any tested round of any seed"], rows
    )
    worst = max(float(row[-1]) for row in rows)
    text += (
        f"\n\n{'Reproduces' if worst <= 0.2 else 'Does not reproduce'}: the two are never more than {worst:.2f} points "
        "apart. The paper attributes the gap between its curves to TensorFlow; with the same seed for both, there is "
        f"next to none. The curves in the picture coincide. {tested(often)}"
    )
    return Item(text, figures)
