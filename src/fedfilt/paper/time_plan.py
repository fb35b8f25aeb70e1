"""A round before and after the schedule: who computes, sends, waits."""

import numpy as np

from fedfilt.paper._cases import DEADLINES
from fedfilt.paper._costs import population, round_of
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import table
from fedfilt.show.figures import timeline

place = "fig. timeplan"
order = 100
HETEROGENEITY = 0.54
VERDICT = (
    "Reproduces: after the schedule all devices end together, or nearly. Printed T_opt (`slowest_minimum`) is so short "
    "that every device does a fraction of its work; the paper's own table fits `fastest_full`, under which the slow "
    "devices do less and the fast ones all or more, and those that can do no more wait a little."
)


def make(results: Results) -> Item:
    """Devices of H = 0.54, the fastest first: everybody doing everything, and both readings of the deadline."""
    hardware = population(HETEROGENEITY)
    rows, figures = [], {}
    for deadline in ("", *DEADLINES):
        made = round_of(hardware, deadline)
        order = np.argsort(round_of(hardware).compute_seconds, kind="stable")
        columns = {key: getattr(made, key)[order] for key in ("compute_seconds", "send_seconds", "idle_seconds")}
        words = deadline or "before"
        names = [f"device {i}" for i in order]
        figures[f"time_plan_{words}"] = timeline(columns, made.deadline, names, f"a round, {words.replace('_', ' ')}")
        rows.append([words, f"{made.end:.3f}", f"{made.desync:.3f}", f"{made.idle_seconds.mean():.3f}"])
    found = table(["", "latency, s", "desynchronisation, s", "mean idle time, s"], rows)
    return Item(f"{found}\n\n{VERDICT}", figures)
