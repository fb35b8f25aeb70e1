"""Everything a config describes, ready to run. Building a run never trains; learning a graph is a separate step."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from fedfilt import _parts
from fedfilt._brief import lines_of, said
from fedfilt._draws import Key, generator
from fedfilt._files import write_atomically
from fedfilt._threads import one_thread
from fedfilt._types import Array, Table
from fedfilt.aggregators.feddyn import FedDyn
from fedfilt.aggregators.gfedfilt import GFedFilt
from fedfilt.clients.feddyn import FedDyn as FedDynClient
from fedfilt.data import FederatedData
from fedfilt.data.deal import held_out
from fedfilt.data.store import Store
from fedfilt.engines._bounded import Bounded
from fedfilt.engines._simulated import Simulated
from fedfilt.engines._validated import Validated
from fedfilt.engines.local import Local
from fedfilt.graph import Graph
from fedfilt.rounds.blind import Blind, check_rule
from fedfilt.rounds.finding import Finding
from fedfilt.rounds.guard import Guard
from fedfilt.rounds.kinds import ByKind
from fedfilt.rounds.remembering import check_linear
from fedfilt.rounds.timeline import Timeline, check_joins, with_newcomers
from fedfilt.rounds.types import Engine, Experiment, Rule, Script, State, Updates
from fedfilt.runs.config import Config
from fedfilt.schedulers.everything import Everything
from fedfilt.sparsifiers.top_k import TopK
from fedfilt.system.about import about
from fedfilt.system.blind import MOST, PIECES, SPREAD, Cut, Sealing, hashes
from fedfilt.system.hardware import Hardware
from fedfilt.system.orders import Job, Plan
from fedfilt.training.client import extra, is_personal, passes, seldom, travels, usual
from fedfilt.training.encoders import behind
from fedfilt.training.trainer import Trainer, model_named, outputs_for, trainers_of
from fedfilt.training.work import Desk

log = logging.getLogger("fedfilt")


class Run:
    """Everything a config describes: graph, data, model, first models and engine.

    A graph that is learned from the devices' first updates is incomplete until `learn_graph` is called.
    `sealed` means a run on the edge server of a deployment that holds rows it cannot read (`privacy.blind`).
    Data, graph and model may be passed in; they replace what the config says.

    >>> from fedfilt.runs.config import from_table
    >>> run = Run(from_table({"data": "digits", "model": "logistic", "samples": {"train": 9, "local_test": 9}}))
    >>> run.graph.count, run.start().models.shape
    (20, (20, 650))
    """

    def __init__(
        self,
        config: Config,
        store: Store | None = None,
        data: FederatedData | None = None,
        sealed: bool = False,
        graph: Graph | None = None,
        model: Any = None,
    ) -> None:
        config.privacy.check(config.graph.learned)
        _check_found(config)
        self.config, self.sealed = config, sealed and config.privacy.blind
        self.links = config.graph  # including what halves of the samples decided, once the graph is learned
        self.simulated: Path | None = None  # where simulated devices keep their data; None: only in memory
        self.noise_seed: int = config.seed  # a secret one on real devices, which know the seed: see `secret_seed`
        # Without devices that join later: see `Event`
        self.begun: Graph = config.graph.graph(config.seed) if graph is None else graph
        self.graph = with_newcomers(self.begun, config.events)
        self.learned = graph is not None or not config.graph.learned
        data = dealt(config, self.graph, store) if data is None else data
        if data.count != self.graph.count:
            raise ValueError(f"graph must have {data.count} devices, one per part of the data, got {self.graph.count}")
        self.data: FederatedData = data
        _check_kinds(data)
        start = int(generator(config.seed, Key.START).integers(2**62))
        self.model = model_of(config, data, start) if model is None else with_encoders(config, data, model)
        self.trainer, *unlike = trainers_of(data, self.model, config.training)
        self.trainers: tuple[Trainer, ...] = tuple(unlike) or (self.trainer,) * data.count  # of every device
        if is_own(config) and self.trainer.goal.kind != "labels":
            raise ValueError(f"training.loss must suit labels if devices have own data, got {config.training.loss}")
        self.layout = self.trainer.layout
        self._check_client()
        self._begin = Trainer.start if model is None else Trainer.given, start if model is None else config.seed
        self._first = self._first_of(self.trainer)
        held = np.array([len(rows) for rows in data.train])
        if is_own(config):  # the edge server does not know how many samples a device has
            if config.participation.weights != "equal":
                raise ValueError(
                    "participation.weights must be 'equal' for devices with own data, because the edge server does not "
                    f"know how many samples they have; got {config.participation.weights!r}"
                )
            if config.weights != "trained":
                raise ValueError(
                    "weights must be 'trained' for devices with own data, because the edge server does not know how "
                    f"many samples they have; got {config.weights!r}"
                )
            held = np.full(data.count, config.samples.train_range[1])
        blind, width = config.privacy.blind, len(self._first)
        whole = isinstance(config.scheduler, Everything) and config.scheduler.density == 1
        self.cut = Cut(config.seed, width, 1 if whole else min(PIECES, width))  # for rows that the server cannot read
        self.most_bytes: int = self.cut.whole_bytes if blind else config.sparsifier.full_bytes(width)
        steady = self.layout.size * usual(config.client)  # how many numbers are sent in every round
        self.update_bytes: int = self.cut.whole_bytes if blind else config.sparsifier.full_bytes(steady)
        first, rng = held[: self.begun.count], generator(config.seed, Key.DEVICES)
        drawn: Hardware = config.devices.draw(first, self.update_bytes, rng)
        self.extra = partial(extra, config.client)  # (round, rounds) -> epochs beyond the planned ones
        self.begun_hardware = replace(drawn, cycles_per_sample=drawn.cycles_per_sample * passes(config.client))
        self.hardware = self.begun_hardware
        if data.count > self.begun.count:
            self.hardware = replace(self.hardware.extended(data.count), samples=held)
        self.aggregator: Rule = self.guard.rule(config.aggregator)
        if data.kinds is not None:
            self.aggregator = ByKind(
                self.aggregator, np.tile(config.kinds.private(self.layout), 1 + len(travels(config.client)))
            )
        self._place_devices(self.begun)
        if blind:
            self._check_blind()
            self.aggregator = Blind(config.aggregator, self.cut, self.sealed)

    def _check_client(self) -> None:
        """Refuse a client that cannot train this model, and a rule with memory where that is impossible."""
        client, rule = self.config.client, self.config.aggregator
        if check := getattr(client, "check", None):
            check(self.layout)
        if check := getattr(client, "check_run", None):
            outputs = outputs_for(self.config.training, self.data)
            check(self.layout, self.trainer.goal.kind, outputs, self.data.count)
        belongs = getattr(client, "rule", "fedavg")
        named = _parts.name_of(rule, "aggregators")
        if belongs != "fedavg" and named != belongs:
            called = _parts.name_of(client, "clients")
            if seldom(client):
                raise ValueError(f"the client {called} needs aggregator = {belongs!r}, got {named!r}")
            log.warning("the client %s is meant for the rule %s, got %s", called, belongs, named)
        if isinstance(client, FedDynClient) and isinstance(rule, FedDyn) and client.alpha != rule.alpha:
            raise ValueError(
                f"client.alpha and aggregator.alpha of FedDyn must be the same, got {client.alpha:g} and "
                f"{rule.alpha:g}; --rules feddyn:alpha=0.1 sets both"
            )
        by_kind = self.data.kinds is not None and self.config.kinds.mix != "all"
        needed = getattr(rule, "travels", None)  # travels with models, in rows that the rule can read
        if needed is not None and (by_kind or travels(client) != needed):
            raise ValueError(
                f"the rule {named} needs rows of the client {rule.client} with the same options, and "
                'kinds.mix = "all" if there are any kinds'
            )
        if self.config.evaluation.validation and self.config.engine.name == "flower" and is_personal(client):
            raise ValueError(
                f"evaluation.validation needs engine.name = 'local' with the client {type(client).__name__}: over "
                "Flower, the models that devices decide with are on the devices"
            )
        reasons = {
            'kinds.mix other than "all"': self.data.kinds is not None and self.config.kinds.mix != "all",
            "guard.robust": self.config.guard.on and self.config.guard.robust != "none",
            "[privacy]": self.config.privacy.guards_rows or self.config.privacy.blind,
        }
        check_linear(rule, reasons)
        check_joins(rule, self.config.events)

    def _check_blind(self) -> None:
        """Refuse what a blind server cannot do."""
        config = self.config
        plans = config.scheduler(self.hardware.at(config.seed, 1), self.update_bytes).plans
        low = min((plan.density for plan in plans if plan.epochs), default=1.0)
        reasons = {
            f"needs a density of at least 1/{self.cut.count}, got {low:g}": low * self.cut.count < 1 - 1e-9,
            "sends 8-byte values at positions it chooses: sparsifier must be top_k, with half = false": (
                not isinstance(config.sparsifier, TopK) or config.sparsifier.half
            ),
            f"needs at most {MOST} devices": self.graph.count > MOST,
            "cannot learn a graph from the devices' updates: choose another graph": config.graph.learned,
            'mixes all layers alike: kinds need kinds.mix = "all"': self.data.kinds and config.kinds.mix != "all",
            "tests mixed models, not trained ones: evaluation.trained must be false": (config.evaluation.trained),
            "cannot test models: evaluation.validation must be 0": self.sealed and config.evaluation.validation,
            'cannot make a first model from other models: devices must join with start = "own"': any(
                event.join and event.start != "own" for event in config.events
            ),
        }
        for words, wrong in reasons.items():
            if wrong:
                raise ValueError(f"privacy.blind = true {words}")
        check_rule(config.aggregator, self.graph)

    @property
    def guard(self) -> Guard:
        """Limits on one device's influence on the others."""
        return self.config.privacy.guard(self.config.guard)

    def check_here(self) -> None:
        """Refuse to train here if only the devices have the data."""
        if self.data.elsewhere:
            raise ValueError(
                "the samples are on the devices: deploy this experiment (fedfilt deploy write), or set data.folders to "
                "the devices' folders on this machine"
            )

    def _place_devices(self, graph: Graph) -> None:
        """Use a graph for the run, with the kinds of its devices and the events that happen on it."""
        self.begun, graph = graph, with_newcomers(graph, self.config.events)
        self.graph = graph if self.data.kinds is None else replace(graph, kinds=self.data.kinds)
        self.events = Timeline(self.config.events, self.graph, self.config.rounds) if self.config.events else None
        self.script = self.config.participation.script(self.events, self.graph.count)

    @one_thread()
    def learn_graph(self, engine: Engine | None = None, kept: Path | None = None) -> None:
        """Train every device for one epoch from the same model and link those that learn alike, if so configured.

        A second call does nothing. Real devices train on their `engine`, once; their updates are saved in `kept`.
        """
        if self.learned:
            return
        if self.links.halved:
            self.links = self.links.settled(self._halves(engine))
        if kept is not None and kept.exists():
            updates = load_file(kept)["updates"]
        else:
            updates = self.first_updates(engine)
            if kept is not None:
                kept.parent.mkdir(exist_ok=True)
                write_atomically(kept, save({"updates": updates}))
        self._place_devices(self._found(updates))
        self.learned = True

    def _found(self, updates: Array) -> Graph:
        return self.links.graph(self.config.seed, updates)

    def _halves(self, engine: Engine | None) -> Array:
        """(2, K, B) what each device learns in one epoch on every second of its samples, and on the others."""
        if engine is not None:
            raise ValueError(
                "graph.k = 0 needs the devices' samples here, to train on two halves of them; with real devices, set "
                "graph.k to the number of neighbours"
            )
        halves = [tuple(rows[first::2] for rows in self.data.train) for first in (0, 1)]
        return np.stack([self.first_updates(data=replace(self.data, train=rows)) for rows in halves])

    def first_updates(self, engine: Engine | None = None, data: FederatedData | None = None) -> Array:
        """(K, B) what each device of the first graph learns in one epoch; zeros for devices that do not reply."""
        config, models = self.config, self.start().models[: self.begun.count]
        if engine is None:
            self.check_here()
        own = nullcontext(engine) if engine is not None else None
        how = config.training, config.seed, 1, config.sparsifier, config.client
        with own or Local(data or self.data, self.model, *how) as running:
            jobs = [Job(1, device, row, Plan(epochs=1)) for device, row in enumerate(models)]
            replies = list(running.train(jobs, np.inf))
            silent = [str(reply.device) for reply in replies if reply.absent or reply.late]
            if silent:
                log.warning("no first update arrived from %s: the graph is learned without them", ", ".join(silent))
            replies = [reply for reply in replies if str(reply.device) not in silent]
            rows = Updates.stack(replies, *models.shape).rows[:, : self.layout.size]
            unlike = len(set(self.trainers)) > 1
            return (
                rows[:, self.layout.slots[1].stop :] if unlike else rows
            )  # encoders of different inputs cannot be compared

    @contextmanager
    def experiment(self, engine: Engine | None = None) -> Iterator[Experiment]:
        """The experiment on a running engine: the given one, or one of its own."""
        if not self.learned:
            raise ValueError("this graph is learned from the devices' first updates: call learn_graph() first")
        config = self.config
        with nullcontext(engine) if engine is not None else self.engine() as running:
            if config.privacy.blind and not self.sealed:
                running = Bounded(running, self.cut, config.sparsifier.error_feedback)
            if config.evaluation.validation:
                how = config.training, config.seed, config.sparsifier, config.client
                desk = Desk.of(self.data, self.model, *how)
                running = Validated(running, self.data, desk, not config.evaluation.tests)
            yield Experiment(
                self.graph,
                self.aggregator,
                config.scheduler,
                running
                if config.engine.real_time
                else Simulated(running, self.hardware, config.seed, config.late, self.extra),
                self.hardware,
                config.rounds,
                self.update_bytes,
                config.evaluation,
                config.seed,
                self._script(),
                self.guard,
                self.layout.size * usual(config.client) if seldom(config.client) else 0,
                config.weights,
            )

    def _script(self) -> Script | None:
        """The script of the rounds: events, participation, protected rows, a graph that is found again."""
        script = self.config.privacy.script(self.script, self.noise_seed, self.config.rounds)
        every = self.links.every
        return Finding(every, self._found, self.layout.size, script) if every else script

    def engine(self, **more: Any) -> Any:
        """A new engine of the configured kind; `more` has arguments for that kind only."""
        config, place = self.config, self.config.engine
        kind = _parts.find("engines", place.name)
        if "grid" not in more:
            self.check_here()
        if place.name == "flower":
            more |= {} if "grid" in more else {"kept": self.simulated}
            real_time = config.late if place.real_time else None
            waiting = {"timeout": place.timeout_seconds, "grace": place.grace_seconds}
            more |= {"sealing": Sealing(self.cut, self._first)} if self.sealed else {}
            more |= {**waiting, "real_time": real_time, "spread": self.hardware.error, "about": about(known(self))}
        how = config.training, config.seed, place.workers, config.sparsifier, config.client
        return kind(self.data, self.model, *how, **more)

    def decided(self, state: State, engine: Engine) -> Array:
        """(K, B) the models that devices decide with; for real devices, the rows they received.

        (K, n, B) if the answers of several models are averaged.
        """
        known = getattr(engine, "personal", None)
        found: Array = state.models[:, : self.layout.size] if known is None or self.sealed else known(state)
        return found

    @cached_property
    def flops_per_sample(self) -> int:
        """Floating-point operations to train on one sample: multiplications and additions, forward and backward.

        If kinds of devices have encoders, this is the mean over devices.
        """
        found = {trainer: trainer.flops(*self.data.examples) for trainer in dict.fromkeys(self.trainers)}
        return round(sum(found[trainer] for trainer in self.trainers) / len(self.trainers))

    def start(self) -> State:
        """The state before round 1: every device has the same model, except for its kind's encoder."""
        if self.sealed:  # nobody has sent anything yet
            return State(0, np.zeros((self.graph.count, self.cut.sealed_width), np.uint64))
        if len(kinds := dict.fromkeys(self.trainers)) == 1:
            return State(0, np.tile(self._first, (self.graph.count, 1)))
        rows = {trainer: self._first_of(trainer) for trainer in kinds}
        return State(0, np.stack([rows[trainer] for trainer in self.trainers]))

    def _first_of(self, trainer: Trainer) -> Array:
        """The row that a device starts with: its model, and zeros for what travels with it."""
        make, seed = self._begin
        row = make(trainer, seed)
        return np.concatenate([row, *(np.zeros_like(row) for _ in travels(self.config.client))])

    def __repr__(self) -> str:
        config, data = self.config, self.data
        return lines_of(
            f"Run of {config.rounds} rounds with seed {config.seed}: {self.graph}",
            f"  {sum(map(len, data.train))} training samples of {data.name}, {data.classes} labels",
            f"  model of {self.layout.size} parameters, trained by {self.trainer.backend}",
            f"  {said(config.client)}, {said(config.aggregator)}",
        )


