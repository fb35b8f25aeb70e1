"""Accuracy, desynchronisation and latency before and after the schedule."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedfilt._types import Array
from fedfilt.paper._cases import POPULATIONS, SCHEDULES, Case, Scope
from fedfilt.paper._costs import population, round_of
from fedfilt.paper._figures import curves
from fedfilt.paper._items import Item
from fedfilt.paper._printed import AFTER, BEFORE
from fedfilt.paper._results import Results, score_at
from fedfilt.paper._tables import NOTHING, differences, sizes, spread, table, tested

place = "tab. sysHetResults"
order = 110
ROUNDED = 1e-4  # a run that ends at a tenth of the seconds may end some bytes earlier: sent bytes are rounded
PRINTED = "`fastest_full`, = T"  # the reading that gives the paper's table


def before(scope: Scope, size: int = 0) -> Case:
    """Everybody does everything: the same training whatever the clocks, so once for all H. Size 0: the small one."""
    return Case("mnist_10", "mu=10", size or scope.small, 2 * scope.rounds, heterogeneity=0.31)


def after(scope: Scope, heterogeneity: float, schedule: str, size: int = 0) -> Case:
    """With a schedule."""
    deadline, equality = SCHEDULES[schedule]
    return replace(before(scope, size), heterogeneity=heterogeneity, deadline=deadline, equality=equality)


def cases(scope: Scope) -> list[Case]:
    """G-Fedfilt with μ = 10 on MNIST_10, twice the rounds, at every size: before, and after by each schedule."""
    found = []
    for size, _ in scope.sizes:
        every = [after(scope, h, schedule, size) for h in POPULATIONS for schedule in SCHEDULES]
        found += [one for case in (before(scope, size), *every) for one in scope.seeds(case)]
    return found


def totals(results: Results, case: Case, key: str, rounds: int) -> float:
    """Mean over seeds of a cost summed over rounds."""
    found = [score_at(record, rounds)["totals"][key] for record in results.seeds(case)]
    return sum(found) / len(found)


def costs_before(heterogeneity: float, rounds: int, samples: int) -> tuple[float, float]:
    """(desynchronisation, latency) in seconds, by arithmetic: every round is alike."""
    made = round_of(population(heterogeneity, samples))
    return rounds * made.desync, rounds * made.end


def changes(heterogeneity: float, schedule: str, samples: int) -> tuple[float, float]:
    """What a schedule changes of (desynchronisation, latency), as shares, by arithmetic."""
    hardware = population(heterogeneity, samples)
    was, now = round_of(hardware), round_of(hardware, schedule)
    return now.desync / was.desync - 1, now.end / was.end - 1


def at_seconds(results: Results, case: Case, seconds: float, heterogeneity: float = 0.0) -> dict[int, float]:
    """Global accuracy in percent by seed at a simulated time, straight between tests; without a test after it, none.

    Where a case stands for another `heterogeneity`, its rounds take as long as a round without a schedule there.
    """
    found = {}
    for record in results.seeds(case):
        times, scores = _seconds_of(record, case, heterogeneity)
        if len(times) and times[0] * (1 - ROUNDED) <= seconds <= times[-1] * (1 + ROUNDED):
            found[record["seed"]] = float(np.interp(seconds, times, scores))
    return found


def _seconds_of(
    record: Mapping[str, Any], case: Case, heterogeneity: float, often: bool = False
) -> tuple[Array, Array]:
    """Simulated seconds and global accuracy in percent at every test of a run; `often` as pictures show it."""
    curve, drawn = record["curve"], record.get("drawn", {})
    rounds = np.array(drawn["round"] if often else [point["round"] for point in curve])
    scores = 100 * np.array(drawn["global mean"] if often else [point["global"]["mean"] for point in curve])
    times = np.array(drawn["seconds"] if often else [point["totals"]["latency"] for point in curve])
    if heterogeneity and not case.deadline:
        times = rounds * costs_before(heterogeneity, 1, case.samples)[1]
    return times, scores


def make(results: Results) -> Item:
    """Two tables, what it does to accuracy and to seconds, and accuracy against simulated seconds."""
    scope, half = results.scope, results.scope.rounds
    arithmetic = "**Desynchronisation and latency of a round, by arithmetic alone**\n\n" + _arithmetic(results)
    if not results.seeds(before(scope)):
        return Item(f"{arithmetic}\n\n{NOTHING}")
    text = "**Accuracy on the global test**"
    for size in sizes(results):
        text += f"\n\n{_accuracies(results, size)}"
    text += "\n\n**Seconds, summed over rounds**" + "".join(f"\n\n{_sums(results, size)}" for size in sizes(results))
    text += (
        "\n\nSeconds are simulated for devices whose slowest and fastest differ as in the paper; its parameter table "
        "as printed gives about 21 times fewer seconds, so compare the percentages. Problem P' demands `= T`; the text "
        "and problem P demand `<= T`. Under the printed deadline (`slowest_minimum`) both give the same plans, because "
        "no device idles. Under `fastest_full`, `<= T` leaves devices idle if they have no time for another whole "
        "epoch (`idle_integer`; none of them reaches its maximum), whereas `= T` gives them more epochs on fewer "
        "samples: what is left is due to rounding to whole samples, which is coarser at 45 samples than at 450. "
    )
    text += f"{_words(results)}\n\n{arithmetic}".strip()
    often = results.often(case for case in cases(scope) if case.samples == scope.small)
    panels = {f"H = {heterogeneity}": _lines(results, heterogeneity, often) for heterogeneity in POPULATIONS}
    ends = [points[-1, 0] for lines in panels.values() for name, points in lines.items() if name != "before"]
    last = " / ".join(f"{lines['before'][-1, 0]:.0f} s" for lines in panels.values())
    text += (
        f"\n\nThe picture has {scope.small} samples per device, and ends with the schedules: without one, "
        f"{2 * half} rounds take {last}. {tested(often)}"
    )
    words = "global accuracy, %", "simulated seconds"
    picture = curves(panels, *words, columns=3, low=60.0, until=1.03 * max(ends) if ends else None)
    return Item(text, {"accuracy_against_seconds": picture})


def _arithmetic(results: Results) -> str:
    """What schedules change, at the paper's number of samples and at ours."""
    rows = []
    for samples in (450, 45):
        for at, words in enumerate(("desynchronisation", "latency")):
            printed = [AFTER[h][0][at + 1] / BEFORE[h][0][at + 1] - 1 for h in POPULATIONS]
            rows.append([words, str(samples), "paper, 200 rounds", *[f"{value:+.1%}" for value in printed]])
            for schedule in SCHEDULES:
                found = [changes(h, schedule, samples)[at] for h in POPULATIONS]
                rows.append([words, str(samples), schedule, *[f"{value:+.2%}" for value in found]])
    return table(["", "samples", "", *[f"H = {h}" for h in POPULATIONS]], rows)


