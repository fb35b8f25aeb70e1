import io
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedfilt import aggregators
from fedfilt._checks import check_count, check_number
from fedfilt._threads import one_thread
from fedfilt.engines.flower._compat import short
from fedfilt.graph import Graph
from fedfilt.rounds.guard import Guard
from fedfilt.rounds.types import Happening, State, Updates
from fedfilt.system.orders import Plan
from fedfilt.system.wire import unpack
from fedfilt.training.sgd import Diverged

log = logging.getLogger("flwr")

Metrics = Callable[[list[RecordDict], str], MetricRecord]
PACKED = "update"  # a reply may hold this one array of bytes (`fedfilt.system.wire.pack`) instead of a whole model
MOST_SAMPLES = 10**9
MOST_METRIC = 1e30  # absolute value of a metric: sums of these are finite
NOT_FINITE = "arrays must be finite"
_MetricForm = tuple[tuple[str, int], ...]  # the name of every metric, and the length of a list or -1


class GFedFilt(Strategy):
    """G-Fedfilt as a Flower strategy: every node has its own model, and models are mixed over the devices' graph.

    It works like Flower's own strategies: clients receive arrays and a config, and send back arrays and metrics. Every
    node receives its own model and, if there is a plan, `epochs`, `data-fraction` and `density` in its config. Rows
    of the graph are the nodes in the order of `devices` (the names they are registered under) or of their ids. Without
    a graph, all nodes are linked. Replies with wrong, repeated or non-finite arrays are left out and listed in
    `rejected`; what the `guard` did about updates that were too large is in `happened`.

    >>> strategy = GFedFilt(Graph.from_rooms(["home"] * 3 + ["office"] * 2, links=[(2, 3)]), min_available_nodes=5)
    >>> strategy.graph
    Graph(5 devices, 5 links, 1 component, 2 rooms)
    """

    def __init__(
        self,
        graph: Any = None,
        aggregator: Callable[[Any, Updates, Graph], Any] | None = None,
        *,
        plans: Callable[[int], Sequence[Plan]] | None = None,
        devices: Sequence[str] | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Metrics | None = None,
        evaluate_metrics_aggr_fn: Metrics | None = None,
        seed: int = 0,
        guard: Guard | None = Guard(),  # noqa: B008 (frozen)
    ) -> None:
        """`aggregator` is any rule from `fedfilt.aggregators`; `plans` returns a plan for each device in a round.

        `guard` limits what one node can do to the others; None sets no limits.
        """
        for name, share in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
            check_number(name, share, low=0, high=1)
        for name, number in (("min_train_nodes", min_train_nodes), ("min_evaluate_nodes", min_evaluate_nodes)):
            check_count(name, number, low=0)
        check_count("min_available_nodes", min_available_nodes)
        graph = None if graph is None else Graph.of(graph, None if devices is None else len(devices))
        if graph is not None and devices is not None and len(devices) != graph.count:
            raise ValueError(f"devices must be one name per row of the graph, {graph.count}, got {len(devices)}")
        self.graph: Graph | None = graph
        self.aggregator = aggregators.GFedFilt() if aggregator is None else aggregator
        self.guard = Guard(on=False) if guard is None else guard
        self.plans, self.devices, self.seed = plans, devices, seed
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes if graph is None else max(min_available_nodes, graph.count)
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or _averages
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or _averages
        self.models: list[ArrayRecord] = []  # every device's own model, after the last round
        self.train_metrics: dict[int, dict[int, MetricRecord]] = {}  # round -> device -> what it reported
        self.evaluate_metrics: dict[int, dict[int, MetricRecord]] = {}
        self.rejected: dict[int, dict[int, str]] = {}  # round -> device -> why its reply was left out
        self.happened: dict[int, tuple[Happening, ...]] = {}  # round -> what the guard did
        self._form: _Form | None = None
        self._agreed: dict[str, _MetricForm] = {}  # kind of message -> form of the metrics that several devices sent
        self._rows: Any = None  # (K, B)
        self._work: Any = None  # (K,) how much work each device gets, if there are plans
        self._state: State | None = None  # including the guard's memory
        self._nodes: dict[int, int] = {}  # node id -> device
        self._asked: dict[int, Message] = {}  # device -> the message it has to answer

    def summary(self) -> None:
        """Log the settings."""
        log.info("\t├──> G-Fedfilt: %s, %s", self.graph or "all nodes linked", self.aggregator)
        log.info("\t├──> Sampling:")
        log.info("\t│\t├──Fraction: train (%.2f) | evaluate (%.2f)", self.fraction_train, self.fraction_evaluate)
        log.info("\t│\t├──Minimum nodes: train (%d) | evaluate (%d)", self.min_train_nodes, self.min_evaluate_nodes)
        log.info("\t│\t└──Minimum available nodes: %d", self.min_available_nodes)
        log.info("\t└──> Keys in records:")
        log.info("\t\t├── Weighted by: '%s'", self.weighted_by_key)
        log.info("\t\t├── ArrayRecord key: '%s'", self.arrayrecord_key)
        log.info("\t\t└── ConfigRecord key: '%s'", self.configrecord_key)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message for every node that takes part, with its own model and plan."""
        online = self._online(grid, arrays)
        chosen = self._sample(online, self.fraction_train, self.min_train_nodes, server_round, 0)
        plans = None if self.plans is None else self.plans(server_round)
        if plans is not None and len(plans) != len(self.models):
            raise ValueError(f"plans must return one plan for each of {len(self.models)} devices, got {len(plans)}")
        if plans is not None:
            chosen = [device for device in chosen if plans[device].epochs]
            self._work = np.array([plan.epochs * plan.data_fraction for plan in plans])
        return self._messages(MessageType.TRAIN, chosen, online, server_round, config, plans)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Mix the models of devices with good replies; returns the mean model, in case one is wanted, and metrics."""
        good = self._good(server_round, replies, self._read_model)
        self.train_metrics[server_round] = {device: _metrics(content) for device, (content, _, _) in good.items()}
        broken = {d: why for d, why in self.rejected[server_round].items() if why.startswith(NOT_FINITE)}
        if not good and not broken:
            return None, None
        count, size = self._rows.shape
        updates = Updates(np.zeros((count, size), self._rows.dtype), np.zeros(count))
        for device, (content, row, samples) in good.items():
            updates.rows[device] = row - self._rows[device]
            updates.weights[device] = samples
            self.models[device] = _whole(content, self.arrayrecord_key, self.models[device])
        try:
            updates = self._mix(server_round, updates, broken)
        except Diverged as error:
            log.error("round %d: %s", server_round, error)
            return None, None
        form = self._known_form()
        self.models = [form.record(row, model) for row, model in zip(self._rows, self.models, strict=True)]
        weights = updates.weights if updates.weights.any() else np.ones(count)
        mean = np.average(self._rows.astype(np.float64), axis=0, weights=weights).astype(self._rows.dtype)
        told = self._aggregated(self.train_metrics_aggr_fn, good, updates.weights)
        return form.record(mean, self.models[min(good, default=0)]), told

    @one_thread()
    def _mix(self, round: int, updates: Updates, broken: Mapping[int, str]) -> Updates:
        """Mix the models over the graph, or go back to good ones; returns the updates that the guard let pass."""
        before = State(0, self._rows) if self._state is None else self._state
        watched = self.guard.watch(before._replace(models=self._rows), updates, None, broken, self._work)
        for event in watched.events:
            log.warning("round %d: device %s is %s: %s", round, event.device, event.what, dict(event.details))
        self.happened[round] = watched.events
        if watched.back is None:
            self._rows = self.guard.rule(self.aggregator)(self._rows, watched.updates, self._graph(len(self._rows)))
        else:
            self._rows = watched.back
        self._state = State(before.round + 1, self._rows, memory=watched.memory)
        return watched.updates

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message for every node that is to test, with its own model."""
        online = self._online(grid, arrays)
        chosen = self._sample(online, self.fraction_evaluate, self.min_evaluate_nodes, server_round, 1)
        return self._messages(MessageType.EVALUATE, chosen, online, server_round, config, None)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Keep what every device reported, and return the average."""
        good = self._good(server_round, replies, lambda device, content: None)
        self.evaluate_metrics[server_round] = {device: _metrics(content) for device, (content, _, _) in good.items()}
        weights = np.zeros(len(self.models))
        for device, (_, _, samples) in good.items():
            weights[device] = samples
        return self._aggregated(self.evaluate_metrics_aggr_fn, good, weights)

    def _online(self, grid: Grid, arrays: ArrayRecord) -> dict[int, int]:
        """Node ids of the devices that are online; on the first call, nodes are assigned to devices for good."""
        while len(nodes := _nodes(grid)) < self.min_available_nodes and not self.models:
            log.info(
                "Waiting for nodes to connect: %d connected (minimum required: %d).",
                len(nodes),
                self.min_available_nodes,
            )
            time.sleep(1)
        if self.devices is not None:
            self._nodes = {node: self.devices.index(name) for node, name in nodes.items() if name in self.devices}
        elif not self._nodes:
            found = sorted(nodes)
            count = len(found) if self.graph is None else self.graph.count
            self._nodes = {node: device for device, node in enumerate(found[:count])}
        if not self.models:
            count = len(self._nodes) if self.graph is None else self.graph.count
            self._form = _Form.of(arrays)
            self._rows = np.tile(self._form.row(arrays), (count, 1))
            self.models = [self._form.record(row, arrays) for row in self._rows]
        return {device: node for node, device in self._nodes.items() if node in nodes}

    def _sample(self, online: Mapping[int, int], fraction: float, least: int, round: int, what: int) -> list[int]:
        if not fraction:
            return []
        devices = sorted(online)
        number = min(len(devices), max(int(len(devices) * fraction), least))
        drawn = random.Random(f"{self.seed} {round} {what}")  # nosec B311 # it is to be the same in every run
        return sorted(drawn.sample(devices, number))

    def _messages(
        self,
        kind: str,
        chosen: Sequence[int],
        online: Mapping[int, int],
        round: int,
        config: ConfigRecord,
        plans: Sequence[Plan] | None,
    ) -> list[Message]:
        self._asked = {}
        for device in chosen:
            own = ConfigRecord({**config, "server-round": round})  # one per node: no node sees another's
            if plans is not None:
                plan = plans[device]
                own["epochs"], own["data-fraction"], own["density"] = plan.epochs, plan.data_fraction, plan.density
            content = RecordDict({self.arrayrecord_key: self.models[device], self.configrecord_key: own})
            message = Message(content, dst_node_id=online[device], message_type=kind, group_id=str(round))
            self._asked[device] = message
        log.info("configure_%s: %d nodes (out of %d)", kind.partition(".")[0], len(chosen), len(online))
        return list(self._asked.values())

    def _good(
        self, round: int, replies: Iterable[Message], read: Callable[[int, RecordDict], Any]
    ) -> dict[int, tuple[RecordDict, Any, float]]:
        """(content, what was read, samples) of good replies in device order, and why the others are not good."""
        open = {message.metadata.message_id: device for device, message in self._asked.items()}
        good: dict[int, tuple[RecordDict, Any, float]] = {}
        rejected: dict[int, str] = {}
        for reply in replies:
            device = open.pop(reply.metadata.reply_to_message_id, -1)
            if device < 0:
                log.warning("a reply that answers no open message is ignored (repeated, stale or foreign)")
                continue
            try:  # whatever is wrong with a reply, only that one is left out
                if reply.has_error():
                    raise ValueError(reply.error.reason or f"error {reply.error.code}")
                if reply.metadata.src_node_id != self._asked[device].metadata.dst_node_id:
                    raise ValueError(f"reply must come from the node of device {device}")
                samples = self._samples(reply.content)
                _check_metrics(reply.content)
                good[device] = reply.content, read(device, reply.content), samples
            except Exception as error:
                rejected[device] = short(str(error) or type(error).__name__)
        forms = {device: _metric_form(content) for device, (content, _, _) in sorted(good.items())}
        usual = self._usual(next(iter(self._asked.values())).metadata.message_type, forms) if forms else None
        for device in [device for device, form in forms.items() if usual not in (None, form)]:
            del good[device]  # it cannot be averaged with the others
            rejected[device] = short(f"metrics must be {[*(usual or ())]} like the others', got {[*forms[device]]}")
        for device, why in sorted(rejected.items()):
            log.warning("the reply of device %d is left out: %s", device, why)
        self.rejected.setdefault(round, {}).update(rejected)
        log.info("round %d: %d results and %d failures", round, len(good), len(rejected))
        return dict(sorted(good.items()))

    def _usual(self, kind: str, forms: Mapping[int, _MetricForm]) -> _MetricForm | None:
        """The form of most replies; of equally many, that on which devices agreed before; None if nobody can say."""
        counts = Counter(forms.values()).most_common()
        first = [form for form, number in counts if number == counts[0][1]]
        if len(first) > 1:
            return self._agreed.get(kind) if self._agreed.get(kind) in first else None
        if counts[0][1] > 1:
            self._agreed[kind] = first[0]
        return first[0]

    def _samples(self, content: RecordDict) -> float:
        record = _metrics(content)
        value = record.get(self.weighted_by_key)
        whole = type(value) in (int, float) and 0 <= value <= MOST_SAMPLES and value == int(value)  # type: ignore[operator, arg-type]
        if not whole:
            raise ValueError(f"{self.weighted_by_key} must be a whole number from 0 to {MOST_SAMPLES}, got {value!r}")
        return float(value)  # type: ignore[arg-type]

    def _read_model(self, device: int, content: RecordDict) -> Any:
        if len(content.array_records) != 1:
            raise ValueError(f"a reply must hold one ArrayRecord, got {len(content.array_records)}")
        record = next(iter(content.array_records.values()))
        form = self._known_form()
        if set(record) == {PACKED} and PACKED not in form.shapes:
            array = _values(record[PACKED])
            if array.dtype != np.uint8 or array.ndim != 1:
                raise ValueError(f"{PACKED} must be a row of bytes, got {array.dtype} of shape {array.shape}")
            with np.errstate(over="ignore"):
                row = self._rows[device] + unpack(array.tobytes(), form.size).astype(self._rows.dtype)
        else:
            row = form.row(record)
        if not np.isfinite(row).all():
            raise ValueError(f"{NOT_FINITE}, got NaN or infinity")
        return row

    def _aggregated(
        self, rule: Metrics, good: Mapping[int, tuple[RecordDict, Any, float]], weights: Any
    ) -> MetricRecord | None:
        """The average of what all report, by (K,) weights of which none is far above the others."""
        weights = self.guard.capped(weights)
        counted = {device: content for device, (content, _, _) in good.items() if weights[device]}
        if not counted:
            return None
        both = set.intersection(*(set(_metric_form(content)) for content in counted.values()))
        contents = [
            _with_metrics(content, self.weighted_by_key, float(weights[device]), {name for name, _ in both})
            for device, content in counted.items()
        ]
        return rule(contents, self.weighted_by_key)

    def _graph(self, count: int) -> Graph:
        if self.graph is None:
            self.graph = Graph.from_edges(count, [(i, j) for i in range(count) for j in range(i)])
        return self.graph

    def _known_form(self) -> "_Form":
        assert self._form is not None, "configure_train comes first"
        return self._form


