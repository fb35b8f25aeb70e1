"""The demo of the living home: replayed recordings, rooms that vote, people who correct, and rounds of training.

Everything is as in a real home, except that the bus is in memory and the clock runs faster.
"""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedfilt._checks import check_number
from fedfilt._draws import Key, generator
from fedfilt._files import write_atomically
from fedfilt._types import Array, Table
from fedfilt.data.own import Making, read
from fedfilt.data.store import Store
from fedfilt.data.windows import Recording, Scaling
from fedfilt.datasets.watch import Watch
from fedfilt.home.bus import Memory
from fedfilt.home.clock import Clock
from fedfilt.home.decider import Decider, last_will
from fedfilt.home.edge import OFFLINE, Edge
from fedfilt.home.rooms import Voting, counted
from fedfilt.home.topics import Correction, Topics, room_state, written
from fedfilt.rounds.play import play
from fedfilt.rounds.types import State
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.sources.replay import Replay
from fedfilt.training.kept import Kept, take
from fedfilt.training.trainer import Trainer

PEOPLE, HOMES = 4, 2
LIVE = 0.6  # share of a recording that is lived through; the rest is for the test
CORRECTED = 4.0  # seconds that a correction covers: two or three windows of two seconds, one per second
PASSES = 2  # times that everybody does all exercises, with one correction of each
SPARE = 3.0  # seconds from the corrected moment to the end of the exercise
PATIENCE = 10.0  # seconds that a person waits for the room to decide
LAST = 60.0  # seconds of the machine's clock to store the last corrections
LATER = 30.0  # seconds that everybody continues after the last rounds, each with another exercise, uncorrected
FRESH = Voting(fresh_seconds=60.0)  # home time: three seconds on a machine that may be busy
FILTER = {"name": "gfedfilt", "filter": {"name": "tikhonov", "mu": 1.0}}
RULES: dict[str, Table | str] = {"G-Fedfilt": FILTER, "FedAvg": "fedavg", "personal": "local"}
TRAINING = {"learning_rate": 0.02, "momentum": 0.9, "batch_size": 16}

Tell = Callable[[str], None]


class Person(NamedTuple):
    """A person with a watch on each arm, in a room of their own."""

    home: str
    room: str
    devices: tuple[str, str]
    live: dict[str, Array]  # by device: (rows, channels), exercise after exercise
    labels: Array  # (rows,) what they do
    test_x: Array  # (2, windows, channels, rows) the same moments as seen by each watch
    test_y: Array  # (windows,)


def demo(
    out: Path, store: Store, speed: float = 20.0, rounds: int = 5, seed: int = 0, tell: Tell = print
) -> list[Table]:
    """Live through the exercises of four people; returns the accuracy of devices and rooms after each pass, by rule.

    A person's two watches were recorded one after the other; here they are worn at the same time.
    """
    check_number("speed", speed, low=0, above=True)
    watch = Watch()
    recordings = watch.recordings(store)
    people = np.unique([one.person for one in recordings])
    new = generator(seed, Key.PARTITION).permutation(people)[:PEOPLE]  # the same people that the partition holds out
    shape, labels = (6, watch.window), tuple(watch.labels)
    making = Making(shape, labels, watch.step, 50.0, validation_share=0.0, test_share=0.0)
    tell(f"a shared model from {len(people) - PEOPLE} other people (FedAvg) ...")
    start, trainer = _start(store, seed, len(people))
    strangers = np.concatenate([one.signal for one in recordings if one.person not in new])
    scaling = Scaling.of(strangers.T[None].astype(np.float32))
    living = [_person(place, [one for one in recordings if one.person == who], making) for place, who in enumerate(new)]
    for person in living:
        for name in person.devices:
            (out / "devices" / name / "data").mkdir(parents=True)
            (out / "devices" / name / "state").mkdir()
            take(out / "devices" / name / "state", Kept(start, 0, scaling.to_json()), trainer.layout)
    before = _tested(living, out, trainer, making, start, scaling)
    lines = [{"corrections": 0, "rule": rule, **before} for rule in RULES]
    clock = Clock(speed)
    for number in range(1, PASSES + 1):
        tell(f"pass {number} of {PASSES}: {PEOPLE} people exercise, {speed:g} times as fast, and correct each once ...")
        _live(living, out, making, trainer, clock, _own(lines))
        for rule, aggregator in RULES.items():
            models = _trained(out, making, aggregator, start, rounds, seed)
            lines.append({"corrections": number, "rule": rule, **_tested(living, out, trainer, making, models)})
            if rule == "G-Fedfilt":
                _hand_out(living, out, trainer, making, models, number * rounds)
    write_atomically(out / "accuracy.json", json.dumps(lines, indent=1).encode())
    _live(_later(living, making), out, making, trainer, clock, _own(lines), correct=False)
    return lines


