import copy
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing  # lets tensors in shared memory travel to worker processes

from fedfilt import native
from fedfilt.checks import Array, check_count
from fedfilt.data import FederatedData
from fedfilt.rounds import Job, Plan, Reply, Sparsifier, Tests
from fedfilt.sparsifiers.top_k import TopK
from fedfilt.train import Trainer, Training, inputs
from fedfilt.wire import unpack


class Local:
    """Trains all devices on this machine, on one core or on all: by threads in the native core, else by processes.

    The models of all devices lie in one (K, B) buffer, which all workers share. The result is the same for any number.

    >>> from torch import nn
    >>> data = FederatedData.from_arrays([(np.eye(2), [0, 1]), (np.eye(2), [0, 1])])
    >>> with Local(data, nn.Linear(2, 2), Training(), seed=0, workers=1) as engine:
    ...     row = np.zeros(engine.layout.size, np.float32)
    ...     [reply.samples for reply in engine.train([Job(0, 1, row, Plan(epochs=1))], math.inf)]
    [2]
    """

    def __init__(
        self,
        data: FederatedData,
        module: torch.nn.Module,
        training: Training,
        seed: int = 0,
        workers: int = 0,
        sparsifier: Sparsifier = TopK(),  # noqa: B008 (frozen)
    ) -> None:
        """`workers` 0 means one per core, 1 means in this process and thread."""
        workers = check_count("engine.workers", workers, low=0) or native.cores()
        trainer = Trainer(module, training, data.x.shape[1:])
        self.layout = trainer.layout
        self.data = data
        classes = _outputs(module, data)
        buffers = torch.zeros((3, data.count, self.layout.size))
        used = np.unique(np.concatenate([*data.train, *(data.local_test or ()), data.global_test]))
        place = np.zeros(len(data.y), np.int64)
        place[used] = np.arange(len(used))
        self._desk = _Desk(
            trainer,
            sparsifier,
            seed,
            buffers,
            torch.from_numpy(_numbers(data.x[used])),
            torch.from_numpy(data.y[used]),
            classes,
            tuple(place[rows] for rows in data.train),
            None if data.local_test is None else tuple(place[rows] for rows in data.local_test),
            place[data.global_test],
        )
        self._pool: Executor | None = None
        if workers > 1 and trainer.network is not None:
            self._pool = ThreadPoolExecutor(workers)
        elif workers > 1:
            for tensor in (buffers, self._desk.x, self._desk.y):
                tensor.share_memory_()  # type: ignore[no-untyped-call]
            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), _start_worker, (self._desk,)
            )
        self._workers = workers

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Train the jobs' models and give the replies in job order; nobody is late here."""
        given, updates, residuals = self._desk.buffers.numpy()
        for job in jobs:
            given[job.device] = job.model
            if job.residual is not None:
                residuals[job.device] = job.residual
        orders = [(job.round, job.device, job.plan, job.residual is not None) for job in jobs]
        for device, samples, loss, size, left in self._spread(_train_one, orders):
            yield Reply(device, updates[device], samples, loss, size, residuals[device] if left else None)

    def test(self, models: Array) -> Tests:
        """Test every device's model (K, B); equal models are tested once."""
        self._desk.buffers[0].numpy()[:] = models
        first = np.array([_first_equal(models, i) for i in range(len(models))])
        different = [int(i) for i in np.unique(first)]
        on_all = dict(zip(different, self._spread(_test_on_all, different), strict=True))
        everybody, losses = _stacked([on_all[i] for i in first])
        if self.data.local_test is None:
            return Tests(None, everybody, global_loss=losses)
        own, own_losses = _stacked(self._spread(_test_on_own, list(range(len(models)))))
        return Tests(own, everybody, own_losses, losses)

    def _spread(self, work: Any, items: list[Any]) -> Iterator[Any]:
        """Results of work on the items, in their order, done by all workers."""
        if self._pool is None:
            for item in items:
                yield work(item, self._desk)
            return
        size = max(1, len(items) // (16 * self._workers))  # small parts: no worker waits long for the last one
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        desk = None if isinstance(self._pool, ProcessPoolExecutor) else self._desk  # a process has its own
        futures: list[Future[list[Any]]] = [self._pool.submit(_work_off, work, part, desk) for part in parts]
        try:
            for future in futures:
                yield from future.result()
        except BrokenProcessPool:
            raise OSError("a worker process was killed (out of memory?); go on with fewer engine.workers") from None
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


class _Desk(NamedTuple):
    """All that a worker needs, in memory shared by all workers."""

    trainer: Trainer  # made once, from the module as it was at the start
    sparsifier: Sparsifier
    seed: int
    buffers: torch.Tensor  # (3, K, B): models given, updates, residuals
    x: torch.Tensor
    y: torch.Tensor
    classes: int
    own: tuple[Array, ...]
    local_test: tuple[Array, ...] | None
    global_test: Array


def _train_one(order: tuple[int, int, Plan, bool], desk: _Desk) -> tuple[int, int, float, int, bool]:
    """Train and cut down one update: (device, samples, loss, bytes sent, whether something stayed behind)."""
    round, device, plan, owing = order
    own = desk.own[device]
    samples = math.floor(plan.data_fraction * len(own) + 1e-9)
    given, update, residual = (buffer.numpy() for buffer in desk.buffers[:, device])
    update[:] = given
    loss = math.nan
    if samples:
        where: Any = {"seed": desk.seed, "round": round, "device": device, "epochs": plan.epochs, "samples": samples}
        loss = desk.trainer.train(update, desk.x.numpy(), desk.y.numpy(), own, **where)
    update -= given
    content, left = desk.sparsifier(update, residual if owing else None, plan.density)
    update[:] = unpack(content, len(update))
    if left is not None:
        residual[:] = left
    return device, samples, loss, len(content), left is not None


def _test_on_all(device: int, desk: _Desk) -> tuple[Array, float]:
    return _test(device, desk, desk.global_test)


def _test_on_own(device: int, desk: _Desk) -> tuple[Array, float]:
    assert desk.local_test is not None
    return _test(device, desk, desk.local_test[device])


def _test(device: int, desk: _Desk, rows: Array) -> tuple[Array, float]:
    """(confusion matrix, mean loss)."""
    row = desk.buffers[0, device].numpy()
    counts, loss = desk.trainer.test(row, desk.x.numpy(), desk.y.numpy(), rows, desk.classes)
    return counts, loss / len(rows) if len(rows) else math.nan


def _stacked(results: Iterable[tuple[Array, float]]) -> tuple[Array, Array]:
    counts, losses = zip(*results, strict=True)
    return np.stack(counts), np.array(losses)


_desk: _Desk | None = None


def _start_worker(desk: _Desk) -> None:
    global _desk
    _desk = desk._replace(trainer=copy.deepcopy(desk.trainer))  # what arrives is in memory shared with other workers
    torch.set_num_threads(1)
    # Freeing one large block lets malloc keep what is freed. A new process would give the buffers of every batch back
    # to the system and fetch them anew, at the cost of a fifth of its time.
    torch.empty(8_000_000)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow_parent() -> None:
        wait([parent.sentinel])  # a parent killed outright cannot end its workers
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()


def _work_off(work: Any, items: list[Any], desk: _Desk | None) -> list[Any]:
    return [work(item, desk or _desk) for item in items]


def _outputs(module: torch.nn.Module, data: FederatedData) -> int:
    """How many labels the model tells apart; the data must not have more."""
    with torch.no_grad():
        result = copy.deepcopy(module).eval()(inputs(data.x[:2]))
    if result.ndim != 2 or result.shape[1] < data.classes:
        raise ValueError(f"model must give {data.classes} numbers, one per label, got shape {tuple(result.shape)}")
    if len(data.y) and not 0 <= data.y.min() <= data.y.max() < data.classes:
        raise ValueError(f"labels must be from 0 to {data.classes - 1}, got {data.y.min()} to {data.y.max()}")
    return int(result.shape[1])


def _numbers(x: Array) -> Array:
    return np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32, copy=False))


def _first_equal(models: Array, device: int) -> int:
    """The first device with the same model, looked for where it is likely: the first of all."""
    return 0 if np.array_equal(models[device], models[0]) else device
