"""The side of a device: what it keeps, which orders it takes; and how the server knows who is who."""

import asyncio
import copy
import datetime
import threading
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from fedfilt.clients.plain import Plain
from fedfilt.engines.flower import device, messages
from fedfilt.engines.flower.identity import Registered
from fedfilt.engines.flower.nodes import Nodes
from fedfilt.engines.flower.simulation import running_grid
from fedfilt.rounds.types import State
from fedfilt.runs.build import Run
from fedfilt.runs.checkpoint import BadCheckpoint, load_state, save_state
from fedfilt.runs.config import from_table
from fedfilt.system.orders import Job, Plan
from fedfilt.training.trainer import Trainer
from fedfilt.training.work import Desk
from helpers import ROOM


@pytest.fixture(scope="module")
def run():
    return Run(from_table(ROOM))


# --- the device ----------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(run):
    config = run.config
    trainer = Trainer(run.model, config.training, run.data.x.shape[1:])
    return Desk(trainer, config.sparsifier, config.seed, run.data.classes, Plain())


def train(desk, run, folder, round, accepted, number=1):
    row = run.start().models[number]
    order = messages.train_order("r", Job(round, number, row, Plan(1, 1.0, 0.2), accepted=accepted))
    content = device.train_reply(order, device.Workplace(desk, lambda i: device.dealt(run.data, i), folder))
    record = content.config_records[messages.RECORD]
    return record["update"], record["lost"]


def test_what_a_device_keeps_moves_on_only_when_the_server_says_so(desk, run, tmp_path):
    first, _ = train(desk, run, tmp_path, 1, 0)
    second, lost = train(desk, run, tmp_path, 2, 1)  # round 1 was accepted: its rest is in this update
    assert not lost
    assert train(desk, run, tmp_path, 2, 1) == (second, False)  # asked again after a crash of the server: same bytes
    unlike, _ = train(desk, run, tmp_path, 2, 0)  # round 1 was not accepted after all: its rest is not
    assert unlike != second
    assert train(desk, run, tmp_path, 1, 0) == (first, False)
    train(desk, run, tmp_path, 2, 1)
    train(desk, run, tmp_path, 3, 1)  # round 2 was late
    train(desk, run, tmp_path, 4, 1)
    assert sorted(path.name for path in tmp_path.glob("left-*")) == ["left-1.safetensors", "left-4.safetensors"]


def test_a_device_without_its_disk_says_so_and_goes_on(desk, run, tmp_path):
    first, _ = train(desk, run, tmp_path / "a", 2, 0)
    assert train(desk, run, tmp_path / "b", 2, 1) == (first, True)
    (tmp_path / "b" / "left-2.safetensors").write_bytes(b"damaged")
    assert train(desk, run, tmp_path / "b", 3, 2)[1]


def test_a_device_refuses_bad_orders(desk, run, tmp_path):
    row = run.start().models[0]
    good = dict(messages.train_order("r", Job(1, 0, row, Plan(1))).config_records[messages.RECORD])
    here = device.Workplace(desk, lambda i: device.dealt(run.data, i), tmp_path, about="model=1 seed=2")
    good["about"] = here.about
    bad: list[tuple[dict[str, Any], str]] = [
        ({"row": b"123"}, "row must be"),
        ({"row": np.full(len(row), np.nan, "<f4").tobytes()}, "row must be finite"),
        ({"epochs": -1}, "epochs must be from 1"),
        ({"round": 0}, "round must be from 1"),
        ({"density": 2.0}, "density must be from 0 to 1"),
        ({"device": 9}, "device must be from 0 to 3, got 9"),
        ({"accepted": "1"}, "accepted must be int"),
        ({"about": "model=1 seed=3"}, "another experiment than this device: seed differ"),
        ({"about": ""}, "another experiment than this device: model, seed differ"),
    ]
    for change, reason in bad:
        order = RecordDict({messages.RECORD: ConfigRecord(good | change)})
        with pytest.raises(messages.BadMessage, match=reason):
            device.train_reply(order, here)
    with pytest.raises(messages.BadMessage, match="must hold one record"):
        device.train_reply(RecordDict({}), here)


