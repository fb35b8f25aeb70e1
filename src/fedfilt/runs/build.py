"""All that a config stands for, ready to play. Building a run never trains; learning a graph is a step of its own."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from fedfilt import _parts
from fedfilt._draws import Key, generator
from fedfilt._files import write_atomically
from fedfilt._types import Array, Table
from fedfilt.data import FederatedData
from fedfilt.data.store import Store
from fedfilt.engines._bounded import Bounded, check_dense
from fedfilt.engines._simulated import Simulated
from fedfilt.engines.local import Local
from fedfilt.graph import Graph
from fedfilt.rounds.blind import Blind, check_rule
from fedfilt.rounds.guard import Guard
from fedfilt.rounds.kinds import ByKind
from fedfilt.rounds.timeline import Timeline, with_newcomers
from fedfilt.rounds.types import Engine, Experiment, Rule, State, Updates
from fedfilt.runs.config import Config
from fedfilt.system.about import about
from fedfilt.system.blind import MOST, masked_bytes, sealed_width
from fedfilt.system.hardware import Hardware
from fedfilt.system.orders import Job, Plan
from fedfilt.training.trainer import Trainer, model_named

log = logging.getLogger("fedfilt")


class Run:
    """All that a config stands for: graph, data, model, start and engine.

    A graph that is learned from the devices' first updates lacks that part until `learn_graph` is called.
    `sealed` is a run on the edge server of a deployment, which holds rows that it cannot read (`privacy.blind`).
    """

    def __init__(
        self, config: Config, store: Store | None = None, data: FederatedData | None = None, sealed: bool = False
    ) -> None:
        config.privacy.check(config.graph.learned)
        self.config, self.sealed = config, sealed and config.privacy.blind
        self.noise_seed: int = config.seed  # real devices know the seed: see `secret_seed`
        self.begun: Graph = config.graph.graph(config.seed)  # without devices that are new to it: see `Event`
        self.graph = with_newcomers(self.begun, config.events)
        self.learned = not config.graph.learned
        data = dealt(config, self.graph, store) if data is None else data
        if data.count != self.graph.count:
            raise ValueError(f"graph must have one device per part of the data, {data.count}, got {self.graph.count}")
        self.data: FederatedData = data
        start = int(generator(config.seed, Key.START).integers(2**62))
        self.model = model_of(config, data, start)
        self.trainer = Trainer(self.model, config.training, data.x.shape[1:])
        self.layout = self.trainer.layout
        self._first = self.trainer.start(start)
        held = np.array([len(rows) for rows in data.train])
        if is_own(config):  # the edge server does not know how many samples a device has
            held = np.full(data.count, config.samples.train_range[1])
        blind = config.privacy.blind
        full = masked_bytes if blind else config.sparsifier.full_bytes
        self.update_bytes: int = full(self.layout.size)
        first, rng = held[: self.begun.count], generator(config.seed, Key.DEVICES)
        self.begun_hardware: Hardware = config.devices.draw(first, self.update_bytes, rng)
        self.hardware = self.begun_hardware
        if data.count > self.begun.count:
            self.hardware = replace(self.hardware.extended(data.count), samples=held)
        self.aggregator: Rule = self.guard.rule(config.aggregator)
        if data.kinds is not None:
            self.aggregator = ByKind(self.aggregator, config.kinds.private(self.layout))
        self._place_devices(self.begun)
        if blind:
            self._check_blind()
            self.aggregator = Blind(config.aggregator, self.sealed)

    def _check_blind(self) -> None:
        """Refuse what a server that cannot look cannot do."""
        config = self.config
        plans = config.scheduler(self.hardware.at(config.seed, 1), self.update_bytes).plans
        check_dense(plan for plan in plans if plan.epochs)
        reasons = {
            f"needs at most {MOST} devices": self.graph.count > MOST,
            "cannot learn a graph from the devices' updates: choose another graph": config.graph.learned,
            'mixes all layers alike: kinds need kinds.mix = "all"': self.data.kinds and config.kinds.mix != "all",
            "tests what devices have mixed, not what they have trained: evaluation.trained must be false": (
                config.evaluation.trained
            ),
            'cannot make a first model of other models: a device must join with start = "own"': any(
                event.join and event.start != "own" for event in config.events
            ),
        }
        for words, wrong in reasons.items():
            if wrong:
                raise ValueError(f"privacy.blind = true {words}")
        check_rule(config.aggregator, self.graph)

    @property
    def guard(self) -> Guard:
        """What bounds one device's influence on the others."""
        return self.config.privacy.guard(self.config.guard)

    def check_here(self) -> None:
        """Refuse to train here on what only the devices have."""
        if self.data.elsewhere:
            raise ValueError(
                "the samples are on the devices: deploy this experiment (fedfilt deploy write), or name the devices' "
                "folders on this machine with data.folders"
            )

    def _place_devices(self, graph: Graph) -> None:
        """Take a graph for the run's own: with the kinds of its devices, and the events that happen on it."""
        self.begun, graph = graph, with_newcomers(graph, self.config.events)
        self.graph = graph if self.data.kinds is None else replace(graph, kinds=self.data.kinds)
        self.events = Timeline(self.config.events, self.graph, self.config.rounds) if self.config.events else None

    def learn_graph(self, engine: Engine | None = None, kept: Path | None = None) -> None:
        """Train every device for one epoch from the same model and link those that learn alike, if the config says so.

        Does nothing a second time. Real devices train on their `engine`, once: their updates are in the file `kept`.
        """
        if self.learned:
            return
        if kept is not None and kept.exists():
            updates = load_file(kept)["updates"]
        else:
            updates = self._first_updates(engine)
            if kept is not None:
                kept.parent.mkdir(exist_ok=True)
                write_atomically(kept, save({"updates": updates}))
        self._place_devices(self.config.graph.graph(self.config.seed, updates))
        self.learned = True

    def _first_updates(self, engine: Engine | None) -> Array:
        """(K, B) what each device of the first graph learns in one epoch; zeros for devices that do not answer."""
        config, models = self.config, self.start().models[: self.begun.count]
        if engine is None:
            self.check_here()
        own = nullcontext(engine) if engine is not None else None
        with own or Local(self.data, self.model, config.training, config.seed, workers=1) as running:
            jobs = [Job(1, device, row, Plan(epochs=1)) for device, row in enumerate(models)]
            replies = list(running.train(jobs, np.inf))
            silent = [str(reply.device) for reply in replies if reply.absent or reply.late]
            if silent:
                log.warning("no first update came from %s: the graph is learned without", ", ".join(silent))
            replies = [reply for reply in replies if str(reply.device) not in silent]
            return Updates.stack(replies, *models.shape).rows

    @contextmanager
    def experiment(self, engine: Engine | None = None) -> Iterator[Experiment]:
        """The experiment on a running engine: the one given, or its own."""
        if not self.learned:
            raise ValueError("this graph is learned from the devices' first updates: call learn_graph() first")
        config = self.config
        with nullcontext(engine) if engine is not None else self.engine() as running:
            if config.privacy.blind and not self.sealed:
                running = Bounded(running)
            yield Experiment(
                self.graph,
                self.aggregator,
                config.scheduler,
                running if config.engine.real_time else Simulated(running, self.hardware, config.seed, config.late),
                self.hardware,
                config.rounds,
                self.update_bytes,
                config.evaluation,
                config.seed,
                config.privacy.script(self.events, self.noise_seed, config.rounds),
                self.guard,
            )

    def engine(self, **more: Any) -> Any:
        """A new engine of the kind that the config names; `more` is what it alone knows."""
        config, place = self.config, self.config.engine
        kind = _parts.find("engines", place.name)
        if "grid" not in more:
            self.check_here()
        if place.name == "flower":
            real_time = config.late if place.real_time else None
            waiting = {"timeout": place.timeout_seconds, "grace": place.grace_seconds}
            more |= {"first": self._first} if self.sealed else {}
            more |= {**waiting, "real_time": real_time, "spread": self.hardware.error, "about": about(known(self))}
        return kind(self.data, self.model, config.training, config.seed, place.workers, config.sparsifier, **more)

    @cached_property
    def flops_per_sample(self) -> int:
        """Floating-point operations of training on one sample: multiplications and additions, forward and backward."""
        return self.trainer.flops(*self.data.examples)

    def start(self) -> State:
        """Before round 1: every device has the same model."""
        if self.sealed:  # nobody has sent anything yet
            return State(0, np.zeros((self.graph.count, sealed_width(self.layout.size)), np.uint64))
        return State(0, np.tile(self._first, (self.graph.count, 1)))