class _Form(NamedTuple):
    """Names, shapes and types of a model's arrays; integer arrays (counters) are not part of a row."""

    shapes: dict[str, tuple[int, ...]]
    kinds: dict[str, Any]
    size: int

    @classmethod
    def of(cls, arrays: ArrayRecord) -> "_Form":
        values = {name: array.numpy() for name, array in arrays.items()}
        shapes = {name: value.shape for name, value in values.items()}
        kinds = {name: value.dtype for name, value in values.items()}
        size = sum(math.prod(shape) for name, shape in shapes.items() if kinds[name].kind == "f")
        if not size:
            raise ValueError("the initial arrays must contain floating-point values, got none")
        return cls(shapes, kinds, size)

    @property
    def kind(self) -> Any:
        return np.float64 if any(kind == np.float64 for kind in self.kinds.values()) else np.float32

    def row(self, arrays: ArrayRecord) -> Any:
        """The (B,) row of a model of this exact form."""
        if set(arrays) != set(self.shapes):
            raise ValueError(f"arrays must be {sorted(self.shapes)}, got {sorted(arrays)}")
        parts = []
        for name, shape in self.shapes.items():
            value = _values(arrays[name])
            if value.shape != shape or value.dtype != self.kinds[name]:
                wanted = f"{self.kinds[name]} of shape {shape}"
                raise ValueError(f"{name} must be {wanted}, got {value.dtype} of shape {value.shape}")
            if self.kinds[name].kind == "f":
                parts.append(value.ravel().astype(self.kind))
        return np.concatenate(parts)

    def record(self, row: Any, others: ArrayRecord) -> ArrayRecord:
        """A row as arrays; arrays that are not part of it come from `others`."""
        found, place = {}, 0
        for name, shape in self.shapes.items():
            if self.kinds[name].kind == "f":
                stop = place + math.prod(shape)
                found[name] = Array(row[place:stop].reshape(shape).astype(self.kinds[name]))
                place = stop
            else:
                found[name] = others[name]
        return ArrayRecord(found)


