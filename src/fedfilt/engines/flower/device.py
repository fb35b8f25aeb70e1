"""What a device does with a message: train or test its own model, and keep on its own disk what belongs to it.

In the device's folder lie `samples.safetensors` (what it trains and is tested on), `model.safetensors` (its newest
model, for plain PyTorch) and `left-N.safetensors`: what it had not sent yet after round N. Nothing of that is final
before the server says that round N was accepted; then what belongs to other rounds is removed.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedfilt._files import write_atomically
from fedfilt._types import Array
from fedfilt.data.samples import FederatedData
from fedfilt.engines.flower import messages
from fedfilt.system.orders import Job
from fedfilt.training.rows import Layout
from fedfilt.training.work import Desk, Own, examine, work

Holdings = dict[str, Array]  # train_x, train_y, local_x, local_y (if there is a local test), global_x, global_y


def train_reply(content: RecordDict, desk: Desk, samples: Callable[[int], Holdings], folder: Path) -> RecordDict:
    """Train as ordered, and answer with the packed update; what is not sent stays on disk."""
    run, job = messages.read_train_order(content, desk.trainer.layout.size)
    holdings = samples(job.device)
    folder.mkdir(parents=True, exist_ok=True)
    keep_model(folder, job.model, desk.trainer.layout, job.round - 1)
    left, lost = _settle(folder, run, job)
    start = time.perf_counter()
    done = work(job._replace(residual=left), _own(holdings, "train"), desk)
    _keep_left(folder, run, job.round, done.residual)
    seconds = time.perf_counter() - start
    trained = messages.Trained(done.content, done.samples, done.loss, seconds, lost=lost)
    return messages.train_reply(run, job, trained)


def test_reply(content: RecordDict, desk: Desk, samples: Callable[[int], Holdings], folder: Path) -> RecordDict:
    """Keep the model that the server sent, and test it."""
    run, round, device, row = messages.read_test_order(content, desk.trainer.layout.size)
    holdings = samples(device)
    folder.mkdir(parents=True, exist_ok=True)
    keep_model(folder, row, desk.trainer.layout, round)
    local = examine(row, _own(holdings, "local"), desk) if "local_y" in holdings else None
    return messages.test_reply(run, round, device, local, examine(row, _own(holdings, "global"), desk))


def keep_model(folder: Path, row: Array, layout: Layout, round: int) -> None:
    """Keep a device's newest model, made by so many rounds, as a file that plain PyTorch can load."""
    write_atomically(folder / "model.safetensors", save(layout.tensors(row), {"round": str(round)}))


def dealt(data: FederatedData, device: int) -> Holdings:
    """The samples of a device and its tests out of everybody's."""
    if not 0 <= device < data.count:
        raise messages.BadMessage(f"device must be from 0 to {data.count - 1}, got {device}")
    rows = {"train": data.train[device], "global": data.global_test}
    if data.local_test is not None:
        rows["local"] = data.local_test[device]
    found: Holdings = {}
    for name, chosen in rows.items():
        found[f"{name}_x"], found[f"{name}_y"] = data.x[chosen], data.y[chosen]
    return found


def kept_samples(folder: Path, key: str, device: int, data: Callable[[], FederatedData]) -> Holdings:
    """The device's samples from its disk, or dealt and kept there; `key` says which partition they are of."""
    path, wanted = folder / "samples.safetensors", {"partition": key, "device": str(device)}
    try:
        with safe_open(path, "np") as file:
            if wanted.items() <= (file.metadata() or {}).items():
                return {tensor: file.get_tensor(tensor) for tensor in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError):
        pass  # not there, or damaged: dealt again
    everybody = data()
    samples = dealt(everybody, device)
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {tensor: np.ascontiguousarray(values) for tensor, values in samples.items()}
    write_atomically(path, save(contiguous, {**wanted, "classes": str(everybody.classes)}))
    return samples


def kept_kind(folder: Path, key: str) -> FederatedData | None:
    """What a model must know of the samples on disk, shape and labels, as data of one device; None if not kept."""
    try:
        with safe_open(folder / "samples.safetensors", "np") as file:
            metadata = file.metadata() or {}
            if metadata.get("partition") != key:
                return None
            x, y = file.get_tensor("global_x")[:2], file.get_tensor("global_y")[:2]
            rows = np.arange(len(y))
            return FederatedData("kept", x, y, int(metadata["classes"]), (rows,), None, rows)
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def _own(holdings: Holdings, part: str) -> Own:
    labels = holdings[f"{part}_y"]
    return Own(holdings[f"{part}_x"], labels, np.arange(len(labels)))


def _settle(folder: Path, run: str, job: Job) -> tuple[Array | None, bool]:
    """(what was not sent up to the accepted round, whether that is lost); what else is on disk is removed."""
    accepted, found = _left(folder, job.accepted), None
    for path in folder.glob("left-*.safetensors"):
        if path != accepted:
            path.unlink()
    if not job.accepted:
        accepted.unlink(missing_ok=True)
        return None, False
    try:
        with safe_open(accepted, "np") as file:
            if (file.metadata() or {}).get("run") != run:
                return None, True
            found = file.get_tensor("left") if "left" in file.keys() else None  # noqa: SIM118
    except (OSError, SafetensorError):
        return None, True
    if found is not None and (found.shape != job.model.shape or found.dtype != np.float32):
        return None, True
    return found, False


def _keep_left(folder: Path, run: str, round: int, left: Array | None) -> None:
    tensors = {"left": left} if left is not None else {"none": np.zeros(1, np.float32)}
    write_atomically(_left(folder, round), save(tensors, {"run": run}))


def _left(folder: Path, round: int) -> Path:
    return folder / f"left-{round}.safetensors"


class Workplace(NamedTuple):
    """Where a device works: how it trains, its samples by its number, its folder."""

    desk: Desk
    samples: Callable[[int], Holdings]
    folder: Path


def client_app(place: Callable[[Context], Workplace]) -> ClientApp:
    """The app of a device: it trains, tests, and says its number if it has one of its own (in a simulation)."""
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        here = place(context)
        return Message(train_reply(message.content, here.desk, here.samples, here.folder), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        here = place(context)
        return Message(test_reply(message.content, here.desk, here.samples, here.folder), reply_to=message)

    @app.query()
    def _query(message: Message, context: Context) -> Message:
        number = context.node_config.get("partition-id")
        if type(number) is not int:
            raise messages.BadMessage("this device has no number of its own (partition-id); it is known by its key")
        return Message(messages.who_reply(number), reply_to=message)

    return app