def _check_found(config: Config) -> None:
    """Refuse what cannot be combined with a graph that is found again every few rounds."""
    reasons = {"events": config.events, "[privacy], which protects rows of a known graph": config.privacy.guards_rows}
    for words, wrong in reasons.items():
        if wrong and config.graph.every:
            raise ValueError(f"graph.every = {config.graph.every} cannot be combined with {words}: set it to 0")


def dealt(config: Config, graph: Graph, store: Store | None = None) -> FederatedData:
    """A config's samples, dealt to the devices of its graph; for devices with own data, what is known about them."""
    share = config.evaluation.validation
    if is_own(config):
        found: FederatedData = config.data.federated(graph.count)
        if share and found.elsewhere:
            raise ValueError("evaluation.validation needs the samples here, but these are on the devices")
        if share and share != config.data.validation_share:
            raise ValueError(
                f"evaluation.validation must equal data.validation_share = {config.data.validation_share:g} if devices "
                f"have own data, got {share:g}"
            )
        return found
    rooms = np.zeros(graph.count, int) if graph.rooms is None else graph.rooms
    samples = (store or Store()).samples(config.data)
    data: FederatedData = config.partition(samples, rooms, config.samples, generator(config.seed, Key.PARTITION))
    if samples.shapes is not None and data.shapes is None:
        raise ValueError(
            f"devices of {samples.name} have inputs of different shapes, which stay with them: partition.name must be "
            f"'wearers', got {_parts.name_of(config.partition, 'partitions')!r}"
        )
    return held_out(data, share, generator(config.seed, Key.VALIDATION)) if share else data


