"""Speeds that vary from round to round, and energy limits."""

from dataclasses import replace

import numpy as np

from fedfilt._draws import Key, generator
from fedfilt.paper._cases import Case, Scope
from fedfilt.paper._costs import BYTES
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results, score_at
from fedfilt.paper._tables import Interval, differences, spread, table
from fedfilt.populations import Paper
from fedfilt.schedulers import SameDeadline

place = "sec. Parameter optimization; problem P, C2"
order = 122
SPREAD = 0.3  # of the logarithm of a device's speed and of its rate, from round to round
JOULES = 0.004  # a round; doing everything takes 0.020 to 0.037 with 45 samples, the least work 0.002 to 0.004
H = 0.54


def steady(scope: Scope) -> Case:
    """A schedule for devices that are as fast in every round; it has twice the rounds."""
    case = Case("mnist_10", "mu=10", scope.small, 2 * scope.rounds, heterogeneity=H)
    return replace(case, deadline="fastest_full", equality=True)


def varying(scope: Scope, planned: bool = True) -> Case:
    """The same devices, whose speeds vary: with a schedule recomputed in each round, or with none."""
    case = Case("mnist_10", "mu=10", scope.small, scope.rounds, heterogeneity=H, variability=SPREAD)
    return replace(case, deadline="fastest_full", equality=True) if planned else case


def limited(scope: Scope, joules: float = JOULES) -> Case:
    """Devices drawn from the printed table that may spend so many joules in a round; 0: as many as they like."""
    case = Case("mnist_10", "mu=10", scope.small, scope.rounds, energy=joules)
    return replace(case, deadline="fastest_full", equality=True)


def cases(scope: Scope) -> list[Case]:
    """MNIST_10 with μ = 10: what varies, what is limited, and what they are compared with."""
    every = (steady(scope), varying(scope), varying(scope, planned=False), limited(scope), limited(scope, 0.0))
    return [one for case in every for one in scope.seeds(case)]


def cut(results: Results, key: str) -> Interval | None:
    """What a schedule changes of a cost of varying devices, in percent, over seeds."""
    with_, without = (
        {record["seed"]: score_at(record)["totals"][key] for record in results.seeds(varying(results.scope, planned))}
        for planned in (True, False)
    )
    return Interval.of([100 * (with_[seed] / without[seed] - 1) for seed in with_ if seed in without])


def change(results: Results) -> list[float]:
    """What varying speeds change of the accuracy with a schedule, in points."""
    rounds = results.scope.rounds
    found = results.values(varying(results.scope), "global", "mean", rounds)
    return differences(found, results.values(steady(results.scope), "global", "mean", rounds) if found else {})


def spent(results: Results) -> float | None:
    """Joules of a device in a round, mean over devices, rounds and seeds, where there is a limit."""
    found = [score_at(record)["totals"]["joules"] for record in results.seeds(limited(results.scope))]
    return float(np.mean(found)) / (20 * results.scope.rounds) if found else None


def most(scope: Scope) -> float:
    """The most that a device spends in a round under the limit, by arithmetic: plans are the same in every round."""
    found = []
    for case in scope.seeds(limited(scope)):
        draw = generator(case.seed, Key.DEVICES)
        devices = Paper(energy_limit=case.energy).draw(np.full(20, case.samples), BYTES, draw)
        plans = SameDeadline(deadline=case.deadline, equality=True)(devices, BYTES).plans
        work = np.array([plan.epochs * plan.data_fraction for plan in plans])
        sent = np.array([plan.density for plan in plans])
        found.append(float((work * devices.compute_joules() + sent * devices.send_joules(BYTES)).max()))
    return max(found)


def saved(results: Results) -> list[float]:
    """What the limit changes of the accuracy, in points."""
    both = [results.values(limited(results.scope, joules), "global", "mean") for joules in (JOULES, 0.0)]
    return differences(*both)


def make(results: Results) -> Item:
    """Both, as far as they were computed."""
    scope, rows = results.scope, []
    for words, case in (
        (f"H = {H}, speeds vary (σ = {SPREAD}), no schedule", varying(scope, planned=False)),
        (f"H = {H}, speeds vary (σ = {SPREAD}), `fastest_full`, = T", varying(scope)),
        (f"H = {H}, steady speeds, `fastest_full`, = T", steady(scope)),
        ("printed devices, `fastest_full`, = T", limited(scope, 0.0)),
        (f"printed devices, {JOULES} J a round, `fastest_full`, = T", limited(scope)),
    ):
        records = results.seeds(case)
        points = [score_at(record, scope.rounds) for record in records]
        cells = [spread([100 * point["global"]["mean"] for point in points])]
        for key, digits in (("desync", 1), ("latency", 0), ("joules", 0)):
            cells.append(spread([point["totals"][key] for point in points], digits))
        rows.append([words, *(cells if records else ["not yet measured"] * 4)])
    head = ["", "global test", "desynchronisation, s", "latency, s", "joules, all devices"]
    text = f"{table(head, rows)}\n\nMNIST_10, μ = 10, {scope.rounds} rounds, {scope.small} samples, sums over rounds."
    by = cut(results, "desync")
    if by is not None:
        text += (
            " Devices tell at the start of a round how fast they are, and T and all plans are recomputed: with speeds "
            f"and rates that vary by a factor of e^±{SPREAD}, desynchronisation still changes by {by.mean:+.1f} %, and "
            f"accuracy by {spread(change(results), 2, True)} points against steady speeds. Seconds summed over 400 "
            "rounds are then not twice those of 200, as in the paper's table."
        )
    used = spent(results)
    if used is not None:
        text += (
            f" The paper gives no E_max. {JOULES} J is a fifth to a ninth of what everything takes on the printed "
            f"devices with {scope.small} samples: they spend {used:.4f} J a round on average and never more "
            f"than {most(scope):.4f} J, and accuracy changes by {spread(saved(results), 2, True)} points."
        )
    return Item(text + ("" if by and used else " `fedfilt paper limits` computes what is missing."))
