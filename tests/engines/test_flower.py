"""Flower without a network: its simulation in this process, replies that are bad, late, repeated or foreign."""

import dataclasses
import functools
import json
import math
import random
import struct
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run as FlowerRun
from flwr.superlink.grid import http_grid

import fedfilt
from fedfilt._files import Busy, in_use, locked
from fedfilt.clients.plain import Plain
from fedfilt.engines.flower import _compat, messages
from fedfilt.engines.flower._compat import INBOX, UPLOAD, guard_replies, hurry
from fedfilt.engines.flower.engine import Flower
from fedfilt.engines.flower.exchange import exchange
from fedfilt.engines.flower.simulation import running_grid, simulated_grid
from fedfilt.engines.local import Local
from fedfilt.rounds.play import play, play_round
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import line_of, read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.system.lateness import Lateness
from fedfilt.system.orders import Job, Plan
from fedfilt.system.wire import HEADER, MAGIC, pack
from fedfilt.training.trainer import Trainer
from fedfilt.training.work import Desk
from helpers import ROOM, call, unlike_run


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
    return Run(from_table(ROOM))


@pytest.fixture(scope="module")
def grid(run):
    config = run.config
    trainer = Trainer(run.model, config.training, run.data.x.shape[1:])
    desk = Desk(trainer, config.sparsifier, config.seed, run.data.classes, Plain())
    with simulated_grid(desk, run.data, 1) as running:
        yield running


def engine(run, grid, **options):
    config = run.config
    return Flower(run.data, run.model, config.training, config.seed, 1, config.sparsifier, grid=grid, **options)


def one_round(run, place):
    with run.experiment(place) as experiment:
        return play_round(run.start(), dataclasses.replace(experiment, evaluation=_never()))


def _never():
    return fedfilt.Evaluation(every=1000)


