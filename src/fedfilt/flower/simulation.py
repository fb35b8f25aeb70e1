"""Flower's simulation in this process, without Ray: its own grid, nodes and queues, with our worker processes."""

import logging
import multiprocessing
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import Backend
from flwr.server.superlink.fleet.vce.metrics import VceMetrics
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.serverapp import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from fedfilt import native
from fedfilt.data import FederatedData
from fedfilt.flower.device import Desk, Place, Samples, client_app, dealt


@contextmanager
def simulated_grid(desk: Desk, data: FederatedData, workers: int = 0) -> Iterator[Grid]:
    """A grid with one simulated node per device, numbered by `partition-id`; each has a folder for what it keeps."""
    with tempfile.TemporaryDirectory(prefix="fedfilt-") as folder:
        threads = desk.trainer.network is not None  # the native core lets threads work side by side, torch does not
        with running_grid(
            _Maker(desk, data, Path(folder)), data.count, workers or native.cores(), threads=threads
        ) as grid:
            yield grid


@contextmanager
def running_grid(
    make: Callable[[], ClientApp], count: int, workers: int = 1, app: Path | None = None, threads: bool = False
) -> Iterator[Grid]:
    """Flower's simulation of so many nodes with the app that `make` makes, in this process or in worker processes.

    Several workers are processes, or threads of this one if the app can be called by several at a time.

    `app` is the folder of a Flower app, from whose pyproject.toml the run config comes.
    """
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run = Run.create_empty(run_id=secrets.randbits(62) + 1)
    run.primary_task_id, run.federation_id = secrets.randbits(62) + 1, NOOP_FEDERATION_ID
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    state = cast(InMemoryLinkState, factory.state())
    state.run_ids[run.run_id] = RunRecord(run=run)
    state.task_store[run.primary_task_id] = Task(task_id=run.primary_task_id, run_id=run.run_id)
    nodes = vce_api._register_nodes(num_nodes=count, state_factory=factory)
    stores = vce_api._register_node_info_stores(nodes_mapping=nodes, run=run, app_dir=str(app) if app else None)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = run.primary_task_id, run.run_id, SUPERLINK_NODE_ID
    grid = InMemoryGrid(state_factory=factory)
    grid.set_run(run)
    stop, backend = threading.Event(), _Workers(make, workers, threads)
    thread = threading.Thread(
        target=vce_api.run_api, args=(make, lambda: backend, nodes, factory, stores, stop, VceMetrics()), daemon=True
    )
    thread.start()
    try:
        yield grid
    finally:
        stop.set()
        thread.join()


class _Maker:
    """Makes the devices' app; it can travel to another process."""

    def __init__(self, desk: Desk, data: FederatedData, folder: Path) -> None:
        self._desk, self._data, self._folder = desk, data, folder

    def __call__(self) -> ClientApp:
        return client_app(self._place)

    def _place(self, context: Context) -> Place:
        return Place(self._desk, self._samples, self._folder / f"device-{context.node_config['partition-id']}")

    def _samples(self, device: int) -> Samples:
        return dealt(self._data, device)


class _Workers(Backend):
    """Runs the app for one message at a time in this process, or for several in threads or worker processes."""

    def __init__(self, make: Callable[[], ClientApp], workers: int, threads: bool) -> None:
        self._make, self._count, self._threads = make, workers, threads
        self._pool: ProcessPoolExecutor | None = None

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        if self._count > 1 and not self._threads:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, spawn, _start_worker, (self._make,))
        else:
            self._app = app_fn()

    @property
    def num_workers(self) -> int:
        return self._count

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        if self._pool is None:
            return self._app(message, context), context
        return self._pool.submit(_answer, message, context).result()


_app: ClientApp | None = None


def _start_worker(make: Callable[[], ClientApp]) -> None:
    global _app
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    _app = make()


def _answer(message: Message, context: Context) -> tuple[Message, Context]:
    assert _app is not None
    return _app(message, context), context