def test_a_device_keeps_its_samples_and_its_model(desk, run, tmp_path):
    calls = []

    def data():
        calls.append(1)
        return run.data

    first = device.kept_samples(tmp_path, "p", 2, data)
    again = device.kept_samples(tmp_path, "p", 2, data)
    assert len(calls) == 1
    for part in device.PARTS:
        assert all((one == other).all() for one, other in zip(getattr(first, part), getattr(again, part), strict=True))
    device.kept_samples(tmp_path, "other", 2, data)
    assert len(calls) == 2
    kind = device.kept_kind(tmp_path, "other")
    assert kind is not None
    assert (kind.classes, kind.x.shape[1:]) == (10, (1, 8, 8))
    assert device.kept_kind(tmp_path, "p") is None
    order = messages.test_order("r", 3, 2, run.start().models[2], "")
    device.test_reply(order, device.Workplace(desk, lambda i: first, tmp_path))
    from safetensors.torch import load_file

    copy.deepcopy(run.trainer.module).load_state_dict(load_file(tmp_path / "model.safetensors"))


def test_what_was_accepted_is_in_the_checkpoint(tmp_path):
    path = tmp_path / "state.safetensors"
    save_state(path, State(3, np.ones((2, 5), np.float32), None, np.array([3, 1])), "abc")
    found = load_state(path, ["abc"], State(0, np.zeros((2, 5), np.float32)))[0].accepted
    assert found is not None
    assert found.tolist() == [3, 1]
    save_state(path, State(3, np.ones((2, 5), np.float32), None, np.array([3, 1, 2])), "abc")
    with pytest.raises(BadCheckpoint, match="what was accepted"):
        load_state(path, ["abc"], State(0, np.zeros((2, 5), np.float32)))


# --- who is who ----------------------------------------------------------------------------------------------------


class Listed:
    def __init__(self, *nodes):
        self._nodes = nodes

    def get_nodes(self):
        return [NodeInfo(node_id=number, public_key=key, name=name) for number, key, name in self._nodes]


def listed(*nodes: Any) -> Any:
    """A grid that has these nodes."""
    return Listed(*nodes)


def test_a_row_belongs_to_a_key_and_to_nothing_else(caplog):
    known = [Registered("a", b"key a"), Registered("b", b"key b")]
    found = Nodes(listed((7, b"key b", "b"), (8, b"key c", "a"), (9, b"key a", "b")), 2, known).online()
    assert found == {1: 7}  # 8 has the name but not the key, 9 the key under a wrong name
    assert "node 8 ('a') does not hold the key of a device; it is ignored" in caplog.text
    with pytest.raises(ValueError, match="registered devices, one per row"):
        Nodes(listed(), 3, known)


def _claims():
    app = ClientApp()

    @app.query()
    def _query(message: Message, context: Context) -> Message:
        number: Any = context.node_config["partition-id"]
        return Message(messages.who_reply(min(number, 2)), reply_to=message)

    return app


def test_a_number_is_given_once(caplog):
    with running_grid(_claims, 4) as grid:
        assert sorted(Nodes(grid, 4).online()) == [0, 1, 2]
    assert "claims to be device 2, which is another node" in caplog.text


def test_only_this_machine_may_give_orders_and_requests_are_of_limited_size(monkeypatch):
    from flwr.superlink import extensions
    from flwr.superlink.main import create_app
    from starlette.middleware import Middleware

    from fedfilt.flower.deploy.superlink import Guard

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
            assert "only the SuperLink's own machine" in reply.text
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


def test_few_threads_of_the_superlink_share_its_database():
    from anyio import to_thread

    from fedfilt.flower.deploy.superlink import THREADS, Guard

    async def threads():
        async def app(scope, receive, send): ...

        await Guard(app, most_bytes=0)({"type": "lifespan"}, app, app)
        return to_thread.current_default_thread_limiter().total_tokens

    assert asyncio.run(threads()) == THREADS


