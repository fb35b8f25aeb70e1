"""Fuzzing of every reader of bytes from outside: what it may raise, how long it may take, how much memory.

A target gives some bytes to a reader in a folder of its own. It may raise ValueError, nothing else: no other exception,
no more than SECONDS of CPU, no more than MEMORY on top of what the process has. tests/test_fuzz.py replays the corpus
in tests/corpus/TARGET and tries some changes of it. This file as a program searches for longer, guided by coverage if
atheris is installed (pip install atheris), and keeps what it finds:

    python tests/fuzz.py                         all targets, a minute each
    python tests/fuzz.py wire messages -m 10     ten minutes each
    python tests/fuzz.py --seeds                 write the valid inputs with which a search begins

Each finding is one place in the code; its input goes to tests/corpus/TARGET/found-NAME. `--keep N` adds N small inputs
that reach code which no other did, and `--out FILE` a line of figures per target.
"""

import argparse
import contextlib
import copy
import gc
import hashlib
import io
import json
import logging
import os
import pickle
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import tomllib
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others reserve more than we allow
os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
SECONDS = 5.0  # of CPU for an input
MEMORY = 256 << 20  # bytes for an input, on top of what the process has
MOST, SMALL = 20_000, 1000  # bytes of an input, and of one that is worth keeping
SEARCHED = ["fedfilt", "tomllib"]  # packages whose branches guide the search


def instrumented() -> Any:
    """Imports within this are watched by atheris, if this process is to search."""
    if __name__ != "__main__" or "atheris" not in sys.modules:
        return contextlib.nullcontext()
    return sys.modules["atheris"].instrument_imports(include=SEARCHED)


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import atheris

with instrumented():
    import numpy as np
    import tomli_w
    from flwr.app import ConfigRecord, RecordDict
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
    from safetensors import SafetensorError
    from safetensors.numpy import save as save_tensors

    from fedfilt._reading import json_of
    from fedfilt.data import _idx, _pickles, own, windows
    from fedfilt.data._tables import read_rows, read_samples
    from fedfilt.engines.flower import device as worker
    from fedfilt.engines.flower import identity, messages
    from fedfilt.export import c as c_format
    from fedfilt.export._models import models_in
    from fedfilt.flower import device as resident
    from fedfilt.flower import home as living
    from fedfilt.flower.deploy import superlink
    from fedfilt.flower.deploy.address import Site
    from fedfilt.flower.deploy.home_toml import settings
    from fedfilt.graph import Graph
    from fedfilt.graph.building import Building
    from fedfilt.graph.serial import graph_json, graph_of
    from fedfilt.home import records as home_records
    from fedfilt.home import topics
    from fedfilt.home.bus import Memory
    from fedfilt.home.clock import Clock
    from fedfilt.home.edge import Edge
    from fedfilt.home.outbox import Outbox
    from fedfilt.home.readings import Complaints
    from fedfilt.rounds.participation import read_trace
    from fedfilt.rounds.types import State
    from fedfilt.runs import advice, checkpoint, config, tuning
    from fedfilt.runs.lines import read_lines
    from fedfilt.runs.numbers import numbers
    from fedfilt.runs.records import Records
    from fedfilt.sources import csv as csv_source
    from fedfilt.sources import mqtt as mqtt_source
    from fedfilt.system import blind, wire
    from fedfilt.system.orders import Job, Plan
    from fedfilt.training import kept
    from fedfilt.training.goal import Goal
    from fedfilt.training.rows import Layout
    from fedfilt.training.work import Tested

SIZE, CLASSES, LABELS = 24, 3, ("rest", "walk", "vacuuming")
LAYOUT = Layout.of({"weight": (5, 4), "bias": (4,)})
MAKING = own.Making(shape=(2, 4), labels=LABELS, rate=10.0)
ROW = np.linspace(-1, 1, SIZE).astype(np.float32)
CUT = blind.Cut(0, SIZE, 3)
GROUP = blind.Group((bytes(32),), CUT, blind.hashes(ROW, CUT))


# --- bytes with several files in them -----------------------------------------------------------------------------


def folder_of(files: dict[str, bytes]) -> bytes:
    """Some files as one input."""
    return b"".join(b"\n=== %s\n%s" % (name.encode(), content) for name, content in files.items())


def files_of(content: bytes) -> dict[str, bytes]:
    """The files of such an input; what stands before the first has no name."""
    found = {}
    for part in (b"\n" + content).split(b"\n=== ")[1:]:
        name, _, inner = part.partition(b"\n")
        found[name.decode("ascii", "replace")] = inner
    return found


def put(content: bytes, folder: Path, allowed: Iterable[str]) -> None:
    """Write the files of an input that are allowed into a folder; others are removed."""
    files = files_of(content)
    for name in allowed:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in files:
            path.write_bytes(files[name])
        else:
            path.unlink(missing_ok=True)


def written(content: bytes, folder: Path, name: str) -> Path:
    """A file with some content."""
    (folder / name).write_bytes(content)
    return folder / name