def _sums(results: Results, size: int) -> str:
    """The table of seconds at one size."""
    rows, half = [], results.scope.rounds
    for heterogeneity, schedule in itertools.product(POPULATIONS, SCHEDULES):
        case = after(results.scope, heterogeneity, schedule, size)
        if results.seeds(case):
            for at, rounds in enumerate((half, 2 * half)):
                rows.append([f"{heterogeneity}", schedule, str(rounds), *_seconds(results, case, at, rounds)])
    head = ["H", f"{size} samples", "rounds", "desynchronisation, paper", "here", "latency, paper", "here"]
    return table(head, rows) if rows else f"{size} samples: not yet measured."


def _accuracies(results: Results, size: int) -> str:
    """The table of accuracies at one size."""
    scope, half, rows = results.scope, results.scope.rounds, []
    if not results.seeds(before(scope, size)):
        return f"{size} samples: not yet measured; `fedfilt paper system_heterogeneity --samples {size}` does."
    for heterogeneity in POPULATIONS:
        rows.append([f"{heterogeneity}", "before", *_accuracy(results, before(scope, size), BEFORE[heterogeneity])])
        for schedule in SCHEDULES:
            case = after(scope, heterogeneity, schedule, size)
            if results.seeds(case):
                rows.append([f"{heterogeneity}", schedule, *_accuracy(results, case, AFTER[heterogeneity])])
    head = ["H", f"{size} samples", "paper, 200 / 400 rounds", f"after {half}", f"after {2 * half}"]
    return table([*head, "gain of the second half", f"to before, after {2 * half}"], rows)


def _accuracy(results: Results, case: Case, printed: Sequence[Sequence[float]]) -> list[str]:
    """Cells: printed, after half the rounds, after all, the difference, and the difference to no schedule."""
    half = results.scope.rounds
    early, late = (results.values(case, "global", "mean", rounds) for rounds in (half, 2 * half))
    change = differences(late, results.values(before(results.scope, case.samples), "global", "mean"))
    cells = [f"{printed[0][0]:.1f} / {printed[1][0]:.1f}", spread(early.values()), spread(late.values())]
    cells.append(spread(differences(late, early), 2, sign=True))
    return [*cells, spread(change, 2, sign=True) if case.deadline else ""]


def _seconds(results: Results, case: Case, at: int, rounds: int) -> list[str]:
    """Cells: desynchronisation in the paper and here, latency in the paper and here; before -> after."""
    ours = zip(
        costs_before(case.heterogeneity, rounds, case.samples),
        [totals(results, case, key, rounds) for key in ("desync", "latency")],
        strict=True,
    )
    paper = zip(BEFORE[case.heterogeneity][at][1:], AFTER[case.heterogeneity][at][1:], strict=True)
    pairs = [pair for both in zip(paper, ours, strict=True) for pair in both]
    return [f"{was:.0f} → {now:.3g} ({now / was - 1:+.1%})" for was, now in pairs]


def _lines(results: Results, heterogeneity: float, often: bool) -> dict[str, Array]:
    """(seconds, mean, each seed ...) of no schedule and of every schedule."""
    lines = {}
    for name in ("before", *SCHEDULES):
        case = before(results.scope) if name == "before" else after(results.scope, heterogeneity, name)
        records = results.seeds(case)
        if records:
            both = [_seconds_of(record, case, heterogeneity, often) for record in records]
            scores = np.array([scores for _, scores in both]).T
            lines[name] = np.column_stack([both[0][0], scores.mean(axis=1), scores])
    return lines


def _words(results: Results) -> str:
    """What the schedules do to accuracy, from the numbers."""
    scope, texts = results.scope, []
    for size, schedule in itertools.product(sizes(results), SCHEDULES):
        loss = []
        for heterogeneity in POPULATIONS:
            both = after(scope, heterogeneity, schedule, size), before(scope, size)
            loss += differences(*(results.values(case, "global", "mean") for case in both))
        if loss:
            texts.append(
                f"At {size} samples, {schedule} changes accuracy by {min(loss):+.1f} to {max(loss):+.1f} points after "
                f"{2 * scope.rounds} rounds."
            )
    return " ".join(texts)
