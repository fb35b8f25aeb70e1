import copy
import logging
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np

from fedfilt import native
from fedfilt._checks import check_count
from fedfilt._types import Array, Sparsifier
from fedfilt.clients.plain import Plain
from fedfilt.data.samples import FederatedData
from fedfilt.rounds.types import Reply, State, Tests
from fedfilt.sparsifiers.top_k import TopK
from fedfilt.system.orders import Job, Plan
from fedfilt.system.wire import unpack
from fedfilt.training import _torch
from fedfilt.training.client import Client, Kept, is_personal, size_of
from fedfilt.training.memo import Memo
from fedfilt.training.sgd import Diverged, Training
from fedfilt.training.trainer import Known
from fedfilt.training.work import Desk, Own, Tested, examine, personal, work

log = logging.getLogger("fedfilt")


class Local:
    """Trains all devices on this machine, on one core or on all: by threads in the native core, else by processes.

    The models of all devices lie in one (K, B) buffer, which all workers share. The result is the same for any number.

    >>> from fedfilt.models import Logistic
    >>> data = FederatedData.from_arrays([(np.eye(2), [0, 1]), (np.eye(2), [0, 1])])
    >>> with Local(data, Logistic((2,), 2), Training(), seed=0, workers=1) as engine:
    ...     row = np.zeros(engine.layout.size, np.float32)
    ...     [reply.samples for reply in engine.train([Job(1, 1, row, Plan(epochs=1))], np.inf)]
    [2]
    """

    def __init__(
        self,
        data: FederatedData,
        model: Any,
        training: Training,
        seed: int = 0,
        workers: int = 0,
        sparsifier: Sparsifier = TopK(),  # noqa: B008 (frozen)
        client: Client = Plain(),  # noqa: B008 (frozen)
        memo: Memo | None = None,
    ) -> None:
        """`workers` 0 means one per core, 1 means in this process and thread; other runs may use the `memo` too."""
        workers = check_count("engine.workers", workers, low=0) or native.cores()
        desk = Desk.of(data, model, training, seed, sparsifier, client, memo)
        trainer = desk.trainer
        self.layout = trainer.layout
        self.data = data
        sent: Any = desk
        if workers > 1 and trainer.network is None:
            try:
                sent = _sent(desk)
            except ValueError as error:
                log.warning("one worker trains instead of %d: %s", workers, error)
                workers = 1
        shared = workers > 1 and trainer.network is None  # then processes work, on memory that they share
        buffers = _memory((3, data.count, desk.width), np.float32, shared)
        used = np.unique(np.concatenate([*data.train, *(data.local_test or ()), data.global_test]))
        place = np.zeros(len(data.y), np.int64)
        place[used] = np.arange(len(used))
        self._table = _Table(
            desk,
            buffers,
            _copied(np.ascontiguousarray(data.x[used] if desk.unlike else trainer.numbers(data.x[used])), shared),
            _copied(data.y[used], shared),
            tuple(place[rows] for rows in data.train),
            None if data.local_test is None else tuple(place[rows] for rows in data.local_test),
            tuple(place[data.everybodys(device)] for device in range(data.count)),
        )
        self._pool: Executor | None = None
        if shared:
            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), _start_worker, (self._table._replace(desk=sent),)
            )
        elif workers > 1:
            self._pool = ThreadPoolExecutor(workers)
        self._workers = workers
        self._decided: tuple[State, Array] | None = None  # in a state, as it is asked for again

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Train the jobs' models and yield replies in job order; no device is late here, but one may diverge."""
        given, updates, residuals = self._table.buffers.array
        for job in jobs:
            given[job.device] = job.model
            if job.residual is not None:
                residuals[job.device] = job.residual
        orders = [
            _Order(j.round, j.device, j.plan, j.residual is not None, j.accepted, j.state, j.rounds) for j in jobs
        ]
        for device, samples, loss, size, left, problem, kept in self._spread(_train_one, orders):
            if problem:
                yield Reply(device, updates[device], 0, math.nan, absent=problem, diverged=True)
            else:
                residual = residuals[device] if left else None
                yield Reply(device, updates[device], samples, loss, size, residual, state=kept, kept=size_of(kept))

    def test(self, state: State) -> Tests:
        """Test the model that every device decides with; equal models are tested once."""
        models = self.personal(state)
        alone = bool(self._table.desk.unlike)  # then an equal row is not an equal model
        if models.ndim == 2:
            self._table.buffers.array[0, :, : self.layout.size] = models
            given: list[_Given] = [(device, None, {}) for device in range(len(models))]
        else:  # several rows a device: as they are
            same = [place for place, rows in enumerate(models.swapaxes(0, 1)) if not alone and (rows == rows[0]).all()]
            known: dict[int, dict[bytes, Array]] = {place: {} for place in same}
            given = [(device, rows, known) for device, rows in enumerate(models)]
        first = np.array([i if alone else _first_equal(models, i) for i in range(len(models))])
        different = [int(i) for i in np.unique(first)]
        on_all = dict(zip(different, self._spread(_test_on_all, [given[i] for i in different]), strict=True))
        everybody = [on_all[i] for i in first]
        own = None if self.data.local_test is None else self._spread(_test_on_own, given)
        return Tests.stack(own, everybody)

    def personal(self, state: State) -> Array:
        """(K, B) the model that every device decides with: its row, or what its client makes of that.

        (K, n, B) of several whose answers are averaged.
        """
        desk = self._table.desk
        if not is_personal(desk.client):
            return state.models[:, : desk.size]
        if self._decided is None or self._decided[0] is not state:
            given = [(device, row, state.clients.get(device), state.round) for device, row in enumerate(state.models)]
            self._decided = state, np.stack(list(self._spread(_personal_one, given)))
        return self._decided[1]

    def _spread(self, task: Any, items: list[Any]) -> Iterator[Any]:
        """Results of a task on the items, in their order, done by all workers."""
        if self._pool is None:
            for item in items:
                yield task(item, self._table)
            return
        size = max(1, len(items) // (16 * self._workers))  # small parts: no worker waits long for the last one
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        table = None if isinstance(self._pool, ProcessPoolExecutor) else self._table  # a process has its own
        futures: list[Future[list[Any]]] = [self._pool.submit(_work_off, task, part, table) for part in parts]
        try:
            for future in futures:
                yield from future.result()
        except BrokenProcessPool:
            raise OSError("a worker process was killed (out of memory?); resume with fewer engine.workers") from None
        finally:
            for future in futures:
                future.cancel()
            wait_for(futures)  # what still runs would write into rows of the next call

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Table(NamedTuple):
    """All that a worker needs, in memory shared by all workers."""

    desk: Desk  # made once, from the module as it was at the start
    buffers: "_Memory"  # (3, K, B): models given, updates, residuals
    x: "_Memory"
    y: "_Memory"
    train: tuple[Array, ...]
    local_test: tuple[Array, ...] | None
    global_test: tuple[Array, ...]

    def own(self, rows: Array) -> Own:
        """Some of the samples."""
        return Own(self.x.array, self.y.array, rows)


class _Order(NamedTuple):
    """A job whose rows lie in the table."""

    round: int
    device: int
    plan: Plan
    owing: bool  # whether it has a residual
    accepted: int
    state: Kept | None
    rounds: int


class _Came(NamedTuple):
    """What came of an order; the update and the residual lie in the table."""

    device: int
    samples: int = 0
    loss: float = math.nan
    size: int = 0  # bytes sent
    left: bool = False  # whether something stayed behind
    problem: str = ""
    state: Kept | None = None


def _train_one(order: _Order, table: _Table) -> _Came:
    """Train and sparsify one update."""
    device = order.device
    given, update, residual = table.buffers.array[:, device]
    owed = residual if order.owing else None
    job = Job(order.round, device, given, order.plan, owed, order.accepted, order.state, order.rounds)
    try:
        done = work(job, table.own(table.train[device]), table.desk, update)
    except Diverged as error:
        return _Came(device, problem=str(error))
    update[:] = unpack(done.content, len(update), table.desk.least)
    if done.residual is not None:
        residual[:] = done.residual
    left = done.residual is not None
    return _Came(device, done.samples, done.loss, len(done.content), left, state=done.state)


def _personal_one(given: tuple[int, Array, Kept | None, int], table: _Table) -> Array:
    device, row, state, round = given
    return personal(row, state, round, device, table.own(table.train[device]), table.desk)


_Given = tuple[int, Array | None, Known]  # a device, its model or models if not in the table, and what these answer


def _test_on_all(given: _Given, table: _Table) -> Tested:
    return _test(given, table, table.global_test[given[0]])


def _test_on_own(given: _Given, table: _Table) -> Tested:
    assert table.local_test is not None
    return _test(given, table, table.local_test[given[0]])


def _test(given: _Given, table: _Table, rows: Array) -> Tested:
    device, row, known = given
    model = table.buffers.array[0, device, : table.desk.size] if row is None else row
    return examine(model, table.own(rows), table.desk.at(device), known)


class _Memory:
    """An array in memory of its own, or in memory that processes which start later share with this one."""

    def __init__(self, shape: tuple[int, ...], kind: Any, raw: Any) -> None:
        self._shape, self._kind, self._raw = shape, np.dtype(kind), raw

    @property
    def array(self) -> Array:
        return np.frombuffer(self._raw, self._kind, math.prod(self._shape)).reshape(self._shape)


def _memory(shape: tuple[int, ...], kind: Any, shared: bool) -> _Memory:
    size = max(1, math.prod(shape) * np.dtype(kind).itemsize)
    raw = multiprocessing.get_context("spawn").RawArray("b", size) if shared else bytearray(size)
    return _Memory(shape, kind, raw)


def _copied(values: Array, shared: bool) -> _Memory:
    memory = _memory(values.shape, values.dtype, shared)
    memory.array[...] = values
    return memory


_table: _Table | None = None


class _Whole:
    """A desk that goes to other processes with the classes that only this process knows, as those of a cell."""

    def __init__(self, desk: Desk) -> None:
        self._content = import_module("cloudpickle").dumps(desk)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._content,)  # what this process has just packed, for workers that it started


