"""Messages between the edge server and a device: one record, with an update packed into bytes.

Every array of a Flower message is an object of its own that costs about a kilobyte, so a message has one record.
The server says which device it speaks to, about which experiment, and which of its rounds was accepted last; a device
is told its own row only. A device answers with its update, and with as much else as its owner lets it report.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedfilt._types import Array
from fedfilt._version import __version__
from fedfilt.system import blind
from fedfilt.system.orders import Job, Plan
from fedfilt.training.goal import Goal
from fedfilt.training.work import Tested

RECORD = "fedfilt"
FORMAT = 3  # 1 had no number and counted rounds from 0, 2 did not say about which experiment
WITHHELD = -1  # samples of a device that does not say how many
MOST = 1_000_000  # samples that a device with data of its own may say it has trained or was tested on
Asked = tuple[Goal, int]  # what a test is of, and how many outputs its model has
Open = Callable[[str, dict[str, bytes]], Array]  # run, fields of `fedfilt.system.blind.handed_out` -> row
TYPES = {"train": MessageType.TRAIN, "test": MessageType.EVALUATE, "who": MessageType.QUERY}


class BadMessage(ValueError):
    """An invalid message."""


class Trained(NamedTuple):
    """What a device reports after training."""

    content: bytes  # the packed update, see `fedfilt.system.wire`; or masked pieces, see `fedfilt.system.blind`
    samples: int  # or WITHHELD
    loss: float  # NaN: without samples, or not said
    seconds: float  # it trained
    lost: bool = False  # whether it no longer had what it had kept, or not sent yet
    kept: int = 0  # bytes that its client keeps


class Said(NamedTuple):
    """What a device reports about itself in every reply."""

    version: str  # of fedfilt
    ahead: float  # seconds by which its clock is ahead of the server's, NaN if it does not know


def train_order(run: str, job: Job, about: str = "", sealing: blind.Sealing | None = None) -> RecordDict:
    """The order to train: the device's own row and plan, and about which experiment (`fedfilt.system.about`).

    With `sealing` the row is a sealed one: see `fedfilt.system.blind`.
    """
    return _content(
        run,
        job.round,
        job.device,
        {
            "about": about,
            **_given(job.model, sealing),
            "accepted": job.accepted,
            "epochs": job.plan.epochs,
            "data-fraction": job.plan.data_fraction,
            "density": job.plan.density,
            "rounds": job.rounds,
        },
    )


def read_train_order(content: RecordDict, size: int, open: Open | None = None, least: int = 0) -> tuple[str, Job]:
    """(run, job) of an order to train; see `train_order`. `open` takes the masks off a row.

    With `least`, a row may have fewer than `size` values: so many, and whole arrays more; the others are 0.
    """
    record = _record(content)
    plan = Plan(
        _number(record, "epochs", 1, 10**6),
        _share(record, "data-fraction"),
        _share(record, "density"),
    )
    accepted = _number(record, "accepted", 0, 2**31)
    run, round, device = _head(record)
    if not round:
        raise BadMessage("round must be from 1, got 0")
    rounds = _number(record, "rounds", 0, 2**31) if "rounds" in record else 0
    return run, Job(round, device, _row(record, size, open, least), plan, accepted=accepted, rounds=rounds)


def train_reply(run: str, job: Job, trained: Trained, ahead: float = math.nan) -> RecordDict:
    """What a device answers to an order to train."""
    fields = {"update" if name == "content" else name: value for name, value in trained._asdict().items()}
    for name, left_out in (("loss", math.isnan(trained.loss)), ("kept", not trained.kept)):
        if left_out:
            del fields[name]
    return _answer(run, job.round, job.device, fields, ahead)


def read_train_reply(content: RecordDict, run: str, job: Job, samples: range, most_bytes: int) -> Trained:
    """What a device said, if it is an answer to exactly this order and within bounds."""
    record = _record(content)
    _check_head(record, run, job.round, job.device)
    update = _get(record, "update", bytes)
    if len(update) > most_bytes:
        raise BadMessage(f"update must be at most {most_bytes} bytes, got {len(update)}")
    trained_on = _number(record, "samples", samples[0], samples[-1])
    loss = _get(record, "loss", float) if "loss" in record else math.nan
    if "loss" in record and not math.isfinite(loss):
        raise BadMessage(f"loss must be finite, got {loss}")
    seconds = _get(record, "seconds", float)
    if not 0 <= seconds < 1e9:
        raise BadMessage(f"seconds must be from 0 to 1e9, got {seconds}")
    kept = _number(record, "kept", 0, 2**40) if "kept" in record else 0
    return Trained(update, trained_on, loss, seconds, _get(record, "lost", bool), kept)


def test_order(
    run: str,
    round: int,
    device: int,
    row: Array,
    about: str,
    sealing: blind.Sealing | None = None,  # noqa: PT028 (no test)
    accepted: int = 0,  # noqa: PT028
) -> RecordDict:
    """The order to keep a model and test it on the device's own and everybody's test; see `train_order`."""
    return _content(run, round, device, {"about": about, **_given(row, sealing), "accepted": accepted})


class Given(NamedTuple):
    """An order to take a row and to test it."""

    run: str
    round: int
    device: int
    row: Array
    accepted: int  # the last round in which this device's reply counted; 0: none


def read_test_order(content: RecordDict, size: int, open: Open | None = None, least: int = 0) -> Given:
    """An order to test; see `test_order` and `read_train_order`."""
    record = _record(content)
    run, round, device = _head(record)
    return Given(run, round, device, _row(record, size, open, least), _number(record, "accepted", 0, 2**31))


def about_of(content: RecordDict) -> str:
    """The experiment that an order is about."""
    return str(_get(_record(content), "about", str))


def test_reply(
    run: str, round: int, device: int, tests: tuple[Tested | None, Tested | None], ahead: float
) -> RecordDict:
    """What a device answers to an order to test: its own and everybody's, None where there is none to report."""
    fields: dict[str, Any] = {}
    for name, tested in zip(("local", "global"), tests, strict=True):
        if tested is not None:
            fields |= {name: _sums_bytes(tested.sums), f"{name}-loss": tested.loss}
    return _answer(run, round, device, fields, ahead)


