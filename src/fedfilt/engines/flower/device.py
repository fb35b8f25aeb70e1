"""What a device does with a message: train or test its own model, and store what belongs to it on its own disk.

In the device's folder lie `model.safetensors` (its newest model, for plain PyTorch), `left-N.safetensors` (what it had
not sent yet after round N) and, if it was dealt its samples, `samples.safetensors`. Nothing of what is left is final
before the server says that round N was accepted; then what belongs to other rounds is removed. If rows are hidden from
the server, `opened.json` says of which rounds the row is that the device trained from last.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedfilt._files import write_atomically
from fedfilt._reading import read_json
from fedfilt._threads import one_thread
from fedfilt._types import Array
from fedfilt.data.own import BadData, Report
from fedfilt.data.samples import FederatedData
from fedfilt.engines.flower import messages
from fedfilt.engines.flower._compat import short
from fedfilt.system import blind
from fedfilt.system.about import differing
from fedfilt.system.orders import Job
from fedfilt.system.wire import unpack
from fedfilt.training import client as clients
from fedfilt.training.goal import all_scores
from fedfilt.training.kept import Kept, take
from fedfilt.training.sgd import Diverged
from fedfilt.training.work import Desk, Done, Own, examine, personal, work

log = logging.getLogger("fedfilt")

PARTS = ("train", "local", "everybody")
KEPT = "client."  # begins the names of what a client keeps
OPENED = "opened.json"
# All that the server is told of any row that does not open, or may not come now
REFUSED = "this device refuses the row that it was given; its log says why"


class Holdings(NamedTuple):
    """What a device trains and is tested on."""

    train: Own
    local: Own | None = None  # its own test
    everybody: Own | None = None  # everybody's test, if it was dealt one
    scaling: str = ""  # by which its inputs were scaled; kept with the model
    validation: Own | None = None  # by which it judges new models


class Workplace(NamedTuple):
    """Where a device works: how it trains, its samples by its number, its folder, and what it may report."""

    desk: Desk
    samples: Callable[[int], Holdings]
    folder: Path
    about: str = ""  # the experiment that it takes part in; "": any
    report: Report = Report()
    ahead: float = math.nan  # seconds by which its clock is ahead of the server's
    margin: float = 1.0  # by which a new model may be worse on the validation samples, as a share of them
    group: blind.Group | None = None  # what all devices have and not the server, if that is not to see its rows


def train_reply(content: RecordDict, here: Workplace) -> RecordDict:
    """Carry out a training job; reply with the packed update, or masked pieces. What is not sent stays on disk."""
    check_about(content, here.about)
    width = here.desk.width
    run, job = messages.read_train_order(content, width, _opener(here, keep=True), here.desk.least)
    holdings, folder = here.samples(job.device), here.folder
    left, lost = _settle(folder, run, job, width)
    take_model(here, holdings, (job.device, job.model, job.round - 1, left.state))
    start = time.perf_counter()
    job = job._replace(residual=left.residual, state=left.state)
    if here.group is None:
        done = work(job, holdings.train, here.desk)
    else:
        done = _masked(run, job, holdings.train, here.desk, here.group)
    _keep_left(folder, run, job.round, Left(done.residual, done.state))
    seconds = time.perf_counter() - start
    samples = min(done.samples, messages.MOST) if here.report.samples or not done.samples else messages.WITHHELD
    loss = done.loss if here.report.loss else math.nan
    trained = messages.Trained(done.content, samples, loss, seconds, lost, clients.size_of(done.state))
    return messages.train_reply(run, job, trained, here.ahead)


def test_reply(content: RecordDict, here: Workplace) -> RecordDict:
    """Accept the model that the server sent, and test it."""
    check_about(content, here.about)
    order = messages.read_test_order(content, here.desk.width, _opener(here), here.desk.least)
    run, round, device = order.run, order.round, order.device
    holdings = here.samples(device)
    left = _read_left(here.folder, run, order.accepted, here.desk.width)
    row = take_model(here, holdings, (device, order.row, round, None if left is None else left.state))
    tests = holdings.local if here.report.test else None, holdings.everybody
    own, everybody = (None if samples is None else examine(row, samples, here.desk) for samples in tests)
    return messages.test_reply(run, round, device, (own, everybody), here.ahead)


@one_thread()
def _masked(run: str, job: Job, own: Own, desk: Desk, group: blind.Group) -> Done:
    """Do a job; of the update, and of what was left of others, send the pieces of the round, masked."""
    done = work(job._replace(plan=job.plan._replace(density=1.0), residual=None), own, desk)
    sent, keep = group.cut.sent(job.round, job.plan.density), getattr(desk.sparsifier, "error_feedback", True)
    update = unpack(done.content, group.cut.size)
    update, left = blind.taken(update, job.residual, job.model, group.cut, sent, keep)
    content = blind.masked(job.model + update, group, sent, run, job.round, job.device)
    return done._replace(content=content, residual=left)


def _opener(here: Workplace, keep: bool = False) -> messages.Open | None:
    """What takes the masks off this device's row; None if the server may see it.

    With `keep`, older rows are refused from now on. That is for a row to train from: the server has saved it. One that
    is being tested may be lost in a crash of the server, which then mixes its round again.
    """
    group = here.group
    if group is None:
        return None

    def take_off(run: str, fields: dict[str, bytes]) -> Array:
        try:
            before = _opened(here.folder, group, run)
            row, newest = blind.taken_in(fields, group, run, before)
        except ValueError as error:
            log.warning("a row is refused: %s", error)
            raise messages.BadMessage(REFUSED) from None
        if keep and newest != before:
            here.folder.mkdir(parents=True, exist_ok=True)
            table = {"key": _key_name(group), "run": run, "pieces": newest}
            write_atomically(here.folder / OPENED, json.dumps(table).encode())
        return row

    return take_off


def _opened(folder: Path, group: blind.Group, run: str) -> tuple[blind.Newest, ...]:
    """The newest that this device has trained from, of every piece; ValueError if that was in another run."""
    nothing, path = (blind.Newest(),) * group.cut.count, folder / OPENED
    try:
        table = read_json(path)
        if table["key"] != _key_name(group):
            return nothing  # of another deployment
        known, found = str(table["run"]), tuple(blind.Newest(int(round), str(hash)) for round, hash in table["pieces"])
        if len(found) != len(nothing):
            raise ValueError(f"it has {len(found)} pieces")
    except FileNotFoundError:
        return nothing
    except (OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} cannot be used: {error}; without it, this device takes any row that opens") from None
    if known != run:
        raise ValueError(f"the row is of the run {short(run)}, after one of the run {short(known)}")
    return found


def _key_name(group: blind.Group) -> str:
    """Names a deployment: its group key that checks."""
    return blind.key_name(group.keys[-1]).hex()


def check_about(content: RecordDict, about: str) -> None:
    """Refuse a job that belongs to a different experiment."""
    if about and (parts := differing(about, messages.about_of(content))):
        raise messages.BadMessage(
            f"the edge server runs another experiment than this device: {', '.join(parts)} differ; write the "
            "deployment again"
        )


def said_of(error: Exception) -> str:
    """What the server may know about an error: never a file name, a label or anything else from the device's data."""
    if isinstance(error, BadData):
        return short(error.said)
    if isinstance(error, messages.BadMessage | Diverged):
        return short(str(error))
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return short(f"its disk: {error.strerror or type(error).__name__}")
    return f"the job failed ({type(error).__name__}); see the log of the device"


