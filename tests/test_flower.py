"""Flower without a network: its simulation in this process, replies that are bad, late, repeated or foreign."""

import asyncio
import copy
import dataclasses
import datetime
import functools
import importlib
import io
import json
import math
import random
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run as FlowerRun
from flwr.superlink.grid import http_grid

import fedfilt
from fedfilt import aggregators
from fedfilt.checkpoint import BadCheckpoint, load_state, save_state
from fedfilt.config import from_table
from fedfilt.engines.flower import Flower
from fedfilt.engines.local import Local
from fedfilt.flower import GFedFilt, device, messages
from fedfilt.flower.deploy import Registered
from fedfilt.flower.exchange import exchange, guard_replies
from fedfilt.flower.nodes import Nodes
from fedfilt.flower.simulation import running_grid, simulated_grid
from fedfilt.rounds import Job, Plan, State, Updates, play_round
from fedfilt.runs import Run, lines, play_in_folder
from fedfilt.simulated import Lateness
from fedfilt.train import Trainer
from fedfilt.wire import HEADER, MAGIC, pack
from test_kinds import unlike_run

ROOT = Path(__file__).resolve().parent.parent
TABLE = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 8},
    "samples": {"train": 20, "local_test": 10, "global_test": 40},
    "partition": {"name": "labels", "per_device": 3},
    "graph": {"name": "rooms", "rooms": 1, "devices": 4},
    "training": {"learning_rate": 0.1},
    "scheduler": {"name": "everything", "epochs": 1, "density": 0.2},
    "rounds": 3,
    "evaluation": {"every": 3, "trained": True},
}


class Wrapped:
    """A grid whose replies pass through a function."""

    def __init__(self, grid, change):
        self._grid, self._change = grid, change

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def pull_messages(self, ids):
        return self._change(list(self._grid.pull_messages(ids)))


@pytest.fixture(scope="module")
def run():
    return Run(from_table(TABLE))


@pytest.fixture(scope="module")
def grid(run):
    config = run.config
    trainer = Trainer(run.module, config.training, run.data.x.shape[1:])
    desk = device.Desk(trainer, config.sparsifier, config.seed, run.data.classes)
    with simulated_grid(desk, run.data, 1) as running:
        yield running


def engine(run, grid, **options):
    config = run.config
    return Flower(run.data, run.module, config.training, config.seed, 1, config.sparsifier, grid=grid, **options)


def one_round(run, place):
    with run.experiment(place) as experiment:
        return play_round(run.start(), dataclasses.replace(experiment, evaluation=_never()))


def _never():
    return fedfilt.rounds.Evaluation(every=1000)


class Without:
    """The local engine without some devices."""

    def __init__(self, run, lost):
        config = run.config
        self._inner = Local(run.data, run.module, config.training, config.seed, 1, config.sparsifier)
        self._lost, self.test = lost, self._inner.test

    def train(self, jobs, deadline):
        return [reply for reply in self._inner.train(jobs, deadline) if reply.device not in self._lost]


# --- the same numbers ------------------------------------------------------------------------------------------------


COMING_AND_GOING = [
    {"round": 2, "leave": 0},
    {"round": 2, "offline": 3, "until": 3},
    {"round": 3, "join": 0, "start": "own"},  # what it had not sent when it left is forgotten, on its disk too
    {"round": 3, "move": 1, "links": [[1, 0]]},
]


