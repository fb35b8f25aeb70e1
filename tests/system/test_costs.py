"""What goes over the wire, what it costs in simulated time, and what happens to late devices."""

import json
import math
import socket
import subprocess
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file
from torch import nn

from fedfilt import Graph
from fedfilt import _parts as parts
from fedfilt._types import Table
from fedfilt.aggregators import Local
from fedfilt.engines._simulated import Simulated
from fedfilt.engines.local import Local as LocalEngine
from fedfilt.populations import Paper
from fedfilt.rounds.play import play
from fedfilt.rounds.types import Evaluation, Experiment, State
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.schedulers.everything import Everything
from fedfilt.sparsifiers import TopK
from fedfilt.system.lateness import Lateness
from fedfilt.system.orders import Job, Plan
from fedfilt.system.wire import HEADER, pack, unpack, values_within, wire_size
from fedfilt.training import profiling
from fedfilt.training._torch import row_of
from fedfilt.training.sgd import Training
from helpers import (
    ENDLESS,
    SLOW,
    a_net,
    as_far_as,
    call,
    command,
    config_file,
    finish,
    killed,
    later,
    process,
    some_data,
    started,
    sure,
    until,
)

updates = arrays.arrays(np.float32, st.integers(1, 300), elements=st.floats(-100, 100, width=32))


# --- the wire -----------------------------------------------------------------------------------------------------


@given(updates, st.floats(0.001, 1), st.booleans())
def test_bytes_are_counted_exactly_and_come_back(update, density, half):
    count = values_within(len(update), density * wire_size(len(update), len(update)), half)
    places = np.sort(np.random.default_rng(0).permutation(len(update))[:count])
    content = pack(update, places, half)
    assert len(content) == wire_size(len(update), count, half)
    back = unpack(content, len(update))
    expected = np.zeros_like(update)
    expected[places] = update[places].astype(np.float16) if half else update[places]
    np.testing.assert_array_equal(back, expected)


def test_the_head_of_a_row_stands_for_the_row_where_that_is_allowed():
    head = np.arange(1, 4, dtype=np.float32)
    for content in (pack(head), pack(head, np.array([0, 2]))):
        whole = unpack(content, 12, least=3)
        np.testing.assert_array_equal(whole[:3], unpack(content, 3))
        assert whole.shape == (12,)
        assert not whole[3:].any()
        for size, least in ((12, 0), (12, 2), (12, 4), (2, 1), (11, 12)):
            with pytest.raises(ValueError, match=f"update must have {size} values"):
                unpack(content, size, least)
    np.testing.assert_array_equal(unpack(pack(head), 3, least=3), head)
    three = np.arange(1, 10, dtype=np.float32)  # of five arrays of three values, where two travel in every round
    np.testing.assert_array_equal(unpack(pack(three), 15, least=6)[:9], three)
    for values in (3, 7):
        with pytest.raises(ValueError, match="update must have 15 values"):
            unpack(pack(three[:values]), 15, least=6)


@given(st.integers(1, 100_000), st.floats(0, 1), st.booleans())
def test_as_many_values_as_fit(size, density, half):
    budget = density * wire_size(size, size)
    count = values_within(size, budget, half)
    assert 1 <= count <= size
    if count > 1:
        assert wire_size(size, count, half) <= budget
    if count < size - 1:
        assert wire_size(size, count + 1, half) > budget


def broken():
    good = pack(np.arange(100, dtype=np.float32), np.array([3, 7, 50]))
    bitmap = pack(np.arange(100, dtype=np.float32), np.arange(0, 100, 2))
    nan = pack(np.full(100, np.nan, np.float32))
    huge = pack(np.full(100, 1e30, np.float32), half=True)
    repeated = good[: HEADER.size] + np.array([3, 3, 50], "<u4").tobytes() + good[HEADER.size + 12 :]
    outside = good[: HEADER.size] + np.array([3, 7, 100], "<u4").tobytes() + good[HEADER.size + 12 :]
    more_bits = bitmap[: HEADER.size] + b"\xff" * 13 + bitmap[HEADER.size + 13 :]
    claims = HEADER.pack(b"fflt", 0, 4, 0, 2**32 - 1, 2**32 - 1)
    return [b"", good[:10], good[:-1], good + b"x", b"nope" + good[4:], nan, huge, repeated, outside, more_bits, claims]


