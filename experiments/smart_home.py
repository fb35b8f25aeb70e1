"""The results of docs/smart_home.md: `python experiments/smart_home.py --out runs/smart_home`.

Every part leaves one small JSON file per seed; a second start does only what is missing. `--tables` prints them,
those of the page with `--out results/smart_home`. `--validate 3` prints what the settings were chosen by.
"""

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedfilt._draws import Key, generator
from fedfilt._files import write_atomically
from fedfilt.data.store import Store
from fedfilt.data.windows import softened
from fedfilt.datasets.dsads import CHANNELS, UNITS
from fedfilt.rounds.play import play
from fedfilt.rounds.rooms import Rooms
from fedfilt.rounds.scores import summary
from fedfilt.rounds.timeline import Event, Timeline
from fedfilt.rounds.voting import HOW
from fedfilt.runs.build import Run
from fedfilt.runs.config import load

HERE = Path(__file__).parent
STRENGTHS = (0.1, 1.0, 10.0)
GRAPHS = {
    "similar": [],
    "person": ["graph.inside=true", "graph.between=none"],
    "both": ["graph.inside=true"],
    "shuffled": ["graph.shuffle=true"],
    "complete": ["graph.inside=true", "graph.between=everyone"],
}
# On dsads also personal models of softer inputs: asinh(3 x)
SOFT = 3.0
# The strength at which devices vote, join and differ in their sensors
STRENGTH = 1.0


def variants(name):
    """Overrides by name: Local is also the empty graph. On HAPT a person has one device: nobody to be linked with."""
    found = {"local": ["aggregator=local"], "fedavg": ["aggregator=fedavg"]}
    graphs = [graph for graph in GRAPHS if name != "hapt" or graph not in ("person", "both")]
    for mu in STRENGTHS:
        for graph in graphs:
            if name == "watch" or graph in ("similar", "shuffled") or mu == STRENGTH:  # others are dearer: less of it
                found[f"{graph}, mu={mu:g}"] = [*GRAPHS[graph], f"aggregator.filter.mu={mu}"]
    return found


def config_of(name, seed, overrides=()):
    # the results that are kept were made before there was a guard
    return load(HERE / f"{name}.toml", [f"seed={seed}", "engine.workers=1", "guard=false", *overrides])


def last(run):
    """Play a run to its end: (last state, tests of the last record as a table)."""
    run.learn_graph()
    with run.experiment() as experiment:
        *_, (state, record) = play(run.start(), experiment)
    return state, summary(record.mixed, run.data)


def brief(tests):
    return {test: {key: tests[test][key] for key in ("mean", "worst", "devices")} for test in ("local", "global")}


def statistics(x):
    """Simple statistics of windows (n, channels, time)."""
    parts = x.mean(2), x.std(2), x.min(2), x.max(2), abs(np.diff(x, axis=2)).mean(2)
    return np.concatenate(parts, axis=1)


def logistic(data):
    """Local accuracy of a logistic regression per device on statistics of its own windows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    scores = []
    for own, test in zip(data.train, data.local_test, strict=True):
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(statistics(data.x[own]), data.y[own])
        scores.append(model.score(statistics(data.x[test]), data.y[test]))
    return {"mean": float(np.mean(scores)), "worst": float(min(scores)), "devices": scores}


def personal(seed, data):
    """The tests of purely personal models on dsads."""
    return brief(last(Run(config_of("dsads", seed, ["aggregator=local"]), data=data))[1])


# All of a device's training windows, in as many steps as some 50 rounds with two per label
ALL = ["samples.train=1000", "rounds=10", "evaluation.every=10", "aggregator=local"]


def all_windows(seed, samples):
    """Local accuracy of the CNN and of the logistic regression with all training windows."""
    data = dealt("dsads", seed, samples, ALL)
    _, tests = last(Run(config_of("dsads", seed, ALL), data=data))
    return {"cnn": tests["local"]["mean"], "logistic": logistic(data)["mean"]}


def votes(run, state):
    """Accuracy of a device alone and of the room's vote, by how it votes and how many are missing."""
    rooms = Rooms(state.models, run.trainer, run.data, run.graph.rooms)
    count = len(rooms.rooms[0][0])
    cast = {how: [float(rooms.accuracy(how, missing).mean()) for missing in range(count)] for how in HOW}
    return {"single": float(rooms.single().mean()), **cast}


