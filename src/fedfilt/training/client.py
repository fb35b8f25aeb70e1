"""Clients: a client decides what a device does with its row. It receives a task, and returns what to send and keep."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedfilt._checks import check_count
from fedfilt._draws import Key, RoundKey, generator, in_round
from fedfilt._types import Array
from fedfilt.system.orders import Plan
from fedfilt.training.description import Dense, Description, Flatten
from fedfilt.training.memo import Memo
from fedfilt.training.sgd import Training, orders
from fedfilt.training.trainer import Trainer

Kept = Mapping[str, Array]  # what a client remembers from round to round, by name
NOTHING: Kept = MappingProxyType({})
MOMENTS = "optimizer."  # begins the names of what an optimizer remembers, among what a device keeps
TESTING = 10_000  # the first epoch of what is trained for a test, so that its draws are not those of the round


class Own(NamedTuple):
    """What a device trains or is tested on: the samples `rows` of x and y."""

    x: Array
    y: Array
    rows: Array


class Sent(NamedTuple):
    """The result of a client's work.

    >>> Sent(np.zeros(3, np.float32), loss=0.5, state={"rounds": np.ones(1)}).loss
    0.5
    """

    model: Array  # (B,) the model that the device sends
    loss: float = math.nan  # mean of the last epoch
    state: Kept = NOTHING  # what the device keeps; it never travels
    travelling: Kept = NOTHING  # what travels with the model: a (B,) array for every name in `Client.travels`


class Task:
    """What a client works with: its row, its own samples behind the trainer, what it kept, and the plan.

    >>> from fedfilt.clients import Plain
    >>> task = example(Plain())
    >>> before = task.model.copy()
    >>> loss = task.train(task.model, epochs=1)
    >>> task.samples > 0, bool((task.model != before).any())
    (True, True)
    """

    def __init__(
        self,
        trainer: Trainer,
        seed: int,
        own: Own,
        round: int,
        device: int,
        plan: Plan,
        model: Array,
        travelling: Kept = NOTHING,
        testing: bool = False,
        rounds: int = 0,
        given: Array | None = None,
        memo: Memo | None = None,
    ) -> None:
        self.round, self.device, self.plan, self.epochs = round, device, plan, plan.epochs
        self.rounds = rounds  # total number of rounds; 0: unknown
        self.model = model  # (B,) as received from the server; the client may change it
        # (B,) as received from the server; different only if the device has just trained its encoder without labels
        self.given = model if given is None else given
        self.state: Kept = NOTHING  # what the client kept: see `begun`
        self.travelling = travelling
        # the optimizer's memory for steps on `model`, if it is kept between rounds: see `Training.keeps`
        self.moments: dict[str, Array] | None = {} if trainer.training.keeps else None
        self.samples = plan.samples(len(own.rows))  # to train on
        self.learning_rate = trainer.training.learning_rate
        self.rate = trainer.training.rate(round)  # of learning, in this round: decay included
        self._trainer, self._seed, self._own = trainer, seed, own
        self._epoch = TESTING if testing else 0
        self._train: Callable[..., float] = trainer.train if memo is None else partial(memo.train, trainer)

    def columns(self, names: Iterable[str]) -> Array:
        """(B,) bool: the columns of layers, by name; see `fedfilt.training.rows.Layout.columns`."""
        return self._trainer.layout.columns(names)

    def steps(self, epochs: int) -> int:
        """The number of steps in `epochs` epochs."""
        return epochs * math.ceil(self.samples / self._trainer.training.batch_size)

    def reach(self, epochs: int) -> float:
        """How far `epochs` epochs of SGD go along a gradient that stays 1, in learning rates: a step each, or more.

        With momentum m, step t goes as far as 1 + m + ... + m^(t - 1).
        """
        steps, m = self.steps(epochs), self._trainer.training.momentum
        return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m) if m else steps

    @property
    def targets(self) -> Array:
        """The targets of the device's own samples: labels, or what else there is to learn."""
        return self._own.y[self._own.rows]

    def loss(self, row: Array) -> float:
        """The mean loss of a row on the device's own samples; NaN without any."""
        return self._trainer.loss(row, *self._own)

    def another_start(self, number: int) -> Array:
        """(B,) a first model that is not the one of the run: the same for all devices, another for every number."""
        return self._trainer.start(int(generator(self._seed, Key.STARTS, number).integers(2**62)))

    def train(
        self,
        row: Array,
        *,
        epochs: int | None = None,
        batch: Array | None = None,
        among: Array | None = None,
        learning_rate: float | None = None,
        proximal: float | None = None,
        around: Array | None = None,
        drift: Array | None = None,
        trained: Array | None = None,
    ) -> float:
        """Train a row in place for the planned or other epochs, or one step on a `batch`; the mean loss of the last.

        `among` are the indices of the samples to train on, if not all; see `halves`. A step follows
        ∂loss + proximal · (w - around) + drift where `trained` is True; see `Trainer.train`. Every call continues in
        the order of the samples where the last one stopped. Without samples, nothing happens.
        """
        if epochs is not None:
            check_count("epochs", epochs, low=0)
        some = among if batch is None else batch
        own = self._own if some is None else self._own._replace(rows=self._own.rows[some])
        samples = self.samples if some is None else len(some)
        epochs = 1 if batch is not None else self.epochs if epochs is None else epochs
        if not samples or not epochs:
            return math.nan
        first = self._epoch
        if batch is None:
            self._epoch += epochs
        return self._train(
            row,
            *own,
            seed=self._seed,
            round=self.round,
            device=self.device,
            epochs=epochs,
            samples=samples,
            first=first,
            learning_rate=learning_rate,
            proximal=proximal,
            around=around,
            drift=drift,
            trained=trained,
            moments=self.moments if row is self.model else None,
        )

    def halves(self) -> tuple[Array, Array]:
        """Indices of two random halves of the samples it trains on, with labels as balanced as possible.

        An odd sample is in neither.
        """
        chosen, _ = orders(self._seed, self.round, self.device, len(self._own.rows), self.samples, 0)
        drawn = chosen[in_round(self._seed, self.round, self.device, RoundKey.HALVES).permutation(len(chosen))]
        targets = self._own.y[self._own.rows[drawn]]
        if targets.ndim == 1:  # a label, or a number
            drawn = drawn[np.argsort(targets, kind="stable")]
        half = len(drawn) // 2
        return drawn[: 2 * half : 2], drawn[1 : 2 * half : 2]

    def batches(self, epochs: int | None = None) -> Iterator[Array]:
        """The batches of the planned or other epochs, for clients that go step by step."""
        epochs, size = self.epochs if epochs is None else epochs, self._trainer.training.batch_size
        if self.samples and epochs:
            where = self._seed, self.round, self.device, len(self._own.rows), self.samples, epochs, self._epoch
            chosen, draws = orders(*where)
            self._epoch += epochs
            for draw in draws:
                yield from (chosen[draw[start : start + size]] for start in range(0, len(draw), size))