@pytest.mark.parametrize("content", broken())
def test_broken_updates_are_refused(content):
    with pytest.raises(ValueError, match="update"):
        unpack(content, 100)
    with pytest.raises(ValueError, match="update must have 99 values"):
        unpack(pack(np.zeros(100, np.float32)), 99)


# --- sparsifiers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", parts.names("sparsifiers"))
def test_sparsifier_contract(name):
    rule = parts.find("sparsifiers", name)()
    assert ">>>" in sure(type(rule).__doc__)
    update = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    content, left = rule(update, None, 1.0)
    assert len(content) == rule.full_bytes(1000)
    np.testing.assert_array_equal(unpack(content, 1000), update)
    assert left is None
    content, left = rule(update, None, 0.3)
    assert len(content) <= 0.3 * wire_size(1000, 1000)
    np.testing.assert_allclose(unpack(content, 1000) + left, update, atol=1e-6)


@given(updates, updates, st.floats(0.01, 0.9))
def test_top_k_sends_the_largest_and_keeps_the_rest(update, owed, density):
    size = min(len(update), len(owed))
    update, owed = update[:size], owed[:size]
    content, left = TopK()(update, owed, density)
    sent = unpack(content, size)
    total = update + owed
    if left is None:
        np.testing.assert_array_equal(sent, total)
        return
    np.testing.assert_array_equal(sent + left, total)
    chosen = sent != 0
    if chosen.any() and not chosen.all():
        assert abs(total[chosen]).min() >= abs(left).max()


def test_ties_go_to_the_lower_index():
    update = np.ones(1000, np.float32)
    content, _ = TopK()(update, None, 0.1)
    places = np.flatnonzero(unpack(content, 1000))
    np.testing.assert_array_equal(places, np.arange(len(places)))


def test_half_precision_keeps_its_rounding_error_on_the_device():
    update = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    content, left = TopK(half=True)(update, None, 1.0)
    assert len(content) == wire_size(1000, 1000, half=True) < 0.51 * wire_size(1000, 1000)
    assert 0 < abs(sure(left)).max() < 1e-2
    assert TopK(half=True, error_feedback=False)(update, None, 1.0)[1] is None


def test_half_precision_is_charged_as_it_is_sent(tmp_path):
    whole = finish(tmp_path / "whole", rounds=2)["totals"]["bytes"]
    half = finish(tmp_path / "half", rounds=2, sparsifier={"half": True})["totals"]["bytes"]
    assert 0.49 < half / whole < 0.51
    planned: Table = {"scheduler": {"name": "same_deadline", "deadline": "fastest_full"}, "devices": "prescribed"}
    totals = finish(tmp_path / "planned", rounds=2, sparsifier={"half": True}, **planned)["totals"]
    assert totals["I_7_desync_seconds"] < 0.3 * totals["I_6_latency_seconds"]


def test_error_feedback_sends_everything_in_the_end():
    """A constant update cut to a tenth: with feedback the sum of what is sent follows the sum of what was learnt."""
    rng = np.random.default_rng(0)
    update = rng.standard_normal(500).astype(np.float32)
    for feedback in (True, False):
        rule, owed, sent = TopK(error_feedback=feedback), None, np.zeros(500)
        for _ in range(60):
            content, owed = rule(update, owed, 0.1)
            sent += unpack(content, 500)
        error = np.linalg.norm(sent / 60 - update) / np.linalg.norm(update)
        assert error < 0.2 if feedback else error > 0.5


def test_workers_cut_down_updates_in_the_same_way():
    data, module = some_data(), a_net()
    row = row_of(module)
    owed = np.random.default_rng(0).standard_normal(len(row)).astype(np.float32)
    found = []
    for workers in (1, 2):
        with LocalEngine(data, module, Training(0.1, 8), 1, workers) as engine:
            jobs = [Job(1, i, row, Plan(2, 1.0, 0.2), owed if i else None) for i in range(4)]
            found.append([(r.size, r.update.copy(), sure(r.residual).copy()) for r in engine.train(jobs, math.inf)])
    for (size, update, left), (other, same, rest) in zip(*found, strict=True):
        assert size == other <= 0.2 * wire_size(len(row), len(row))
        np.testing.assert_array_equal(update, same)
        np.testing.assert_array_equal(left, rest)