def is_own(config: Config) -> bool:
    """Whether every device has its own samples instead of being dealt some."""
    return hasattr(config.data, "federated")


def known(run: Run) -> Table:
    """What a device must know about an experiment, by part; only what differs from the defaults."""
    config = run.config
    table = config.table(changed=True)
    data: Table = {"shape": list(run.data.x.shape[1:]), "classes": outputs_for(config.training, run.data)}
    if run.data.shapes is not None and run.data.kinds is not None:
        shapes = dict(zip(run.data.kinds, map(list, run.data.shapes), strict=True))
        data["sensors"] = [{"kind": kind, "shape": shape} for kind, shape in shapes.items()]
    if run.data.x.dtype.kind == "i":
        data["inputs"] = "int64"
    if not run.data.labelled:
        data["targets"] = [{"f": "float32", "b": "bool"}.get(run.data.y.dtype.kind, "int64"), *run.data.y.shape[1:]]
    if is_own(config):
        data = {key: value for key, value in table["data"].items() if key not in ("folders", "kinds", "public")}
    model = {"name": config.model.name, **table.get("model", {})}
    training = table.get("training", {})
    found = {"seed": config.seed, "data": data, "model": model, "training": training, "sparsifier": table["sparsifier"]}
    found |= {key: table[key] for key in ("client", "encoder") if key in table}
    if config.privacy.blind:
        spread = 1 if averages(config.aggregator) else SPREAD
        found["privacy"] = {"blind": True, "first": list(hashes(run._first, run.cut)), "spread": spread}
    return found