def take_model(here: Workplace, holdings: Holdings, given: tuple[int, Array, int, clients.Kept | None]) -> Array:
    """Keep the model to decide with after a round, unless it is worse here than the one before; see `take`.

    `given` are device, row, round, and what its client keeps. The model is the row, or what the client makes of it.
    """
    device, whole, round, state = given
    row = personal(whole, state, round, device, holdings.train, here.desk)

    def judge(row: Array) -> float:
        assert holdings.validation is not None
        goal = here.desk.trainer.goal
        score = all_scores(goal, examine(row, holdings.validation, here.desk).sums)[goal.metric.key]
        return -score if goal.metric.lower else score

    here.folder.mkdir(parents=True, exist_ok=True)
    some = holdings.validation is not None and len(holdings.validation.rows)
    model = Kept(row, round, holdings.scaling)
    take(here.folder, model, here.desk.trainer.layout, judge if some else None, here.margin)
    return row


def dealt(data: FederatedData, device: int) -> Holdings:
    """A device's samples and tests, selected from everybody's."""
    if not 0 <= device < data.count:
        raise messages.BadMessage(f"device must be from 0 to {data.count - 1}, got {device}")
    local = None if data.local_test is None else data.local_test[device]
    train, own, everybody = (
        None if rows is None else _own(data.x[rows], data.y[rows])
        for rows in (data.train[device], local, data.everybodys(device))
    )
    assert train is not None
    return Holdings(train, own, everybody)