def dealt(config: Config, graph: Graph, store: Store | None = None) -> FederatedData:
    """The samples of a config, dealt to the devices of its graph; of those that they have themselves, what is known."""
    if is_own(config):
        found: FederatedData = config.data.federated(graph.count)
        return found
    rooms = np.zeros(graph.count, int) if graph.rooms is None else graph.rooms
    samples = config.data.load(store or Store())
    return config.partition(samples, rooms, config.samples, generator(config.seed, Key.PARTITION))


def is_own(config: Config) -> bool:
    """Whether every device has samples of its own, instead of being dealt some."""
    return hasattr(config.data, "federated")


def known(run: Run) -> Table:
    """What a device must know of an experiment, by part; only what is not at its default."""
    config = run.config
    table = config.table(changed=True)
    data = {"shape": list(run.data.x.shape[1:]), "classes": run.data.classes}
    if is_own(config):
        data = {key: value for key, value in table["data"].items() if key not in ("folders", "kinds", "public")}
    model = {"name": config.model.name, **table.get("model", {})}
    training = table.get("training", {})
    found = {"seed": config.seed, "data": data, "model": model, "training": training, "sparsifier": table["sparsifier"]}
    return found | ({"privacy": {"blind": True}} if config.privacy.blind else {})


def model_of(config: Config, data: FederatedData, seed: int = 0) -> Any:
    """The model of a config for such samples; see `fedfilt.training.trainer.model_named`."""
    return model_named(config.model.name, config.model.options, tuple(data.x.shape[1:]), data.classes, seed)
