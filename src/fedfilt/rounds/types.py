"""What passes through a round: replies, updates, tests, the state between rounds, and the record of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fedfilt._brief import brief
from fedfilt._checks import check_count, check_number, check_signal, check_weights
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.system.hardware import Hardware
from fedfilt.system.orders import Job, Schedule

if TYPE_CHECKING:
    from fedfilt.rounds.guard import Guard


WEIGHTS = ("trained", "held")  # a device counts for the samples it trained on in a round, or for all it holds


class Cost(NamedTuple):
    """What a round costs a device, in simulated time and energy."""

    compute_seconds: float = 0.0
    send_seconds: float = 0.0
    compute_joules: float = 0.0
    send_joules: float = 0.0
    idle_seconds: float = 0.0  # until the round ended

    @property
    def seconds(self) -> float:
        """From the start of the round to the arrival of the update."""
        return self.compute_seconds + self.send_seconds


class Reply(NamedTuple):
    """What a device sends back."""

    device: int
    update: Array  # (B,) trained model minus the model it received, as far as it was sent
    samples: int  # that it trained on
    loss: float
    size: int = 0  # bytes it sent
    residual: Array | None = None  # (B,) what it did not send
    cost: Cost = Cost()
    late: bool = False  # too late to count
    end: float = 0.0  # simulated seconds until the round ended for all
    absent: str = ""  # why the device sent nothing usable; then only `device` and `diverged` count
    diverged: bool = False  # its model was no longer finite
    state: Mapping[str, Array] | None = None  # what its client keeps; None: nothing, or the device stores it
    kept: int = 0  # bytes of that

    def __repr__(self) -> str:
        return brief(self)


class Updates(NamedTuple):
    """What all devices learnt in a round: one row per device, in device order.

    A device that is absent, or has no samples, has a row of zeros and weight 0: it contributes nothing.

    >>> updates = Updates(rows=np.array([[1.0], [4.0]]), weights=np.array([2.0, 1.0]))
    >>> updates.averaged(np.zeros((2, 1))).ravel()
    array([2., 2.])
    """

    rows: Array  # (K, B) trained model minus the model the device received; NaN: not sent, see `fedfilt.rounds.blind`
    weights: Array  # (K,) samples behind each row

    def __repr__(self) -> str:
        return brief(self)

    def check(self, models: Array, graph: Graph) -> None:
        """Refuse updates that do not belong to these models and this graph."""
        check_signal("models", models, graph.count)
        check_signal("updates.rows", self.rows, graph.count)
        check_weights("updates.weights", self.weights, graph.count)
        if self.rows.shape != models.shape or self.rows.dtype != models.dtype:
            raise ValueError(
                f"updates.rows must be {models.dtype} of shape {models.shape} like models, "
                f"got {self.rows.dtype} of {self.rows.shape}"
            )
        if not isinstance(self.weights, np.ndarray):
            raise ValueError(f"updates.weights must be a NumPy array, got {type(self.weights).__name__}")

    def counting(self, held: Array) -> "Updates":
        """The same, but every device with an update counts for all samples it holds: the paper's κ."""
        return self._replace(weights=np.where(self.weights > 0, held, 0.0))

    def trained(self, models: Array) -> Array:
        """(K, B) models + rows, in a new array; if few devices have updates, the other rows are not read.

        >>> Updates(np.array([[1.0], [0.0], [0.0]]), np.array([5.0, 0.0, 0.0])).trained(np.ones((3, 1))).ravel()
        array([2., 1., 1.])
        """
        if (some := self._few()) is None:
            return models + self.rows
        result = models.copy()
        for device in some:
            result[device] += self.rows[device]
        return result

    def averaged(self, models: Array) -> Array:
        """(K, B) every row is the mean of all trained models, weighted by samples; without any, the models."""
        if not self.weights.any():
            return models.copy()
        shares = (self.weights / self.weights.sum()).astype(models.dtype)
        some = slice(None) if (few := self._few()) is None else few
        return np.broadcast_to(shares[some] @ (models[some] + self.rows[some]), models.shape).copy()

    def _few(self) -> Array | None:
        """The devices with updates, if they are fewer than half."""
        some = np.flatnonzero(self.weights)
        return some if 2 * len(some) < len(self.weights) else None

    @classmethod
    def stack(cls, replies: Iterable[Reply], count: int, size: int, kind: Any = np.float32) -> "Updates":
        """Stack replies in device order, never in order of arrival."""
        updates = cls(np.zeros((count, size), kind), np.zeros(count))
        for reply in replies:
            updates.rows[reply.device] = reply.update
            updates.weights[reply.device] = reply.samples
        return updates


