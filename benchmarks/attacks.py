"""What hostile devices do to the others, with and without a guard: `python benchmarks/attacks.py`.

MNIST_2, 20 devices with 45 samples each, 40 rounds, learning rate .1, tested after the last round on 500 local and
2,000 global test samples; accuracies are means over devices that are not hostile. Every run is kept in
results/security/attacks.json as soon as it is done; a second start does only what is missing. `--tables` prints the
tables of docs/security.md. Settings of the guard were chosen on other seeds, 100 and above (`--seeds 100 101 --out
FILE`).
"""

import argparse
import itertools
import json
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from common import where
from fedfilt._files import write_atomically
from fedfilt.rounds.play import play
from fedfilt.rounds.scores import summary
from fedfilt.runs.build import Run, dealt
from fedfilt.runs.config import load
from fedfilt.training.sgd import Diverged

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, SEEDS = 40, 3
SCORES = ("local", "global")
TESTED = ["training.learning_rate=.1", "samples.local_test=500", "samples.global_test=2000"]
RULES = {"mu=1": [], "mu=10": ["aggregator.filter.mu=10"], "FedAvg": ["aggregator=fedavg"]}
GUARDS = {"off": ["guard=false"], "default": [], "robust": ["guard.robust=filter"]}
MORE = {"geometric": ["guard.robust=geometric"]}
ONE, FIFTH = (0,), (0, 5, 10, 15)
TARGET, PATCH = 0, (slice(0, 4), slice(0, 4))  # of the backdoor: a white corner means 0


def flip(times):
    return lambda round, update, lengths: -times * update


def garbage(times):
    def send(round, update, lengths):
        drawn = np.random.default_rng(round).standard_normal(len(update))
        return drawn * (times * np.linalg.norm(update) / np.linalg.norm(drawn))

    return send


def huge(rounds):
    return lambda round, update, lengths: np.full_like(update, 1e30) if round in rounds else update


def long(times):
    """Of so many times the median length, in the direction of the update, or against it."""
    return lambda round, update, lengths: update * (times * np.median(lengths) / np.linalg.norm(update))


# name -> (hostile devices, what they send, what they do to their samples)
ATTACKS = {
    "none": (ONE, None, None),
    "flip ×3": (ONE, flip(3), None),
    "flip ×10": (ONE, flip(10), None),
    "garbage ×20": (ONE, garbage(20), None),
    "1e30 once": (ONE, huge([20]), None),
    "1e30 in every round": (ONE, huge(range(ROUNDS + 1)), None),
    "a fifth, flip ×10": (FIFTH, flip(10), None),
}
THROUGH = {
    "a fifth switched off": (FIFTH, lambda round, update, lengths: 0 * update, None),
    "a fifth, flipped to 2.9 times the median": (FIFTH, long(-2.9), None),
    "a fifth with wrong labels": (FIFTH, None, "labels"),
    "backdoor, as long as the median": (ONE, long(1), "backdoor"),
    "backdoor of a fifth": (FIFTH, long(1), "backdoor"),
}
EVERY = ATTACKS | THROUGH


class Hostile:
    """An engine some of whose devices send something else than they learned."""

    def __init__(self, inner, who, send):
        self.inner, self.who, self.send = inner, who, send

    def train(self, jobs, deadline):
        replies = list(self.inner.train(jobs, deadline))
        lengths = [np.linalg.norm(reply.update) for reply in replies if reply.device not in self.who]
        for reply in replies:
            if reply.device in self.who and not reply.absent and self.send is not None:
                sent = self.send(jobs[0].round, reply.update.astype(float), lengths)
                reply = reply._replace(update=sent.astype(np.float32), absent="" if sent.any() else "switched off")
            yield reply

    def test(self, state):
        return self.inner.test(state)


@cache
def dealt_to(seed):
    """The samples of all devices: the same for every rule and guard."""
    config = load(ROOT / "experiments" / "mnist_2.toml", [f"seed={seed}", *TESTED])
    return dealt(config, config.graph.graph(seed))


def poisoned(data, who, what):
    """The data, in which the samples of some devices lie."""
    if what is None:
        return data
    x, y = data.x.copy(), data.y.copy()
    for device in who:
        rows = data.train[device]
        if what == "labels":
            first, second = np.unique(y[rows])[:2]
            y[rows] = np.where(y[rows] == first, second, first)
        else:
            half = rows[::2]
            x[half] = marked(x[half])
            y[half] = TARGET
    return replace(data, x=x, y=y)


def marked(x):
    """Pictures with the backdoor's mark."""
    x = x.copy()
    x[(..., *PATCH)] = x.max()
    return x


