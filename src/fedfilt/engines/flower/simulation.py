"""Flower's simulation in this process, without Ray: its own grid, nodes and queues, with our worker processes."""

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedfilt import native
from fedfilt.data import FederatedData
from fedfilt.engines.flower._compat import simulation
from fedfilt.engines.flower.device import Holdings, Workplace, client_app, dealt
from fedfilt.training.work import Desk


@contextmanager
def simulated_grid(desk: Desk, data: FederatedData, workers: int = 0, kept: Path | None = None) -> Iterator[Grid]:
    """A grid with one simulated node per device, numbered by `partition-id`; each has a folder for its data.

    The folders are in `kept`, so that a run can continue after a kill, or are removed with the grid.
    """
    with tempfile.TemporaryDirectory(prefix="fedfilt-") if kept is None else nullcontext(kept) as folder:
        threads = desk.trainer.network is not None  # the native core lets threads work side by side, torch does not
        with running_grid(
            _Maker(desk, data, Path(folder)), data.count, workers or native.cores(), threads=threads
        ) as grid:
            yield grid


@contextmanager
def running_grid(
    make: Callable[[], ClientApp], count: int, workers: int = 1, app: Path | None = None, threads: bool = False
) -> Iterator[Grid]:
    """Flower's simulation of a number of nodes with the app that `make` returns, in this process or in workers.

    Several workers are processes, or threads of this one if the app can be called by several at a time.

    `app` is the folder of a Flower app, from whose pyproject.toml the run config comes.
    """
    with simulation(make, _Workers(make, workers, threads), count, app) as grid:
        yield grid


class _Maker:
    """Makes the devices' app; it can travel to another process."""

    def __init__(self, desk: Desk, data: FederatedData, folder: Path) -> None:
        self._desk, self._data, self._folder = desk, data, folder

    def __call__(self) -> ClientApp:
        return client_app(self._place)

    def _place(self, context: Context) -> Workplace:
        number = int(context.node_config["partition-id"])
        return Workplace(self._desk.at(number), self._samples, self._folder / f"device-{number}")

    def _samples(self, device: int) -> Holdings:
        return dealt(self._data, device)


class _Workers:
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    _app = make()


def _answer(message: Message, context: Context) -> tuple[Message, Context]:
    assert _app is not None
    return _app(message, context), context