Rule = Callable[[Array, Updates, Graph], Array]  # models, updates -> models
Scheduler = Callable[[Hardware, int], Schedule]  # devices in this round, bytes of an update -> schedule


def interpolating(rule: Any) -> Rule:
    """The rule by which a device without an update gets a model from its neighbours.

    It is the rule itself, unless the rule mixes updates: then its method `interpolating` returns it.
    """
    own = getattr(rule, "interpolating", None)
    if own is None and hasattr(rule, "start"):
        name = type(rule).__name__
        raise ValueError(f"rule {name} has memory: it needs a method interpolating() for devices without an update")
    return rule if own is None else own()


class Tests(NamedTuple):
    """Confusion matrices of every device's model, on its own test and on everybody's.

    `local_test` is None if the local test is the part of the global test with the device's labels.
    """

    local_test: Array | None  # (K, C, C)
    global_test: Array  # (K, C, C)
    local_loss: Array | None = None  # (K,) mean losses, if they were computed
    global_loss: Array | None = None
    validation: Array | None = None  # (K, C, C) on held-out training samples, if there are any
    validation_loss: Array | None = None

    def __repr__(self) -> str:
        return brief(self)

    @classmethod
    def stack(cls, own: Iterable[tuple[Array, float]] | None, everybody: Iterable[tuple[Array, float]]) -> "Tests":
        """From (confusion matrix, mean loss) of every device, in device order; `own` is None without local tests."""

        def stacked(found: Iterable[tuple[Array, float]]) -> tuple[Array, Array]:
            matrices, losses = zip(*found, strict=True)
            return np.stack(matrices), np.array(losses)

        local, local_loss = (None, None) if own is None else stacked(own)
        matrices, losses = stacked(everybody)
        return cls(local, matrices, local_loss, losses)


class Engine(Protocol):
    """Where training happens: jobs in, replies out, in any order."""

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Train the jobs' models; a device that misses the deadline does not reply."""
        ...

    def test(self, state: "State") -> Tests:
        """Test the model that every device decides with after a round."""
        ...


class Happening(NamedTuple):
    """Something that happened to a device, as data; `fedfilt.show.words` turns it into words.

    join (start), leave, move (links, room), offline (until), online; late, reject (why), absent (why), left_out (why),
    return; by the guard: clipped (times, strike), quarantined (times, until), released, setback (suspects, back). In
    folders of older versions also "said", with the words in `details`.
    """

    round: int
    device: int | None
    what: str
    details: Mapping[str, Any] = MappingProxyType({})


class State(NamedTuple):
    """What the next round needs.

    >>> state = State(0, np.zeros((20, 10)))  # 20 devices, none of which has trained
    >>> state.round, state.clients
    (0, mappingproxy({}))
    """

    round: int  # rounds played
    models: Array  # (K, B); sealed rows with a blind server, see `fedfilt.system.blind`
    residuals: Array | None = None  # (K, B) what each device has not sent yet; None: nothing
    accepted: Array | None = None  # (K,) last round in which each device's reply counted; 0 or None: no round
    memory: Mapping[str, Array] = MappingProxyType(
        {}
    )  # what guard and rule keep, by name: (K, ...) per device, or for all
    clients: Mapping[int, Mapping[str, Array]] = MappingProxyType(
        {}
    )  # what the devices' clients keep, unless the devices store it

    def __repr__(self) -> str:
        return brief(self)