@contextlib.contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """One of several readers that get the same input: that it refuses it should not keep it from the next."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, (ValueError, *kinds)) or _out_of_memory(error):
            raise


# --- the readers --------------------------------------------------------------------------------------------------


def read_wire(content: bytes, folder: Path) -> None:
    for size in (SIZE, 1, 4096):
        with refusing():
            assert wire.unpack(content, size).shape == (size,)
        with refusing():
            assert wire.unpack(content, 4 * size, least=size).shape == (4 * size,)


def read_messages(content: bytes, folder: Path) -> None:
    try:
        message = recorddict_from_proto(ProtoRecordDict.FromString(content))
    except Exception:  # Flower's own reader and protobuf raise what they like; ours begins below
        return
    with refusing():
        _, job = messages.read_train_order(message, SIZE, lambda run, fields: blind.taken_in(fields, GROUP, run)[0])
        assert job.model.shape == (SIZE,)
        assert np.isfinite(job.model).all()
        assert 0 <= job.plan.density <= 1
        assert job.round > 0
    with refusing():
        _, job = messages.read_train_order(message, 4 * SIZE, least=SIZE)
        assert job.model.shape == (4 * SIZE,)
    job = Job(3, 1, ROW, Plan())
    with refusing():
        trained = messages.read_train_reply(message, "run", job, range(-1, 100), 1000)
        assert len(trained.content) <= 1000
        assert trained.samples in range(-1, 100)
        for density in (0.4, 1.0):
            with refusing():
                blind.sealed(trained.content, GROUP.cut, GROUP.cut.sent(3, density), 3, 1)
        wire.unpack(trained.content, SIZE)
    with refusing():
        messages.read_test_order(message, SIZE)
    for sizes in ((range(10, 11), range(0, 50)), (None, range(5))):
        with refusing():
            tests = messages.read_test_reply(message, "run", 3, 1, (Goal(), CLASSES), sizes)
            assert all(one is None or one.sums.shape == (CLASSES, CLASSES) for one in tests)
    for read in (messages.about_of, messages.said, partial(messages.read_who_reply, count=4)):
        with refusing():
            read(message)
    with refusing():
        worker.check_about(message, "model=c73d77c2 seed=5feceb66")


def read_checkpoint(content: bytes, folder: Path) -> None:
    first = State(0, np.zeros((4, SIZE), np.float32), np.zeros((4, SIZE), np.float32), np.zeros(4, np.int64))
    for one in (content, _sealed(content)):
        path = written(one, folder, "state.safetensors")
        with refusing():
            state, _ = checkpoint.load_state(path, ["hash"], first)
            assert state.models.shape == (4, SIZE)
            assert state.round >= 0


def _sealed(content: bytes) -> bytes:
    """A checkpoint with the sha256 that it should have, so that what is behind that check is reached too."""
    try:
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        metadata, tensors = header["__metadata__"], checkpoint.load(content)
        state = State(int(metadata["round"]), *map(tensors.get, ("models", "residuals", "accepted")))  # type: ignore[arg-type]
        state = state._replace(clients=checkpoint._clients(tensors))
        metadata["sha256"] = checkpoint._state_hash(state, metadata)
    except Exception:  # so damaged that it has no sha256: it is tried as it is
        return content
    new = json.dumps(header).encode()
    return struct.pack("<Q", len(new)) + new + content[8 + size :]


def read_safetensors(content: bytes, folder: Path) -> None:
    path = written(content, folder, "model.safetensors")
    with refusing():
        assert kept.read(path, LAYOUT).row.shape == (SIZE,)
    with refusing():
        read_samples(path)
    written(content, folder, "samples.safetensors")
    with refusing(SafetensorError):
        worker.read_samples(folder / "samples.safetensors")
    worker.kept_kind(folder, "key")
    written(content, folder, "left-3.safetensors")
    left, _ = worker._settle(folder, "run", Job(4, 1, ROW, Plan(), accepted=3), SIZE)
    assert left.residual is None or left.residual.shape == ROW.shape


def read_opened(content: bytes, folder: Path) -> None:
    """Of which rounds the row is that a device has trained from last."""
    written(content, folder, worker.OPENED)
    assert len(worker._opened(folder, GROUP, "run")) == CUT.count


RUN = ("config.toml", "metrics.jsonl", "environment.json", "result.json", "partition.json", "graph.json")


def read_run(content: bytes, folder: Path) -> None:
    """All that is asked of the folder of a stranger's run."""
    put(content, folder, RUN)
    with refusing(UnicodeDecodeError):
        read_lines(folder)
    run = Records(folder)  # never fails for what it finds
    assert run.status in ("waiting", "stopped", "finished")
    assert isinstance(run.notes, list)
    last = run.rounds[-1]["round"] if run.rounds else 1
    assert isinstance(run.planned + run.seed + run.count, int)
    assert run.rule is not None
    run.moment(), run.moment(last), run.line(), run.columns(last), run.spent("joules")
    run.weights(), run.weights(last), run.accuracies("local"), run.accuracies("global", last)
    assert all(len(number.key) < 1000 and np.isfinite(number.value) for number in numbers(run))
    config.current(run.config)


EXPORTED = ("config.toml", "partition.json", "models/device-000.safetensors", "device.toml", "state/model.safetensors")


def read_exported(content: bytes, folder: Path) -> None:
    """The models in the folder of a stranger's run or device, as they are exported."""
    put(content, folder, EXPORTED)
    for models in models_in(folder):
        assert c_format.content(models.read(next(iter(models.files)))).isascii()


def read_config(content: bytes, folder: Path) -> None:
    """An experiment without code of its own, which would be run."""
    try:
        table = tomllib.loads(content.decode())
    except (ValueError, RecursionError):
        table = {}
    config.current(table)
    if b":" not in content:
        found = config.load(written(content, folder, "experiment.toml"))
        assert config.from_table(tomllib.loads(found.toml())).hash() == found.hash()


def read_graph(content: bytes, folder: Path) -> None:
    graph = graph_of(json_of(content))
    again = graph_of(json_of((graph_json(graph) or "").encode()))
    assert again.count == graph.count
    assert again.hash == graph.hash


def read_choosing(content: bytes, folder: Path) -> None:
    written(content, folder, advice.FILE)
    told = advice.kept(folder)
    assert told is None or all(isinstance(one, str) for one in [*told["sentences"], *told["measured"].values()])
    written(content, folder, tuning.FILE)
    found = tuning.Tuned.of(folder)
    assert found.rules.keys() == {rule for rule in found.rules if found.settings(rule) is not None}
    assert repr(found)