class Without:
    """The local engine without some devices."""

    def __init__(self, run, lost):
        config = run.config
        self._inner = Local(run.data, run.model, config.training, config.seed, 1, config.sparsifier)
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


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    ("density", "events", "client"),
    [
        (1.0, [], "plain"),
        (0.2, [], "plain"),
        (0.2, COMING_AND_GOING, "plain"),
        (0.2, COMING_AND_GOING, "ditto"),
        (0.2, COMING_AND_GOING, "scaffold"),
        (1.0, [], "fedrep"),
        (1.0, [], "finetune"),
        (0.2, COMING_AND_GOING, {"name": "two_level", "before": 3, "epochs": 2}),
        (0.2, COMING_AND_GOING, {"name": "two_level", "before": 3, "epochs": 2, "mu": 10.0}),
        (1.0, [], {"name": "averaged", "client": "ditto"}),
    ],
)
def test_simulation_gives_the_bits_and_records_of_the_local_engine(tmp_path, density, events, client):
    found = []
    for name in ("local", "flower"):
        scheduler = {"name": "everything", "epochs": 2, "density": density}
        table = ROOM | {"scheduler": scheduler, "events": events, "rounds": 3 + len(events) // 4, "client": client}
        if isinstance(client, dict) and client["name"] == "two_level":
            table["aggregator"] = {"name": "empirical_bayes", "mu": client.get("mu", 0.0)}
        made = Run(from_table(table | {"engine": {"name": name, "workers": 1}}))
        for _ in play_in_folder(made, tmp_path / name):
            pass
        records = [
            {key: value for key, value in line.items() if key != "seconds"} for line in read_lines(tmp_path / name)
        ]
        found.append((records, json.loads((tmp_path / name / "result.json").read_text())["models_sha256"]))
    assert found[0] == found[1]
    assert "mixed" in found[0][0][-1]
    keeps = any(name in str(client) for name in ("ditto", "scaffold", "fedrep"))
    assert ("kept_bytes" in found[0][0][-1]) == keeps
    assert not events or found[0][0][1]["away"] == [0, 3]


def test_kinds_of_devices_give_the_bits_of_the_local_engine():
    run = unlike_run()
    local, over_flower = [
        one_round(run, kind(run.data, run.model, run.config.training, workers=1)) for kind in (Local, Flower)
    ]
    assert len(set(run.data.kinds or ())) == 2
    np.testing.assert_array_equal(over_flower[0].models, local[0].models)


@pytest.mark.slow(2)
def test_real_time_in_a_simulation_measures_costs(tmp_path):
    """The options of [engine] hold for `fedfilt run engine=flower` too."""
    run = Run(from_table(ROOM | {"rounds": 1, "engine": {"name": "flower", "workers": 1, "real_time": True}}))
    start = time.perf_counter()
    (line,) = play_in_folder(run, tmp_path / "run")
    taken = time.perf_counter() - start
    assert all(0 < seconds < taken for seconds in line["time"]["devices"]["compute_seconds"])
    assert 0 < line["time"]["latency"] < taken


def _app():
    from fedfilt.flower.app import client

    return client


@pytest.mark.slow(3)
def test_the_app_of_a_deployment_runs_unchanged_in_a_simulation(tmp_path, monkeypatch):
    """The same pyproject.toml; nodes are known by their partition-id; a second Flower run finds it complete."""
    from fedfilt.flower.app import server
    from fedfilt.flower.deploy.write import app_project

    monkeypatch.delenv("FEDFILT_DEPLOYMENT", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = from_table(ROOM)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_text(app_project(config))
    table: dict[str, Any] = {"experiment": config.toml(), "out": str(tmp_path / "run")}
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
        server(grid=silent(), context=Context(1, 0, {}, RecordDict(), table | {"out": str(tmp_path / "other")}))


def test_a_glance_at_the_lock_does_not_end_a_run(tmp_path, run):
    """A folder in use is left alone; that the edge server looks whether it is in use gets in nobody's way."""
    place, over = Without(run, []), threading.Event()
    with locked(tmp_path):
        assert in_use(tmp_path)
        with pytest.raises(Busy):
            next(play_in_folder(run, tmp_path, True, place))

    def look():
        while not over.is_set():
            in_use(tmp_path)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(300):  # each begins under somebody's eyes
            with locked(tmp_path):
                assert in_use(tmp_path)
        assert [line["round"] for line in play_in_folder(run, tmp_path, True, place)] == [1, 2, 3]
    finally:
        over.set()
        looking.join()
    assert not in_use(tmp_path)


def test_the_order_of_arrival_changes_nothing(run, grid):
    expected, _ = one_round(run, Without(run, []))
    held: list[Message] = []

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


BAD: dict[str, tuple[Callable[[int], dict[str, Any]], str]] = {
    "NaN": (lambda size: {"update": pack(np.full(size, np.nan, np.float32))}, "update must be finite"),
    "infinity": (lambda size: {"update": pack(np.full(size, np.inf, np.float32))}, "update must be finite"),
    "wrong shape": (lambda size: {"update": pack(np.zeros(size - 1, np.float32))}, "update must have"),
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
    "another round": (lambda size: {"round": 7}, "reply must be to round 1, got 7"),
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
    assert "absent" in line_of(run, record)
    assert state.accepted.tolist() == [1, 1, 0, 1]


def test_repeated_stale_and_foreign_replies_never_count(run, grid):
    old: list[Message] = []

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
        if len(came) < 3:
            time.sleep(0.02)
        else:
            now[0] += seconds

    timed = functools.partial(exchange, clock=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("fedfilt.engines.flower.engine.exchange", timed)
    jobs = [Job(1, i, row, Plan(1)) for i, row in enumerate(run.start().models)]
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


def silent() -> Any:
    """A grid on which nobody answers."""
    return Silent()


def test_the_wait_ends_on_a_monotonic_clock():
    grid = silent()
    sent = {5: messages.addressed("who", 1, messages.who_order(), 0, 60.0)}
    (answer,) = exchange(grid, sent, 10.0, clock=lambda: grid.now, sleep=grid.sleep)
    assert answer.late
    assert answer.device == 5
    assert answer.seconds == pytest.approx(10.0)
    assert 80 <= grid.looks <= 120
    assert list(exchange(grid, {}, 10.0)) == []


def test_an_order_that_was_lost_with_its_process_does_not_hold_up_the_round():
    """A device that was killed and started again is not waited for until the end of all patience."""
    grid = silent()
    sent = {5: messages.addressed("who", 1, messages.who_order(), 0, 60.0)}
    answers = exchange(
        grid,
        sent,
        600.0,
        clock=lambda: grid.now,
        sleep=grid.sleep,
        restarted=lambda seconds: {1} if seconds > 70 else set(),
    )
    (answer,) = answers
    assert answer.problem == "failed: it was started again, and the order lost"
    assert 70 < answer.seconds < 85
    assert not answer.late


def reply_objects(part, change=lambda content: content):
    """(tree, contents by id) of a reply as it travels, with its bytes changed."""
    order = messages.addressed("who", 7, messages.who_order(), 0, 60.0)
    order.metadata.__dict__.update(_message_id="asked", _run_id=1)
    found = get_all_nested_objects(reply := Message(messages.who_reply(part), reply_to=order))
    return get_object_tree(reply), {name: change(thing.deflate()) for name, thing in found.items()}


class Link:
    """The SuperLink as the HTTP grid sees it: some replies, each with its objects, announced once."""

    def __init__(self, replies):
        self.replies, self.pulls, self._announced = replies, [], set()

    def PullMessages(self, request):
        heads, trees = [], []
        for number, (tree, _) in enumerate(self.replies):
            if (asked := f"asked {number}") in set(request.message_ids) - self._announced:
                self._announced.add(asked)
                head = ProtoMessage()
                head.metadata.message_id, head.metadata.reply_to_message_id = tree.object_id, asked
                heads.append(head)
                trees.append(tree)
        return PullAppMessagesResponse(messages_list=heads, message_object_trees=trees)

    def PullObject(self, request):
        contents = {name: content for _, found in self.replies for name, content in found.items()}
        self.pulls.append(request.object_id)
        found = contents.get(request.object_id)
        return PullObjectResponse(object_found=True, object_available=found is not None, object_content=found or b"")

    def ConfirmMessageReceived(self, request):
        pass


PLAIN = http_grid.HttpGrid.pull_messages  # of Flower itself


@pytest.fixture
def http(monkeypatch):
    """Flower's HTTP grid on a link of ours."""
    monkeypatch.setattr(http_grid.HttpGrid, "pull_messages", PLAIN)  # an app may have run before

    def made(*replies) -> Any:
        grid: Any = http_grid.HttpGrid(token="any")
        grid._run, grid._client = FlowerRun.create_empty(1), Link(list(replies))
        return grid

    return made


UNREADABLE = {
    "truncated": lambda content: content[:-2],
    "of another kind": lambda content: content.replace(b"Message", b"ConfigRecord", 1),
    "nonsense": lambda content: b"nonsense",
    "nothing": lambda content: b"",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_reply_that_cannot_be_read_does_not_take_others_along(http, caplog, name):
    replies = reply_objects(1, UNREADABLE[name]), reply_objects(2)
    with pytest.raises(Exception):  # noqa: B017, PT011 (this is how Flower's own would end the run)
        http(*replies).pull_messages(["asked 0", "asked 1"])
    guard_replies()
    bad, good = http(*replies).pull_messages(["asked 0", "asked 1"])
    assert bad.metadata.reply_to_message_id == "asked 0"
    assert bad.has_error()
    assert "cannot read a reply" in caplog.text
    assert messages.read_who_reply(good.content, 4) == 2


def test_a_reply_that_is_announced_and_not_sent_makes_nobody_wait(http, monkeypatch, caplog):
    """It is looked for less and less often, is taken as soon as it is there, and given up after a while."""
    now = [100.0]
    monkeypatch.setattr(_compat, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    guard_replies()
    silent, sent = reply_objects(1), reply_objects(2)
    grid = http((silent[0], {}), sent)
    ids = ["asked 0", "asked 1"]
    (good,) = grid.pull_messages(ids)
    assert messages.read_who_reply(good.content, 4) == 2
    grid._client.pulls.clear()
    for _ in range(100):  # ten seconds of looks
        now[0] += 0.1
        assert grid.pull_messages(ids[:1]) == []
    assert 8 <= len(grid._client.pulls) <= 16
    grid._client.replies[0] = silent
    assert grid.pull_messages(ids[:1]) == []  # it is not its turn
    hurry(grid)
    (came,) = grid.pull_messages(ids[:1])
    assert messages.read_who_reply(came.content, 4) == 1

    grid = http((silent[0], {}))
    assert grid.pull_messages(ids[:1]) == []
    now[0] += UPLOAD + 1
    (failed,) = grid.pull_messages(ids[:1])
    assert "it was announced but not sent within 60 s" in failed.error.reason
    grid = http((silent[0], {}))
    assert grid.pull_messages(ids[:1]) == []
    assert grid.pull_messages([]) == []  # the round is over
    assert not getattr(grid, INBOX)


class Slow(Silent):
    """A grid on which a look takes a second and a half; what is asked for is there after `ready` seconds."""

    def __init__(self, ready):
        super().__init__()
        self.ready = ready

    def push_messages(self, sent):
        self.asked = sent
        return super().push_messages(sent)

    def pull_messages(self, ids):
        there = self.now >= self.ready
        self.now += 1.5
        return [Message(messages.who_reply(3), reply_to=message) for message in self.asked if there]


@pytest.mark.parametrize(("ready", "late"), [(9.5, False), (10.4, False), (10.6, True)])
def test_the_last_look_begins_after_the_deadline(ready, late):
    """What was there in time counts, also if the look that spans the deadline has missed it."""
    grid: Any = Slow(ready)
    sent = {5: messages.addressed("who", 1, messages.who_order(), 0, 60.0)}
    (answer,) = exchange(grid, sent, 10.0, clock=lambda: grid.now, sleep=lambda seconds: None)
    assert answer.late is late


def test_packed_updates_are_small(run):
    """An update at density 0.2 travels as one record of hardly more than its bytes."""
    content = pack(np.zeros(1000, np.float32), np.arange(50))
    reply = messages.train_reply("r" * 16, Job(1, 0, np.zeros(1), Plan()), messages.Trained(content, 20, 0.5, 1.0))
    assert len(reply.config_records[messages.RECORD].deflate()) < len(content) + 400
    assert struct.calcsize(HEADER.format) == 16


def test_without_flower_there_is_one_clear_line(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "flwr" or name.startswith("fedfilt.engines.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    (tmp_path / "e.toml").write_text(from_table(ROOM | {"engine": {"name": "flower"}}).toml())
    done = call("run", "e.toml", "--out", "r", cwd=tmp_path)
    assert done.returncode == 1
    assert "(flwr>=1.41,<1.43): pip install 'fedfilt[flower]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow(4)
def test_one_message_of_1e30_is_forgotten_within_three_rounds_and_its_sender_is_named():
    """On the real engine: the reply of device 2 in round 4 is finite, well-formed, and huge."""
    table = {**ROOM, "rounds": 8, "evaluation": {"every": 1}, "scheduler": {"name": "everything", "epochs": 2}}
    poisoned = Run(from_table(table))
    size, sent = poisoned.layout.size, []

    def huge(replies):
        for reply in replies:
            record = reply.content.config_records.get(messages.RECORD, {}) if reply.has_content() else {}
            if record.get("device") == 2 and "update" in record and record["round"] == 4:
                record["update"] = pack(np.full(size, 1e30, np.float32))
                sent.append(record["round"])
        return replies

    def accuracies(change, **options):
        run = Run(from_table({**table, **options}))
        trainer = Trainer(run.model, run.config.training, run.data.x.shape[1:])
        desk = Desk(trainer, run.config.sparsifier, run.config.seed, run.data.classes, Plain())
        with simulated_grid(desk, run.data, 1) as plain, run.experiment(engine(run, Wrapped(plain, change))) as played:
            records = [record for _, record in play(run.start(), played)]
        return [record.mixed.global_test.trace(axis1=1, axis2=2).mean() for record in records], records

    honest, _ = accuracies(lambda replies: replies)
    found, records = accuracies(huge)
    assert sent == [4]
    assert max(found[3:7]) >= max(honest[3:7]) - 2  # of 40 samples
    assert found[6] >= honest[6] - 2
    assert [(event.round, event.device, event.what) for r in records for event in r.events] == [(4, 2, "clipped")]
    back, records = accuracies(huge, guard={"clip": 0})  # nothing stops it: the run goes back
    named = [(event.round, event.device, event.what) for record in records for event in record.events]
    assert named[:2] == [(5, None, "setback"), (5, 2, "quarantined")]
    assert back[3] < honest[3] - 2
    assert back[6] >= honest[3] - 2