def _averages(contents: list[RecordDict], key: str) -> MetricRecord:
    """The average of every metric except `key`, weighted by `key`, as in Flower's own strategies.

    >>> told = [RecordDict({"": MetricRecord({"samples": n, "loss": 1.0 * n, "each": [0.0, 1.0 * n]})}) for n in (1, 3)]
    >>> dict(_averages(told, "samples"))
    {'loss': 2.5, 'each': [0.0, 2.5]}
    """
    records = [_metrics(content) for content in contents]
    weights = [record[key] for record in records]
    values = {name: np.array([record[name] for record in records], float) for name in records[0] if name != key}
    return MetricRecord({name: np.average(each, axis=0, weights=weights).tolist() for name, each in values.items()})


def _nodes(grid: Grid) -> dict[int, str]:
    """Node id -> registered name."""
    return {int(node.node_id): node.name for node in grid.get_nodes()}


def _metrics(content: RecordDict) -> MetricRecord:
    if len(content.metric_records) != 1:
        raise ValueError(f"a reply must hold one MetricRecord, got {len(content.metric_records)}")
    return next(iter(content.metric_records.values()))


def _check_metrics(content: RecordDict) -> None:
    """Refuse metrics that would spoil an average."""
    for name, value in _metrics(content).items():
        if not (np.abs(np.asarray(value, float)) <= MOST_METRIC).all():
            raise ValueError(f"{name} must be from {-MOST_METRIC:g} to {MOST_METRIC:g}, got {value!r}")


