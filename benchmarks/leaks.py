"""What a curious device can read about another, and what each protection in [privacy] costs: leak against accuracy.

MNIST_2: 20 devices with two digits and 45 samples each, mu = 1, in homes of two and on the paper's graph. Every device
attacks the one whose update weighs most in its row. It knows its own update, the rows that it was given, the graph and
the rule, and takes off what it knows. In homes of two that leaves the other's trained model; it follows the other's
model from round to round. On the paper's graph it looks at the first round, in which all start from the same model.

The recovery error is that of the recovered update at its best scale, √(1 - cos²): 0 is exact, 1 is nothing. The label
hit is the share of devices whose two digits are the two largest entries of the last layer's bias in what was recovered:
in the first round, and in the sum over all rounds. Guessing hits 1 in 45.

python benchmarks/leaks.py --seeds 3 --out results/privacy/leaks.json
python benchmarks/leaks.py --tables results/privacy/leaks.json
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from fedfilt import Run, from_table, play, summary
from fedfilt.rounds.shares import shares_of
from fedfilt.training.sgd import Diverged

PLACES = {
    "homes of two": {"name": "homes", "rooms": 10, "devices": 20},
    "the paper's graph": {"name": "paper"},
}
PROTECTIONS = {
    "none": {},
    "clip 1": {"clip": 1.0},
    "noise 0.01": {"clip": 1.0, "noise": 0.01},
    "noise 0.05": {"clip": 1.0, "noise": 0.05},
    "noise 0.1": {"clip": 1.0, "noise": 0.1},
    "noise 0.2": {"clip": 1.0, "noise": 0.2},
    "epsilon 8": {"clip": 1.0, "epsilon": 8.0},
    "grid 0.01": {"grid": 0.01},
    "grid 0.05": {"grid": 0.05},
    "grid 0.2": {"grid": 0.2},
    "least_others 2": {"least_others": 2},
}
ROUNDS = 40


class Watched:
    """A rule that keeps the last updates it was given."""

    def __init__(self, rule, size):
        self.rule, self.size, self.rows = rule, size, None

    def __call__(self, models, updates, graph):
        if models.shape[1] == self.size and updates.rows.any():  # else it is asked for its shares
            self.rows = updates.rows.copy()
        return self.rule(models, updates, graph)


def experiment(place, privacy, seed):
    return from_table(
        {
            "seed": seed,
            "rounds": ROUNDS,
            "data": "mnist",
            "partition": {"name": "labels", "per_device": 2},
            "samples": {"train": 45, "local_test": 200, "global_test": 1000},
            "graph": PLACES[place],
            "training": {"learning_rate": 0.1},
            "evaluation": {"every": ROUNDS},
            "engine": {"workers": 1},
            "privacy": privacy,
        }
    )


def attacked(run):
    """(error in round 1, both labels hit in round 1, mean error of all rounds, both hit by the sum, accuracies)."""
    watched = run.aggregator = Watched(run.aggregator, run.layout.size)
    shares = shares_of(watched.rule, run.graph)
    weights = shares - np.diag(np.diag(shares))
    victims, count = weights.argmax(axis=1), run.graph.count
    pairs = (weights > 0).sum(axis=1).max() == 1
    labels = [set(np.flatnonzero(counts)) for counts in run.data.label_counts]
    bias = slice(run.layout.size - run.data.classes, run.layout.size)  # the last layer's bias is last
    state = run.start()
    followed = state.models.astype(float)  # what each attacker thinks its victim was given
    total = np.zeros((count, run.data.classes))
    errors, first, tests = [], None, None
    rng = np.random.default_rng(run.config.seed)
    try:
        with run.experiment() as playing:
            for after, record in play(state, playing):
                own = state.models.astype(float) + watched.rows
                rest = after.models - np.diag(shares)[:, None] * own  # of others, in every row
                if run.config.privacy.least_others:
                    rest[~(np.abs(after.models - own) > 1e-6).any(axis=1)] = 0  # it was given its own
                if pairs:
                    trained = rest / weights[range(count), victims][:, None]
                    recovered = np.where(rest.any(axis=1)[:, None], trained - followed, 0)
                    back = weights[victims, range(count)][:, None], np.diag(shares)[victims][:, None]
                    followed = back[0] * own + back[1] * trained
                else:
                    recovered = rest - (1 - np.diag(shares))[:, None] * state.models
                true = watched.rows[victims].astype(float)
                lengths = np.linalg.norm(recovered, axis=1) * np.linalg.norm(true, axis=1)
                cosine = np.divide((recovered * true).sum(axis=1), lengths, out=np.zeros(count), where=lengths > 0)
                errors.append(float(np.sqrt(np.clip(1 - cosine**2, 0, 1)).mean()))
                total += recovered[:, bias]
                if first is None:
                    first = hit(recovered[:, bias], labels, victims, rng)
                state, tests = after, record.mixed
        found = {name: part["mean"] for name, part in summary(tests, run.data).items()}
    except Diverged:
        found = {"local": None, "global": None}
    result = {"first_error": errors[0], "first_hit": first, **found}
    return result | ({"error": float(np.mean(errors)), "hit": hit(total, labels, victims, rng)} if pairs else {})


def hit(scores, labels, victims, rng):
    """Share of devices that read both labels of their victims."""
    shuffled = scores + 1e-12 * rng.standard_normal(scores.shape)  # ties are broken by chance
    guesses = np.argsort(-shuffled, axis=1)[:, :2]
    return float(np.mean([set(guess) == labels[victim] for guess, victim in zip(guesses, victims, strict=True)]))


def spent(run):
    privacy = run.config.privacy
    if not privacy.noisy:
        return None
    found = privacy.spent(privacy.multiplier(ROUNDS), ROUNDS)
    return found if np.isfinite(found) else "none"


def study(seeds, out, about):
    """Every seed, place and protection; the file is written after each seed."""
    lines = []
    for seed in range(seeds):
        for place in PLACES:
            for name, privacy in PROTECTIONS.items():
                start = time.perf_counter()
                run = Run(experiment(place, privacy, seed))
                line = {"place": place, "protection": name, "seed": seed, "epsilon": spent(run), **attacked(run)}
                lines.append(line)
                print(json.dumps(line), f"{time.perf_counter() - start:.0f} s", flush=True)
        out.write_text(json.dumps({**about, "rounds": ROUNDS, "lines": lines}, indent=1) + "\n")


def tables(path):
    """The tables of docs/privacy.md."""
    lines = json.loads(path.read_text())["lines"]
    for place in PLACES:
        pairs = place == "homes of two"
        more = (" all rounds: error | labels |", "---|---|") if pairs else ("", "")
        print(f"\n{place}\n")
        print(f"| protection | epsilon | round 1: error | labels |{more[0]} local (change) | global (change) |")
        print(f"|---|---|---|---|{more[1]}---|---|")
        plain = [line for line in lines if (line["place"], line["protection"]) == (place, "none")]
        for name in PROTECTIONS:
            own = [line for line in lines if (line["place"], line["protection"]) == (place, name)]
            cells = [
                name,
                _epsilon(own[0]["epsilon"]),
                _mean(own, "first_error"),
                _mean(own, "first_hit", percent=True),
            ]
            if pairs:
                cells += [_mean(own, "error"), _mean(own, "hit", percent=True)]
            cells += [_change(own, plain, test) for test in ("local", "global")]
            print("|", " | ".join(cells), "|")


def _epsilon(value):
    return (
        ""
        if value is None
        else "over 10,000"
        if value == "none"
        else f"{value:,.3g}"
        if value < 1000
        else f"{value:,.0f}"
    )


def _mean(lines, key, percent=False):
    value = np.mean([line[key] for line in lines])
    return f"{value:.0%}" if percent else f"{value:.3f}" if value > 0.005 else f"{value:.0e}"


def _change(lines, plain, test):
    """Accuracy in per cent, and how many points that is more than without protection."""
    if any(line[test] is None for line in lines):
        return "diverges"
    now, before = (100 * np.mean([line[test] for line in part]) for part in (lines, plain))
    return f"{now:.1f}" if lines == plain else f"{now:.1f} ({round(now - before, 1) + 0:+.1f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("leaks.json"))
    parser.add_argument("--tables", type=Path, help="only print the tables of a result file")
    given = parser.parse_args()
    if given.tables is None:
        from common import where

        given.out.parent.mkdir(parents=True, exist_ok=True)
        study(given.seeds, given.out, where())
    tables(given.tables or given.out)
