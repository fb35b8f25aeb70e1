"""Controls: writers at random, links given to other devices, weights by all samples held."""

from dataclasses import replace
from typing import NamedTuple

from fedfilt.paper import system_heterogeneity as schedules
from fedfilt.paper._cases import Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import Interval, differences, spread, table
from fedfilt.paper.claims import effects, judges

place = "not in the paper"
order = 145
RULES = ("mu=0.1", "mu=1", "mu=10")


class Control(NamedTuple):
    """A run beside the one it is compared with; `real` is the same run without the control, if there is one."""

    words: str
    case: Case
    base: Case
    real: Case | None
    tests: tuple[str, ...] = ("local", "global")


def controls(scope: Scope) -> list[Control]:
    """Every control in the order of the table."""
    small, rounds = scope.small, scope.rounds
    found = []
    for rule in RULES:
        case = Case("writers_at_random", rule, small, rounds)
        real = replace(case, data="writers")
        found.append(Control(WORDS["writers_at_random"], case, replace(case, rule="fedavg"), real))
    for data in ("mnist_2", "mnist_4", "setup_1"):
        for rule in RULES[1:]:
            plain = Case(data, rule, small, rounds)
            known = data != "setup_1" or rule == "mu=10"  # the figure has no other μ in Setup 1
            compared = replace(plain, rule="fedavg"), plain if known else None
            found.append(Control(f"{WORDS[data]}, links shuffled", replace(plain, shuffled=True), *compared))
    for h, base in _planned(scope).items():
        words = f"MNIST_10, H = {h}, weights by samples held against trained"
        found.append(Control(words, replace(base, weights="held"), base, None, ("global",)))
    return found


def _planned(scope: Scope) -> dict[float, Case]:
    """Runs by the paper's schedule, by H, that are also made with the paper's weights."""
    return {h: schedules.after(scope, h, schedules.PRINTED) for h in (0.31, 0.65)}


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
            row += _without(results, each, test)
            rows.append(row)
    head = [
        "control",
        "rule",
        "test",
        "accuracy",
        "to FedAvg, or to the other weights",
        "to FedAvg without the control",
        "what the control changes of that",
    ]
    words = (
        "Writers placed at random and shuffled links show how much of a gain comes from the graph rather than from "
        "mixing less: with them, neighbours have nothing in common. On MNIST_2 and MNIST_4, labels are drawn without "
        "regard to rooms, so shuffled links should change little there. They matter in Setup 1. MNIST_10 has no such "
        "control: all devices have all labels, and samples dealt at random, so no link is better than another. "
        f"{_held(results)}"
    ).strip()
    text = f"{table(head, rows)}\n\n{words}"
    return Item(text + (" `fedfilt paper controls` computes what is missing." if missing else ""))


def _gains(results: Results, case: Case, base: Case, test: str) -> dict[int, float]:
    """Difference of two runs by seed."""
    one, other = (results.values(each, test, "mean") for each in (case, base))
    return {seed: one[seed] - other[seed] for seed in one if seed in other}


def _spread(gains: dict[int, float]) -> str:
    return spread(gains.values(), 2, sign=True)


def _without(results: Results, each: Control, test: str) -> list[str]:
    """Cells: the gain without the control, and by how much that with it is another."""
    if each.real is None:
        return ["-", "-"]
    real = _gains(results, each.real, replace(each.real, rule="fedavg"), test)
    change = Interval.of(differences(_gains(results, each.case, each.base, test), real))
    return [_spread(real), "not yet measured" if change is None else change.said()]


def held_changes(results: Results) -> list[str] | None:
    """Which verdicts on a schedule against none are others under the paper's weights; None: not computed."""
    found = []
    for h, trained in _planned(results.scope).items():
        both = [effects(results, replace(trained, weights=weights)) for weights in ("trained", "held")]
        for key, judge in judges(h).items():
            was, now = (one[key] for one in both)
            if was is None or now is None:
                return None
            if judge(was) != judge(now):
                found.append(f"{key} at H = {h}: {judge(was)} → {judge(now)}")
    return found


def _held(results: Results) -> str:
    changed = held_changes(results)
    if changed is None:
        return ""
    cost = effects(results, replace(_planned(results.scope)[0.31], weights="held"))
    rounds = results.scope.rounds
    said = {"early": f"after {rounds} rounds", "late": f"after {2 * rounds}", "equal": "at equal seconds"}
    numbers = ", ".join(f"{one.mean:+.2f} {words}" for key, words in said.items() if (one := cost[key]) is not None)
    return (
        f"With samples held, the paper's κ, {'; '.join(changed) or 'no verdict changes'} on what {schedules.PRINTED} "
        f"costs, gains in the second half and has at equal seconds (H = 0.31 and 0.65). At H = 0.31 its points against "
        f"no schedule are {numbers}."
    )
