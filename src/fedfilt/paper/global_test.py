"""Global accuracy after 200 rounds: how well a device does on everybody's digits."""

from fedfilt.paper import local_test
from fedfilt.paper._cases import Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import Gains, at_each_size, by_set, printed_gain, spread, verdict

place = "tab. global_test"
order = 70


def cases(scope: Scope) -> list[Case]:
    """The runs of the local table."""
    return local_test.cases(scope)


def make(results: Results) -> Item:
    """A table per data set, and whether G-Fedfilt is above FedAvg where the paper has it so."""
    return by_set(results, "global", _words)


def _words(results: Results, data: str) -> str:
    """What the paper's best strength does to the global test, at each size."""

    def tell(size: int, found: Gains) -> str:
        best = max(found, key=lambda rule: printed_gain(data, "global", rule))
        paper = printed_gain(data, "global", best)
        return (
            f"At {size} samples, {WORDS[best]}, the best in the paper ({paper:+.2f} points against FedAvg), gives "
            f"{spread(found[best], 2, True)}: the global gain {verdict(paper, found[best])}."
        )

    return at_each_size(results, data, "global", tell)
