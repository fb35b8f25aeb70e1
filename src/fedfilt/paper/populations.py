"""How much heterogeneity the printed parameters can give, and schedules for such devices."""

from dataclasses import replace
from functools import cache

import numpy as np

from fedfilt._types import Array
from fedfilt.paper._cases import POPULATIONS, SCHEDULES, Case, Scope
from fedfilt.paper._costs import BYTES
from fedfilt.paper._figures import histograms
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import differences, sizes, spread, table
from fedfilt.populations import Paper
from fedfilt.system.hardware import heterogeneity

place = "tab. sysHetResults: H by random parameters"
order = 105
DRAWS = 20_000
LITERAL = "one sample and one byte"  # as the paper defines H


def before(scope: Scope, size: int) -> Case:
    """Everybody does everything: the run of the accuracy tables, whose devices are drawn from the printed table."""
    return Case("mnist_10", "mu=10", size, scope.rounds)


def after(scope: Scope, size: int, schedule: str) -> Case:
    """With a schedule."""
    deadline, equality = SCHEDULES[schedule]
    return replace(before(scope, size), deadline=deadline, equality=equality)


def cases(scope: Scope) -> list[Case]:
    """G-Fedfilt with μ = 10 on MNIST_10, before and after each schedule, at every size."""
    every = [
        case for size, _ in scope.sizes for case in (before(scope, size), *(after(scope, size, s) for s in SCHEDULES))
    ]
    return [one for case in every for one in scope.seeds(case)]


@cache
def drawn(samples: int = 450, draws: int = DRAWS, sent: int = BYTES) -> Array:
    """(draws, 2) H and slowest / fastest of 20 devices drawn from the printed table, with so many bytes to send."""
    hardware = Paper(bandwidth_hz=20e6 * draws).draw(np.full(20 * draws, samples), BYTES, np.random.default_rng(0))
    seconds = (3 * hardware.compute_seconds() + hardware.send_seconds(sent)).reshape(draws, 20)
    ratio = seconds.max(axis=1) / seconds.min(axis=1)
    return np.column_stack([[heterogeneity(one) for one in seconds], ratio])


def ceiling(samples: int = 450) -> float:
    """The largest ratio that any devices within the printed ranges can have."""
    ends = Paper(bandwidth_hz=40e6 / 20).draw(np.full(2, samples), BYTES, np.random.default_rng(0))
    ends.cycles_per_sample[:], ends.clock_hz[:] = (1e4, 5e4), (3.5e9, 1e9)
    ends.transmit_watts[:], ends.gain_db[:] = (1.0, 0.5), (2.0, 1.0)
    fast, slow = 3 * ends.compute_seconds() + ends.send_seconds(BYTES)
    return float(slow / fast)


def make(results: Results) -> Item:
    """The distribution of H and of the ratio over draws of the printed population."""
    rows = []
    settings = {"everything, 450 samples": (450, BYTES), "everything, 45 samples": (45, BYTES), LITERAL: (1, 1)}
    for words, (samples, sent) in settings.items():
        found = drawn(samples, sent=sent)
        for at, (name, wanted) in enumerate({"H": POPULATIONS, "slowest / fastest": POPULATIONS.values()}.items()):
            low, middle, high = np.percentile(found[:, at], [0.05, 50, 99.95])
            reached = [f"{np.mean(found[:, at] >= value):.2%}" for value in wanted]
            rows.append([words, name, f"{low:.3f}", f"{middle:.3f}", f"{high:.3f}", *reached])
    head = ["latency of", "", "0.05 %", "median", "99.95 %"]
    head += [f"draws at or above {h} (ratio {ratio})" for h, ratio in POPULATIONS.items()]
    text = table(head, rows)
    text += (
        f"\n\n{DRAWS:,} draws of 20 devices from the printed table; everything means three epochs and {BYTES:,} bytes "
        "to send. The paper says that its settings H = 0.31, 0.54 and 0.65 are random values from that table, and "
        "defines H for one sample and one byte. Neither reading gives its table. For devices that do everything, as in "
        "its table of seconds, H = 0.54 and 0.65 never occur, and the ratios 3.17 and 6.83 cannot: sending takes "
        "nearly the same time for all devices, so even devices at the ends of all ranges differ only by a factor of "
        f"{ceiling():.2f} at 450 samples and {ceiling(45):.2f} at 45. For one sample and one byte, sending takes next "
        "to no time: 0.54 and 0.65 are ordinary draws, mostly with larger ratios than in its table, but only "
        f"{np.mean(drawn(1, sent=1)[:, 0] < 0.315):.2%} of draws are as low as 0.31. The next section therefore uses "
        "devices with exactly the paper's H and ratio (`devices = prescribed`)."
    )
    panels = {
        "H, everything, 450 samples": drawn()[:, 0],
        "slowest / fastest, 450 samples": drawn()[:, 1],
        f"H, {LITERAL}": drawn(1, sent=1)[:, 0],
    }
    marks = dict(zip(panels, (list(POPULATIONS), list(POPULATIONS.values()), list(POPULATIONS)), strict=True))
    return Item(f"{text}\n\n{_trained(results)}", {"populations": histograms(panels, marks)})


def _trained(results: Results) -> str:
    """What schedules do for devices drawn from the printed table: another draw for every seed."""
    rows, missing = [], False
    for size in sizes(results):
        base = before(results.scope, size)
        accuracy, costs = results.values(base, "global", "mean"), _costs(results, base)
        rows.append([str(size), "no schedule", spread(accuracy.values()), "", "", ""])
        for schedule in SCHEDULES:
            case = after(results.scope, size, schedule)
            found, now = results.values(case, "global", "mean"), _costs(results, case)
            if not found:
                missing = True
                rows.append([str(size), schedule, *["not yet measured"] * 4])
                continue
            cut = [[100 * (now[seed][at] / costs[seed][at] - 1) for seed in now if seed in costs] for at in (0, 1)]
            row = [spread(found.values()), spread(differences(found, accuracy), 2, sign=True)]
            rows.append([str(size), schedule, *row, *[f"{spread(one, 1, sign=True)} %" for one in cut]])
    head = ["samples", "", "global test", "to no schedule", "desynchronisation", "latency"]
    words = (
        f"**Trained: devices drawn from the printed table, another draw for each seed**\n\n{table(head, rows)}\n\n"
        f"MNIST_10, μ = 10, {results.scope.rounds} rounds, seconds summed over them. Sending takes longest on these "
        "devices, the more so the fewer samples they have, and it is what a schedule shortens first: little of the "
        "training has to be given up for a deadline that the fastest device can just meet."
    )
    return words + (" `fedfilt paper populations` computes what is missing." if missing else "")


def _costs(results: Results, case: Case) -> dict[int, tuple[float, float]]:
    """(desynchronisation, latency) in seconds by seed, summed over all rounds."""
    totals = {record["seed"]: record["curve"][-1]["totals"] for record in results.seeds(case)}
    return {seed: (found["desync"], found["latency"]) for seed, found in totals.items()}