STARTS = {
    ("gfedfilt", "neighbours"): "G-Fedfilt, interpolated from its neighbours",
    ("gfedfilt", "own"): "G-Fedfilt, the first (random) model",
    ("gfedfilt", "mean"): "G-Fedfilt, mean of all models",
    ("fedavg", "mean"): "FedAvg's model",
}


def joins(name, seed, data):
    """The devices of two people join late: their accuracy before and after their first round, by how they start."""
    devices = tuple(np.flatnonzero(data_rooms(name, seed) < 2).tolist())
    found = {}
    for rule, starts in (("gfedfilt", ("neighbours", "own", "mean")), ("fedavg", ("mean",))):
        config = config_of(name, seed, ["rounds=21", "evaluation.every=21", f"aggregator={rule}"])
        run = Run(replace(config, events=(Event(round=21, join=devices),)), data=data)
        run.learn_graph()
        with run.experiment() as experiment:
            for state, _ in play(run.start(), experiment):
                if state.round == 20:
                    break
            for start in starts:
                timeline = Timeline([Event(round=21, join=devices, start=start)], run.graph, 21)
                today = replace(experiment, events=timeline)
                before = summary(experiment.engine.test(timeline.begin(state, today).models), data)["local"]["devices"]
                _, record = next(play(state, today))
                after = summary(record.mixed, data)["local"]["devices"]
                scores = [float(np.mean([table[d] for d in devices])) for table in (before, after)]
                found[STARTS[rule, start]] = scores
    return found


def data_rooms(name, seed):
    return config_of(name, seed).graph.graph(seed).rooms


# Few labelled windows (one per label), an encoder, and long enough for a shared trunk. With "mixed" sensors links join
# the same place of different people, whatever they wear there; with "unlike" ones only the links inside a home join
# kinds of devices
UNLIKE = [
    "samples.train=19",
    "model.latent=16",
    "model.filters=128",
    "training.learning_rate=0.02",
    "rounds=150",
    "evaluation.every=150",
    "graph.between=same_place",
]
LINKED = {"mixed": "graph.inside=false", "unlike": "graph.inside=true"}
MIXES = {
    "purely personal": ["aggregator=local"],
    "each kind alone": ["aggregator.filter.mu=0.1", "kinds.mix=alone"],
    "trunk over the graph": ["aggregator.filter.mu=0.1", "kinds.mix=trunk"],
    "everything over the graph": ["aggregator.filter.mu=0.1", "kinds.mix=all"],
}


# The same, with watches of half the rate: windows filled up to one shape, or an encoder for each kind's own
SLOW = [*UNLIKE, LINKED["mixed"], "data.sensors=mixed", "data.watch_rate=12.5"]
BEHIND = [*(one for one in SLOW if one != "model.latent=16"), "encoder.latent=[16, 62]"]
ENCODED = [*BEHIND, "data.pad=false"]
OVER = "aggregator.filter.mu=0.1"
SHAPES = {
    "zero-padded, purely personal": [*SLOW, "aggregator=local"],
    "zero-padded, each kind alone": [*SLOW, OVER, "kinds.mix=alone"],
    "zero-padded, trunk over the graph": [*SLOW, OVER, "kinds.mix=trunk"],
    "zero-padded, everything over the graph": [*SLOW, OVER, "kinds.mix=all"],
    "encoders, purely personal": [*ENCODED, "aggregator=local"],
    "encoders, each kind alone": [*ENCODED, OVER, "kinds.mix=alone"],
    "encoders, the rest over the graph": [*ENCODED, OVER],
    "the same, encoders not pre-trained": [*ENCODED, OVER, "encoder.epochs=0"],
    "the same, encoders never leave their device": [*ENCODED, OVER, "client=fedper", 'client.keep=["encoder"]'],
    "the same encoders on zero-padded inputs": [*BEHIND, OVER],
}


