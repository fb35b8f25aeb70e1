"""The tables on EMNIST itself, where it can be fetched."""

from fedfilt.paper._cases import TABLE, Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import accuracy_table, sizes

place = "tabs. local_test, global_test: EMNIST"
order = 75
SETS = ("emnist", "femnist")


def cases(scope: Scope) -> list[Case]:
    """EMNIST digits, dealt at random as the file does not say who wrote them, and FEMNIST, which does."""
    return [case for size, _ in scope.sizes for case in scope.grid(SETS, TABLE, samples=size)]


def make(results: Results) -> Item:
    """Both tests."""
    parts = []
    for data in SETS:
        if any(
            results.seeds(Case(data, rule, size, results.scope.rounds)) for size in sizes(results) for rule in TABLE
        ):
            for test in ("local", "global"):
                parts += [f"**{WORDS[data]}, {test} test**", accuracy_table(results, data, test, TABLE)]
    if not parts:
        return Item(
            "*Not computed: the archives (EMNIST: 562 MB) could not be fetched where these results were made.* Digits "
            "by writer stand in for them above: EMNIST's digits do not say who wrote them, so the difference between "
            "writers, which is the point of the paper's column, needs other data. With `gzip.zip` of EMNIST or "
            "`fed_emnist_digitsonly.tar.bz2` of FEMNIST in a folder, `fedfilt paper emnist --data-dir FOLDER` computes "
            "what it can; it shows its progress, and continues where it was stopped. The tests check it on an archive "
            "in EMNIST's format and size that they make themselves."
        )
    return Item("\n\n".join(parts))
