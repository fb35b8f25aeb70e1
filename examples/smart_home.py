"""From raw recordings to personal models and the room's vote: see docs/smart_home.md.

python examples/smart_home.py            # about a minute; pictures in smart_home/
python examples/smart_home.py --short    # a few rounds
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from fedfilt import DataMissing, Event, Rooms, Run, Store, from_table, play, summary
from fedfilt.datasets import Dsads

UNITS = ("torso", "right arm", "left arm", "right leg", "left leg")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def main(archive: str, short: bool, out: Path) -> None:
    # 1. Raw recordings: 5 units on every person at the same time; cut into windows, the last third for testing
    samples = Dsads(archive=archive).load(Store())
    people, windows = len(np.unique(samples.writers)), samples.x.shape
    print(f"{people} people x {len(UNITS)} units, {windows[0]} windows of {windows[1]} channels x {windows[2]} samples")
    moment = np.flatnonzero(samples.moments == samples.moments[0])
    signals = go.Figure()
    for row in moment:
        unit = samples.devices[row] % len(UNITS)
        signals.add_trace(go.Scatter(y=samples.x[row, 0] + 4 * unit, name=UNITS[unit], line={"color": COLOURS[unit]}))
    save(signals, out / "signals.html", "one moment as five units see it", "sample (25 a second)", "acceleration, x")

    # 2. A home is a person. Two people are held out; the others' units are linked if their first updates are alike
    unseen = 2 if people > 3 else 0
    homes = people - unseen
    table = {
        "rounds": 4 if short else 20,
        "data": {"name": "dsads", "archive": archive},
        "partition": {"name": "wearers", "unseen": unseen},
        "samples": {"train": 38, "local_test": "whole", "global_test": "whole"},
        "graph": {"name": "homes", "rooms": homes, "devices": 5 * homes, "inside": False, "between": "updates", "k": 2},
        "model": "motifs",
        "training": {"learning_rate": 0.02, "momentum": 0.9, "batch_size": 16},
        "evaluation": {"every": 1000},
        "engine": {"workers": 1},
    }
    config = from_table(table)
    data = Run(config).data

    # 3. Train: each device alone, one model for all, and personal models mixed over the graph
    results, votes = {}, {}
    for rule in ("local", "fedavg", "gfedfilt"):
        run = Run(from_table({**table, "aggregator": rule}), data=data)
        run.learn_graph()
        with run.experiment() as experiment:
            *_, (state, record) = play(run.start(), experiment)
        tests = summary(record.mixed, data)
        results[rule] = tests["local"]["mean"], tests["local"]["worst"], tests["global"]["mean"]
        # 4. Vote: the units of a person saw the same moments; any of them may be missing
        rooms = Rooms(state.models, run.trainer, data, np.arange(5 * homes) // 5)
        votes[rule] = [rooms.accuracy("mean", missing).mean() for missing in range(5)]
        own, worst, others = results[rule]
        print(f"{rule:9} own test {own:.1%}, worst device {worst:.1%}, other people {others:.1%}", end="; ")
        print(f"the room's vote {votes[rule][0]:.1%}, with 4 of 5 missing {votes[rule][4]:.1%}")
    bars = go.Figure()
    for place, test in enumerate(("own test", "worst device", "other people")):
        values = [result[place] for result in results.values()]
        bars.add_trace(go.Bar(x=list(results), y=values, name=test, marker={"color": COLOURS[place]}))
    save(bars, out / "accuracy.html", "what a device alone knows", "rule", "accuracy")
    curves = go.Figure()
    for place, (rule, curve) in enumerate(votes.items()):
        curves.add_trace(go.Scatter(x=list(range(5)), y=curve, name=rule, line={"color": COLOURS[place]}))
    save(curves, out / "vote.html", "the room's vote", "units missing, of 5", "accuracy")

    # 5. A unit joins late: it starts from its neighbours' models
    late = replace(config, rounds=config.rounds // 2, events=(Event(round=config.rounds // 2, join=0),))
    run = Run(late, data=data)
    run.learn_graph()
    with run.experiment() as experiment:
        *_, (state, record) = play(run.start(), experiment)
    joined = summary(record.mixed, data)["local"]["devices"][0]
    (event,) = record.events
    print(f"device {event.device} joined in round {event.round}: {joined:.1%} on its own test after one round")
    print(f"pictures: {out}")


def save(figure: go.Figure, path: Path, title: str, x: str, y: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.update_layout(template="plotly_white", title=title, xaxis={"title": x}, yaxis={"title": y})
    figure.write_html(path, include_plotlyjs="directory")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--archive", default="", help="the public zip of Daily and Sports Activities (UCI data set 256)"
    )
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("smart_home"))
    arguments = parser.parse_args()
    try:
        main(arguments.archive, arguments.short, arguments.out)
    except DataMissing as error:
        sys.exit(str(error))
