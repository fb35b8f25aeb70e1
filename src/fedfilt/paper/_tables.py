"""Words and tables that items share: means over seeds, paired differences, verdicts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedfilt.paper._cases import OFTEN, PART, SETS, STRENGTHS, TABLE, Case
from fedfilt.paper._items import Item
from fedfilt.paper._printed import ACCURACY, WORDS
from fedfilt.paper._results import Results

NOTHING = "*Not computed yet.*"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return text.replace("| --- |", "|---|").replace(" --- |", "---|")


def spread(values: Iterable[float], digits: int = 1, sign: bool = False) -> str:
    """Mean ± standard deviation over seeds (the mean alone for one seed, a dash for none).

    >>> spread([1.0, 2.0]), spread([3.0], sign=True), spread([])
    ('1.5 ± 0.7', '+3.0', '-')
    """
    numbers = np.array(list(values))
    if not len(numbers):
        return "-"
    plus = "+" if sign else ""
    text = f"{numbers.mean():{plus}.{digits}f}"
    return f"{text} ± {numbers.std(ddof=1):.{digits}f}" if len(numbers) > 1 else text


class Interval(NamedTuple):
    """Mean of numbers over seeds, and the 95 % interval of Student's t for what other seeds would give."""

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Interval | None":
        """None for no numbers; of a single one the interval is unbounded.

        >>> Interval.of([1.0, 2.0, 3.0]).said(2)
        '+2.00 (95 % interval -0.48 to +4.48, 3 seeds)'
        """
        numbers = np.array(list(values), float)
        if not len(numbers):
            return None
        mean, count = float(numbers.mean()), len(numbers)
        if count == 1:
            return cls(mean, -np.inf, np.inf, 1)
        half = float(stdtrit(count - 1, 0.975) * numbers.std(ddof=1) / np.sqrt(count))
        return cls(mean, mean - half, mean + half, count)

    def said(self, digits: int = 2, unit: str = "", sign: bool = True) -> str:
        """In words."""
        plus = "+" if sign else ""
        if self.seeds == 1:
            return f"{self.mean:{plus}.{digits}f}{unit} (one seed)"
        ends = f"{self.low:{plus}.{digits}f} to {self.high:{plus}.{digits}f}{unit}"
        return f"{self.mean:{plus}.{digits}f}{unit} (95 % interval {ends}, {self.seeds} seeds)"


def differences(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Differences seed by seed: the same data, start and batches on both sides."""
    return [one[seed] - other[seed] for seed in one if seed in other]


def verdict(paper: float, ours: Sequence[float]) -> str:
    """Whether a difference reproduces: its sign, in every seed; what is below 0.1 points in all of them is none.

    >>> verdict(2.0, [0.1, 3.0]), verdict(2.0, [-0.1, -3.0]), verdict(2.0, [-0.1, 3.0]), verdict(0.0, [])
    ('reproduces', 'does not reproduce', 'is unclear: seeds disagree', 'has not been computed')
    """
    if not len(ours):
        return "has not been computed"
    if max(abs(value) for value in ours) < 0.1:
        return "does not reproduce (below 0.1 points)"
    agree = [bool(np.sign(round(value, 6)) == np.sign(paper)) for value in ours]
    return "reproduces" if all(agree) else "is unclear: seeds disagree" if any(agree) else "does not reproduce"


def sizes(results: Results) -> list[int]:
    """The numbers of training samples that the results are for."""
    return [size for size, _ in results.scope.sizes]


def accuracy_table(results: Results, data: str, test: str, rules: Sequence[str]) -> str:
    """Accuracy of every rule beside the printed one, its spread between devices, and the difference to FedAvg."""
    head = ["rule", "paper ± between devices"]
    for size in sizes(results):
        head += [f"{size} samples", "between devices", "to FedAvg"]
    rows = []
    for rule in rules:
        printed = ACCURACY[test].get(("writers" if data in ("emnist", "femnist") else data, rule))
        row = [WORDS[rule], f"{printed[0]:.2f} ± {printed[1]:.2f}" if printed else "-"]
        for size in sizes(results):
            case = Case(data, rule, size, results.scope.rounds)
            means, base = values(results, case, test), values(results, replace(case, rule="fedavg"), test)
            between = list(results.values(case, test, "std").values())
            row += [spread(means.values()), f"{np.mean(between):.1f}" if between else "-"]
            row.append("" if rule == "fedavg" else spread(differences(means, base), 2, sign=True))
        rows.append(row)
    return table(head, rows)


def tested(often: bool) -> str:
    """At which rounds and on what the curves of a picture are tested.

    >>> tested(often=True)[:43]
    'Curves are tested every 5 rounds from round'
    """
    if often:
        return (
            f"Curves are tested every {OFTEN} rounds from round 0 on {PART:,} of the test pictures, always the same "
            "ones and of every label its share; tables on all."
        )
    return "Curves are tested on all test pictures, some more seldom than others, until their runs are made again."


def values(results: Results, case: Case, test: str) -> dict[int, float]:
    """Mean accuracy of the devices after the last round, in percent, by seed."""
    return results.values(case, test, "mean")


Gains = dict[str, list[float]]  # rule -> difference to FedAvg in points, by seed


def gains(results: Results, data: str, test: str, size: int) -> Gains:
    """Paired differences to FedAvg of every strength that has been computed."""
    case = Case(data, "fedavg", size, results.scope.rounds)
    base = values(results, case, test)
    found = {rule: differences(values(results, replace(case, rule=rule), test), base) for rule in STRENGTHS}
    return {rule: numbers for rule, numbers in found.items() if numbers}


def at_each_size(results: Results, data: str, test: str, tell: Callable[[int, Gains], str]) -> str:
    """What `tell` says of the gains at every size that has been computed."""
    found = {size: gains(results, data, test, size) for size in sizes(results)}
    return " ".join(tell(size, some) for size, some in found.items() if some)


def printed_gain(data: str, test: str, rule: str) -> float:
    """The paper's difference to FedAvg."""
    return ACCURACY[test][data, rule][0] - ACCURACY[test][data, "fedavg"][0]


def seeds_of(results: Results, size: int) -> int:
    """The number of seeds that all runs of the accuracy tables of a size have."""
    cases = [Case(data, rule, size, results.scope.rounds) for data in SETS for rule in TABLE]
    return min(len(results.seeds(case)) for case in cases)


def seed_words(results: Results) -> str:
    """How many seeds there are at each size, of how many."""
    words = []
    for size, wanted in results.scope.sizes:
        found = seeds_of(results, size)
        number = f"{wanted} seeds".replace("1 seeds", "1 seed")
        words.append(f"{number if found == wanted else f'{found} of {number}'} at {size} samples")
    return " and ".join(words)


def size_words(results: Results) -> str:
    """How many seeds and rounds: for captions."""
    return f"{results.scope.rounds} rounds, {seed_words(results)}"


def strengths(
    results: Results, case: Case, test: str, key: str = "mean", rules: Sequence[str] = STRENGTHS
) -> list[dict[int, float]]:
    """A score in percent by seed for the strengths of μ from small to large, of the seeds that all of them have."""
    found = [results.values(replace(case, rule=rule), test, key) for rule in rules]
    return [{seed: one[seed] for seed in one if all(seed in other for other in found)} for one in found]


def by_set(results: Results, test: str, words: Callable[[Results, str], str]) -> Item:
    """A table of accuracies per data set, each with its words."""
    parts = []
    for data in SETS:
        parts += [f"**{WORDS[data]}**", accuracy_table(results, data, test, (*TABLE, "local")), words(results, data)]
    return Item("\n\n".join(part for part in parts if part))
