"""All that a config stands for, ready to play. Building a run never trains; learning a graph is a step of its own."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedfilt import _parts
from fedfilt._draws import Key, generator
from fedfilt.data import FederatedData
from fedfilt.data.store import Store
from fedfilt.engines._simulated import Simulated
from fedfilt.engines.local import Local
from fedfilt.graph import Graph
from fedfilt.rounds import Experiment, State, Updates
from fedfilt.rounds.kinds import ByKind
from fedfilt.rounds.timeline import Timeline
from fedfilt.rounds.types import Engine, Rule
from fedfilt.runs.config import Config
from fedfilt.system.hardware import Hardware
from fedfilt.system.orders import Job, Plan
from fedfilt.training import _torch
from fedfilt.training.description import described
from fedfilt.training.trainer import Trainer


class Run:
    """All that a config stands for: graph, data, model, start and engine.

    A graph that is learned from the devices' first updates lacks that part until `learn_graph` is called.
    """

    def __init__(self, config: Config, store: Store | None = None, data: FederatedData | None = None) -> None:
        self.config = config
        self.graph: Graph = config.graph.graph(config.seed)
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
        self.update_bytes: int = config.sparsifier.full_bytes(self.layout.size)
        self.hardware: Hardware = config.devices.draw(held, self.update_bytes, generator(config.seed, Key.DEVICES))
        self.aggregator: Rule = config.aggregator
        if data.kinds is not None:
            self.aggregator = ByKind(config.aggregator, config.kinds.private(self.layout))
        self._place_devices(self.graph)

    def _place_devices(self, graph: Graph) -> None:
        """Take a graph for the run's own: with the kinds of its devices, and the events that happen on it."""
        self.graph = graph if self.data.kinds is None else replace(graph, kinds=self.data.kinds)
        self.events = Timeline(self.config.events, self.graph, self.config.rounds) if self.config.events else None

    def learn_graph(self) -> None:
        """Train every device for one epoch from the same model and link those that learn alike, if the config says so.

        Does nothing a second time.
        """
        if self.learned:
            return
        config, state = self.config, self.start()
        with Local(self.data, self.model, config.training, config.seed, workers=1) as engine:
            jobs = [Job(1, i, row, Plan(epochs=1)) for i, row in enumerate(state.models)]
            updates = Updates.stack(engine.train(jobs, np.inf), *state.models.shape)
        self._place_devices(config.graph.graph(config.seed, updates.rows))
        self.learned = True

    @contextmanager
    def experiment(self, engine: Engine | None = None) -> Iterator[Experiment]:
        """The experiment on a running engine: the one given, or its own."""
        if not self.learned:
            raise ValueError("this graph is learned from the devices' first updates: call learn_graph() first")
        config = self.config
        with nullcontext(engine) if engine is not None else self.engine() as running:
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
                self.events,
            )

    def engine(self, **more: Any) -> Any:
        """A new engine of the kind that the config names; `more` is what it alone knows."""
        config, place = self.config, self.config.engine
        kind = _parts.find("engines", place.name)
        if place.name == "flower":
            real_time = config.late if place.real_time else None
            waiting = {"timeout": place.timeout_seconds, "grace": place.grace_seconds}
            more |= {**waiting, "real_time": real_time, "spread": self.hardware.error}
        return kind(self.data, self.model, config.training, config.seed, place.workers, config.sparsifier, **more)

    @cached_property
    def flops_per_sample(self) -> int:
        """Floating-point operations of training on one sample: multiplications and additions, forward and backward."""
        return self.trainer.flops(self.data.x, self.data.y)

    def start(self) -> State:
        """Before round 1: every device has the same model."""
        return State(0, np.tile(self._first, (self.graph.count, 1)))


def dealt(config: Config, graph: Graph, store: Store | None = None) -> FederatedData:
    """The samples of a config, dealt to the devices of its graph."""
    if hasattr(config.data, "federated"):
        return config.data.federated(graph.count)
    rooms = np.zeros(graph.count, int) if graph.rooms is None else graph.rooms
    samples = config.data.load(store or Store())
    return config.partition(samples, rooms, config.samples, generator(config.seed, Key.PARTITION))


def model_of(config: Config, data: FederatedData, seed: int = 0) -> Any:
    """The model of a config for such samples: a part of fedfilt/models, or a torch module made with the seed."""
    kind = _parts.find("models", config.model.name)
    known: dict[str, Any] = {"shape": tuple(data.x.shape[1:]), "classes": data.classes}
    accepted = inspect.signature(kind).parameters
    try:
        # A part of fedfilt/models draws nothing; anything else may be torch's, even if a function makes it
        plain = isinstance(kind, type) and hasattr(kind, "layers") and not _torch.is_module(kind)
        with nullcontext() if plain or not _torch.installed() else _torch.seeded(seed):
            model = kind(**{key: value for key, value in known.items() if key in accepted}, **config.model.options)
        if plain:
            described(model)
        return model
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"model {config.model.name} does not fit inputs of shape {known['shape']}: {error}") from error