@pytest.mark.parametrize(("density", "events"), [(1.0, []), (0.2, []), (0.2, COMING_AND_GOING)])
def test_simulation_gives_the_bits_and_records_of_the_local_engine(tmp_path, density, events):
    found = []
    for name in ("local", "flower"):
        scheduler = {"name": "everything", "epochs": 2, "density": density}
        table = TABLE | {"scheduler": scheduler, "events": events, "rounds": 3 + len(events) // 4}
        made = Run(from_table(table | {"engine": {"name": name, "workers": 1}}))
        for _ in play_in_folder(made, tmp_path / name):
            pass
        records = [{key: value for key, value in line.items() if key != "seconds"} for line in lines(tmp_path / name)]
        found.append((records, json.loads((tmp_path / name / "result.json").read_text())["models_sha256"]))
    assert found[0] == found[1]
    assert "mixed" in found[0][0][-1]
    assert not events or found[0][0][1]["away"] == [0, 3]


def test_kinds_of_devices_give_the_bits_of_the_local_engine():
    run = unlike_run()
    local, over_flower = [
        one_round(run, kind(run.data, run.module, run.config.training, workers=1)) for kind in (Local, Flower)
    ]
    assert len(set(run.data.kinds)) == 2
    np.testing.assert_array_equal(over_flower[0].models, local[0].models)


def test_real_time_in_a_simulation_measures_costs(tmp_path):
    """The options of [engine] hold for `fedfilt run engine=flower` too."""
    run = Run(from_table(TABLE | {"rounds": 1, "engine": {"name": "flower", "workers": 1, "real_time": True}}))
    (line,) = play_in_folder(run, tmp_path / "run")
    assert all(0 < seconds < 300 for seconds in line["time"]["devices"]["compute_seconds"])
    assert line["time"]["latency"] > 0


def _app():
    from fedfilt.flower.app import client

    return client


def test_the_app_of_a_deployment_runs_unchanged_in_a_simulation(tmp_path, monkeypatch):
    """The same pyproject.toml; nodes are known by their partition-id; a second Flower run finds it complete."""
    from fedfilt.flower.app import server
    from fedfilt.flower.deploy import app_project

    monkeypatch.delenv("FEDFILT_DEPLOYMENT", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = from_table(TABLE)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_text(app_project(config))
    table = {"experiment": config.toml(), "out": str(tmp_path / "run")}
    with running_grid(_app, 4, 1, tmp_path / "app") as running:
        server(grid=running, context=Context(1, 0, {}, RecordDict(), table))
        before = (tmp_path / "run" / "result.json").read_bytes()
        server(grid=running, context=Context(1, 0, {}, RecordDict(), table))
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    for _ in play_in_folder(Run(config), tmp_path / "local"):
        pass
    wanted = json.loads((tmp_path / "local" / "result.json").read_text())["models_sha256"]
    assert json.loads(before)["models_sha256"] == wanted

    with pytest.raises(ValueError, match="FEDFILT_DEPLOYMENT must name"):
        server(grid=Silent(), context=Context(1, 0, {}, RecordDict(), table | {"out": str(tmp_path / "other")}))


def test_a_glance_at_the_lock_does_not_end_a_run(tmp_path, run):
    from fedfilt.checkpoint import Busy, locked
    from fedfilt.flower.app import _rounds

    place = Without(run, [])
    with locked(tmp_path), pytest.raises(Busy):
        list(_rounds(run, tmp_path, place, tries=1))
    held = locked(tmp_path)
    held.__enter__()
    threading.Timer(0.5, held.__exit__, (None, None, None)).start()
    assert [line["round"] for line in _rounds(run, tmp_path, place)] == [1, 2, 3]


def test_the_order_of_arrival_changes_nothing(run, grid):
    expected, _ = one_round(run, Without(run, []))
    held = []

    def shuffled(replies):
        # all are held back until the last has come, then given in another order
        held.extend(reply for reply in replies if reply.has_content())
        if len(held) < 4:
            return []
        out = random.Random(len(held)).sample(held, 4)
        held.clear()
        return out

    place = engine(run, grid)
    place._nodes.online()  # who is who is asked before
    place._grid = Wrapped(grid, shuffled)
    state, record = one_round(run, place)
    np.testing.assert_array_equal(state.models, expected.models)
    assert not record.absent


# --- replies that must not count -----------------------------------------------------------------------------------


def sparse(size, places, values):
    head = HEADER.pack(MAGIC, 1, 4, 0, size, len(places))
    return head + np.array(places, "<u4").tobytes() + np.array(values, "<f4").tobytes()


BAD = {
    "NaN": (lambda size: {"update": pack(np.full(size, np.nan, np.float32))}, "update must be finite"),
    "infinity": (lambda size: {"update": pack(np.full(size, np.inf, np.float32))}, "update must be finite"),
    "wrong shape": (lambda size: {"update": pack(np.zeros(size - 1, np.float32))}, "update must be of"),
    "wrong dtype": (lambda size: {"update": np.zeros(size).tobytes()}, "update must be at most"),
    "not bytes": (lambda size: {"update": "text"}, "update must be bytes, got str"),
    "truncated": (lambda size: {"update": pack(np.zeros(size, np.float32))[:-3]}, "bytes long, got"),
    "nothing": (lambda size: {"update": b""}, "update must have a header"),
    "oversized": (lambda size: {"update": b"x" * 10**6}, "update must be at most"),
    "place out of range": (lambda size: {"update": sparse(size, [1, size], [1, 1])}, "rising places"),
    "place twice": (lambda size: {"update": sparse(size, [7, 7], [1, 1])}, "rising places"),
    "negative samples": (lambda size: {"samples": -1}, "samples must be from 0 to 20, got -1"),
    "absurd samples": (lambda size: {"samples": 10**12}, "samples must be from 0 to 20"),
    "samples as a float": (lambda size: {"samples": 20.0}, "samples must be int, got float"),
    "loss not a number": (lambda size: {"loss": math.nan}, "loss must be finite"),
    "another round": (lambda size: {"round": 7}, "reply must be to round 0, got 7"),
    "another run": (lambda size: {"run": "other"}, "reply must be to run"),
    "another device": (lambda size: {"device": 1}, "reply must be to device 2, got 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_is_as_good_as_none_and_is_named(run, grid, name):
    change, reason = BAD[name]

    def tamper(replies):
        for reply in replies:
            record = reply.content.config_records[messages.RECORD]
            if record.get("device") == 2 and "update" in record:
                for key, value in change(run.layout.size).items():
                    record[key] = value
        return replies

    state, record = one_round(run, engine(run, Wrapped(grid, tamper)))
    expected, _ = one_round(run, Without(run, [2]))
    np.testing.assert_array_equal(state.models, expected.models)
    assert list(record.absent) == [2]
    assert record.absent[2].startswith("refused: ")
    assert reason in record.absent[2]
    assert "absent" in run.line(record)
    assert state.accepted.tolist() == [1, 1, 0, 1]


def test_repeated_stale_and_foreign_replies_never_count(run, grid):
    old = []

    def twice(replies):
        copies = [*replies, *old, *replies]
        old.extend(replies)
        return copies

    place = engine(run, Wrapped(grid, twice))
    expected, _ = one_round(run, Without(run, []))
    state, record = one_round(run, place)
    np.testing.assert_array_equal(state.models, expected.models)
    assert not record.absent

    def from_another_node(replies):
        for reply in replies:
            if reply.content.config_records[messages.RECORD].get("device") == 1:
                reply.metadata.__dict__["_src_node_id"] = 12345
        return replies

    place = engine(run, grid)
    place._nodes.online()
    place._grid = Wrapped(grid, from_another_node)
    _, record = one_round(run, place)
    assert list(record.absent) == [1]
    assert "reply must come from node" in record.absent[1]


def test_late_replies_follow_the_policy_in_real_time(run, grid, monkeypatch):
    """Device 3 never answers. The clock stands still until the others have, however slow this machine is."""
    now, came = [0.0], []

    def losing(replies):
        good = [reply for reply in replies if reply.has_content()]  # a reply that was taken away is an error later
        kept = [r for r in good if r.content.config_records[messages.RECORD].get("device") != 3]
        came.extend(kept)
        return kept

    def sleep(seconds):
        time.sleep(0.02)
        now[0] += seconds if len(came) >= 3 else 0.0

    timed = functools.partial(exchange, clock=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("fedfilt.engines.flower.exchange", timed)
    jobs = [Job(0, i, row, Plan(1)) for i, row in enumerate(run.start().models)]
    for policy, deadline, waited in (("deadline", 4.0, 5.0), ("quorum", math.inf, 0.0), ("wait", math.inf, 30.0)):
        late = Lateness(policy, margin=0, quorum=0.75)
        place = engine(run, grid, timeout=30.0, real_time=late, grace=1.0)
        place._nodes.online()
        place._grid = Wrapped(grid, losing)
        now[0] = 0.0
        came.clear()
        replies = list(place.train(jobs, deadline))
        assert [reply.device for reply in replies if reply.late] == [3]
        assert sorted(reply.device for reply in replies if not reply.absent) == [0, 1, 2]
        assert now[0] == pytest.approx(waited)
    place = engine(run, grid, real_time=Lateness("deadline"))
    with pytest.raises(ValueError, match="needs a scheduler that sets a deadline"):
        list(place.train(jobs, math.inf))


class Silent:
    """A grid on which nobody answers, on a clock of its own."""

    def __init__(self):
        self.now, self.looks = 0.0, 0

    def push_messages(self, sent):
        for number, message in enumerate(sent):
            message.metadata.__dict__["_message_id"] = f"m{number}"
        return [f"m{number}" for number in range(len(sent))]

    def pull_messages(self, ids):
        self.looks += 1
        return []

    def sleep(self, seconds):
        self.now += seconds


def test_the_wait_ends_on_a_monotonic_clock(grid):
    silent = Silent()
    sent = {5: messages.addressed("who", 1, messages.who_order(), 0, 60.0)}
    (answer,) = exchange(silent, sent, 10.0, clock=lambda: silent.now, sleep=silent.sleep)
    assert answer.late
    assert answer.device == 5
    assert answer.seconds == pytest.approx(10.0)
    assert 40 <= silent.looks <= 60
    assert list(exchange(silent, {}, 10.0)) == []


def reply_objects(part, change=lambda content: content):
    """(tree, contents by id) of a reply as it travels, with its bytes changed."""
    order = messages.addressed("who", 7, messages.who_order(), 0, 60.0)
    order.metadata.__dict__.update(_message_id="asked", _run_id=1)
    found = get_all_nested_objects(reply := Message(messages.who_reply(part), reply_to=order))
    return get_object_tree(reply), {name: change(thing.deflate()) for name, thing in found.items()}


class Link:
    """The SuperLink as the HTTP grid sees it: some replies, each with its objects."""

    def __init__(self, replies):
        self._replies = replies

    def PullMessages(self, request):
        heads = []
        for number, (tree, _) in enumerate(self._replies):
            head = ProtoMessage()
            head.metadata.message_id, head.metadata.reply_to_message_id = tree.object_id, f"asked {number}"
            heads.append(head)
        return PullAppMessagesResponse(messages_list=heads, message_object_trees=[tree for tree, _ in self._replies])

    def PullObject(self, request):
        contents = {name: content for _, found in self._replies for name, content in found.items()}
        found = contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=found)

    def ConfirmMessageReceived(self, request):
        pass


UNREADABLE = {
    "truncated": lambda content: content[:-2],
    "of another kind": lambda content: content.replace(b"Message", b"ConfigRecord", 1),
    "nonsense": lambda content: b"nonsense",
    "nothing": lambda content: b"",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_reply_that_cannot_be_read_does_not_take_others_along(grid, monkeypatch, caplog, name):
    monkeypatch.setattr(http_grid, "pull_objects", inflatable_utils.pull_objects)  # an app may have run before
    link = http_grid.HttpGrid(token="any")
    link._run, link._client = FlowerRun.create_empty(1), Link([reply_objects(1, UNREADABLE[name]), reply_objects(2)])
    with pytest.raises(Exception):  # noqa: B017, PT011 (this is how Flower's own would end the run)
        link.pull_messages(["asked 0", "asked 1"])
    guard_replies()
    bad, good = link.pull_messages(["asked 0", "asked 1"])
    assert bad.metadata.reply_to_message_id == "asked 0"
    assert bad.has_error()
    assert "a reply cannot be read" in caplog.text
    assert messages.read_who_reply(good.content, 4) == 2


# --- the device ----------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(run):
    config = run.config
    trainer = Trainer(run.module, config.training, run.data.x.shape[1:])
    return device.Desk(trainer, config.sparsifier, config.seed, run.data.classes)


def train(desk, run, folder, round, accepted, number=1):
    row = run.start().models[number]
    order = messages.train_order("r", Job(round, number, row, Plan(1, 1.0, 0.2), accepted=accepted))
    content = device.train_reply(order, desk, lambda i: device.dealt(run.data, i), folder)
    record = content.config_records[messages.RECORD]
    return record["update"], record["lost"]


def test_what_a_device_keeps_moves_on_only_when_the_server_says_so(desk, run, tmp_path):
    first, _ = train(desk, run, tmp_path, 0, 0)
    second, lost = train(desk, run, tmp_path, 1, 1)  # round 1 was accepted: its rest is in this update
    assert not lost
    assert train(desk, run, tmp_path, 1, 1) == (second, False)  # asked again after a crash of the server: same bytes
    unlike, _ = train(desk, run, tmp_path, 1, 0)  # round 1 was not accepted after all: its rest is not
    assert unlike != second
    assert train(desk, run, tmp_path, 0, 0) == (first, False)
    train(desk, run, tmp_path, 1, 1)
    train(desk, run, tmp_path, 2, 1)  # round 2 was late
    train(desk, run, tmp_path, 3, 1)
    assert sorted(path.name for path in tmp_path.glob("left-*")) == ["left-1.safetensors", "left-4.safetensors"]


def test_a_device_without_its_disk_says_so_and_goes_on(desk, run, tmp_path):
    first, _ = train(desk, run, tmp_path / "a", 1, 0)
    assert train(desk, run, tmp_path / "b", 1, 1) == (first, True)
    (tmp_path / "b" / "left-2.safetensors").write_bytes(b"damaged")
    assert train(desk, run, tmp_path / "b", 2, 2)[1]


def test_a_device_refuses_bad_orders(desk, run, tmp_path):
    row = run.start().models[0]
    good = dict(messages.train_order("r", Job(0, 0, row, Plan(1))).config_records[messages.RECORD])
    samples = lambda i: device.dealt(run.data, i)  # noqa: E731
    for change, reason in [
        ({"row": b"123"}, "row must be"),
        ({"row": np.full(len(row), np.nan, "<f4").tobytes()}, "row must be finite"),
        ({"epochs": -1}, "epochs must be from 1"),
        ({"density": 2.0}, "density must be from 0 to 1"),
        ({"device": 9}, "device must be from 0 to 3, got 9"),
        ({"accepted": "1"}, "accepted must be int"),
    ]:
        order = RecordDict({messages.RECORD: ConfigRecord(good | change)})
        with pytest.raises(messages.BadMessage, match=reason):
            device.train_reply(order, desk, samples, tmp_path)
    with pytest.raises(messages.BadMessage, match="must hold one record"):
        device.train_reply(RecordDict({}), desk, samples, tmp_path)


def test_a_device_keeps_its_samples_and_its_model(desk, run, tmp_path):
    calls = []

    def data():
        calls.append(1)
        return run.data

    first = device.kept_samples(tmp_path, "p", 2, data)
    again = device.kept_samples(tmp_path, "p", 2, data)
    assert len(calls) == 1
    assert all((first[name] == again[name]).all() for name in first)
    device.kept_samples(tmp_path, "other", 2, data)
    assert len(calls) == 2
    kind = device.kept_kind(tmp_path, "other")
    assert (kind.classes, kind.x.shape[1:]) == (10, (1, 8, 8))
    assert device.kept_kind(tmp_path, "p") is None
    order = messages.test_order("r", 3, 2, run.start().models[2])
    device.test_reply(order, desk, lambda i: first, tmp_path)
    from safetensors.torch import load_file

    copy.deepcopy(run.module).load_state_dict(load_file(tmp_path / "model.safetensors"))


def test_what_was_accepted_is_in_the_checkpoint(tmp_path):
    path = tmp_path / "state.safetensors"
    save_state(path, State(3, np.ones((2, 5), np.float32), None, np.array([3, 1])), "abc")
    assert load_state(path, "abc", (2, 5)).accepted.tolist() == [3, 1]
    save_state(path, State(3, np.ones((2, 5), np.float32), None, np.array([3, 1, 2])), "abc")
    with pytest.raises(BadCheckpoint, match="what was accepted"):
        load_state(path, "abc", (2, 5))


# --- who is who ----------------------------------------------------------------------------------------------------


class Listed:
    def __init__(self, *nodes):
        self._nodes = nodes

    def get_nodes(self):
        return [NodeInfo(node_id=number, public_key=key, name=name) for number, key, name in self._nodes]


def test_a_row_belongs_to_a_key_and_to_nothing_else(caplog):
    known = [Registered("a", b"key a"), Registered("b", b"key b")]
    found = Nodes(Listed((7, b"key b", "b"), (8, b"key c", "a"), (9, b"key a", "b")), 2, known).online()
    assert found == {1: 7}  # 8 has the name but not the key, 9 the key under a wrong name
    assert "node 8 ('a') does not hold the key of a device; it is left out" in caplog.text
    with pytest.raises(ValueError, match="one registered device per row"):
        Nodes(Listed(), 3, known)


def _claims():
    app = ClientApp()

    @app.query()
    def _query(message: Message, context: Context) -> Message:
        return Message(messages.who_reply(min(context.node_config["partition-id"], 2)), reply_to=message)

    return app


def test_a_number_is_given_once(caplog):
    with running_grid(_claims, 4) as grid:
        assert sorted(Nodes(grid, 4).online()) == [0, 1, 2]
    assert "says to be device 2, which another node is" in caplog.text


def test_only_this_machine_may_give_orders_and_requests_are_of_limited_size(monkeypatch):
    from flwr.superlink import extensions
    from flwr.superlink.main import create_app
    from starlette.middleware import Middleware

    from fedfilt.flower.superlink import Guard

    monkeypatch.setattr(extensions, "get_middleware", lambda: (Middleware(Guard, most_bytes=1000),))
    app = create_app()

    def post(path, client, content=b""):
        async def ask():
            transport = httpx.ASGITransport(app=app, client=(client, 5000))
            async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.1") as caller:
                return await caller.post(path, content=content)

        return asyncio.run(ask())

    orders = ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/v1/fleet")
    for path in orders:
        for stranger in ("192.168.1.7", "8.8.8.8", "::ffff:10.0.0.9", "nonsense"):
            reply = post(path, stranger)
            assert reply.status_code == 403, (path, stranger)
            assert "only the machine of the SuperLink" in reply.text
    for path, friend in (("/v1/control/list-runs", "127.0.0.1"), ("/v1/control/list-runs", "10.0.0.1")):
        assert post(path, friend).status_code != 403
    fleet = "/v1/fleet/pull-messages"
    assert post(fleet, "192.168.1.7", b"x" * 1000).status_code not in (403, 413)
    assert post("/v1/fleet/../control/start-run", "192.168.1.7").status_code in (403, 404)
    assert post("/v1/fleet/%2e%2e/control/start-run", "192.168.1.7").status_code in (403, 404)

    async def parts():
        yield b"x"

    for content in (b"x" * 1001, parts()):  # the second does not say how long it is
        reply = post(fleet, "192.168.1.7", content)
        assert reply.status_code == 413
        assert "at most 1000 bytes" in reply.text


@pytest.mark.parametrize("seconds", [(290, 55), (310, 0), (290, 65)])
def test_an_app_has_time_to_start_but_not_to_fall_silent(monkeypatch, seconds):
    from flwr.proto.task_pb2 import Task, TaskStatus
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode.nodestate import NodeStateFactory

    from fedfilt.flower.supernode import be_patient

    for module in (in_memory_corestate, sql_corestate):
        for name in ("HEARTBEAT_DEFAULT_INTERVAL", "HEARTBEAT_PATIENCE"):
            monkeypatch.setattr(module, name, getattr(module, name))  # to be as before afterwards
    clock = [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)]
    monkeypatch.setattr(in_memory_corestate, "now", lambda: clock[0])
    be_patient()
    state = NodeStateFactory(ObjectStoreFactory()).state()
    state.task_store[5] = Task(task_id=5, run_id=1, status=TaskStatus(status="pending"))
    assert state.claim_task(5)
    start, silence = seconds
    clock[0] += datetime.timedelta(seconds=start)
    assert state.activate_task(5) == (start < 300)
    clock[0] += datetime.timedelta(seconds=silence)
    assert state.acknowledge_task_heartbeat(5) == (start < 300 and silence < 60)


# --- the strategy --------------------------------------------------------------------------------------------------

SIZE = 5


def _learner(bad=None):
    """A client that adds its number + 1 to all values and sends the model, or a packed update if it has a density."""
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        number = context.node_config["partition-id"]
        given = message.content["arrays"]["w"].numpy()
        config = message.content["config"]
        arrays = {"w": Array(given + np.float32(number + 1)), "n": message.content["arrays"]["n"]}
        if "density" in config:
            arrays = {"update": Array(np.frombuffer(pack(np.full(SIZE, number + 1, np.float32)), np.uint8))}
        metrics = {"num-examples": 10 * (number + 1), "given": float(given.sum())}
        if bad is not None and number == 1:
            bad(arrays, metrics)
        metrics |= {"epochs": int(config.get("epochs", 0)), "round": config["server-round"]}
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        total = float(message.content["arrays"]["w"].numpy().sum())
        metrics = MetricRecord({"sum": total, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


START = ArrayRecord({"w": Array(np.arange(SIZE, dtype=np.float32)), "n": Array(np.array(3))})


def numbers(grid):
    """Device (by node id) -> partition-id."""
    return [number for _, number in sorted(zip(grid.get_node_ids(), range(10), strict=False))]


def by_device(strategy, key):
    return [record[key] for _, record in sorted(strategy.train_metrics[1].items())]


@pytest.mark.parametrize("packed", [False, True])
def test_strategy_mixes_as_the_rule_does_and_tells_everyone_its_own_model_only(packed):
    graph = fedfilt.Graph.from_edges(3, [(0, 1), (1, 2)])
    plans = (lambda round: [Plan(epochs=round + i, density=0.5) for i in range(3)]) if packed else None
    strategy = GFedFilt(graph, plans=plans, min_available_nodes=3)
    with running_grid(_learner, 3) as grid:
        result = strategy.start(grid, START, num_rounds=2, timeout=60)
    rows, rule = np.tile(np.arange(SIZE, dtype=np.float32), (3, 1)), aggregators.GFedFilt()
    samples = np.array([strategy.train_metrics[1][i]["num-examples"] for i in range(3)], float)
    for round in (1, 2):
        seen = [strategy.train_metrics[round][i]["given"] for i in range(3)]
        np.testing.assert_allclose(seen, rows.sum(axis=1), rtol=1e-6)  # each was given its own row
        learnt = np.repeat(samples[:, None] / 10, SIZE, axis=1).astype(np.float32)
        rows = rule(rows, Updates(learnt, samples), graph)
        tested = [strategy.evaluate_metrics[round][i]["sum"] for i in range(3)]
        np.testing.assert_allclose(tested, rows.sum(axis=1), rtol=1e-6)
    for row, model in zip(rows, strategy.models, strict=True):
        np.testing.assert_allclose(model["w"].numpy(), row, rtol=1e-6)
        assert model["n"].numpy() == 3
    np.testing.assert_allclose(result.arrays["w"].numpy(), np.average(rows, axis=0, weights=samples), rtol=1e-6)
    if packed:
        assert [strategy.train_metrics[2][i]["epochs"] for i in range(3)] == [2, 3, 4]
    assert result.evaluate_metrics_clientapp[2]["sum"] == pytest.approx(rows.sum(axis=1).mean(), rel=1e-6)


def _nan(arrays, metrics):
    arrays["w"] = Array(np.full(SIZE, np.nan, np.float32))


def _shape(arrays, metrics):
    arrays["w"] = Array(np.zeros(SIZE + 1, np.float32))


def _dtype(arrays, metrics):
    arrays["w"] = Array(np.zeros(SIZE))


def _key(arrays, metrics):
    arrays["more"] = Array(np.zeros(1, np.float32))


def _cut(arrays, metrics):
    whole = arrays["w"]
    arrays["w"] = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data[:-4])


def _claim(arrays, metrics):
    """A header that claims a terabyte."""
    whole = arrays["w"]
    data = whole.data.replace(b"(5,), }           ", b"(250000000000,), }")
    assert len(data) == len(whole.data)
    assert data != whole.data
    arrays["w"] = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=data)


def _archive(arrays, metrics):
    stream = io.BytesIO()
    np.savez_compressed(stream, np.zeros(SIZE, np.float32))
    arrays["w"] = Array(dtype="float32", shape=(SIZE,), stype="numpy.ndarray", data=stream.getvalue())


def _metric(arrays, metrics):
    metrics["given"] = [1.0, 2.0]


def _negative(arrays, metrics):
    metrics["num-examples"] = -5


def _absurd(arrays, metrics):
    metrics["num-examples"] = 10**15


def _error(arrays, metrics):
    raise RuntimeError("out of battery")


@pytest.mark.parametrize(
    "bad", [_nan, _shape, _dtype, _key, _cut, _claim, _archive, _metric, _negative, _absurd, _error]
)
def test_strategy_leaves_a_bad_reply_out_and_names_it(bad):
    graph = fedfilt.Graph.from_edges(3, [(0, 1), (1, 2)])
    strategy = GFedFilt(graph, fraction_evaluate=0.0, min_available_nodes=3)
    with running_grid(lambda: _learner(bad), 3) as grid:
        strategy.start(grid, START, num_rounds=1, timeout=60)
    (wrong,) = strategy.rejected[1]
    present = sorted(strategy.train_metrics[1])
    assert sorted([wrong, *present]) == [0, 1, 2]
    updates = Updates(np.zeros((3, SIZE), np.float32), np.zeros(3))
    for i in present:
        updates.weights[i] = strategy.train_metrics[1][i]["num-examples"]
        updates.rows[i] = updates.weights[i] / 10
    rows = aggregators.GFedFilt()(np.tile(np.arange(SIZE, dtype=np.float32), (3, 1)), updates, graph)
    np.testing.assert_array_equal([model["w"].numpy() for model in strategy.models], rows)


def test_strategy_refuses_settings_that_make_no_sense():
    graph = fedfilt.Graph.from_edges(3, [(0, 1)])
    for options, message in [
        ({"fraction_train": 1.5}, "fraction_train must be"),
        ({"min_train_nodes": -1}, "min_train_nodes must be"),
        ({"devices": ["a"]}, "devices must be one name per row"),
    ]:
        with pytest.raises(ValueError, match=message):
            GFedFilt(graph, **options)
    with running_grid(_learner, 3) as grid, pytest.raises(ValueError, match="plans must give one plan per device"):
        GFedFilt(graph, plans=lambda round: [Plan()]).start(grid, START, num_rounds=1)


def _quickstart():
    sys.path.insert(0, str(ROOT / "examples" / "flower_quickstart"))
    return importlib.import_module("flower_app.client_app").app


@pytest.mark.parametrize("strategy", ["GFedFilt", "FedAvg"])
def test_the_quickstart_differs_from_a_plain_flower_app_in_two_lines(tmp_path, monkeypatch, strategy):
    """As it is, and with the two lines as Flower's own quickstart has them."""
    folder = ROOT / "examples" / "flower_quickstart"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    code = (folder / "flower_app" / "server_app.py").read_text()
    changes = [
        line[1:] for line in (folder / "README.md").read_text().splitlines() if line[:2] in ("+f", "-f", "+ ", "- ")
    ]
    assert len(changes) == 4
    if strategy == "FedAvg":
        for old, new in ((changes[1], changes[0]), (changes[3], changes[2])):
            assert old in code
            code = code.replace(old, new)
    space = {"__name__": "server_app"}
    exec(compile(code, "server_app.py", "exec"), space)
    with running_grid(_quickstart, 4, 1, folder) as grid:
        config = {"num-server-rounds": 2, "fraction-evaluate": 1.0, "local-epochs": 2, "learning-rate": 0.1}
        space["app"](grid=grid, context=Context(1, 0, {}, RecordDict(), config))
    model = torch.load(tmp_path / "final_model.pt", weights_only=True)
    assert model["0.weight"].shape == (32, 64)


def test_packed_updates_are_small(run):
    """An update at density 0.2 travels as one record of hardly more than its bytes."""
    content = pack(np.zeros(1000, np.float32), np.arange(50))
    reply = messages.train_reply("r" * 16, Job(0, 0, np.zeros(1), Plan()), messages.Trained(content, 20, 0.5, 1.0))
    assert len(reply.config_records[messages.RECORD].deflate()) < len(content) + 400
    assert struct.calcsize(HEADER.format) == 16


def test_the_docs_show_what_works():
    text = (ROOT / "docs" / "deploy.md").read_text()
    (code,) = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    space = {}
    exec(compile(code, "deploy.md", "exec"), space)
    assert space["strategy"].graph.count == 6


def test_without_flower_there_is_one_clear_line(tmp_path):
    code = (
        "import sys; sys.modules['flwr'] = None; from fedfilt.cli import app;"
        "sys.argv = ['fedfilt', 'run', 'e.toml', '--out', 'r']; app()"
    )
    (tmp_path / "e.toml").write_text(from_table(TABLE | {"engine": {"name": "flower"}}).toml())
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'fedfilt[flower]'" in done.stderr
    assert "Traceback" not in done.stderr