def read_building(content: bytes, folder: Path) -> None:
    for name in ("building.csv", "building.toml"):
        with refusing():
            building = Building.from_table(written(content, folder, name))
            assert building.positions.shape == (building.count, 3)
            assert np.isfinite(building.positions).all()


def read_trace_of_devices(content: bytes, folder: Path) -> None:
    """When devices are available."""
    trace = read_trace(written(content, folder, "trace.csv"), 4)
    for round in (1, 2, 2**40):
        assert trace.available(round).shape == (4,)


HOME = ("state.json", "decisions.jsonl", "devices.jsonl", "corrections.jsonl", "waiting.json")


def read_home(content: bytes, folder: Path) -> None:
    """The folder of a home's edge server."""
    put(content, folder, HOME)
    home = home_records.Home(folder)
    home.refresh()
    for lines in (home._decisions, home._changes, home._corrections):
        assert len(lines.found) <= home_records.KEPT
        assert isinstance(lines.notes, list)
    Outbox(LABELS, folder / "waiting.json")


@cache
def _edge() -> tuple[Edge, Any]:
    bus = Memory()
    devices = {"lamp": "hall", "watch": "hall"}
    return Edge(bus.member(), Clock(), topics.Topics("villa"), LABELS, devices, home_assistant=True), bus.member()


def read_told(content: bytes, folder: Path) -> None:
    """Whatever comes on the topics of a home, and on those of a source."""
    for read in (
        partial(topics.decision, labels=CLASSES),
        topics.status,
        partial(topics.correction, labels=LABELS),
        topics.room_state,
    ):
        with refusing():
            read(content)
    edge, bus = _edge()
    for topic in ("devices/lamp/decision", "devices/lamp/status", "devices/watch/kept", "rooms/hall/label"):
        with refusing():
            bus.publish(f"fedfilt/villa/{topic}", content)
    edge.step()
    for source in _sources():
        decode = mqtt_source._Decoder(source, source.places(("x", "y")))
        for when, found in decode(0.0, "sensor", content, Complaints("fuzz")):
            assert isinstance(when, float)
            assert set(found) <= {0, 1}


@cache
def _sources() -> list[Any]:
    made = [mqtt_source.Mqtt(topic="sensor", channels=("a.x", "b.1")), mqtt_source.Mqtt(channels=("sensor",))]
    with contextlib.suppress(ImportError):
        import cbor2  # noqa: F401

        made.append(mqtt_source.Mqtt(topic="sensor", channels=("a.x", "b.1"), format="cbor"))
    return made


def read_idx(content: bytes, folder: Path) -> None:
    for name in ("some-idx", "some-idx.gz"):
        with refusing(OSError, EOFError):  # gzip's
            _idx.read_idx(written(content, folder, name))


FRAMES = ("pandas.core.frame DataFrame", "pandas.core.internals BlockManager", "__builtin__ slice")


def read_pickles(content: bytes, folder: Path) -> None:
    with refusing():
        _pickles.read_arrays(io.BytesIO(content), "a pickle")
    with refusing():
        _pickles.read_npy_dict(content, "a file")
    with refusing():
        _pickles.frame_columns(_pickles.read_arrays(io.BytesIO(content), "a pickle", FRAMES), ("a", "b"), "a pickle")


DATA = ("own.toml", "state/seen.json", "data/a.npz", "data/b.csv", "data/c.parquet")


def read_own(content: bytes, folder: Path) -> None:
    """A device's own data, file by file and as a whole."""
    (folder / "data").mkdir(exist_ok=True)
    files = files_of(content)
    for name in [name for name in files if name in DATA]:
        path = written(files[name], folder, "alone" + Path(name).suffix)
        with refusing():
            read_samples(path) if path.suffix == ".npz" else read_rows(path, "time", "label", ())
    own._reader = lambda *_: None  # type: ignore[assignment]  # the owner's own code is trusted
    put(content, folder, DATA)
    own.TRIES = 1
    with refusing():
        held = own.read(folder, MAKING)
        assert held.train_x.shape[1:] == MAKING.shape
        assert len(held.train_x) == len(held.train_y)
    for read in (windows.Scaling.from_json, windows.Seen.from_json):
        with refusing():
            read(files.get("state/seen.json", b"").decode())


SETTINGS = ("deployment.toml", "device.toml", "home.toml", "own.toml")


def read_settings(content: bytes, folder: Path) -> None:
    """The files that `deploy write` and `home write` make, and the owner's own."""
    put(content, folder, SETTINGS)
    with refusing():
        own.owner(folder)
    if (folder / "home.toml").exists():
        with refusing():
            living.clock_of(settings(folder))
    device = files_of(content).get("device.toml", b":").replace(b"127.0.0.1:1", b"")
    if b":" not in device and not re.search(rb"[\d_eE+]{5}", device):  # no code of its own, no model of any size
        with refusing():
            resident.Device.read(folder)
    with refusing(
        KeyError, TypeError, AttributeError, RecursionError
    ):  # of files on the edge server's own disk, each said as it is
        table = tomllib.loads(
            (folder / "deployment.toml").read_text() if "deployment.toml" in files_of(content) else ""
        )
        Site.read(table)
        identity.registered(table)


MOST_REQUEST = 1000


def read_request(content: bytes, folder: Path) -> None:
    """A request to the SuperLink from another machine: what passes is of the Fleet API, and small."""
    first, *rest = content.split(b"\n")
    headers = [(name.lower(), value) for name, colon, value in (line.partition(b":") for line in rest) if colon]
    scope = {
        "type": "http",
        "path": first.decode("latin1"),
        "headers": headers,
        "client": ("10.0.0.7", 5000),
        "server": ("10.0.0.1", 9092),
    }
    passed, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope)

    async def send(message: Any) -> None:
        sent.append(message)

    coroutine = superlink.Guard(app, MOST_REQUEST)(scope, None, send)  # type: ignore[arg-type]
    try:
        with contextlib.suppress(StopIteration):
            coroutine.send(None)
    except ValueError as error:
        raise AssertionError("it must answer") from error
    assert bool(passed) != bool(sent)
    if passed:
        said = [int(value) for name, value in headers if name == b"content-length"]
        assert first.startswith(b"/v1/fleet/")
        assert max(said, default=0) <= MOST_REQUEST
        assert b"transfer-encoding" not in dict(headers)