class Client(Protocol):
    """A part in fedfilt/clients: what a device does in a round. See `fedfilt.clients.plain`.

    It may also have: `rule`, the aggregation rule that belongs to it if none is named; `travels`, names of (B,) arrays
    that travel with the model both ways and are mixed like it; `seldom`, names of the last of these if they change only
    in a few rounds, or True for all of them: zeros at the end of a row are then not sent, and what was cut off them is
    forgotten; `passes`, how many times it
    repeats the planned epochs, used to plan the devices' time; `momentum`, False if that of the settings does not build
    up, so that `fedfilt tune` looks among higher learning rates; `extra(round, rounds)`, epochs beyond these, which are
    charged but not planned; `start(task)`, what it keeps before its first round; `personal(task)`, the model that the
    device decides with, if that is not the row it received, or (n, B) several models whose answers are averaged;
    `like`, the client whose model it sends in most rounds, such as "plain": runs that are alike are played side by side
    and train once what is the same; `check(layout)`, which refuses models that it cannot train; `check_run(layout,
    kind, outputs, devices)`, which refuses targets ("labels", "choices" or "numbers", and how many numbers a model must
    return for them) or numbers of devices that it cannot handle.
    """

    def __call__(self, task: Task) -> Sent:
        """Train, and return what to send and what to keep."""
        ...


def travels(client: Client) -> tuple[str, ...]:
    """Names of what a client sends and is given besides the model."""
    names = getattr(client, "travels", ())
    if isinstance(names, str):
        raise ValueError(f"client {type(client).__name__} must have a tuple of names in travels, got {names!r}")
    return tuple(names)


def passes(client: Client) -> float:
    """How many times a client repeats the planned epochs."""
    return float(getattr(client, "passes", 1.0))


def seldom(client: Client) -> tuple[str, ...]:
    """Names of what travels with a client's model in few rounds only: the last of what travels."""
    names, found = travels(client), getattr(client, "seldom", False)
    some = names if found is True else tuple(found or ())
    if some != names[len(names) - len(some) :]:
        kind = type(client).__name__
        raise ValueError(f"client {kind} must have True in seldom, or the last of its travels {names}, got {found!r}")
    return some


