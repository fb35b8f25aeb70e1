"""Accuracy, desynchronisation and latency before and after the schedule."""

from collections.abc import Sequence

from fedfilt.paper._cases import DEADLINES, POPULATIONS, Case, Scope
from fedfilt.paper._costs import population, round_of
from fedfilt.paper._items import Item
from fedfilt.paper._printed import AFTER, BEFORE
from fedfilt.paper._results import Results, score_at
from fedfilt.paper._tables import NOTHING, differences, spread, table

place = "tab. sysHetResults"
order = 110


def before(scope: Scope) -> Case:
    """Everybody does everything: the same training whatever the clocks, so once for all H."""
    return Case("mnist_10", "mu=10", scope.small, 2 * scope.rounds, heterogeneity=0.31)


def after(scope: Scope, heterogeneity: float, deadline: str) -> Case:
    """With a schedule."""
    return Case("mnist_10", "mu=10", scope.small, 2 * scope.rounds, heterogeneity=heterogeneity, deadline=deadline)


def cases(scope: Scope) -> list[Case]:
    """G-Fedfilt with μ = 10 on MNIST_10, twice the rounds: before, and after by both deadline rules."""
    found = scope.seeds(before(scope))
    for heterogeneity in POPULATIONS:
        for deadline in DEADLINES:
            found += scope.seeds(after(scope, heterogeneity, deadline))
    return found


def totals(results: Results, case: Case, key: str, rounds: int) -> float:
    """Mean over seeds of a cost summed over rounds."""
    found = [score_at(record, rounds)["totals"][key] for record in results.seeds(case)]
    return sum(found) / len(found)


def costs_before(results: Results, heterogeneity: float, rounds: int) -> tuple[float, float]:
    """(desynchronisation, latency) in seconds, by arithmetic: every round is alike."""
    made = round_of(population(heterogeneity, results.scope.small))
    return rounds * made.desync, rounds * made.end


def make(results: Results) -> Item:
    """Two tables: what it does to accuracy, and to seconds."""
    scope, half = results.scope, results.scope.rounds
    if not results.seeds(before(scope)):
        return Item(NOTHING)
    accuracy, seconds = [], []
    for heterogeneity in POPULATIONS:
        accuracy.append([f"{heterogeneity}", "before", *_accuracy(results, before(scope), BEFORE[heterogeneity])])
        for deadline in DEADLINES:
            case = after(scope, heterogeneity, deadline)
            if results.seeds(case):
                accuracy.append([f"{heterogeneity}", deadline, *_accuracy(results, case, AFTER[heterogeneity])])
                for at, rounds in enumerate((half, 2 * half)):
                    row = [f"{heterogeneity}", deadline, str(rounds)]
                    seconds.append([*row, *_seconds(results, case, at, rounds)])
    head = ["H", "", "paper, 200 / 400 rounds", f"after {half}", f"after {2 * half}", "gain of the second half"]
    text = "**Accuracy on the global test**\n\n" + table([*head, f"to before, after {2 * half}"], accuracy)
    head = ["H", "deadline", "rounds", "desynchronisation, paper", "here", "latency, paper", "here"]
    text += "\n\n**Seconds, summed over rounds**\n\n" + table(head, seconds)
    text += (
        "\n\nSeconds are simulated for devices whose slowest and fastest differ as in the paper; its parameter table "
        "as printed gives about 21 times fewer seconds, so compare the percentages. "
    )
    return Item((text + _words(results)).strip())


def _accuracy(results: Results, case: Case, printed: Sequence[Sequence[float]]) -> list[str]:
    """Cells: printed, after half the rounds, after all, the difference, and the difference to no schedule."""
    half = results.scope.rounds
    early, late = (results.values(case, "global", "mean", rounds) for rounds in (half, 2 * half))
    change = differences(late, results.values(before(results.scope), "global", "mean"))
    cells = [f"{printed[0][0]:.1f} / {printed[1][0]:.1f}", spread(early.values()), spread(late.values())]
    cells.append(spread(differences(late, early), 2, sign=True))
    return [*cells, spread(change, 2, sign=True) if case.deadline else ""]


def _seconds(results: Results, case: Case, at: int, rounds: int) -> list[str]:
    """Cells: desynchronisation in the paper and here, latency in the paper and here; before -> after."""
    ours = zip(
        costs_before(results, case.heterogeneity, rounds),
        [totals(results, case, key, rounds) for key in ("desync", "latency")],
        strict=True,
    )
    paper = zip(BEFORE[case.heterogeneity][at][1:], AFTER[case.heterogeneity][at][1:], strict=True)
    pairs = [pair for both in zip(paper, ours, strict=True) for pair in both]
    return [f"{was:.0f} → {now:.3g} ({now / was - 1:+.1%})" for was, now in pairs]


def _words(results: Results) -> str:
    """What the two readings of the deadline do, from the numbers."""
    scope, texts = results.scope, []
    for deadline in DEADLINES:
        down, faster, loss = [], [], []
        for heterogeneity in POPULATIONS:
            case = after(scope, heterogeneity, deadline)
            if not results.seeds(case):
                return ""
            was = costs_before(results, heterogeneity, scope.rounds)
            down.append(totals(results, case, "desync", scope.rounds) / was[0] - 1)
            faster.append(totals(results, case, "latency", scope.rounds) / was[1] - 1)
            last = results.values(case, "global", "mean"), results.values(before(scope), "global", "mean")
            loss += differences(*last)
        near = "reproduces" if down[0] <= -0.99 else "does not reproduce"
        cuts = ", ".join(f"{value:+.1%}" for value in down)
        texts.append(
            f"`{deadline}` changes desynchronisation by {cuts} (H = 0.31, 0.54, 0.65; after {scope.rounds} rounds): "
            f"the paper's -99 % at H = 0.31 {near}. It changes latency by {max(faster):+.1%} to {min(faster):+.1%} "
            f"(paper {AFTER[0.31][0][2] / BEFORE[0.31][0][2] - 1:+.1%} to "
            f"{AFTER[0.65][0][2] / BEFORE[0.65][0][2] - 1:+.1%}) and accuracy by {min(loss):+.1f} to {max(loss):+.1f} "
            f"points after {2 * scope.rounds} rounds."
        )
    return " ".join(texts)