def unlike(seed, overrides, data, whole):
    """Accuracy per kind of device: on its own test, and on what unseen people did, seen by the same kind and place."""
    config = config_of("dsads", seed, overrides)
    run = Run(config, data=data)
    run.learn_graph()
    with run.experiment() as experiment:
        *_, (state, record) = play(run.start(), experiment)
        models = run.decided(state, experiment.engine)
    tests, strangers = summary(record.mixed, data), []
    for row, own, kind, trainer in zip(models, data.train, data.kinds, run.trainers, strict=True):
        place = whole.devices[own[0]] % len(UNITS)
        rows = data.global_test[whole.devices[data.global_test] % len(UNITS) == place]
        x = sensed(whole.x[rows], kind, config.data)
        counts, _ = trainer.test(row, x, whole.y[rows], np.arange(len(rows)), data.classes)
        strangers.append(float(np.trace(counts) / counts.sum()))
    kinds = np.array(data.kinds)
    found = {"own": np.array(tests["local"]["devices"]), "unseen": np.array(strangers)}
    return {
        test: {kind: float(scores[kinds == kind].mean()) for kind in CHANNELS} | {"all": float(scores.mean())}
        for test, scores in found.items()
    }


def sensed(x, kind, data):
    """Windows (n, channels, time) of all sensors, as a kind of device has them."""
    every = round(25 / data.watch_rate) if kind == "watch" else 1
    seen = np.ascontiguousarray(x[:, : CHANNELS[kind], ::every])
    if not data.pad:
        return seen
    full = np.zeros_like(x)
    full[:, : CHANNELS[kind]] = seen.repeat(every, axis=2)[:, :, : x.shape[2]]
    return full


def dealt(name, seed, samples, overrides=()):
    """The partition of a seed, as a run deals it."""
    config = config_of(name, seed, overrides)
    rooms = data_rooms(name, seed)
    return config.partition(samples, rooms, config.samples, generator(seed, Key.PARTITION))


def work(out, seeds):
    """Do what is missing, cheapest first."""
    store = Store()
    for name in ("watch", "hapt", "dsads"):
        samples = config_of(name, 0).data.load(store)
        for seed in seeds:
            data = dealt(name, seed, samples)

            def keep(part, make, name=name, seed=seed):
                path = out / name / f"{part}-seed-{seed}.json"
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(path, json.dumps(make()).encode())
                    print(path, flush=True)

            keep("logistic", lambda data=data: logistic(data))
            if name == "dsads":
                softer = replace(data, x=softened(data.x, SOFT))
                keep("logistic, soft", lambda softer=softer: logistic(softer))
                keep("local, soft", lambda seed=seed, softer=softer: personal(seed, softer))
            for variant, overrides in variants(name).items():

                def one(name=name, seed=seed, variant=variant, overrides=overrides, data=data):
                    run = Run(config_of(name, seed, overrides), data=data)
                    state, tests = last(run)
                    voting = name == "dsads" and variant in ("local", "fedavg", f"similar, mu={STRENGTH:g}")
                    return brief(tests) | ({"vote": votes(run, state)} if voting else {})

                keep(variant, one)
            if name == "dsads":
                keep("all windows", lambda seed=seed, samples=samples: all_windows(seed, samples))
            if name == "watch":
                keep("join", lambda name=name, seed=seed, data=data: joins(name, seed, data))
    for sensors in LINKED:  # `samples` are those with all sensors
        less = config_of("dsads", 0, [f"data.sensors={sensors}"]).data.load(store)
        for seed in seeds:
            data = dealt("dsads", seed, less, UNLIKE)
            for mix, overrides in MIXES.items():
                path = out / "dsads" / f"{sensors}, {mix}-seed-{seed}.json"
                if not path.exists():
                    whole = [*UNLIKE, LINKED[sensors], f"data.sensors={sensors}", *overrides]
                    write_atomically(path, json.dumps(unlike(seed, whole, data, samples)).encode())
                    print(path, flush=True)
    shapes(out, seeds, store)


