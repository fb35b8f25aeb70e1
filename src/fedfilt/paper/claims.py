"""Which of the paper's claims hold."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedfilt.paper import convergence, fedavg_limit, local_test, system_heterogeneity, two_setups
from fedfilt.paper._cases import DEADLINES, POPULATIONS, SETS, STRENGTHS, Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import gains, sizes, table

place = "abstract and text"
order = 5
SKEWED = ("mnist_2", "mnist_4")


class Claim(NamedTuple):
    """A claim of the paper, whether it holds in our runs (None: not computed), and the number behind that."""

    name: str
    words: str
    holds: bool | None
    number: str


def cases(scope: Scope) -> list[Case]:
    """The runs of the items behind the claims."""
    items = (local_test, fedavg_limit, two_setups, system_heterogeneity)
    return [case for item in items for case in item.cases(scope)]


def claims(results: Results) -> list[Claim]:
    """All claims, each by a stated criterion."""
    found = []
    for size in sizes(results):
        for data in SKEWED:
            for test in ("local", "global"):
                holds = convergence.monotone(results, data, test, size)
                way = "falls" if test == "local" else "rises"
                words = f"{WORDS[data]}, {size} samples: {test} accuracy {way} with μ (means over seeds, to 0.1 points)"
                found.append(
                    Claim(f"trade-off {data} {test} {size}", words, holds, _means(results, data, test, size, "mean"))
                )
        for data in SETS:
            words = f"{WORDS[data]}, {size} samples: the spread between devices on the global test falls with μ"
            numbers = _numbers(results, data, "global", size, "std")
            holds = all(a > b for a, b in itertools.pairwise(numbers)) if numbers else None
            found.append(Claim(f"spread {data} {size}", words, holds, _means(results, data, "global", size, "std")))
    for data in fedavg_limit.SETS:
        far = fedavg_limit.largest(results, data)
        words = (
            f"{WORDS[data]}: μ = 10⁴ equals FedAvg on the global test, to 0.2 points on every tested round of every "
            "seed"
        )
        found.append(
            Claim(f"limit {data}", words, None if far is None else far <= 0.2, "" if far is None else f"{far:.2f}")
        )
    for setup in two_setups.SETUPS:
        gain = [*two_setups.setup_gains(results, setup).values()]
        words = f"{setup}: G-Fedfilt (μ = 10) above FedAvg on the local test, in every seed"
        found.append(Claim(setup, words, min(gain) > 0 if gain else None, _range(gain)))
    for size in sizes(results):
        for data in SETS:
            gain = gains(results, data, "global", size).get("mu=10", [])
            words = f"{WORDS[data]}, {size} samples: G-Fedfilt (μ = 10) above FedAvg on the global test, in every seed"
            found.append(Claim(f"global gain {data} {size}", words, min(gain) > 0 if gain else None, _range(gain)))
    return found + _schedules(results)


def _schedules(results: Results) -> list[Claim]:
    found = []
    for deadline in DEADLINES:
        ratios: dict[str, list[float]] = {"desync": [], "latency": []}
        for heterogeneity in POPULATIONS:
            case = system_heterogeneity.after(results.scope, heterogeneity, deadline)
            if results.seeds(case):
                was = system_heterogeneity.costs_before(results, heterogeneity, case.rounds)
                for key, before in zip(ratios, was, strict=True):
                    ratios[key].append(
                        100 * (system_heterogeneity.totals(results, case, key, case.rounds) / before - 1)
                    )
        down, faster = ratios.values()
        words = f"`{deadline}`: the schedule cuts desynchronisation by 99 % at every H"
        found.append(Claim(f"desync {deadline}", words, max(down) <= -99 if down else None, _range(down, " %")))
        words = f"`{deadline}`: the schedule lowers latency at every H"
        found.append(Claim(f"latency {deadline}", words, max(faster) < 0 if faster else None, _range(faster, " %")))
    return found


def _numbers(results: Results, data: str, test: str, size: int, key: str) -> list[float]:
    found = [results.values(Case(data, rule, size, results.scope.rounds), test, key) for rule in STRENGTHS]
    return [float(np.mean(list(by_seed.values()))) for by_seed in found] if all(found) else []


def _means(results: Results, data: str, test: str, size: int, key: str) -> str:
    return " / ".join(f"{value:.{1 if key == 'mean' else 2}f}" for value in _numbers(results, data, test, size, key))


def _range(values: Iterable[float], unit: str = "") -> str:
    numbers = list(values)
    return f"{min(numbers):+.2f} to {max(numbers):+.2f}{unit}" if numbers else ""


def make(results: Results) -> Item:
    """Every claim with its verdict; strengths are μ = 0.1 / 1 / 10 / 100."""
    answers = {True: "holds", False: "**does not hold**", None: "not computed"}
    rows = [[claim.words, answers[claim.holds], claim.number] for claim in claims(results)]
    text = table(["claim, as a criterion", "", "μ = 0.1 / 1 / 10 / 100, or lowest to highest"], rows)
    return Item(text)