def read_csv_source(content: bytes, folder: Path) -> None:
    """A file that another program appends to."""
    path, stop = written(content, folder, "now.csv"), threading.Event()
    with path.open("rb") as file, refusing(csv_source.csv.Error):
        gone = path.with_suffix(".new")
        gone.write_bytes(b"")
        gone.replace(path)  # so that reading ends with the file
        source = csv_source.Csv(str(path), whole=True)
        for reading in source._rows(file, MAKING, Complaints("fuzz"), stop, True):
            assert reading.values.ndim == 1


# --- valid inputs -------------------------------------------------------------------------------------------------


def seeds_wire() -> Iterable[bytes]:
    for places in (None, np.array([3, 4]), np.arange(0, SIZE, 2), np.array([], int)):
        for half in (False, True):
            yield wire.pack(ROW, places, half)


def _message(content: RecordDict) -> bytes:
    return recorddict_to_proto(content).SerializeToString()


def seeds_messages() -> Iterable[bytes]:
    job = Job(3, 1, ROW, Plan(2, 0.5, 0.25), accepted=2)
    yield _message(messages.train_order("run", job, "model=c73d77c2 seed=5feceb66"))
    yield _message(messages.train_reply("run", job, messages.Trained(wire.pack(ROW), 20, 0.5, 0.1), 0.25))
    yield _message(messages.test_order("run", 3, 1, ROW, "seed=5feceb66"))
    tested = Tested(np.diag([4, 3, 3]), 0.5)
    yield _message(messages.test_reply("run", 3, 1, (tested, tested), 0.0))
    yield _message(messages.test_reply("run", 3, 1, (None, None), 0.0))
    yield _message(messages.who_reply(2))
    yield _message(messages.who_order())
    cut, some = GROUP.cut, GROUP.cut.sent(3, 0.7)
    content = blind.masked(ROW, GROUP, some, "run", 3, 1)
    yield _message(messages.train_reply("run", job, messages.Trained(content, 20, 0.5, 0.1), 0.25))
    row = blind.sealed(content, cut, some, 3, 1)
    for piece in some:
        place = cut.places[piece]
        row[place] = blind.mixed_sealed(np.array([[1 << blind.WEIGHT_BITS]]), row[None, place])[0]
    for given in (row, np.zeros_like(row)):
        yield _message(messages.train_order("run", job._replace(model=given), "", blind.Sealing(cut, ROW)))


def seeds_checkpoint() -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        for rows, more in ((4, True), (2, True), (4, False)):
            residuals = np.ones((rows, SIZE), np.float32) if more else None
            accepted = np.arange(rows) if more else None
            checkpoint.save_state(path, State(7, np.tile(ROW, (rows, 1)), residuals, accepted), "hash")
            yield path.read_bytes()


def seeds_safetensors() -> Iterable[bytes]:
    yield save_tensors(LAYOUT.tensors(ROW), {"round": "7", "scaling": "{}"})
    yield save_tensors({"left": ROW}, {"run": "run"})
    yield save_tensors({"left": ROW, "client.personal": ROW}, {"run": "run"})
    x, y = np.zeros((4, 2, 4), np.float32), np.arange(4) % CLASSES
    parts = {f"{part}_{what}": values for part in worker.PARTS for what, values in (("x", x), ("y", y))}
    yield save_tensors(parts, {"partition": "key", "device": "1", "classes": "3"})
    yield save_tensors({"x": x, "y": y, "part": y})


def seeds_opened() -> Iterable[bytes]:
    newest = [(0, ""), (3, blind.hashes(ROW, CUT)[1]), (2, blind.hashes(ROW, CUT)[2])]
    for key in (GROUP.keys[0], bytes(range(32))):
        yield json.dumps({"key": blind.key_name(key).hex(), "run": "run", "pieces": newest}).encode()
    yield b'{"key": "", "run": "run", "pieces": [[1e999, null], {}]}'


EXPERIMENT = """
seed = 3
rounds = 4
data = "digits"
[graph]
name = "rooms"
rooms = 2
devices = 4
[model]
name = "mlp"
hidden = 8
[aggregator]
name = "gfedfilt"
filter = { name = "tikhonov", mu = 2.0 }
[scheduler]
name = "same_deadline"
[late]
policy = "deadline"
[kinds]
mix = "trunk"
[[events]]
round = 2
offline = [1]
until = 3
[[events]]
round = 3
leave = 2
"""


def _line(number: int) -> dict[str, Any]:
    test = {"mean": 0.5, "std": 0.1, "worst": 0.2, "worst_device": 1, "devices": [0.5, 0.2, None, 0.8]}
    column = [0.5, 0.25, 0.0, 0.5]
    devices = {"compute_seconds": column, "epochs": [1, 1, 0, 1], "samples": [20, 20, 0, 20], "data_fraction": column}
    return {
        "round": number,
        "seconds": 0.1,
        "loss": 0.7,
        "samples": 60,
        "time": {"latency": 1.5, "joules": 2.0, "late": [3], "devices": devices | {"outcome": ["", "", "offline", ""]}},
        "events": [{"what": "offline", "device": 1, "until": 3}, "device 2 leaves"],
        "away": [2],
        "absent": {"0": "refused: update must be finite"},
        "mixed": {"local": test | {"confusion": [[1, 0], [0, 1]]}, "global": test},
        "trained": {"local": test},
    }


