"""The benefit of smoothing a room's decisions over time: the hidden Markov filter of the vote, on real recordings.

Four people do all activities one after the other, in an order that is drawn, as often as there are seeds. Their devices
decide with a model that other people have learnt together (FedAvg), or with what G-Fedfilt makes of it when two windows
of each activity are labelled; the recordings go on after those. Every vote of the room is right, wrong or "unknown".
The delay is the time from the first window of an activity to the first vote that is right; an activity that is never
recognised counts with all of its time. No window is of two activities.

python benchmarks/smoothing.py --data watch --seeds 3 --out results/home/smoothing-watch.json
"""

import argparse
import json
from pathlib import Path

import numpy as np

from corrections import RULES, begun, dealt, trained
from fedfilt import Store
from fedfilt.datasets import Dsads, Watch
from fedfilt.home.rooms import UNKNOWN, Household, Voting
from fedfilt.home.topics import Decision

SWITCH = (0.0, 5.0, 20.0, 60.0, 300.0)  # seconds
LABELLED, SKIPPED = 2, 3  # windows of each activity; a third overlaps them
ROUNDS = 10
HOP = {"watch": 1.0, "dsads": 5.0}  # seconds between two windows


def lived(samples, start, models, person, rng):
    """(time, devices, labels) what a person's devices think, (time,) what is true: activity after activity."""
    said, truth = [], []
    rows = [place for place, owner in enumerate(start.owners) if owner == person]
    for label in rng.permutation(samples.classes):
        found = []
        for row in rows:
            own = np.flatnonzero((samples.devices == start.devices[row]) & (samples.y == label))[SKIPPED:]
            found.append(start.trainer.predict(models[row], samples.x[own]))
        length = min(map(len, found))
        said.append(np.stack([one[:length] for one in found], axis=1))
        truth += [label] * length
    return np.concatenate(said).astype(float), np.array(truth)


def voted(said, truth, hop, switch):
    """(right, wrong, unknown) shares of the votes of a room, and the delay after each switch in seconds."""
    labels = [str(label) for label in range(said.shape[2])]
    names = [f"device-{number}" for number in range(said.shape[1])]
    home = Household(labels, dict.fromkeys(names, "room"), Voting(switch_seconds=switch, fresh_seconds=2 * hop))
    votes = []
    for place, moment in enumerate(said):
        now = place * hop
        for name, shares in zip(names, moment, strict=True):
            home.hear(name, Decision(now, 1, tuple(shares)), now)
        votes.append(home.vote(now + home.voting.gather_seconds)["room"].activity)
    right = np.array(votes) == truth.astype(str)
    unknown = np.array(votes) == UNKNOWN
    delays = []
    for part in np.split(right, np.flatnonzero(np.diff(truth)) + 1)[1:]:
        delays.append(hop * (int(part.argmax()) if part.any() else len(part)))
    return right.mean(), (~right & ~unknown).mean(), unknown.mean(), float(np.mean(delays))


def study(samples, seed):
    """One seed: lines by corrections and switch-over time."""
    start, lines = begun(samples, seed), []
    data = dealt(samples, start.devices, LABELLED)
    told = trained(data, RULES["G-Fedfilt"], start.graph, start.shared, ROUNDS, start.training, seed)[0]
    for corrections, models in ((0, np.tile(start.shared, (data.count, 1))), (LABELLED, told)):
        rng = np.random.default_rng(seed)
        homes = [lived(samples, start, models, person, rng) for person in dict.fromkeys(start.owners)]
        for switch in SWITCH:
            found = np.mean([voted(*home, HOP[samples.name], switch) for home in homes], axis=0)
            keys = ("right", "wrong", "unknown", "delay_seconds")
            about = {"seed": seed, "corrections": corrections, "switch_seconds": switch}
            lines.append(about | dict(zip(keys, map(float, found), strict=True)))
            print(json.dumps(lines[-1]), flush=True)
    return lines


def main(name, seeds, out):
    samples = {"watch": Watch, "dsads": Dsads}[name]().load(Store())
    lines = [line for seed in range(seeds) for line in study(samples, seed)]
    lasting = len(samples.y) / len(np.unique(samples.devices)) / samples.classes - SKIPPED
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"data": name, "hop_seconds": HOP[name], "activity_seconds": HOP[name] * lasting}
    out.write_text(json.dumps({**about, "lines": lines}, indent=1) + "\n")
    for switch in SWITCH:
        cells = []
        for corrections in (0, LABELLED):
            own = [one for one in lines if (one["corrections"], one["switch_seconds"]) == (corrections, switch)]
            shares = [f"{np.mean([one[key] for one in own]):.1%}" for key in ("right", "wrong", "unknown")]
            cells += [*shares, f"{np.mean([one['delay_seconds'] for one in own]):.1f} s"]
        print(f"| {switch:g} |", " | ".join(cells), "|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("watch", "dsads"), default="watch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("smoothing.json"))
    given = parser.parse_args()
    main(given.data, given.seeds, given.out)
