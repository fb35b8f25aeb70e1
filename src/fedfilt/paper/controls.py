"""Controls: writers at random, links given to other devices, weights by all samples held."""

from dataclasses import replace
from typing import NamedTuple

from fedfilt.paper._cases import Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import Interval, differences, spread, table

place = "not in the paper"
order = 145
RULES = ("mu=0.1", "mu=1", "mu=10")


class Control(NamedTuple):
    """A run beside the one it is compared with; `real` is the same run without the control, if there is one."""

    words: str
    case: Case
    base: Case
    real: Case | None
    tests: tuple[str, ...]


def controls(scope: Scope) -> list[Control]:
    """Every control in the order of the table."""
    small, rounds = scope.small, scope.rounds
    found = []
    for rule in RULES:
        case = Case("writers_at_random", rule, small, rounds)
        real, tests = replace(case, data="writers"), ("local", "global")
        found.append(Control(WORDS["writers_at_random"], case, replace(case, rule="fedavg"), real, tests))
    for data in ("mnist_2", "mnist_4", "setup_1"):
        for rule in RULES[1:]:
            plain = Case(data, rule, small, rounds)
            known = data != "setup_1" or rule == "mu=10"  # the figure has no other μ in Setup 1
            compared = replace(plain, rule="fedavg"), plain if known else None
            found.append(
                Control(f"{WORDS[data]}, links shuffled", replace(plain, shuffled=True), *compared, ("local",))
            )
    for h in (0.31, 0.65):
        base = Case("mnist_10", "mu=10", small, 2 * rounds, heterogeneity=h, deadline="fastest_full", equality=True)
        words = f"MNIST_10, H = {h}, weights by samples held against trained"
        found.append(Control(words, replace(base, weights="held"), base, None, ("global",)))
    return found


def cases(scope: Scope) -> list[Case]:
    """Every control and what it is compared with."""
    return [one for each in controls(scope) for two in (each.case, each.base) for one in scope.seeds(two)]


def make(results: Results) -> Item:
    """Each control beside what it is compared with, as far as it was computed."""
    rows, missing = [], 0
    for each in controls(results.scope):
        for test in each.tests:
            found = results.values(each.case, test, "mean")
            missing += not found
            cells = [spread(found.values()), _spread(_gains(results, each.case, each.base, test))]
            row = [each.words, WORDS[each.case.rule], test, *(cells if found else ["not yet measured"] * 2)]
            row.append(
                _spread(_gains(results, each.real, replace(each.real, rule="fedavg"), test)) if each.real else "-"
            )
            rows.append(row)
    head = [
        "control",
        "rule",
        "test",
        "accuracy",
        "to FedAvg, or to the other weights",
        "to FedAvg without the control",
    ]
    words = (
        "Writers placed at random and shuffled links show how much of a gain comes from the graph rather than from "
        "mixing less: with them, neighbours have nothing in common. On MNIST_2 and MNIST_4, labels are drawn without "
        "regard to rooms, so shuffled links should change little there. They matter in Setup 1. "
        f"{_said(results)}"
    ).strip()
    text = f"{table(head, rows)}\n\n{words}"
    return Item(text + (" `fedfilt paper controls` computes what is missing." if missing else ""))


def _gains(results: Results, case: Case, base: Case, test: str) -> dict[int, float]:
    """Difference of two runs by seed."""
    one, other = (results.values(each, test, "mean") for each in (case, base))
    return {seed: one[seed] - other[seed] for seed in one if seed in other}


def _spread(gains: dict[int, float]) -> str:
    return spread(gains.values(), 2, sign=True)


def _said(results: Results) -> str:
    """What the controls change of the gain on the local test, by the interval over seeds."""
    texts = []
    for each in controls(results.scope):
        if each.real is not None:
            gained = _gains(results, each.case, each.base, "local")
            lost = Interval.of(
                differences(gained, _gains(results, each.real, replace(each.real, rule="fedavg"), "local"))
            )
            texts += [f"{each.words}, {WORDS[each.case.rule]}: {lost.said()}"] if lost is not None else []
    return f"What a control changes of the gain on the local test, in points: {'; '.join(texts)}." if texts else ""