def seeds_run() -> Iterable[bytes]:
    graph = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)], [1.0, 0.5, 2.0], rooms=["a", "a", "b", "b"])
    lines = b"".join(json.dumps(_line(number)).encode() + b"\n" for number in (1, 2, 4))
    files = {
        "config.toml": EXPERIMENT.encode(),
        "metrics.jsonl": lines,
        "environment.json": b'{"fedfilt": "0.1.0", "seed": 3}',
        "result.json": b'{"local": {"last": {"round": 4, "mean": 0.5}}}',
        "partition.json": b'{"label_counts": [[5, 0], [0, 5], [2, 3], [1, 4]]}',
        "graph.json": (graph_json(graph) or "").encode(),
    }
    yield folder_of(files)
    for missing in ("graph.json", "partition.json", "result.json", "config.toml"):
        yield folder_of({name: content for name, content in files.items() if name != missing})


def seeds_exported() -> Iterable[bytes]:
    layout = Layout.of({"1.weight": (2, 4), "1.bias": (2,), "3.weight": (3, 2), "3.bias": (3,)})
    row = np.linspace(-1, 1, layout.size).astype(np.float32)
    model = {"name": "mlp", "hidden": 2}
    partition = {"shape": [2, 2], "dtype": "uint8"}
    files = {
        "config.toml": tomli_w.dumps({"data": "digits", "model": model}).encode(),
        "partition.json": json.dumps(partition).encode(),
        "models/device-000.safetensors": save_tensors(layout.tensors(row)),
    }
    yield folder_of(files)
    experiment = {"data": {"name": "own", "shape": [2, 2], "labels": list(LABELS)}, "model": model, "training": {}}
    scaling = windows.Scaling(np.array([1.0, 2.0]), np.array([1.0, 3.0]), 3.0).to_json()
    files = {
        "device.toml": tomli_w.dumps({"name": "kitchen", "experiment": experiment}).encode(),
        "state/model.safetensors": save_tensors(layout.tensors(row), {"round": "7", "scaling": scaling}),
    }
    yield folder_of(files)


def seeds_config() -> Iterable[bytes]:
    yield EXPERIMENT.encode()
    yield config.load(None).toml().encode()
    yield b'data = "mnist"\n[graph]\nname = "distance"\nreach = 6.0\nk = 4\n[devices]\nname = "everyday"\n'


def seeds_graph() -> Iterable[bytes]:
    for graph in (
        Graph.from_edges(4, [(0, 1), (1, 2)], [1.0, 0.5], rooms=[0, 0, 1, 1]),
        Building.generate(2, 9, seed=1).graph(8.0),
        Graph.from_edges(1, []),
    ):
        yield (graph_json(graph) or "").encode()


def seeds_choosing() -> Iterable[bytes]:
    links = {"links": 3, "linked": 0.2, "unlinked": 0.1, "chance": 0.01, "neighbours": 0.5, "everyone": 0.4, "own": 0.3}
    told = {
        "sentences": ["It helps."],
        "halves": 0.5,
        "labels": 0.1,
        "given": links,
        "found": None,
        "clusters": [[0, 1]],
    }
    yield json.dumps(told).encode()
    tried = {"settings": {"training.learning_rate": 0.1}, "validation": 0.9, "loss": 0.3, "why": ""}
    failed = {"settings": {"training.learning_rate": 9.0}, "validation": None, "loss": None, "why": "it diverged"}
    found = {"rules": {"fedavg": [tried, failed]}, "metric": "accuracy", "lower": False, "seeds": [100]}
    yield json.dumps({**found, "budget": 2, "experiment": {"rounds": 5}}).encode()


def seeds_building() -> Iterable[bytes]:
    yield b"device,room,x,y,z\nlamp,hall,1,2,0.5\nwatch,kitchen,3,4,1\n"
    yield (
        b'[[rooms]]\nname = "hall"\norigin = [0, 0, 0]\nsize = [4, 4, 3]\n'
        b'[[devices]]\nname = "lamp"\nroom = "hall"\nposition = [1, 2, 0.5]\n'
    )


def seeds_trace() -> Iterable[bytes]:
    yield b"device,round\n0,1\n3,2\n"
    yield b"\xef\xbb\xbfdevice,from,until\n0,1,5\n\n1,2,\n"


def seeds_home() -> Iterable[bytes]:
    room = {
        "at": 1.7e9,
        "activity": "rest",
        "confidence": 0.8,
        "probabilities": {"rest": 0.8, "walk": 0.2},
        "devices": 1,
    }
    known = {"online": True, "room": "hall", "round": 3, "accuracy": 0.9, "battery": 0.5}
    says = {"lamp": {"label": "rest", "share": 0.8, "at": 1.7e9}}
    state = {
        "at": 1.7e9,
        "home": "villa",
        "labels": list(LABELS),
        "fresh_seconds": 10.0,
        "rooms": {"hall": room | {"says": says}, "kitchen": {"says": {}}},
        "devices": {"lamp": known | {"seen": 1.7e9}, "watch": {"online": False}},
        "received": 12,
        "dropped": {"bad message": 2},
    }
    said = {"label": "rest", "begin": 1.7e9, "end": 1.7e9 + 60}
    lines = {
        "state.json": state,
        "decisions.jsonl": room | {"room": "hall"},
        "devices.jsonl": known | {"at": 1.7e9, "device": "lamp"},
        "corrections.jsonl": said | {"at": 1.7e9, "room": "hall", "devices": ["lamp"], "said": "walk"},
        "waiting.json": {"lamp": [said]},
    }
    yield folder_of({name: json.dumps(table).encode() + b"\n" for name, table in lines.items()})