def read_test_reply(
    content: RecordDict, run: str, round: int, device: int, asked: Asked, sizes: tuple[range | None, range | None]
) -> tuple[Tested | None, Tested | None]:
    """What a device found on its own and everybody's test, if it counts as many targets as there may be.

    `asked` are the goal and how many outputs its model has. A test of size None is not read; one that may be empty need
    not be reported.
    """
    record = _record(content)
    _check_head(record, run, round, device)
    local, everybody = (
        None if size is None or (0 in size and name not in record) else _tested(record, name, asked, size)
        for name, size in zip(("local", "global"), sizes, strict=True)
    )
    return local, everybody


def said(content: RecordDict) -> Said:
    """What a device says about itself."""
    record = _record(content)
    version, ahead = _get(record, "version", str), _get(record, "ahead", float)
    if len(version) > 40 or not version.isprintable() or math.isinf(ahead):
        raise BadMessage("version must be a short text and ahead a number of seconds")
    return Said(version, ahead)


def who_order() -> RecordDict:
    """The question which part of the data a device has; only for simulations and devices without identity."""
    return RecordDict({RECORD: ConfigRecord({})})


def who_reply(part: int) -> RecordDict:
    """The number of a device, as it says itself."""
    return RecordDict({RECORD: ConfigRecord({"device": part})})


def read_who_reply(content: RecordDict, count: int) -> int:
    """The number that a device gives itself."""
    return _number(_record(content), "device", 0, count - 1)


def addressed(kind: str, node: int, content: RecordDict, round: int, seconds: float) -> Message:
    """A message to a node, with a lifetime in seconds."""
    return Message(content, dst_node_id=node, message_type=TYPES[kind], ttl=seconds, group_id=str(round))


def _content(run: str, round: int, device: int, fields: dict[str, Any]) -> RecordDict:
    head: dict[str, Any] = {"format": FORMAT, "run": run, "round": round, "device": device}
    return RecordDict({RECORD: ConfigRecord({**head, **fields})})


