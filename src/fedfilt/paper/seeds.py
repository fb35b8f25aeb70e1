"""How much seeds matter: the spread over draws of labels, samples, initial model and batches."""

import numpy as np

from fedfilt.paper._cases import SETS, TABLE, Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import NOTHING, differences, table, values

place = "not in the paper"
order = 150


def cases(scope: Scope) -> list[Case]:
    """The runs of the tables at the small size."""
    return scope.grid(SETS, TABLE)


def make(results: Results) -> Item:
    """Range and spread of FedAvg over seeds, and how much less the paired difference varies."""
    rows, paired, alone = [], [], []
    for data in SETS:
        for test in ("local", "global"):
            size, rounds = results.scope.small, results.scope.rounds
            base, ten = (values(results, Case(data, rule, size, rounds), test) for rule in ("fedavg", "mu=10"))
            if len(base) < 2 or len(ten) < 2:
                return Item(f"{NOTHING} (It needs two seeds or more.)")
            numbers = np.array(list(base.values()))
            one, both = numbers.std(ddof=1), np.std(differences(ten, base), ddof=1)
            alone.append(one)
            paired.append(both)
            row = [WORDS[data], test, f"{numbers.min():.1f} to {numbers.max():.1f}", f"{one:.2f}", f"{both:.2f}"]
            rows.append(row)
    head = [
        "data",
        "test",
        "FedAvg, lowest to highest seed",
        "spread of FedAvg",
        "spread of the difference μ = 10 to FedAvg",
    ]
    text = table(head, rows)
    text += (
        f"\n\nOver {len(numbers)} seeds, FedAvg varies by up to {max(alone):.1f} points (standard deviation). The "
        f"difference between two rules on the same draw varies by {np.median(paired):.2f} at the median, compared with "
        f"{np.median(alone):.2f} for one rule alone. The paper says that it averages five runs, but prints no spread "
        "over them: its ± is the spread between the devices of a run. Differences of a point between rules mean little "
        "unless both used the same draw."
    )
    return Item(text)
