"""A round before and after the schedule: who computes, sends, waits."""

import numpy as np

from fedfilt.paper._cases import SCHEDULES
from fedfilt.paper._costs import population, round_of
from fedfilt.paper._figures import timelines
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import table

place = "fig. timeplan"
order = 100
HETEROGENEITY = 0.54
VERDICT = (
    "Reproduces: after the schedule, all devices end together. The printed T_opt (`slowest_minimum`) is so short that "
    "every device does a fraction of its work; the paper's own table fits `fastest_full`, under which the slow devices "
    "do less. With `= T`, as problem P' is printed, every device ends at the deadline, up to a whole sample. With "
    "`<= T`, devices that have no time for another whole epoch wait a little; none of them reaches its maximum. Thick "
    "vertical lines are deadlines; note the scales of seconds."
)


def make(results: Results) -> Item:
    """Devices of H = 0.54, the fastest first: everybody doing everything, and after each schedule."""
    hardware = population(HETEROGENEITY)
    rows, rounds, deadlines = [], {}, {}
    order = np.argsort(round_of(hardware).compute_seconds, kind="stable")
    for schedule in ("", *SCHEDULES):
        made = round_of(hardware, schedule)
        words = schedule or "before"
        rounds[words] = {key: getattr(made, key)[order] for key in ("compute_seconds", "send_seconds", "idle_seconds")}
        deadlines[words] = made.deadline
        idle = sum(outcome.startswith("idle") for outcome in made.outcomes)
        row = [words, f"{made.end:.3f}", f"{made.desync:.4f}", f"{made.idle_seconds.mean():.4f}"]
        rows.append([*row, str(idle) if schedule else "-"])
    head = ["", "latency, s", "desynchronisation, s", "mean idle time, s", "devices that idle by plan"]
    words = f"A round of devices with H = {HETEROGENEITY} and 450 samples each. {VERDICT}"
    return Item(f"{table(head, rows)}\n\n{words}", {"time_plan": timelines(rounds, deadlines)})