def _answer(run: str, round: int, device: int, fields: dict[str, Any], ahead: float) -> RecordDict:
    return _content(run, round, device, {**fields, **Said(__version__, ahead)._asdict()})


def _given(row: Array, sealing: blind.Sealing | None) -> dict[str, bytes]:
    """The fields that give a device its row."""
    return {"row": row.astype("<f4").tobytes()} if sealing is None else blind.handed_out(row, sealing)


def _record(content: RecordDict) -> ConfigRecord:
    record = content.config_records.get(RECORD)
    if record is None or len(content) != 1:
        raise BadMessage(f"message must hold one record {RECORD!r}, got {sorted(content)}")
    return record


def _get(record: ConfigRecord, key: str, kind: type) -> Any:
    value = record.get(key)
    if type(value) is not kind:
        raise BadMessage(f"{key} must be {kind.__name__}, got {type(value).__name__}")
    return value


def _number(record: ConfigRecord, key: str, low: int, high: int) -> int:
    value: int = _get(record, key, int)
    if not low <= value <= high:
        raise BadMessage(f"{key} must be from {low} to {high}, got {value}")
    return value


def _share(record: ConfigRecord, key: str) -> float:
    value: float = _get(record, key, float)
    if not 0 <= value <= 1:
        raise BadMessage(f"{key} must be from 0 to 1, got {value}")
    return value


def _head(record: ConfigRecord) -> tuple[str, int, int]:
    if record.get("format") != FORMAT:
        raise BadMessage("message is from another version: use the same fedfilt on the edge server and all devices")
    return _get(record, "run", str), _number(record, "round", 0, 2**31), _number(record, "device", 0, 2**31)


def _check_head(record: ConfigRecord, run: str, round: int, device: int) -> None:
    """Refuse what answers another run, round or device."""
    for what, found, wanted in zip(("run", "round", "device"), _head(record), (run, round, device), strict=True):
        if found != wanted:
            raise BadMessage(f"reply must be to {what} {wanted}, got {found}")


def _row(record: ConfigRecord, size: int, open: Open | None, least: int) -> Array:
    if open is not None or "masked" in record:
        return _unmasked(record, open)
    content: bytes = _get(record, "row", bytes)
    shorter = least and 4 * least <= len(content) < 4 * size and len(content) % (4 * math.gcd(least, size)) == 0
    if len(content) != 4 * size and not shorter:
        raise BadMessage(f"row must be {size} float32 values, got {len(content)} bytes")
    row = np.zeros(size, np.float32)
    row[: len(content) // 4] = np.frombuffer(content, "<f4")
    if not np.isfinite(row).all():
        raise BadMessage("row must be finite, got NaN or infinity")
    return row


def _unmasked(record: ConfigRecord, open: Open | None) -> Array:
    fields = {name: _get(record, name, bytes) for name in ("row", "masked", "masks")}
    if open is None:
        raise BadMessage("row is masked, but this device has no group key")
    return open(_get(record, "run", str), fields)


def _sums_bytes(sums: Array) -> bytes:
    return sums.astype("<i8" if sums.dtype.kind == "i" else "<f8").tobytes()


def _tested(record: ConfigRecord, key: str, asked: Asked, size: range) -> Tested:
    content: bytes = _get(record, key, bytes)
    (goal, outputs), most = asked, f"{size[0]} to {size[-1]}" if len(size) > 1 else f"{size[-1]}"
    nothing = goal.nothing(outputs)
    if len(content) != 8 * nothing.size:
        shape = " x ".join(map(str, nothing.shape))
        raise BadMessage(f"{key} must be {shape} numbers, got {len(content)} bytes")
    kind = "<i8" if nothing.dtype.kind == "i" else "<f8"
    sums = np.frombuffer(content, kind).astype(nothing.dtype).reshape(nothing.shape)
    if (count := goal.counted(sums)) not in size:
        raise BadMessage(f"{key} must count {most} samples, got {count:g}")
    return Tested(sums, _get(record, f"{key}-loss", float))