def _sent(desk: Desk) -> Any:
    """A desk as other processes can have it; a ValueError says why they cannot."""
    try:
        main = sys.modules["__main__"]
        if b"__main__" not in pickle.dumps(desk) or getattr(main, "__file__", None) or main.__spec__:
            return desk
        why = "a class is defined in a cell or at the prompt"
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        why = f"this model or client cannot be sent to other processes ({error})"
    if find_spec("cloudpickle") is None:
        raise ValueError(f"{why}; pip install cloudpickle, or put it in a file, which other processes can import")
    try:
        return _Whole(desk)
    except Exception as error:  # whatever a class does when it is pickled
        raise ValueError(f"this model or client cannot be sent to other processes ({error})") from None


def _start_worker(table: _Table) -> None:
    global _table
    trainer, *unlike = copy.deepcopy([table.desk.trainer, *table.desk.unlike])  # what arrives is shared with others
    own = table.desk._replace(trainer=trainer, unlike=tuple(unlike))
    _table = table._replace(desk=own)
    if own.trainer.backend == "torch":
        _torch.settle()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow_parent() -> None:
        wait([parent.sentinel])  # a parent killed outright cannot end its workers
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()


def _work_off(task: Any, items: list[Any], table: _Table | None) -> list[Any]:
    return [task(item, table or _table) for item in items]


def _first_equal(models: Array, device: int) -> int:
    """The first device with the same model, looked for where it is likely: the first of all."""
    return 0 if np.array_equal(models[device], models[0]) else device