# --- simulated time -----------------------------------------------------------------------------------------------


def simulated_round(lateness, error=0.0, deadline=math.inf, count=20):
    data = some_data(devices=count, shape=(4,), sizes=(30,))
    module = nn.Linear(4, 3)
    devices = Paper(error=error).draw(np.full(count, 30), 76, np.random.default_rng(0))
    row = row_of(module)
    with LocalEngine(data, module, Training(), 0, 1) as inner:
        jobs = [Job(1, i, row, Plan(3)) for i in range(count)]
        return devices, list(Simulated(inner, devices, 0, lateness).train(jobs, deadline))


def test_costs_are_those_of_the_equations():
    devices, replies = simulated_round(Lateness())
    for reply in replies:
        i = reply.device
        assert reply.cost.compute_seconds == pytest.approx(3 * devices.compute_seconds()[i])
        assert reply.cost.send_seconds == pytest.approx(devices.send_seconds(wire_size(15, 15))[i])
        assert reply.cost.send_joules == pytest.approx(devices.transmit_watts[i] * reply.cost.send_seconds)
        assert reply.cost.compute_joules == pytest.approx(3 * devices.compute_joules()[i])
        assert not reply.late
    ends = [reply.cost.seconds + reply.cost.idle_seconds for reply in replies]
    np.testing.assert_allclose(ends, max(reply.cost.seconds for reply in replies))


def test_late_policies():
    everybody = simulated_round(Lateness(), error=0.3)[1]
    arrivals = np.sort([reply.cost.seconds for reply in everybody])
    middle = float(arrivals[9:11].mean())
    strict = simulated_round(Lateness("deadline", margin=0.0), 0.3, middle)[1]
    assert sum(reply.late for reply in strict) == 10
    relaxed = simulated_round(Lateness("deadline", margin=1.6), 0.3, middle)[1]
    assert sum(reply.late for reply in relaxed) < 10
    quorum = simulated_round(Lateness("quorum", quorum=0.9), 0.3)[1]
    assert sum(reply.late for reply in quorum) == 2
    with pytest.raises(ValueError, match="needs a scheduler that sets a deadline"):
        simulated_round(Lateness("deadline"), 0.3)
    everybody = simulated_round(Lateness("deadline", margin=0.0), 0.3, arrivals[0] / 2)[1]
    assert all(reply.late and reply.end == arrivals[0] / 2 for reply in everybody)  # the server waited so long in vain


def test_a_late_device_is_absent_and_its_residual_stays():
    data, module = some_data(devices=3, shape=(4,), sizes=(30,)), nn.Linear(4, 3)
    devices = Paper().draw(np.full(3, 30), 76, np.random.default_rng(0))
    start = np.tile(row_of(module), (3, 1))
    owed = np.ones_like(start)
    with LocalEngine(data, module, Training(0.1), 0, 1) as inner:
        engine = Simulated(inner, devices, 0, Lateness("quorum", quorum=0.6))
        experiment = Experiment(
            Graph.from_edges(3, []), Local(), Everything(2), engine, devices, 1, 76, Evaluation(every=9), 0
        )
        state, record = next(play(State(0, start, owed), experiment))
    assert record.late.sum() == 1
    (late,) = np.flatnonzero(record.late)
    np.testing.assert_array_equal(state.models[late], start[late])
    np.testing.assert_array_equal(sure(state.residuals)[late], owed[late])
    assert record.samples[late] == 0
    others = [i for i in range(3) if i != late]
    assert not sure(state.residuals)[others].any()  # sent in full
    assert (state.models[others] != start[others]).any()


