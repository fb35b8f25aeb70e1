"""How many corrections does the graph save? Accuracy of devices and rooms against the number of labelled windows.

Models start from FedAvg among strangers. Then the people of two or more homes, who are new, label a few windows of each
activity, and their devices continue together (G-Fedfilt, FedAvg) or alone. Tests are on later recordings of the same
people.

python benchmarks/corrections.py --data watch --seeds 3 --out results/home/corrections-watch.json
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common import where
from fedfilt import Evaluation, Experiment, FederatedData, Graph, Hardware, Rooms, State, Store, Training, play, summary
from fedfilt._types import Array
from fedfilt.aggregators import FedAvg, GFedFilt, Local
from fedfilt.datasets import Dsads, Watch
from fedfilt.engines.local import Local as Engine
from fedfilt.filters import Tikhonov
from fedfilt.models import Motifs
from fedfilt.populations import Paper
from fedfilt.schedulers import Everything
from fedfilt.training.trainer import Trainer

COUNTS = (0, 1, 2, 4, 8)
PEOPLE = 4  # who are new
RULES = {"G-Fedfilt": GFedFilt(Tikhonov(mu=1.0)), "FedAvg": FedAvg(), "alone": Local()}


def trained(data, rule, graph, start, rounds, training, seed):
    """Models after so many rounds, and their last test."""
    size = len(start)
    hardware: Hardware = Paper().draw(
        np.array([max(len(rows), 1) for rows in data.train]), 4 * size, np.random.default_rng(0)
    )
    with Engine(data, Motifs(data.x.shape[1:], data.classes), training, seed, 1) as engine:
        state = State(0, np.tile(start, (data.count, 1)))
        experiment = Experiment(
            graph, rule, Everything(epochs=3), engine, hardware, rounds, 4 * size, Evaluation(every=10**6), seed
        )
        *_, (state, record) = play(state, experiment)
    return state.models, record.mixed


def dealt(samples, devices, count):
    """What some devices hold: the first `count` training windows of every label (None: all), and their test windows."""
    train, test = [], []
    for device in devices:
        own = np.flatnonzero((samples.devices == device) & ~samples.test)
        chosen = [own[samples.y[own] == label][:count] for label in range(samples.classes)]
        train.append(np.sort(np.concatenate(chosen)))
        test.append(np.flatnonzero((samples.devices == device) & samples.test))
    everybody = np.concatenate(test)
    named = samples.name, samples.x, samples.y, samples.classes
    return FederatedData(*named, tuple(train), tuple(test), everybody, samples.moments)


class Start(NamedTuple):
    """Where people who are new begin: with the model that the others have learnt together."""

    training: Training
    model: Motifs
    trainer: Trainer
    shared: Array  # (B,) the model
    devices: Array  # theirs
    owners: list[int]  # of each device
    graph: Graph  # a home: the devices of a person


def begun(samples, seed):
    """People drawn to be new, and what the others have learnt: FedAvg, 20 rounds."""
    training = Training(learning_rate=0.02, momentum=0.9, batch_size=16)
    people = np.unique(samples.writers)
    new = np.random.default_rng(seed).permutation(people)[:PEOPLE]
    mine = np.unique(samples.devices[np.isin(samples.writers, new)])
    others = np.unique(samples.devices[~np.isin(samples.writers, new)])
    model = Motifs(samples.x.shape[1:], samples.classes)
    trainer = Trainer(model, training, samples.x.shape[1:])
    before = dealt(samples, others, None)
    alone = Graph.from_edges(before.count, [])
    shared, _ = trained(before, FedAvg(), alone, trainer.start(seed), 20, training, seed)
    owners = [int(samples.writers[samples.devices == device][0]) for device in mine]
    return Start(training, model, trainer, shared[0], mine, owners, Graph.from_rooms(owners))


def study(samples, seed, rounds, seconds):
    """One seed: accuracy by rule and number of corrections."""
    training, model, trainer, shared, mine, owners, graph = begun(samples, seed)
    found = []
    for count in COUNTS:
        data = dealt(samples, mine, count)
        for name, rule in RULES.items():
            models = np.tile(shared, (data.count, 1))
            if count:
                models, _ = trained(data, rule, graph, shared, rounds, training, seed)
            with Engine(data, model, training, seed, 1) as engine:
                tests = summary(engine.test(State(rounds, models)), data)
            line = {"seed": seed, "corrections": count, "rule": name, "device": tests["local"]["mean"]}
            line["worst"] = tests["local"]["worst"]
            if data.moments is not None:
                line["room"] = float(np.mean(Rooms(models, trainer, data, owners).accuracy()))
            found.append(line)
            print(json.dumps(line), f"{time.perf_counter() - seconds:.0f} s", flush=True)
    return found


def main(name, seeds, rounds, out):
    samples = {"watch": Watch, "dsads": Dsads}[name]().load(Store())
    start, lines = time.perf_counter(), []
    for seed in range(seeds):
        lines += study(replace(samples), seed, rounds, start)
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"data": name, "rounds": rounds, "people": PEOPLE, **where()}
    about["seconds"] = round(time.perf_counter() - start)
    out.write_text(json.dumps({**about, "lines": lines}, indent=1) + "\n")
    print(f"{'corrections':>12}" + "".join(f"{rule:>22}" for rule in RULES))
    for count in COUNTS:
        cells = []
        for rule in RULES:
            own = [line for line in lines if (line["rule"], line["corrections"]) == (rule, count)]
            room = f" room {np.mean([line['room'] for line in own]):.1%}" if "room" in own[0] else ""
            cells.append(f"{np.mean([line['device'] for line in own]):.1%}{room}")
        print(f"{count:>12}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("watch", "dsads"), default="watch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("corrections.json"))
    given = parser.parse_args()
    main(given.data, given.seeds, given.rounds, given.out)