@pytest.mark.parametrize("seconds", [(290, 55), (310, 0), (290, 65)])
def test_an_app_has_time_to_start_but_not_to_fall_silent(monkeypatch, seconds):
    from flwr.proto.task_pb2 import Task, TaskStatus
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode.nodestate import NodeStateFactory

    from fedfilt.engines.flower._compat import be_patient

    for module in (in_memory_corestate, sql_corestate):
        for name in ("HEARTBEAT_DEFAULT_INTERVAL", "HEARTBEAT_PATIENCE"):
            monkeypatch.setattr(module, name, getattr(module, name))  # to be as before afterwards
    clock = [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)]
    monkeypatch.setattr(in_memory_corestate, "now", lambda: clock[0])
    be_patient()
    state: Any = NodeStateFactory(ObjectStoreFactory()).state()
    state.task_store[5] = Task(task_id=5, run_id=1, status=TaskStatus(status="pending"))
    assert state.claim_task(5)
    start, silence = seconds
    clock[0] += datetime.timedelta(seconds=start)
    assert state.activate_task(5) == (start < 300)
    clock[0] += datetime.timedelta(seconds=silence)
    assert state.acknowledge_task_heartbeat(5) == (start < 300 and silence < 60)


def test_the_work_of_a_run_that_ended_does_not_keep_back_the_next_reply(monkeypatch):
    """Flower's own loop, with a message of a run that ended while it was fetched and one of the next run."""
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode import start_client_internal as internal
    from flwr.supernode.nodestate import NodeStateFactory

    from fedfilt.engines.flower._compat import answer_all

    monkeypatch.setattr(internal, "_push_messages", internal._push_messages)  # to be as before afterwards
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    objects = ObjectStoreFactory()
    state: Any = NodeStateFactory(objects).state()
    store = objects.store()
    monkeypatch.setattr(state, "get_message_processing_duration", lambda message_id: 0.0)
    received = []
    for run_id in (1, 2):
        message = messages.addressed("who", 7, messages.who_order(), 0, 60.0)
        message.metadata.__dict__.update(_run_id=run_id, _message_id=f"message-{run_id}")
        state.store_message(message)
        received.append(message)

    def reply(message):
        answer = Message(messages.who_reply(message.metadata.run_id), reply_to=message)
        internal._insert_message(answer, state, store)

    sent = []

    def send(message, tree, seconds):
        sent.append(message.metadata.run_id)
        return set(), ""

    answer_all()
    reply(received[0])  # the left-over is done at once, the other a second later
    later = threading.Timer(1.0, reply, [received[1]])
    later.start()
    internal._push_messages(state=state, object_store=store, send=send, push_object=lambda *_: None)
    later.join()
    assert sent == [1, 2]
    assert not state.msg_store


def test_nodes_that_came_online_since_an_order_are_known_once_they_could_have_answered():
    def ago(seconds):
        return (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)).isoformat()

    class Listing:
        def get_nodes(self):
            began = {1: ago(500), 2: ago(60), 3: ago(5), 4: ""}
            return [NodeInfo(node_id=node, last_activated_at=at) for node, at in began.items()]

    listing: Any = Listing()
    nodes = Nodes(listing, 1, [Registered("lamp", b"key")])
    assert nodes.restarted(seconds=100.0) == {2}
    assert nodes.restarted(seconds=40.0) == set()
    assert Nodes(listing, 1).restarted(seconds=100.0) == set()


def test_a_row_may_be_sent_without_its_end_and_an_order_without_the_number_of_rounds():
    row = np.arange(1, 7, dtype=np.float32)
    order = messages.train_order("run", Job(3, 1, row, Plan(2), rounds=9))
    _, job = messages.read_train_order(order, 12, least=3)
    assert job.rounds == 9
    np.testing.assert_array_equal(job.model, [*row, *np.zeros(6)])
    given = messages.read_test_order(messages.test_order("run", 3, 1, row, "about"), 12, least=6)
    np.testing.assert_array_equal(given.row, job.model)
    np.testing.assert_array_equal(messages.read_train_order(order, 10, least=4)[1].model, [*row, *np.zeros(4)])
    for size, least in ((12, 0), (12, 4), (12, 9), (5, 1), (0, 1)):
        with pytest.raises(messages.BadMessage, match=f"row must be {size} float32 values"):
            messages.read_train_order(order, size, least=least)
    del order["fedfilt"]["rounds"]  # of an edge server of an older version
    assert messages.read_train_order(order, 6)[1].rounds == 0