def _with_metrics(content: RecordDict, key: str, weight: float, names: Collection[str]) -> RecordDict:
    """A reply with this weight, and with metrics of these names only; the same reply if nothing changes."""
    ((where, record),) = content.metric_records.items()
    if record[key] == weight and set(record) == set(names):
        return content
    kept = {name: weight if name == key else value for name, value in record.items() if name in names}
    return RecordDict({**content, where: MetricRecord(kept)})


def _metric_form(content: RecordDict) -> _MetricForm:
    """Names and lengths of the metrics, in order."""
    return tuple(sorted((name, len(v) if isinstance(v, list) else -1) for name, v in _metrics(content).items()))


def _values(array: Array) -> Any:
    """The values of an array. If its header claims more data than there is, or objects, nothing is allocated.

    >>> _values(Array(np.eye(2))).shape
    (2, 2)
    """
    stream = io.BytesIO(array.data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array must be in NumPy's format 1.0")
    shape, _, kind = np.lib.format.read_array_header_1_0(stream)
    there = len(array.data) - stream.tell()
    if kind.hasobject or math.prod(shape) * kind.itemsize != there:
        raise ValueError(f"an array must hold what its header says, {kind} of shape {shape}, got {there} bytes")
    return array.numpy()


def _whole(content: RecordDict, key: str, before: ArrayRecord) -> ArrayRecord:
    """The arrays of a reply that holds a whole model."""
    record = next(iter(content.array_records.values()))
    return record if set(record) == set(before) else before