def seeds_told() -> Iterable[bytes]:
    yield topics.written(topics.Decision(1.7e9, 3, (0.5, 0.25, 0.25)))
    yield topics.written(topics.Status(True, "hall", 3, 0.9, 0.5))
    yield topics.written(topics.Correction("rest", 1.7e9, 1.7e9 + 60))
    yield topics.written(topics.RoomState(1.7e9, "rest", 0.8, {"rest": 0.8, "walk": 0.2}, 2))
    yield b"vacuuming"
    yield b'{"label": "walk", "seconds": 60}'
    yield b'{"a": {"x": 1.5}, "b": [2, "ON"], "time": "2026-01-01T00:00:00Z"}'
    yield b'[{"a": {"x": 1}, "time": 1700000000123}, {"b": [0, 1]}]'
    yield bytes.fromhex("a26161a161780161628201f5")  # CBOR: {"a": {"x": 1}, "b": [1, true]}


def seeds_idx() -> Iterable[bytes]:
    yield b"\0\0\x08\x03" + struct.pack(">3I", 2, 2, 2) + bytes(range(8))
    yield b"\0\0\x0d\x01" + struct.pack(">I", 2) + struct.pack(">2f", 1.5, 2.5)
    import gzip

    yield gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 3) + b"abc", mtime=0)


class _Frame:
    """Pickles as pandas 0.14 did."""

    def __init__(self, name: str, arguments: Any, state: Any = None) -> None:
        self.name, self.arguments, self.state = name, arguments, state


def seeds_pickles() -> Iterable[bytes]:
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": [1, 2.5, "text", None, True, (b"raw",)]}
    for protocol in (0, 2, 4):
        yield pickle.dumps(arrays, protocol=protocol)
    file = io.BytesIO()
    np.save(file, np.array({"data": np.arange(4)}, dtype=object), allow_pickle=True)
    yield file.getvalue()
    blocks = [{"mgr_locs": slice(0, 2, 1), "values": np.zeros((2, 3))}]
    yield pickle.dumps({"axes": [["a", "b"]], "blocks": blocks}, protocol=2)


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def seeds_own() -> Iterable[bytes]:
    rows = [f"{n / 10},{n % 7},{n % 3},{LABELS[n // 20 % 3]}" for n in range(60)]
    table = "\n".join(["time,left,right,label", *rows]).encode() + b"\n"
    x, y = np.zeros((6, 2, 4), np.float32), np.arange(6) % CLASSES
    settings = b'time = "time"\n[report]\nloss = false\n[decide]\nhop = 2\n[source]\nname = "csv"\nfile = "now.csv"\n'
    seen = b'{"windows": 5, "mean": [0.5, 1.0], "square": [1.0, 2.0]}'
    npz = _npz(x=x, y=y, part=y)
    yield folder_of({"own.toml": settings, "data/b.csv": table})
    yield folder_of({"state/seen.json": seen, "data/a.npz": npz})
    yield folder_of({"data/a.npz": _npz(x=x, y=np.array(LABELS)[y])})
    with contextlib.suppress(ImportError):
        import pyarrow
        from pyarrow import parquet

        columns = {"time": np.arange(12) / 10, "left": np.zeros(12), "right": np.ones(12), "label": ["rest"] * 12}
        file = io.BytesIO()
        parquet.write_table(pyarrow.table(columns), file)
        yield folder_of({"data/c.parquet": file.getvalue()})


def seeds_settings() -> Iterable[bytes]:
    key = "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBA=="
    deployment = {
        "most_bytes": 1000,
        "site": {
            "where": "127.0.0.1:1",
            "authentication": True,
            "insist": False,
            "place": "/srv",
            "program": "fedfilt",
        },
        "device": [{"name": "lamp", "public_key": key}, {"name": "watch", "gone": True}],
        "change": [{"device": "watch", "what": "leave"}],
    }
    known = {
        "seed": 0,
        "data": {"name": "own", "shape": [2, 4], "labels": list(LABELS)},
        "model": {"name": "mlp", "hidden": 4},
        "training": {"learning_rate": 0.1},
        "sparsifier": {"name": "top_k"},
    }
    device = {"name": "lamp", "number": 0, "address": "127.0.0.1:1", "authentication": False, "experiment": known}
    home = {
        "home": "villa",
        "broker": "127.0.0.1:1",
        "tls": False,
        "labels": list(LABELS),
        "devices": {"lamp": "hall"},
        "clock": {"speed": 500.0, "origin": 1.7e9},
    }
    tables = {"deployment.toml": deployment, "device.toml": device, "home.toml": home}
    yield folder_of({name: tomli_w.dumps(table).encode() for name, table in tables.items()})
    yield folder_of({"own.toml": b'data = "data"\n[report]\nloss = false\n[decide]\nhop = 2\n[source]\nname = "csv"\n'})


def seeds_request() -> Iterable[bytes]:
    yield b"/v1/fleet/pull\ncontent-length:100\ncontent-type:application/x-protobuf\n"
    yield b"/v1/control/start\ncontent-length:0\n"
    yield b"/v1/fleet/push\ntransfer-encoding:chunked\n"


def seeds_csv_source() -> Iterable[bytes]:
    yield b"time,left,right\n1,2,3\n2026-01-01T00:00:00Z,4,\n"
    yield b'\xef\xbb\xbf"time" , left,right,label\r\n1.5,2,"3",rest\r\n'


# --- changing inputs ----------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """What an input is made of: it can be taken apart into a tree and put together again."""

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


def _read_safetensors(content: bytes) -> Any:
    (size,) = struct.unpack("<Q", content[:8])
    return {"header": json.loads(content[8 : 8 + size]), "rest": content[8 + size :]}


def _write_safetensors(tree: Any) -> bytes:
    header = json.dumps(tree["header"]).encode()
    return struct.pack("<Q", len(header)) + header + tree["rest"]