def _own(lines: list[Table]) -> dict[str, float]:
    """The accuracy of the model that each device decides with."""
    return dict([line["devices"] for line in lines if line["rule"] == "G-Fedfilt"][-1])


def _later(people: list[Person], making: Making) -> list[Person]:
    """What everybody does after the last rounds, for equally long."""
    rows = [np.flatnonzero(person.labels == place % len(making.labels)) for place, person in enumerate(people)]
    length = min(int(LATER * making.rate), *map(len, rows))
    found = []
    for person, own in zip(people, rows, strict=True):
        live = {name: signal[own[:length]] for name, signal in person.live.items()}
        found.append(person._replace(live=live, labels=person.labels[own[:length]]))
    return found


def _start(store: Store, seed: int, people: int) -> tuple[Array, Trainer]:
    """The model that the other people have learnt together, and its trainer."""
    table = {
        "seed": seed,
        "rounds": 12,
        "data": "watch",
        "partition": {"name": "wearers", "unseen": PEOPLE},
        "samples": {"train": 60, "local_test": "whole", "global_test": "whole"},
        "graph": {"name": "homes", "rooms": people - PEOPLE, "devices": 2 * (people - PEOPLE)},
        "model": "motifs",
        "training": TRAINING,
        "aggregator": "fedavg",
        "evaluation": {"every": 1000},
    }
    run = Run(from_table(table), store)
    with run.experiment() as experiment:
        *_, (state, _) = play(run.start(), experiment)
    return state.models[0], run.trainer


def _person(place: int, recordings: list[Recording], making: Making) -> Person:
    """What a person lives through and what is kept for the test, for both watches side by side."""
    sides = sorted({one.device for one in recordings})
    window = making.shape[1]
    live: list[list[Array]] = [[], []]
    tests: list[list[Array]] = [[], []]
    labels, truth = [], []
    for label in range(len(making.labels)):
        own = [[one.signal for one in recordings if (one.device, one.label) == (side, label)] for side in sides]
        signals = [np.concatenate(parts) for parts in own]
        length = min(map(len, signals))
        cut = int(LIVE * length)
        for side, signal in enumerate(signals):
            live[side].append(signal[:cut])
            rest = np.lib.stride_tricks.sliding_window_view(signal[cut:length], window, axis=0)[:: making.stride]
            tests[side].append(rest)
        labels.append(np.full(cut, label))
        truth.append(np.full(len(tests[0][-1]), label))
    names = f"person-{place}-left", f"person-{place}-right"
    both = {name: np.concatenate(parts) for name, parts in zip(names, live, strict=True)}
    x = np.stack([np.concatenate(parts) for parts in tests]).astype(np.float32)
    return Person(
        f"home-{place * HOMES // PEOPLE}",
        f"room-{place}",
        names,
        both,
        np.concatenate(labels),
        x,
        np.concatenate(truth),
    )


