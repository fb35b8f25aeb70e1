"""The tables on EMNIST itself, where it can be fetched."""

from fedfilt.paper._cases import TABLE, Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import accuracy_table

place = "tabs. local_test, global_test: EMNIST"
order = 75


def cases(scope: Scope) -> list[Case]:
    """EMNIST digits, dealt at random: the file does not say who wrote them."""
    return scope.grid(["emnist"], TABLE)


def make(results: Results) -> Item:
    """Both tests."""
    if not any(results.seeds(Case("emnist", rule, results.scope.small, results.scope.rounds)) for rule in TABLE):
        return Item(
            "*Not computed: the archive (562 MB) could not be fetched where these results were made.* Digits by "
            "writer stand in for it above: EMNIST's digits do not say who wrote them, so that the difference between "
            "writers, the point of the paper's column, needs other data."
        )
    parts = []
    for test in ("local", "global"):
        parts += [f"**{test} test**", accuracy_table(results, "emnist", test, TABLE)]
    return Item("\n\n".join(parts))