def _read_npz(content: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _write_npz(tree: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, inner in tree.items():
            archive.writestr(str(name), inner)
    return file.getvalue()


def _read_lines(content: bytes) -> Any:
    return [json.loads(line) for line in content.splitlines()]


def _write_lines(tree: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in tree)


def _read_message(content: bytes) -> Any:
    return dict(recorddict_from_proto(ProtoRecordDict.FromString(content)).config_records[messages.RECORD])


JSON = Form(json.loads, lambda tree: json.dumps(tree).encode())
TOML = Form(lambda content: tomllib.loads(content.decode()), lambda tree: tomli_w.dumps(tree).encode())
LINES = Form(_read_lines, _write_lines)
SAFETENSORS = Form(_read_safetensors, _write_safetensors)
NPZ = Form(_read_npz, _write_npz)
MESSAGE = Form(_read_message, lambda tree: _message(RecordDict({messages.RECORD: ConfigRecord(tree)})))
BYTES = Form(bytes, bytes)
FORMS = {".json": JSON, ".toml": TOML, ".jsonl": LINES, ".npz": NPZ}  # of the files of a folder
NASTY: list[Any] = [None, True, False, 0, 1, -1, 7, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, 0.0, -0.5, 1e-320]
NASTY += [1e308, -1e308, float("nan"), float("inf"), "", "0", "x", "a" * 300, "\0", "../x", "é", [], {}, [[]], [0, 0]]
NASTY += [{"name": "x"}, [1, "a", None], [2**70], [[0, 1], [1]], b"", b"\xff" * 8]
TOKENS = [b"\0", b"\xff" * 4, b"\xff" * 8, b"-1", b"1e999", b"nan", b"[" * 300, b'{"a":' * 100, b"9" * 400, b'"', b","]
TOKENS += [b"\n", b"\xed\xa0\x80", struct.pack("<I", 1 << 31), struct.pack("<Q", 1 << 40), b"r\xff\xff\xff\x0f"]


def mutated(content: bytes, rng: random.Random, form: Form | None) -> bytes:
    """An input, changed: in its tree if it has one, or in its bytes. None: it is a folder of files."""
    if form is None:
        files = files_of(content)
        if not files or rng.random() < 0.1:
            return edited(content, rng)
        name = rng.choice(sorted(files))
        files[name] = mutated(files[name], rng, FORMS.get(Path(name).suffix, BYTES))
        return folder_of(files)
    if form is not BYTES and rng.random() < 0.7:
        with contextlib.suppress(Exception):
            tree = form.read(content)
            for _ in range(rng.choice((1, 1, 2, 4))):
                tree = changed(tree, rng)
            return form.write(tree)
    return edited(content, rng)


def changed(tree: Any, rng: random.Random) -> Any:
    """A tree with something in it replaced, removed, repeated or moved."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    if not places:
        return rng.choice(NASTY)
    holder, key = rng.choice(places)
    what = rng.random()
    if isinstance(holder[key], bytes) and what < 0.8:
        holder[key] = edited(holder[key], rng)
    elif what < 0.5:
        holder[key] = copy.deepcopy(rng.choice(NASTY))
    elif what < 0.65:
        del holder[key]
    elif what < 0.8:
        other, at = rng.choice(places)
        holder[key] = copy.deepcopy(other[at])
    elif isinstance(holder, list):
        holder += [copy.deepcopy(holder[key])] * rng.choice((1, 2, 50))
    else:
        holder[rng.choice(("name", "x", "", str(key) + "x", "0"))] = holder[key]
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


def edited(content: bytes, rng: random.Random) -> bytes:
    """Some bytes, changed here and there."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, what = rng.randrange(len(found) + 1), rng.randrange(6)
        if what == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif what == 1 and at < len(found):
            found[at] = rng.randrange(256)
        elif what == 2:
            del found[at : at + rng.choice((1, 2, 4, 16, 1000))]
        elif what == 3:
            found[at:at] = rng.choice(TOKENS)
        elif what == 4:
            found[at:at] = found[at : at + rng.choice((1, 4, 30))] * rng.choice((1, 3))
        else:
            found[at : at + 4] = rng.choice(TOKENS)[:4]
    return bytes(found)


# --- what may happen ----------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """A reader, inputs that it takes, and what these are made of (None: several files)."""

    read: Callable[[bytes, Path], None]
    seeds: Callable[[], Iterable[bytes]]
    form: Form | None


TARGETS = {
    "wire": Target(read_wire, seeds_wire, BYTES),
    "messages": Target(read_messages, seeds_messages, MESSAGE),
    "checkpoint": Target(read_checkpoint, seeds_checkpoint, SAFETENSORS),
    "safetensors": Target(read_safetensors, seeds_safetensors, SAFETENSORS),
    "opened": Target(read_opened, seeds_opened, JSON),
    "run": Target(read_run, seeds_run, None),
    "exported": Target(read_exported, seeds_exported, None),
    "graph": Target(read_graph, seeds_graph, JSON),
    "choosing": Target(read_choosing, seeds_choosing, JSON),
    "building": Target(read_building, seeds_building, TOML),
    "trace": Target(read_trace_of_devices, seeds_trace, BYTES),
    "config": Target(read_config, seeds_config, TOML),
    "pickles": Target(read_pickles, seeds_pickles, BYTES),
    "own": Target(read_own, seeds_own, None),
    "settings": Target(read_settings, seeds_settings, None),
    "home": Target(read_home, seeds_home, None),
    "told": Target(read_told, seeds_told, JSON),
    "idx": Target(read_idx, seeds_idx, BYTES),
    "request": Target(read_request, seeds_request, BYTES),
    "csv_source": Target(read_csv_source, seeds_csv_source, BYTES),
}


class Hang(BaseException):
    """An input took too long."""


class Greedy(BaseException):
    """An input took too much memory."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """What is inside may take so much CPU time and so much memory more than this process has."""

    def stop(number: int, frame: object) -> None:
        raise Hang(f"took more than {SECONDS:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, stop)
    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    except BaseException as error:
        if _out_of_memory(error):
            raise Greedy(f"took more than {MEMORY >> 20} MB") from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether memory was short, also if the reader has made something else of that."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def check(name: str, content: bytes, folder: Path) -> None:
    """Give an input to a target; whatever a reader may not do is raised."""
    with bounded(), refusing():
        TARGETS[name].read(content, folder)


def corpus(name: str) -> list[bytes]:
    """The inputs that are kept for a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


# --- searching ----------------------------------------------------------------------------------------------------


class Search:
    """A search in one target: counts, and keeps one input for every place in the code that fails."""

    def __init__(self, name: str, seconds: float, folder: Path) -> None:
        self.name, self.folder, self.form = name, folder, TARGETS[name].form
        self.tried, self.found = 0, dict[str, str]()
        self.start, self.seconds = time.monotonic(), seconds
        self.slowest, self.memory = 0.0, _peak()

    def over(self) -> bool:
        return time.monotonic() - self.start > self.seconds

    def one(self, content: bytes) -> None:
        self.tried += 1
        begin = time.process_time()
        try:
            check(self.name, content, self.folder)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            self._keep(content, error)
        self.slowest = max(self.slowest, time.process_time() - begin)
        if _resident() > self.memory + MEMORY // 4:
            gc.collect()  # what inputs before it have left behind is not this input's

    def _keep(self, content: bytes, error: BaseException) -> None:
        inner = error.__cause__ if isinstance(error, Greedy) and error.__cause__ else error
        places = [f"{Path(at.filename).name}:{at.lineno}" for at in traceback.extract_tb(inner.__traceback__)]
        key = f"{type(error).__name__} {' '.join(places[-3:])}"
        if key in self.found:
            return
        self.found[key] = f"{error}"[:200]
        digest = hashlib.sha256(content).hexdigest()[:8]
        path = CORPUS / self.name / f"found-{digest}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        print(f"{self.name}: {path.name}: {key}: {error}"[:400], flush=True)
        traceback.print_exception(error, limit=-4)

    def figures(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.start
        return {
            "target": self.name,
            "seconds": round(seconds, 1),
            "inputs": self.tried,
            "findings": self.found,
            "slowest_seconds": round(self.slowest, 3),
            "more_memory_bytes": _peak() - self.memory,
            "load": round(os.getloadavg()[0], 1),
            "guided": "atheris" in sys.modules,
        }


def _resident() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def search(name: str, options: argparse.Namespace) -> int:
    """Search in one target, in this process, and say what came of it; the number of findings."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("error")
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        inputs = [*TARGETS[name].seeds(), *corpus(name)]
        for content in inputs:  # once: what is loaded for the first time is no input's memory
            with contextlib.suppress(BaseException):
                check(name, content, Path(folder))
        one = Search(name, 60 * options.minutes, Path(folder))
        if "atheris" in sys.modules:
            _guided(one, inputs, options)
        rng = random.Random(options.seed)
        while not one.over():
            one.one(mutated(rng.choice(inputs), rng, one.form)[:MOST])
        return _said(one, options.out)


def _said(one: Search, out: Path | None) -> int:
    line = json.dumps(one.figures())
    print(line, flush=True)
    if out is not None:
        with out.open("a") as file:
            file.write(line + "\n")
    return len(one.found)


def _guided(one: Search, inputs: list[bytes], options: argparse.Namespace) -> None:
    """Let atheris search, until this process ends; libFuzzer puts inputs that reach something new into `pool`."""
    whole, pool = one.folder, one.folder / "pool"
    pool.mkdir()
    for number, content in enumerate(inputs):
        (pool / str(number)).write_bytes(content)
    work = one.folder / "work"
    work.mkdir()
    one.folder = work

    def take(content: bytes) -> None:
        one.one(content)
        if one.over():
            found = _said(one, options.out)
            _keep_new(one.name, pool, inputs, options.keep)
            shutil.rmtree(whole)
            os._exit(min(found, 1))

    def change(content: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        new = mutated(content, rng, one.form) if rng.random() < 0.6 else atheris.Mutate(content, most)
        return bytes(new)[:most]

    words = ["fuzz", str(pool), f"-seed={options.seed + 1}", f"-max_len={MOST}", "-verbosity=0", "-timeout=120"]
    atheris.Setup([*words, "-rss_limit_mb=4000", "-print_final_stats=0"], take, custom_mutator=change)
    atheris.Fuzz()


def _keep_new(name: str, pool: Path, known: list[bytes], most: int) -> None:
    """Add the smallest of the inputs that reached something new to the corpus."""
    new = sorted((path.read_bytes() for path in pool.iterdir()), key=len)
    for content in [content for content in new if content not in known and len(content) < SMALL][:most]:
        (CORPUS / name / f"new-{hashlib.sha256(content).hexdigest()[:8]}").write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("-m", "--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to which figures are added, a line of JSON per target")
    parser.add_argument("--keep", type=int, default=0, help="inputs that reach new code to add to the corpus")
    parser.add_argument("--seeds", action="store_true", help="only write the valid inputs into the corpus")
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    for name in set(names) - set(TARGETS):
        parser.error(f"unknown target {name}; there are {', '.join(TARGETS)}")
    if options.seeds:
        for name in names:
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            for number, content in enumerate(TARGETS[name].seeds()):
                (CORPUS / name / f"valid-{number}").write_bytes(content)
        return
    if len(names) == 1:
        sys.exit(search(names[0], options) > 0)
    words = ["--minutes", str(options.minutes), "--seed", str(options.seed), "--keep", str(options.keep)]
    words += ["--out", str(options.out)] if options.out else []
    codes = [os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, name, *words]) for name in names]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
