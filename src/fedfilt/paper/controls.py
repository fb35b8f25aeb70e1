"""Controls: writers at random, links given to other devices, weights by all samples held."""

from dataclasses import replace

from fedfilt.paper._cases import Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import differences, spread, table

place = "not in the paper"
order = 145
RULES = ("mu=0.1", "mu=1", "mu=10")


def pairs(scope: Scope) -> list[tuple[str, str, Case, Case, str]]:
    """(what, rule, the case, what it is compared with, on which test)."""
    small, rounds = scope.small, scope.rounds
    found = []
    for rule in RULES:
        plain = Case("writers_at_random", rule, small, rounds)
        found.append((WORDS["writers_at_random"], rule, plain, replace(plain, rule="fedavg"), "local"))
    for data in ("mnist_2", "mnist_4", "setup_1"):
        for rule in RULES[1:]:
            plain = Case(data, rule, small, rounds, shuffled=True)
            base = Case(data, "fedavg", small, rounds)
            found.append((f"{WORDS[data]}, links shuffled", rule, plain, base, "local"))
    for h in (0.31, 0.65):
        base = Case("mnist_10", "mu=10", small, 2 * rounds, heterogeneity=h, deadline="fastest_full", equality=True)
        words = f"MNIST_10, H = {h}, weights by samples held against trained"
        found.append((words, "mu=10", replace(base, weights="held"), base, "global"))
    return found


def cases(scope: Scope) -> list[Case]:
    """Every control and what it is compared with."""
    return [one for _, _, case, base, _ in pairs(scope) for two in (case, base) for one in scope.seeds(two)]


def make(results: Results) -> Item:
    """Each control beside what it is compared with, as far as it was computed."""
    rows, missing = [], 0
    for words, rule, case, base, test in pairs(results.scope):
        found, known = results.values(case, test, "mean"), results.values(base, test, "mean")
        missing += not found
        cells = [spread(found.values()), spread(differences(found, known), 2, sign=True)]
        rows.append([words, WORDS[rule], test, *(cells if found else ["not yet measured", "not yet measured"])])
    text = table(["control", "rule", "test", "accuracy", "to FedAvg, or to the other weights"], rows)
    words = (
        "Writers placed at random and shuffled links show how much of a gain comes from the graph rather than from "
        "mixing less: with them, neighbours have nothing in common. On MNIST_2 and MNIST_4, labels are drawn without "
        "regard to rooms, so shuffled links should change little there (the table of local accuracy has the gains of "
        "MNIST_2 with the paper's links). They matter in Setup 1."
    )
    return Item(f"{text}\n\n{words}" + (" `fedfilt paper controls` computes what is missing." if missing else ""))