def kept_samples(folder: Path, key: str, device: int, data: Callable[[], FederatedData]) -> Holdings:
    """The device's samples from its disk, or dealt and kept there; `key` says which partition they are of."""
    path, wanted = folder / "samples.safetensors", {"partition": key, "device": str(device)}
    try:
        return read_samples(path, wanted)
    except (OSError, SafetensorError, ValueError):
        pass  # not there, damaged, or others: dealt again
    everybody = data()
    if everybody.x.dtype.names is not None:
        raise ValueError("samples with several inputs cannot be stored on a device; train them on one machine")
    samples = dealt(everybody, device)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Array] = {}
    for name in PARTS:
        if (part := getattr(samples, name)) is not None:
            tensors |= {f"{name}_x": np.ascontiguousarray(part.x), f"{name}_y": np.ascontiguousarray(part.y)}
    write_atomically(path, save(tensors, {**wanted, "classes": str(everybody.classes)}))
    return samples


def read_samples(path: Path, wanted: Mapping[str, str] = MappingProxyType({})) -> Holdings:
    """The samples that a device was dealt, from its disk; ValueError if they are others than `wanted`."""
    with safe_open(path, "np") as file:
        if not wanted.items() <= (file.metadata() or {}).items():
            raise ValueError(f"{path} must belong to {dict(wanted)}, got {file.metadata()}")
        held = {tensor: file.get_tensor(tensor) for tensor in file.keys()}  # noqa: SIM118 (not a dict)
    try:
        parts = {part: _own(held[f"{part}_x"], held[f"{part}_y"]) for part in PARTS if f"{part}_y" in held}
        return Holdings(parts["train"], parts.get("local"), parts.get("everybody"))
    except KeyError as error:
        raise ValueError(f"{path} lacks {error}") from None


def kept_kind(folder: Path, key: str) -> FederatedData | None:
    """What a model must know of the samples on disk, shape and labels, as data of one device; None if not kept."""
    try:
        with safe_open(folder / "samples.safetensors", "np") as file:
            metadata = file.metadata() or {}
            if metadata.get("partition") != key:
                return None
            x, y = file.get_tensor("everybody_x")[:2], file.get_tensor("everybody_y")[:2]
            rows = np.arange(len(y))
            return FederatedData("kept", x, y, int(metadata["classes"]), (rows,), None, rows)
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def _own(x: Array, y: Array) -> Own:
    return Own(x, y, np.arange(len(y)))


class Left(NamedTuple):
    """What stays on a device after a round."""

    residual: Array | None = None  # what it has not sent yet
    state: clients.Kept | None = None  # what its client keeps


def _settle(folder: Path, run: str, job: Job, width: int) -> tuple[Left, bool]:
    """(what stayed here after the accepted round, whether that is lost); what else is on disk is removed."""
    accepted = _left(folder, job.accepted)
    for path in folder.glob("left-*.safetensors"):
        if path != accepted:
            path.unlink()
    if not job.accepted:
        accepted.unlink(missing_ok=True)
        return Left(), False
    found = _read_left(folder, run, job.accepted, width)
    return found or Left(), found is None


def _read_left(folder: Path, run: str, accepted: int, width: int) -> Left | None:
    """What stayed here after the accepted round; None if there is none that can be used."""
    try:
        with safe_open(_left(folder, accepted), "np") as file:
            if (file.metadata() or {}).get("run") != run:
                return None
            names = sorted(file.keys())
            residual = file.get_tensor("left") if "left" in names else None
            state = {name.removeprefix(KEPT): file.get_tensor(name) for name in names if name.startswith(KEPT)}
    except (OSError, SafetensorError):
        return None
    if residual is not None and (residual.shape != (width,) or residual.dtype != np.float32):
        return None
    return Left(residual, state or None)


def _keep_left(folder: Path, run: str, round: int, left: Left) -> None:
    tensors = {} if left.residual is None else {"left": left.residual}
    tensors |= {KEPT + name: np.array(array, order="C") for name, array in (left.state or {}).items()}
    write_atomically(_left(folder, round), save(tensors or {"none": np.zeros(1, np.float32)}, {"run": run}))


def _left(folder: Path, round: int) -> Path:
    return folder / f"left-{round}.safetensors"


def client_app(place: Callable[[Context], Workplace]) -> ClientApp:
    """The app of a device: it trains, tests, and says its number if it has one of its own (in a simulation)."""
    app = ClientApp()

    def answer(work: Callable[[RecordDict, Workplace], RecordDict], message: Message, context: Context) -> Message:
        try:
            return Message(work(message.content, place(context)), reply_to=message)
        except Exception as error:
            log.warning("a job could not be carried out: %s", error or type(error).__name__)
            raise ValueError(said_of(error)) from None  # Flower tells the server what is raised

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        return answer(train_reply, message, context)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        return answer(test_reply, message, context)

    @app.query()
    def _query(message: Message, context: Context) -> Message:
        number = context.node_config.get("partition-id")
        if type(number) is not int:
            raise messages.BadMessage("this device has no number (partition-id); it is identified by its key")
        return Message(messages.who_reply(number), reply_to=message)

    return app