def _live(
    people: list[Person],
    out: Path,
    making: Making,
    trainer: Trainer,
    clock: Clock,
    accuracies: dict[str, float],
    correct: bool = True,
) -> None:
    """One pass through everybody's exercises, with decisions, votes and corrections."""
    bus, stop = Memory(), threading.Event()
    edges = []
    for topics in map(Topics, dict.fromkeys(person.home for person in people)):  # an edge server for each home
        rooms = {name: person.room for person in people if person.home == topics.home for name in person.devices}
        member, folder = bus.member((topics.edge, OFFLINE)), out / topics.home / "home"
        edges.append(Edge(member, clock, topics, making.labels, rooms, voting=FRESH, folder=folder))
    serving = [threading.Thread(target=edge.run, args=(stop,)) for edge in edges]
    threads, members = [], []
    start = clock.now()  # for all recordings and corrections, however late a thread is
    for person in people:
        topics = Topics(person.home)
        times = np.arange(len(person.labels)) / making.rate
        for name in person.devices:
            folder = out / "devices" / name
            np.savez(folder / "live.npz", time=times, values=person.live[name])
            member = bus.member(last_will(topics, name))
            members.append(member)
            decider = Decider(folder, making, trainer, member, topics, name, person.room, clock)
            decider.accuracy = accuracies[name]  # on what is kept for the test: all corrections are for training
            decider.tell()
            source = Replay(str(folder / "live.npz"), at=start)
            threads.append(threading.Thread(target=decider.live, args=(stop, source)))
        if correct:
            threads.append(threading.Thread(target=_correct, args=(person, making, bus, clock, topics, start)))
    for thread in (*serving, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    clock.sleep(1.0)
    end = time.monotonic() + LAST
    while any(edge.waits for edge in edges) and time.monotonic() < end:
        time.sleep(0.01)
    stop.set()
    for thread in serving:
        thread.join()
    for member in members:
        member.close()


def _correct(person: Person, making: Making, bus: Memory, clock: Clock, topics: Topics, start: float) -> None:
    """Play a person who names each exercise once, after the room has decided about that moment."""
    decided = [0.0]
    bus.subscribe(topics.state(person.room), lambda _, content: decided.append(room_state(content).at))
    for label, name in enumerate(making.labels):
        rows = np.flatnonzero(person.labels == label)
        end = start + (rows[-1] + 1) / making.rate - SPARE  # near the end, when the whole span is this exercise
        clock.sleep(end - clock.now())
        latest = clock.now() + PATIENCE
        while decided[-1] < end and clock.now() < latest:
            clock.sleep(0.2)
        bus.publish(topics.label(person.room), written(Correction(name, end - CORRECTED, end)))


def _trained(out: Path, making: Making, aggregator: Table | str, start: Array, rounds: int, seed: int) -> Array:
    """(K, B) the devices' models after rounds of training on their corrections, starting from the shared model."""
    shape, labels = list(making.shape), list(making.labels)
    table = {
        "seed": seed,
        "rounds": rounds,
        "data": {"name": "own", "shape": shape, "labels": labels, "step": making.step, "rate": making.rate}
        | {"validation_share": 0.0, "test_share": 0.0, "folders": f"{out}/devices/*"},
        "graph": {"name": "homes", "rooms": PEOPLE, "devices": 2 * PEOPLE},
        "model": "motifs",
        "training": TRAINING,
        "aggregator": aggregator,
        "evaluation": {"every": 1000},
    }
    run = Run(from_table(table))
    with run.experiment() as experiment:
        *_, (state, _) = play(State(0, np.tile(start, (run.graph.count, 1))), experiment)
    return state.models


def _tested(
    people: list[Person], out: Path, trainer: Trainer, making: Making, models: Array, scaling: Scaling | None = None
) -> Table:
    """Accuracy of devices and rooms on what is kept for the test, with their own scaling or a common one.

    Rooms vote as on the edge server: devices count by the accuracy they report, which is this one.
    """
    devices, rooms = {}, []
    for place, person in enumerate(people):
        said = []
        for side, name in enumerate(person.devices):
            row = models if models.ndim == 1 else models[2 * place + side]
            known = scaling or _scaling(out / "devices" / name, making)
            said.append(trainer.predict(row, known.apply(person.test_x[side])))
            devices[name] = float((said[-1].argmax(axis=1) == person.test_y).mean())
        together = counted(np.stack(said), [devices[name] for name in person.devices]).argmax(axis=1)
        rooms.append(float((together == person.test_y).mean()))
    return {"device": float(np.mean(list(devices.values()))), "room": float(np.mean(rooms)), "devices": devices}


def _scaling(folder: Path, making: Making) -> Scaling:
    """The scaling of a device's own data."""
    scaling = read(folder, making).scaling
    assert scaling is not None
    return scaling


def _hand_out(people: list[Person], out: Path, trainer: Trainer, making: Making, models: Array, round: int) -> None:
    """Give each device its own model to decide with."""
    names = [name for person in people for name in person.devices]
    for row, name in zip(models, names, strict=True):
        folder = out / "devices" / name
        take(folder / "state", Kept(row, round, _scaling(folder, making).to_json()), trainer.layout)