def usual(client: Client) -> int:
    """How many arrays of a row travel in every round: the model, and what goes with it."""
    return 1 + len(travels(client)) - len(seldom(client))


def extra(client: Client, round: int, rounds: int) -> float:
    """Epochs over all of its samples that a client trains in a round, beyond those that are planned.

    They are counted like these, of which each is trained `passes` times.
    """
    own: Any = getattr(client, "extra", None)
    return 0.0 if own is None else float(own(round, rounds)) / passes(client)


def split(row: Array, client: Client, size: int) -> tuple[Array, dict[str, Array]]:
    """(the model in a row, what travels with it by name)."""
    names = travels(client)
    return row[:size], {name: row[(place + 1) * size : (place + 2) * size] for place, name in enumerate(names)}


def begun(client: Client, task: Task, kept: Kept | None) -> Task:
    """The task with what a client kept, or with what it begins with if it has never trained."""
    start: Any = getattr(client, "start", None)
    if task.moments is not None and kept is not None:
        task.moments = {name.removeprefix(MOMENTS): one for name, one in kept.items() if name.startswith(MOMENTS)}
        kept = {name: one for name, one in kept.items() if not name.startswith(MOMENTS)}
    found = kept if kept is not None else NOTHING if start is None else start(task)
    task.state = kept_of(client, found)
    return task


def ended(task: Task, state: Kept) -> Kept:
    """What the device keeps: what its client does, and what the optimizer remembers if that is kept."""
    return {**state, **{MOMENTS + name: one for name, one in task.moments.items()}} if task.moments else state


def is_personal(client: Client) -> bool:
    """Whether devices decide with a model other than the row they receive."""
    return hasattr(client, "personal")


def size_of(kept: Kept | None) -> int:
    """Bytes that a client keeps."""
    return sum(array.nbytes for array in kept.values()) if kept else 0


def kept_of(client: Client, kept: Any) -> dict[str, Array]:
    """Copies of what a client keeps, by name: it may change them, and they are no part of rows that others write to."""
    name = type(client).__name__
    if not isinstance(kept, Mapping):
        raise ValueError(f"client {name} must keep arrays by name, got {type(kept).__name__}")
    for what, array in kept.items():
        if not isinstance(what, str):
            raise ValueError(f"client {name} must keep arrays under names, got {what!r}")
        if not isinstance(array, np.ndarray):
            raise ValueError(f"client {name} must keep arrays of numbers, got {what} as {type(array).__name__}")
        if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise ValueError(f"client {name} must keep arrays of numbers, got {what} as {array.dtype}")
    return {what: np.array(kept[what], order="C") for what in sorted(kept)}


def check_sent(client: Client, sent: Any, size: int) -> Sent:
    """A client's result, checked, with copies of what it keeps."""
    name = type(client).__name__
    if not isinstance(sent, Sent):
        raise ValueError(f"client {name} must return Sent(model, loss, state), got {type(sent).__name__}")
    wanted, arrays = travels(client), {"model": sent.model, **sent.travelling}
    if set(sent.travelling) != set(wanted):
        raise ValueError(f"client {name} must send {list(wanted)} with its model, got {sorted(sent.travelling)}")
    for what, array in arrays.items():
        check_numbers(client, f"send {what}", array, size)
    if not isinstance(sent.loss, float | int | np.floating | np.integer):
        raise ValueError(f"client {name} must return its loss as a number, got {type(sent.loss).__name__}")
    return sent._replace(loss=float(sent.loss), state=kept_of(client, sent.state))


def check_numbers(client: Client, what: str, array: Any, size: int, several: bool = False) -> Array:
    """An array from a client, checked: `size` float32 numbers, or `several` such rows."""
    shape = array.shape[several and array.ndim == 2 and len(array) > 0 :] if isinstance(array, np.ndarray) else ()
    if not isinstance(array, np.ndarray) or shape != (size,) or array.dtype != np.float32:
        shown = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        wanted = f"({size},) or (n, {size})" if several else f"({size},)"
        raise ValueError(f"client {type(client).__name__} must {what} as float32 of shape {wanted}, got {shown}")
    return array


def example(client: Client) -> Task:
    """A small task to try a client on: eight samples of two numbers with two labels, a linear model."""
    description = Description((Flatten(), Dense(2, 2)))
    trainer = Trainer(description, Training(learning_rate=0.5, batch_size=4), (2,))
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(8, 2)
    own, model = Own(x, (x[:, 0] > 0).astype(np.int64), np.arange(8)), trainer.start(0)
    travelling = {name: np.zeros_like(model) for name in travels(client)}
    return begun(client, Task(trainer, 0, own, 1, 0, Plan(epochs=2), model, travelling), None)