def averages(rule: Rule) -> bool:
    """Whether a rule is known to have no negative weights, whoever is absent: all its rows are averages.

    >>> from fedfilt import filters
    >>> from fedfilt.aggregators import GFedFilt
    >>> averages(GFedFilt(filters.Tikhonov(mu=1.0))), averages(GFedFilt(filters.Ideal()))
    (True, False)
    """
    name = _parts.name_of(rule, "aggregators")
    if isinstance(rule, GFedFilt) and name == "gfedfilt":
        return _parts.name_of(rule.filter, "filters") in ("allpass", "floor", "heat", "tikhonov")
    return name in ("fedavg", "local", "room_average", "sfl")


def model_of(config: Config, data: FederatedData, seed: int = 0) -> Any:
    """A config's model for these samples; see `fedfilt.training.trainer.model_named`."""
    shape = config.encoder.latent or tuple(data.x.shape[1:])
    made = model_named(config.model.name, config.model.options, shape, outputs_for(config.training, data), seed)
    return with_encoders(config, data, made)


def with_encoders(config: Config, data: FederatedData, model: Any) -> Any:
    """The model; if the config has encoders, a list with one model per device, behind its encoder."""
    if not config.encoder.latent:
        return model
    if data.kinds is not None and config.kinds.mix == "all":
        raise ValueError('kinds.mix must be "trunk" or "alone" if kinds have their own encoders, got "all"')
    return behind(config.encoder, model, data.shapes or [data.x.shape[1:]] * data.count)


def _check_kinds(data: FederatedData) -> None:
    """Refuse kinds of devices with different inputs and no samples to train an encoder on."""
    if data.shapes is None or data.elsewhere:
        return
    assert data.kinds is not None
    held = dict.fromkeys(data.kinds, 0)
    for kind, rows in zip(data.kinds, data.train, strict=True):
        held[kind] += len(rows)
    if empty := [kind for kind, count in held.items() if not count]:
        raise ValueError(f"every kind of device needs samples to train its encoder on, got none of {', '.join(empty)}")