def test_records_and_totals(tmp_path):
    changes: Table = {"devices": {"name": "prescribed", "variability": 0.1}, "rounds": 3}
    plain = finish(tmp_path / "plain", **changes)["totals"]
    planned = finish(tmp_path / "planned", **changes, scheduler="same_deadline")["totals"]
    assert planned["I_6_latency_seconds"] < 0.2 * plain["I_6_latency_seconds"]
    assert planned["I_7_desync_seconds"] < 0.02 * plain["I_7_desync_seconds"]
    assert planned["bytes"] < 0.3 * plain["bytes"]
    rounds = [line["time"] for line in read_lines(tmp_path / "plain")]
    assert plain["I_6_latency_seconds"] == pytest.approx(sum(r["latency"] for r in rounds))
    run = Run(from_table({"data": "digits", "model": "mlp", "samples": {"train": 20, "local_test": 10}}))
    assert plain["I_5_flops"] == 3 * 20 * 3 * 20 * (2 * 2 * (64 * 16) + 3 * 2 * (16 * 10))
    assert run.flops_per_sample == 2 * 2 * (64 * 64) + 3 * 2 * (64 * 10)
    devices = rounds[0]["devices"]
    for i in range(20):
        total = devices["compute_seconds"][i] + devices["send_seconds"][i] + devices["idle_seconds"][i]
        assert total == pytest.approx(rounds[0]["latency"], rel=1e-4)


@pytest.mark.slow(10)
def test_killed_and_resumed_keeps_the_residuals(tmp_path):
    changes = {**ENDLESS, "scheduler": "same_deadline", "devices": "prescribed"}
    path, folder = config_file(tmp_path, **changes), tmp_path / "killed"
    saved = folder / "checkpoint" / "state.safetensors"
    folder.mkdir()  # --resume goes on with what is there

    def stamp():
        return saved.stat().st_mtime_ns if saved.exists() else 0

    for _ in range(3):
        words, before = command("run", path, "--out", folder, "--resume"), stamp()
        killed(words, ready=partial(later, stamp, before))
    last = len(read_lines(folder)) + 2
    assert "residuals" in load_file(saved)
    assert as_far_as(last, folder, **changes) == as_far_as(last, tmp_path / "whole", **changes)


# --- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.slow(4)
def test_plan_command(tmp_path):
    picture = tmp_path / "plan.html"
    path = config_file(tmp_path, scheduler="same_deadline", devices="prescribed")
    done = process("plan", path, "--out", picture, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["heterogeneity"] == pytest.approx(0.31)
    assert found["deadline"] == pytest.approx(0.09 * 1.92)
    assert len(found["devices"]) == 20
    assert all(d["outcome"] == "sync" for d in found["devices"])
    assert picture.exists()
    shown = call("plan", path, "--out", picture)
    assert "sync" in shown.stdout
    wrong = call("plan", path, "scheduler.epochs=[5,1]", "--out", picture)
    assert wrong.returncode == 1
    assert "epochs must be (fewest, most)" in wrong.stderr


@pytest.mark.slow(5)
def test_profile_command_measures_this_machine_and_its_uplink(monkeypatch):
    with started(command("profile", "--listen", 0), stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        with listener.stdout as said:
            port = said.readline().strip().rpartition(":")[2]
        words = ["--model", "mlp", "--shape", "1,8,8", "--name", "watch", "--send-to", f"127.0.0.1:{port}"]
        done = call("profile", *words, "--size", 200_000)
        assert done.returncode == 0, done.stderr
        head, line = done.stdout.splitlines()
        assert head == "device,seconds_per_sample,bits_per_second"
        name, seconds, rate = line.split(",")
        assert name == "watch"
        assert float(seconds) > 0
        assert float(rate) > 0
        assert listener.wait(SLOW) == 0
    monkeypatch.setattr(profiling, "seconds_per_sample", lambda *_: 0.001)
    assert "HOST:PORT" in call("profile", "--model", "mlp", "--send-to", "nowhere").stderr


def test_listening_takes_no_more_than_it_is_told_and_ends_by_itself():
    ports: list[int] = []
    serving = threading.Thread(
        target=lambda: profiling.listen("127.0.0.1", 0, ports.append, times=2, seconds=SLOW), daemon=True
    )
    serving.start()
    until(lambda: ports, "the server's port")
    with socket.create_connection(("127.0.0.1", ports[0])) as link:
        link.sendall((1 << 60).to_bytes(8, "big"))  # an absurd size is refused
        assert link.recv(1) == b""
    assert profiling.bits_per_second("127.0.0.1", ports[0], 100_000, seconds=SLOW) > 0
    serving.join(SLOW)
    assert not serving.is_alive()