def one(attack, rule, guard, seed):
    """Accuracies of the honest devices after the last round, and how often the backdoor opens."""
    who, send, lie = EVERY[attack]
    overrides = [f"seed={seed}", f"rounds={ROUNDS}", f"evaluation.every={ROUNDS}", "engine.workers=1"]
    config = load(ROOT / "experiments" / "mnist_2.toml", [*overrides, *TESTED, *RULES[rule], *(GUARDS | MORE)[guard]])
    run = Run(config, data=poisoned(dealt_to(seed), who, lie))
    others = [device for device in range(run.graph.count) if device not in who]
    said, state = [], run.start()
    try:
        with run.experiment() as experiment:
            watched = replace(experiment, engine=Hostile(experiment.engine, who, send))
            for now, record in play(state, watched):
                state = now
                said += [(event.what, event.device) for event in record.events]
    except Diverged:
        return {"ended": state.round + 1}
    tests = summary(record.mixed, run.data)
    found = {test: float(np.mean([tests[test]["devices"][i] for i in others])) for test in SCORES}
    if attack == "none":  # of those that are honest where a fifth is not
        honest = [device for device in others if device not in FIFTH]
        found["fifth"] = {t: float(np.mean([tests[t]["devices"][i] for i in honest])) for t in SCORES}
    for what in ("clipped", "quarantined"):
        found[what] = sum(1 for event, _ in said if event == what)
        found[f"{what}_honest"] = len({device for event, device in said if event == what and device in others})
    if lie == "backdoor" or attack == "none":
        found["opens"] = opens(run, state.models[others])
    return found


def opens(run, models):
    """The share of marked pictures of other digits that models take for the target."""
    rows = run.data.global_test[run.data.y[run.data.global_test] != TARGET][:1000]
    x, y = marked(run.data.x[rows]), run.data.y[rows]
    taken = [run.trainer.test(row, x, y, np.arange(len(y)), run.data.classes)[0][:, TARGET].sum() for row in models]
    return float(np.mean(taken) / len(y))


def cases(seeds):
    """What is computed: the promised attacks under every rule, the rest with mu = 1."""
    for guard in ("default", "off", "robust"):
        yield from itertools.product(ATTACKS, RULES, [guard], seeds)
    yield from itertools.product(THROUGH, ["mu=1"], GUARDS, seeds)
    yield from itertools.product(("none", "flip ×10", "a fifth, flip ×10"), ["mu=1"], MORE, seeds)


def key(*case):
    return " | ".join(map(str, case))


def compute(path, seeds):
    found = json.loads(path.read_text()) if path.exists() else {**where(), "runs": {}}
    path.parent.mkdir(parents=True, exist_ok=True)
    for case in cases(seeds):
        if key(*case) not in found["runs"]:
            start = time.perf_counter()
            found["runs"][key(*case)] = one(*case)
            write_atomically(path, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
            print(f"{time.perf_counter() - start:5.1f} s  {key(*case)}: {found['runs'][key(*case)]}", flush=True)


def of(runs, attack, rule, guard):
    """The runs of all seeds."""
    found = [run for case, run in runs.items() if case.rpartition(" | ")[0] == key(attack, rule, guard)]
    if attack == "none, of the other 16":
        found = [run["fifth"] for run in of(runs, "none", rule, guard)]
    return found


def cell(runs, attack, rule, guard):
    """Mean over seeds, local / global; how many if not all; "ended" if all models diverged in a round."""
    named = of(runs, attack, rule, guard)
    if not named:
        return "–"
    count = "" if len(named) == SEEDS else f" ({len(named)} of {SEEDS} seeds)"
    if any("ended" in run for run in named):
        return "ended" + count
    return "{:.1f} / {:.1f}".format(*(100 * np.mean([run[test] for run in named]) for test in SCORES)) + count


def tables(path):
    """The tables of docs/security.md."""
    runs = json.loads(path.read_text())["runs"]
    for rule in RULES:
        rows = [*list(ATTACKS)[:-1], "none, of the other 16", list(ATTACKS)[-1]]
        table(f"{rule}: attack", GUARDS, {row: [cell(runs, row, rule, guard) for guard in GUARDS] for row in rows})
    rows = ["none, of the other 16", *THROUGH]
    table("mu=1: attack", GUARDS, {row: [cell(runs, row, "mu=1", guard) for guard in GUARDS] for row in rows})
    doors = ["none", *(name for name, (_, _, lie) in THROUGH.items() if lie == "backdoor")]
    table("mu=1: attack", GUARDS, {row: [door(runs, row, guard) for guard in GUARDS] for row in doors})
    ways = {"robust": "filter", **{name: name for name in MORE}}
    rows = ("none", "flip ×10", "a fifth, flip ×10")
    table("mu=1: attack", ways.values(), {row: [cell(runs, row, "mu=1", guard) for guard in ways] for row in rows})


def door(runs, attack, guard):
    """How often the backdoor opens."""
    shares = [run["opens"] for run in of(runs, attack, "mu=1", guard) if "opens" in run]
    return f"{100 * np.mean(shares):.1f} %" if shares else "–"


def table(head, columns, rows):
    print("\n| " + " | ".join([head, *columns]) + " |\n|---|" + "---|" * len(columns))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "security" / "attacks.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(SEEDS)))
    parser.add_argument("--tables", action="store_true")
    given = parser.parse_args()
    if not given.tables:
        compute(given.out, given.seeds)
    tables(given.out)
    sys.exit()