def shapes(out, seeds, store):
    """Unlike channels and rates: zeros for what a device lacks against encoders of its own shape."""
    whole = config_of("dsads", 0).data.load(store)
    less = {pad: config_of("dsads", 0, base).data.load(store) for pad, base in ((True, SLOW), (False, ENCODED))}
    (out / "dsads").mkdir(parents=True, exist_ok=True)
    for seed, (title, overrides) in itertools.product(seeds, SHAPES.items()):
        path = out / "dsads" / f"shapes, {title}-seed-{seed}.json"
        if not path.exists():
            data = dealt("dsads", seed, less["data.pad=false" not in overrides], overrides)
            write_atomically(path, json.dumps(unlike(seed, overrides, data, whole)).encode())
            print(path, flush=True)


def earlier(samples):
    """The samples without their tests: of every device and label the later half is the test now."""
    samples = only(samples, ~samples.test)
    test = np.zeros(len(samples.y), bool)
    for part in np.unique(group := samples.devices * samples.classes + samples.y):
        rows = np.flatnonzero(group == part)
        test[rows[len(rows) - len(rows) // 2 :]] = True
    return replace(samples, test=test)


def only(samples, rows):
    names = ("x", "y", "test", "writers", "devices", "moments")
    return replace(samples, **{name: getattr(samples, name)[rows] for name in names})


def validate(seed):
    """What the settings were chosen by, on a seed that is not reported and without any test."""
    store = Store()
    data = dealt("dsads", seed, earlier(config_of("dsads", seed).data.load(store)))
    print(f"\n**dsads, later half of the training windows, seed {seed}**\n\nlogistic {shown([logistic(data)['mean']])}")
    for filters, rate in itertools.product((128, 256), (0.02, 0.05)):
        chosen = [f"model.filters={filters}", f"training.learning_rate={rate}"]
        overrides = [*chosen, "rounds=30", "evaluation.every=10", "aggregator=local"]
        run = Run(config_of("dsads", seed, overrides), data=data)
        run.learn_graph()
        with run.experiment() as experiment:
            for _, record in play(run.start(), experiment):
                if record.mixed is not None:
                    mean = summary(record.mixed, data)["local"]["mean"]
                    print(f"{' '.join(chosen)} rounds={record.round} {shown([mean])}", flush=True)
    softer = replace(data, x=softened(data.x, SOFT))
    for title, score in (("logistic", logistic(softer)), ("cnn", personal(seed, softer)["local"])):
        print(f"data.soft={SOFT:g} {title} {shown([score['mean']])}", flush=True)
    data = dealt("dsads", seed, config_of("dsads", seed, ["data.sensors=mixed"]).data.load(store), UNLIKE)
    data = replace(data, local_test=data.validation)
    print(f"\n**mixed sensors, windows that nobody trains on or is tested with, seed {seed}**\n")
    for mu, mix in itertools.product(STRENGTHS, ("alone", "trunk")):
        chosen = [f"aggregator.filter.mu={mu:g}", f"kinds.mix={mix}"]
        overrides = [*UNLIKE, LINKED["mixed"], "data.sensors=mixed", *chosen]
        _, tests = last(Run(config_of("dsads", seed, overrides), data=data))
        print(f"{' '.join(chosen)} {shown([tests['local']['mean']])}", flush=True)

    encoded = dealt("dsads", seed, config_of("dsads", seed, ENCODED).data.load(store), ENCODED)
    encoded = replace(encoded, local_test=encoded.validation)
    print(f"\n**unlike inputs, windows that nobody trains on or is tested with, seed {seed}**\n")
    for latent, epochs in (("[16, 31]", 10), ("[32, 31]", 10), ("[16, 62]", 10), ("[16, 62]", 0), ("[16, 62]", 20)):
        chosen = [f"encoder.latent={latent}", f"encoder.epochs={epochs}"]
        _, tests = last(Run(config_of("dsads", seed, [*ENCODED, OVER, *chosen]), data=encoded))
        print(f"{' '.join(chosen)} {shown([tests['local']['mean']])}", flush=True)


def shown(values):
    """Mean ± standard deviation over seeds, in percent."""
    values = 100 * np.array(values)
    return f"{values.mean():.1f} ± {values.std(ddof=1) if len(values) > 1 else 0:.1f}"


def tables(out):
    """Markdown tables of all that is there."""

    def read(name, part):
        return [json.loads(path.read_text()) for path in sorted((out / name).glob(f"{part}-seed-*.json"))]

    for name in ("watch", "hapt", "dsads"):
        print(
            f"\n**{name}**\n\n| rule, graph | own test | worst device | other people | seeds |\n|---|---|---|---|---|"
        )
        for variant in (*variants(name), "local, soft"):
            found = read(name, variant)
            if found:
                columns = [
                    shown([f["local"]["mean"] for f in found]),
                    shown([f["local"]["worst"] for f in found]),
                    shown([f["global"]["mean"] for f in found]),
                ]
                print(f"| {variant} | {' | '.join(columns)} | {len(found)} |")
        for part in ("logistic", "logistic, soft"):
            found = read(name, part)
            if found:
                own, worst = (shown([f[key] for f in found]) for key in ("mean", "worst"))
                title = part.replace("logistic", "logistic regression on statistics, per device")
                print(f"| {title} | {own} | {worst} | - | {len(found)} |")
    print("\n**all windows**\n\n| all training windows | own test |\n|---|---|")
    found = read("dsads", "all windows")
    for model, title in {"cnn": "1-D CNN", "logistic": "logistic regression on statistics"}.items() if found else ():
        print(f"| {title} | {shown([f[model] for f in found])} |")
    print("\n**vote**\n\n| models | how | single | 0 missing | 1 | 2 | 3 | 4 |\n|---|---|---|---|---|---|---|---|")
    for variant in ("local", "fedavg", f"similar, mu={STRENGTH:g}"):
        found = [f["vote"] for f in read("dsads", variant)]
        for how in HOW if found else ():
            columns = [shown([f[how][missing] for f in found]) for missing in range(5)]
            print(f"| {variant} | {how} | {shown([f['single'] for f in found])} | {' | '.join(columns)} |")
    print("\n**join**\n\n| start | before its first round | after it |\n|---|---|---|")
    found = read("watch", "join")
    for start in found[0] if found else ():
        print(f"| {start} | {shown([f[start][0] for f in found])} | {shown([f[start][1] for f in found])} |")
    for sensors in LINKED:
        for test in ("own", "unseen"):
            print(f"\n**{sensors} sensors, {test}**\n\n| | watch | phone | unit | all |\n|---|---|---|---|---|")
            for mix in MIXES:
                found = [f[test] for f in read("dsads", f"{sensors}, {mix}")]
                if found:
                    columns = [shown([f[kind] for f in found]) for kind in (*CHANNELS, "all")]
                    print(f"| {mix} | {' | '.join(columns)} |")
    for test in ("own", "unseen"):
        print(f"\n**unlike shapes, {test}**\n\n| | watch | phone | unit | all |\n|---|---|---|---|---|")
        for title in SHAPES:
            found = [f[test] for f in read("dsads", f"shapes, {title}")]
            if found:
                columns = [shown([f[kind] for f in found]) for kind in (*CHANNELS, "all")]
                print(f"| {title} | {' | '.join(columns)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/smart_home"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--validate", type=int, metavar="SEED", help="only print what the settings were chosen by")
    arguments = parser.parse_args()
    if arguments.validate is not None:
        parser.exit(validate(arguments.validate))
    if not arguments.tables:
        work(arguments.out, range(arguments.seeds))
    tables(arguments.out)