class Record(NamedTuple):
    """What people want to see of a round.

    >>> import fedfilt
    >>> pairs = [(np.eye(4, dtype=np.float32), [0, 1, 0, 1])] * 2
    >>> fitted = fedfilt.fit(pairs, fedfilt.models.Logistic((4,), 2), [(0, 1)], rounds=3)
    >>> [(record.round, record.samples.tolist()) for record in fitted.records[-1:]]
    [(3, [3.0, 3.0])]
    """

    round: int  # counted from 1
    seconds: float  # of wall time
    samples: Array  # (K,) that each device trained on
    losses: Array  # (K,) mean training loss of the last epoch, NaN for devices that did not train
    schedule: Schedule
    costs: Array  # (K, 5) the fields of Cost
    sizes: Array  # (K,) bytes sent
    late: Array  # (K,) True for devices that replied too late to count
    latency: float  # simulated seconds until the round ended
    mixed: Tests | None  # of the models after mixing, as devices receive them
    trained: Tests | None  # of the models after local training, before mixing
    events: tuple[Happening, ...] = ()  # what happened before it; see `fedfilt.rounds.timeline`
    away: tuple[int, ...] = ()  # devices that were away or offline
    absent: Mapping[int, str] = MappingProxyType({})  # devices without a usable reply, and why
    kept: Array | None = None  # (K,) bytes that clients keep, for devices that took part; None: nothing
    drawn: tuple[int, ...] | None = None  # devices drawn to take part; None: all, without drawing
    measured: Mapping[str, Array] = MappingProxyType(
        {}
    )  # numbers that the rule has just measured: one for all, or (K,)
    graph: Graph | None = None  # found in this round and valid from then on; see `fedfilt.rounds.finding`

    def __repr__(self) -> str:
        return brief(self)


class Script(Protocol):
    """Changes how a round is played: see `fedfilt.rounds.timeline.Timeline`."""

    def play_round(self, state: State, experiment: "Experiment") -> tuple[State, Record]:
        """One round among the devices present."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """When models are tested: every n rounds and after the last one; `trained` also tests them before mixing.

    `validation` is the share of each device's training samples that is held out for choosing settings.
    Without `tests`, models are tested only on these.

    >>> Evaluation(every=5).validation
    0.0
    """

    every: int = 10  # rounds between tests; the last round is always tested
    trained: bool = False  # also test the models after local training, before mixing
    validation: float = 0.0  # share of a device's training samples held out, drawn with the seed, to choose settings by
    tests: bool = True  # false: test only on the samples that are held out

    def __post_init__(self) -> None:
        check_count("evaluation.every", self.every)
        check_number("evaluation.validation", self.validation, low=0, high=0.9)
        if not self.tests and (self.trained or not self.validation):
            raise ValueError(
                "evaluation.tests = false needs evaluation.validation above 0, and evaluation.trained = false"
            )


@dataclass(frozen=True, eq=False, repr=False)
class Experiment:
    """Everything needed to play rounds.

    >>> import fedfilt
    >>> config = fedfilt.from_table({"data": "digits", "model": "logistic", "samples": {"train": 9, "local_test": 9}})
    >>> with fedfilt.Run(config).experiment() as experiment:
    ...     experiment.graph.count, experiment.aggregator.filter
    (20, Tikhonov(mu=1.0))
    """

    graph: Graph
    aggregator: Rule
    scheduler: Scheduler
    engine: Engine
    hardware: Hardware
    rounds: int
    update_bytes: int  # of a whole update
    evaluation: Evaluation = Evaluation()
    seed: int = 0
    events: Script | None = None  # if devices come, go or move
    guard: "Guard | None" = None  # limits on what one device can do to others; None: no limits
    model_size: int = 0  # how many numbers of a row travel in every round, if the others do so seldom; 0: all
    weights: str = "trained"  # or "held": which samples a device counts for

    def __repr__(self) -> str:
        return brief(self)
