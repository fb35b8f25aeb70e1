"""Resident devices, one small process each: own data, kills, intruders, bad input, and a building that changes."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from aarch64 import EMULATED
from deployments import (
    DEALT,
    FILE,
    LABELS,
    PLACE,
    Devices,
    below,
    check_result,
    deployed,
    expected,
    free_port,
    metrics,
    own_experiment,
    record,
    site,
    status,
    written,
)
from fedfilt._trust import without_trust
from fedfilt.data.own import read
from fedfilt.engines.flower._compat import Fleet, Unreachable, internals
from fedfilt.engines.flower.engine import Seen
from fedfilt.engines.flower.identity import registered
from fedfilt.flower.deploy.certificates import certificates, new_key
from fedfilt.flower.deploy.control import control
from fedfilt.flower.deploy.members import Members
from fedfilt.flower.deploy.write import experiment_of
from fedfilt.runs.config import from_table
from helpers import MINE, SENSORS, SLOW, call, command, encoded_homes, process, until

ENDLESS = 100_000  # rounds of a run that is ended when enough has been seen


def rounds_of(building):
    """Wait for this many rounds more to be played."""

    def more(count=1):
        end = len(metrics(building)) + count
        until(lambda: len(metrics(building)) >= end, f"round {end}")

    return more


def stop(server):
    """End an edge server in good order, between two rounds or in one."""
    server.terminate()
    assert server.wait(SLOW) == 0


# --- own data -----------------------------------------------------------------------------------------------------


@pytest.mark.slow(30)
@pytest.mark.parametrize("client", ["ditto", "scaffold"])
def test_what_a_client_keeps_stays_on_its_device_and_gives_the_bits_of_the_local_engine(tmp_path, kept, client):
    """A device is killed after its first rounds and goes on with what it had kept."""
    experiment = own_experiment(tmp_path / "homes", client=client, aggregator="fedavg", rounds=ENDLESS)
    building, server = deployed(tmp_path, kept, experiment=experiment)
    devices, more = Devices(building, kept).start_all(), rounds_of(building)
    more(2)
    devices.kill("device-001")
    devices.start("device-001")
    until(lambda: "1" not in metrics(building)[-1].get("absent", {}), "the device is back")
    more(2)
    stop(server)
    path = building / "server" / "run" / "checkpoint" / "state.safetensors"
    with safe_open(path, "np") as file:
        last = int(file.metadata()["round"])  # a line may have been written after it
    saved = load_file(path)
    np.testing.assert_array_equal(saved["models"], expected(building, last))
    name = {"ditto": "client.personal", "scaffold": "client.control"}[client]
    for device in range(4):
        state = building / "devices" / f"device-{device:03d}" / "state"
        assert any(name in load_file(path) for path in state.glob("left-*.safetensors"))
    assert not [key for key in saved if key.startswith("client.")]
    assert metrics(building)[-1]["kept_bytes"][0] > 0


@pytest.mark.slow(20)
@pytest.mark.parametrize("mu", [0.0, 10.0])
def test_two_levels_on_resident_devices_are_those_of_the_local_engine(tmp_path, kept, mu):
    """The changes are sent once; every device keeps a shared and a personal model, and a filtered one if there is."""
    client, rule = {"name": "two_level", "before": 2, "epochs": 3, "mu": mu}, {"name": "empirical_bayes", "mu": mu}
    experiment = own_experiment(tmp_path / "homes", client=client, aggregator=rule)
    building, server = deployed(tmp_path, kept, experiment=experiment)
    Devices(building, kept).start_all()
    until(lambda: server.poll() is not None, "the end of the run")
    models = check_result(building, 3)
    third = int(mu > 0)
    size, lines = models.shape[1] // (4 + third), metrics(building)
    assert [line["time"]["bytes"] > 2 * lines[0]["time"]["bytes"] for line in lines] == [False, True, False]
    assert ["measured" in line for line in lines] == [False, True, False]
    for device in range(4):
        tensors = load_file(building / "devices" / f"device-{device:03d}" / "state" / "model.safetensors")
        also = [[array for key, array in tensors.items() if key.startswith(f"also.{n}.")] for n in (1, 2)]
        own = [array for key, array in tensors.items() if not key.startswith("also.")]
        rows = [np.concatenate([array.ravel() for array in arrays]) for arrays in (own, *also) if arrays]
        shared, *filtered, personal = (models[device, n * size : (n + 1) * size] for n in range(2 + third))
        wanted = [personal, shared, *(shared + one for one in filtered)]
        for row, right in zip(rows, wanted, strict=True):
            np.testing.assert_array_equal(np.sort(row), np.sort(right))


@pytest.mark.slow(30)
def test_a_client_of_ones_own_goes_to_the_devices_and_needs_a_word_there(tmp_path, kept):
    """Its file is copied with the deployment: neither the folder that it was in nor the current one is needed then."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "experiment.toml").write_text(own_experiment(tmp_path / "homes"))
    played = process(
        "run", "experiment.toml", "engine.name=local", "client=mine:Halfway", "--out", "here", cwd=tmp_path
    )
    assert played.returncode == 0, played.stderr
    where = f"127.0.0.1:{free_port()}"
    words = "experiment.toml", "client=mine:Halfway", "--out", "building", "--address", where
    assert "deploy all --trust-code building" in process("deploy", "write", *words, cwd=tmp_path).stdout
    building = tmp_path / "building"
    assert {path.relative_to(building).parts[0] for path in building.rglob("mine.py")} == {"server", "devices"}
    (tmp_path / "mine.py").unlink()
    for start in (("device", building / "devices" / "device-000"), ("deploy", "server", building / "server")):
        refused = process(*start, env=without_trust())
        assert refused.returncode
        assert "names code, mine:Halfway" in refused.stderr
    kept.start(command("deploy", "server", "--trust-code", building / "server"), tmp_path / "server.log")
    for folder in (building / "devices").iterdir():
        kept.start([folder / "start.sh"], tmp_path / f"{folder.name}.log")  # which says that the code is trusted
    until(lambda: (building / "server" / "run" / "result.json").exists(), "the end of the run")
    here, there = (
        load_file(run / "checkpoint" / "state.safetensors") for run in (tmp_path / "here", building / "server" / "run")
    )
    np.testing.assert_array_equal(there["models"], here["models"])
    left = load_file(building / "devices" / "device-001" / "state" / "left-3.safetensors")
    assert left["client.times"] == here["client.1.times"] == [3]
    reported = process("report", building / "server" / "run")
    assert "Halfway" in (building / "server" / "run" / "report.html").read_text(), reported.stderr


def test_a_device_gets_the_code_of_the_experiment_but_never_in_place_of_its_owners(tmp_path, monkeypatch):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "__init__.py").write_text("from ours.deep import Halfway\n")
    (tmp_path / "ours" / "deep.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    building = written(tmp_path, "client=ours.deep:Halfway")
    assert (building / "devices" / "device-003" / "ours" / "deep.py").read_text() == MINE
    (tmp_path / "theirs.py").write_text(MINE)
    experiment = own_experiment(tmp_path / "homes")
    (tmp_path / "homes" / "device-001" / "theirs.py").write_text("class Reader: ...")
    (tmp_path / "other.toml").write_text(experiment)
    done = call("deploy", "write", "other.toml", "client=theirs:Halfway", "--out", "second")
    assert "device-001/theirs.py has the same name as a module" in done.stderr
    assert not (tmp_path / "second").exists()


@pytest.mark.slow(20)
def test_devices_with_unlike_inputs_train_their_encoders_themselves(tmp_path, kept):
    """Three kinds, each with its own channels and rate; the server knows their shapes and has no data."""
    table = encoded_homes(tmp_path / "homes", rounds=2, evaluation={"every": 1}, engine=PLACE)
    building, server = deployed(tmp_path, kept, experiment=from_table(table).toml())
    shutil.rmtree(tmp_path / "homes")
    Devices(building, kept).start_all()
    until(lambda: server.poll() is not None, "the end of the run")
    assert server.returncode == 0
    check_result(building, 2)
    assert [device["kind"] for device in tomls(building)] == ["watch", "phone", "unit"] * 2
    for device, (channels, rows, _) in enumerate(SENSORS.values()):
        own = load_file(building / "devices" / f"device-{device}" / "state" / "model.safetensors")
        assert own["encoder.weight"].shape[1] == channels
        done = call("export", building / "devices" / f"device-{device}", "--c", "--out", tmp_path / str(device))
        assert done.returncode == 0, done.stderr
        [text] = [path.read_text() for path in (tmp_path / str(device)).rglob("*.c")]
        assert f"FEDFILT_INPUTS {channels * rows} " in text


def tomls(building):
    """What every device is told, in the order of the devices."""
    return [tomllib.loads(path.read_text()) for path in sorted((building / "devices").glob("*/device.toml"))]


@pytest.mark.slow(30)
def test_own_data_stays_where_it_is_and_gives_the_bits_of_the_local_engine(tmp_path, kept):
    """The server has no data at all; the graph is learned from what the devices send."""
    graph = {"name": "homes", "rooms": 2, "devices": 4, "inside": False, "between": "updates", "k": 1}
    experiment = own_experiment(tmp_path / "homes", graph=graph)
    building, server = deployed(tmp_path, kept, experiment=experiment)
    shutil.rmtree(tmp_path / "homes")  # what was copied to the devices is all there is
    devices = Devices(building, kept).start_all()
    for one in devices.processes.values():
        libraries = Path(f"/proc/{one.pid}/maps").read_text()
        assert not [name for name in ("libtorch", "/scipy/", "/pandas/", "/pyarrow/") if name in libraries]
    until(lambda: server.poll() is not None, "the end of the run")
    assert server.returncode == 0
    check_result(building, 3)
    run = building / "server" / "run"
    assert json.loads((run / "partition.json").read_text()).keys() == {"data", "hash", "devices"}
    assert all(not words.split(",")[3] for words in (run / "devices.csv").read_text().splitlines()[1:])
    for path in (building / "server").rglob("*"):
        assert not path.is_file() or FILE.encode() not in path.read_bytes(), path
    result = json.loads((run / "result.json").read_text())
    assert result["local"]["last"]["mean"] > 0.5
    assert "global" not in result  # nobody has such a test
    held = read(building / "devices" / "device-000", from_table(tomllib.loads(experiment)).data)
    with safe_open(building / "devices" / "device-000" / "state" / "model.safetensors", "np") as file:
        assert file.metadata() == {"round": "3", "scaling": held.scaling.to_json()}
    told = status(building)
    assert [told[f"device-{n:03d}"]["last_round"] for n in range(4)] == [3] * 4
    assert {told[name]["samples"] for name in told} == {len(held.train_y)}
    assert abs(told["device-000"]["clock_ahead"]) < 60


def test_the_status_has_the_score_of_the_task(tmp_path):
    building = written(tmp_path)
    (building / "server" / "run").mkdir()
    (building / "server" / "run" / "config.toml").touch()
    line = {"round": 1, "mixed": {"local": {"devices": [12.5] * 4, "metric": "rmse", "lower": True}}}
    Members(building / "server").report(line, {0: Seen(1, time.time(), 20)})
    told = status(building)["device-000"]
    assert (told["score"], told["metric"]) == (12.5, "rmse")
    shown = call("deploy", "status", "--building", building).stdout
    assert "RMSE" in shown
    assert "12.5" in shown
    assert "accuracy" not in shown


def test_a_public_test_is_only_on_the_server(tmp_path):
    experiment = tomllib.loads(own_experiment(tmp_path / "homes"))
    np.savez(tmp_path / "public.npz", x=np.zeros((5, 2, 10), np.float32), y=np.zeros(5, int))
    experiment["data"]["public"] = {"file": str(tmp_path / "public.npz")}
    building = written(tmp_path, experiment=from_table(experiment).toml())
    assert [path.parent.name for path in building.rglob("public.npz")] == ["server"]
    data = experiment_of(building / "server").data
    assert (data.public.file, data.folders) == (str(building / "server" / "public.npz"), "")


class Proxy:
    """Passes bytes on between a device and the server, and keeps those that leave the device."""

    def __init__(self, port):
        self._port, self.sent, self._ends = port, bytearray(), []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                device, _ = self._server.accept()
                self._ends.append(device)
                server = socket.create_connection(("127.0.0.1", self._port), 30)
                self._ends.append(server)
            except OSError:
                return
            for source, target, keep in ((device, server, True), (server, device, False)):
                threading.Thread(target=self._pass_on, args=(source, target, keep), daemon=True).start()

    def _pass_on(self, source, target, keep):
        try:
            while content := source.recv(65536):
                if keep:
                    self.sent += content
                target.sendall(content)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        for end in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.mark.slow(30)
def test_no_sample_label_or_file_name_leaves_a_device(tmp_path, kept):
    """Every byte that two devices send, without TLS: one that trains, and one whose data cannot be used."""
    experiment = own_experiment(tmp_path / "homes", evaluation={"every": 1}, rounds=4)
    building, server = deployed(tmp_path, kept, "--no-authentication", experiment=experiment)
    folders = sorted((building / "devices").iterdir())
    bad = folders[1] / "data" / FILE
    bad.write_text(bad.read_text().replace(LABELS[1], "burglary"))
    proxies = []
    for folder in folders[:2]:
        proxies.append(Proxy(site(building).where.port))
        path = folder / "device.toml"
        path.write_text(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{proxies[-1].port}", path.read_text()))
    devices = Devices(building, kept).start_all()
    until(lambda: server.poll() is not None, "the end of the run")
    devices.says("device-001", "burglary")  # its own log names the label
    assert all("1" in line["absent"] for line in metrics(building))
    assert "label that the experiment does not know" in metrics(building)[0]["absent"]["1"]
    for proxy, folder in zip(proxies, folders, strict=False):
        proxy.close()
        sent = bytes(proxy.sent)
        assert b"fedfilt" in sent  # what travels is not compressed, so that it can be searched
        for secret in (*LABELS, "burglary", FILE, "tuesday", str(folder), "left,right"):
            assert secret.encode() not in sent, secret
    held = read(folders[0], from_table(tomllib.loads(experiment)).data)
    raw = np.loadtxt(folders[0] / "data" / FILE, delimiter=",", skiprows=1, usecols=(1, 2))
    for values in (held.train_x, held.validation_x, held.test_x, raw.astype(np.float32), raw):
        content = np.ascontiguousarray(values).tobytes()
        assert not any(content[i : i + 8] in bytes(proxies[0].sent) for i in range(0, len(content) - 8, 8))
    assert b"burglary" not in (building / "server" / "run.log").read_bytes()


# --- kills and intruders ------------------------------------------------------------------------------------------


@pytest.mark.slow(110)
def test_keys_kills_and_intruders(tmp_path, kept):
    """Kill -9 of a device, the server app and the SuperLink: no accepted round is lost, the bits are the same.

    A device that was killed is missed by Flower, and let in again, after a minute. Meanwhile the server app is killed
    too, and intruders try their luck.
    """
    rounds = 6
    place = {"name": "flower", "timeout_seconds": SLOW}
    experiment = from_table(tomllib.loads(DEALT) | {"rounds": rounds, "engine": place}).toml()
    building, server = deployed(tmp_path, kept, experiment=experiment)
    devices = Devices(building, kept).start_all()
    more, told = rounds_of(building), building.parent / "server.log"

    def kill(*words):
        (pid, *_) = until(lambda: below(server.pid, *words), f"the start of {words}")
        os.kill(pid, signal.SIGKILL)

    more()
    os.kill(devices.processes["device-003"].pid, signal.SIGSTOP)  # it will not answer
    kill("flwr-serverapp")
    strangers = intruders(building, tmp_path / "intruders", devices)
    for name, reason in strangers.items():
        devices.says(name, reason)
    until(lambda: status(building)["device-002"]["refused"], "the copied key is in the status")
    devices.kill("device-003")
    devices.start("device-003")
    until(lambda: any("3" in line.get("absent", {}) for line in metrics(building)), "a round without device 3")
    before = len(metrics(building))
    kill("fedfilt.flower.deploy.superlink")
    devices.says("device-003", "is connected to")
    until(lambda: server.poll() is not None, "the end of the run")
    assert server.returncode == 0, told.read_text()
    check_result(building, rounds)
    absent = [line["round"] for line in metrics(building) if "3" in line.get("absent", {})]
    assert absent, "device 3 did not answer"
    # Without the SuperLink nobody is reached: who is heard again by the next round depends on the machine
    assert all(set(line.get("absent", {})) <= {"3"} for line in metrics(building)[:before])
    assert "does not hold the key of a device; it is ignored" in (building / "server" / "run.log").read_text()
    link = (building / "server" / "superlink.log").read_text()
    assert "No SuperNode found with the given public key" in link  # the unregistered one
    for name in strangers:
        assert not (building.parent / name / "state").exists(), f"{name} was sent something"


def intruders(building, folder, devices):
    """Five who have no business here, started; what each of them must find. Whoever gives orders from elsewhere is in
    test_flower_device.py."""

    def made(name, of):
        ignored = shutil.ignore_patterns("state", "flower", "*.log")
        shutil.copytree(building / "devices" / of, folder / name, ignore=ignored)
        return folder / name

    authority = made("wrong-authority", "device-001")
    (authority / "ca.crt").write_bytes(certificates(folder / "other", site(building).where))
    for name in ("unregistered-key", "false-name"):
        stranger = made(name, "device-001")
        (stranger / "key").unlink()
        public = new_key(stranger)
    made("copied-key", "device-002")
    plain = made("plaintext", "device-001") / "device.toml"
    plain.write_text(plain.read_text().replace("authentication = true", "authentication = false"))
    table = {"site": {"authentication": True}, "device": [{"name": "device-001", "public_key": public}]}
    authority = building / "server" / "certificates" / "ca.crt"
    with control(str(site(building).where), authority) as link:
        for device in registered(table) or []:  # whoever got this done, the row belongs to the other key
            link.register(device.name, device.public_key)
    found = {
        "wrong-authority": "CERTIFICATE_VERIFY_FAILED",
        "unregistered-key": "does not know this key",
        "copied-key": "counts an earlier process as online",
        "plaintext": "trying again in",  # closed or reset, as it happens
        "false-name": "is connected to",  # but it is never sent a message
    }
    for name in found:
        devices.start(name, folder / name)
    return found


SKEWED = """
import datetime, sys, time
from fedfilt.engines.flower import _compat
class Ahead(datetime.datetime):
    now = classmethod(lambda cls, zone=None: datetime.datetime.now(zone) + datetime.timedelta(seconds=60))
_compat.datetime, real = Ahead, time.time
time.time = lambda: real() + 60
from fedfilt.cli import app
app(["device", sys.argv[1]])
"""


@pytest.mark.slow(10)
def test_a_clock_that_is_ahead_is_named(tmp_path, kept):
    building, _ = deployed(tmp_path, kept)
    log = tmp_path / "device.log"
    kept.start([sys.executable, "-c", SKEWED, building / "devices" / "device-000"], log)
    words = re.compile(r"the clock of this device is (59|60|61) s ahead of the edge server's: please set it")
    until(lambda: words.search(log.read_text()), "the device says what is wrong")


class Server:
    """A SuperLink that hands out one order, whose objects cannot be had at first."""

    def __init__(self, message):
        objects = internals("fleet").get_all_nested_objects(message)
        self.objects = {name: one.deflate() for name, one in objects.items()}
        self.order, self.handed_out, self.failures = pulled(message), 0, 2

    def __getattr__(self, name):
        def call(request):
            if name == "PullMessages":
                self.handed_out += 1
                return self.order if self.handed_out == 1 else pulled()
            if name != "PullObject":
                return None
            if self.failures:
                self.failures -= 1
                raise httpx.ConnectError("gone")
            content = self.objects[request.object_id]
            return SimpleNamespace(object_found=True, object_available=True, object_content=content)

        return call


def pulled(message=None):
    """What a SuperLink says when it is asked for orders."""
    if message is None:
        return SimpleNamespace(messages_list=[])
    flower = internals("fleet")
    head = flower.message_to_proto(flower.remove_content_from_message(message))
    return SimpleNamespace(messages_list=[head], message_object_trees=[flower.get_object_tree(message)])


def test_an_order_is_not_lost_if_the_network_is_gone_while_it_is_fetched(monkeypatch):
    """The server hands it out once: what was begun is gone on with."""
    for name in ("_run_id", "_task_id", "_node_id"):  # without which Flower makes no message
        monkeypatch.setattr(TaskIdentity, name, 1)
    order = Message(RecordDict({"a": ConfigRecord({"b": 1})}), dst_node_id=3, message_type="train")
    order.metadata.__dict__["_message_id"] = order.object_id
    server = Server(order)
    fleet = Fleet("127.0.0.1:9", None, None)
    fleet._client, fleet._node = server, internals("fleet").Node(node_id=3)
    for _ in range(2):
        with pytest.raises(Unreachable):
            fleet.receive()
    assert fleet.receive().content["a"]["b"] == 1
    assert server.handed_out == 1
    assert fleet.receive() is None


# --- a building that changes --------------------------------------------------------------------------------------


@pytest.mark.slow(60)
def test_devices_come_go_and_are_replaced_while_rounds_go_on(tmp_path, kept):
    experiment = own_experiment(tmp_path / "homes", rounds=ENDLESS)
    building, server = deployed(tmp_path, kept, experiment=experiment)
    devices, more = Devices(building, kept).start_all(), rounds_of(building)
    more()

    def change(*words):
        done = call("deploy", *words, "--building", building)
        assert done.returncode == 0, done.stderr

    change("add", "kitchen-lamp", "--links", "device-000,device-002")
    record(building / "devices" / "kitchen-lamp", seed=9)
    devices.start("kitchen-lamp")
    until(lambda: "kitchen-lamp" in status(building), "the lamp is known")
    until(lambda: status(building)["kitchen-lamp"]["score"] is not None, "the lamp takes part")
    assert status(building)["kitchen-lamp"]["online"]

    lost = tmp_path / "lost"
    shutil.copytree(building / "devices" / "device-001", lost)
    devices.kill("device-001")
    change("replace", "device-001")
    devices.start("device-001")
    devices.says("device-001", "is connected to")
    refused = "counts an earlier process" in devices.logs["device-001"].read_text()
    assert not refused, "the new key need not wait for the old one to be missed"
    devices.start("lost", lost)
    devices.says("lost", "does not know this key")

    change("remove", "device-003")
    devices.says("device-003", "does not know this key")
    change("renew")
    link = building / "server" / "superlink.log"
    until(lambda: "has a new certificate" in link.read_text(), "the server takes it up")
    more(2)
    told = status(building)
    assert told["device-003"]["problem"] == "removed"
    before = told["device-001"]["last_round"]
    until(lambda: status(building)["device-001"]["last_round"] > before, "the replaced device takes part")
    stop(server)
    lines = metrics(building)
    happened = [(event["what"], event["device"]) for line in lines for event in line.get("events", [])]
    assert happened == [("join", 4), ("leave", 3)]
    assert {len(line["time"]["devices"]["epochs"]) for line in lines if line["round"] > 1} == {5}
    check_result(building, len(lines))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "device-001", "--links", "device-000"], "already takes part; to give it a new key"),
        (
            ["add", "lamp", "--links", "door"],
            "--links must name devices that take part (device-000, device-001, device-002, device-003), got 'door'",
        ),
        (["add", "lamp", "--room", "attic"], "room must be one of room-0, or a number like 0, got 'attic'"),
        (["add", "lamp", "--room", "7"], "no device is in room 7: name the devices to link it to with --links"),
        (["add", "lamp"], "needs --links, or a --room"),
        (["add", "../lamp", "--links", "device-000"], "name must be up to 40 letters"),
        (
            ["remove", "lamp"],
            "name must be a device that takes part (device-000, device-001, device-002, device-003), got lamp",
        ),
        (["replace", "lamp"], "name must be a device that takes part"),
    ],
)
def test_changes_that_cannot_be_are_refused_and_nothing_is_written(tmp_path, words, message):
    building = written(tmp_path, experiment=own_experiment(tmp_path / "homes"))
    before = {path: path.read_bytes() for path in building.rglob("*") if path.is_file() and path.name != "lock"}
    done = call("deploy", *words, "--building", building)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert {path: path.read_bytes() for path in building.rglob("*") if path.is_file() and path.name != "lock"} == before


def test_a_deployment_that_deals_samples_does_not_grow(tmp_path):
    building = written(tmp_path)
    done = call("deploy", "add", "lamp", "--links", "device-000", "--building", building)
    assert "only one with own data can grow" in " ".join(done.stderr.split())


def test_a_device_can_be_added_removed_and_added_again_before_the_server_starts(tmp_path):
    building = written(tmp_path, experiment=own_experiment(tmp_path / "homes"))
    for words in (["add", "lamp", "--room", "room-0"], ["remove", "lamp"], ["add", "lamp", "--links", "device-002"]):
        done = call("deploy", *words, "--building", building)
        assert done.returncode == 0, done.stderr
    assert list(status(building)) == [*(f"device-{n:03d}" for n in range(4)), "lamp"]
    table = call("deploy", "status", "--building", building).stdout
    assert "the edge server is not running" in table
    assert "lamp" in table


# --- bad input ----------------------------------------------------------------------------------------------------


def spoil_label(folder):
    path = folder / "data" / FILE
    path.write_text(path.read_text().replace(LABELS[0], "burglary"))


def spoil_rate(folder):
    path = folder / "data" / FILE
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[1::2]]))


def spoil_settings(folder):
    (folder / "own.toml").write_text("[report]\nsample = false\n")


def spoil_experiment(folder):
    path = folder / "device.toml"
    path.write_text(path.read_text().replace("hidden = 8", "hidden = 9"))


def break_disk(folder):
    """Nothing can be written in the place of its model."""
    (folder / "state" / ".model.safetensors.tmp").mkdir(parents=True)


BAD = {  # what is done to a device's folder -> what the server, and what the device's own log say
    "unknown label": (spoil_label, "its data has a label that the experiment does not know", "burglary"),
    "no folder": (lambda folder: shutil.rmtree(folder / "data"), "", "data"),
    "another rate": (spoil_rate, "", FILE),
    "settings": (spoil_settings, "its settings are wrong", "did you mean 'samples'"),
    "another experiment": (spoil_experiment, "another experiment than this device: model differ", "model differ"),
    "disk": (break_disk, "its disk: Is a directory", "Is a directory"),
}


@pytest.mark.slow(60)
def test_a_device_that_cannot_go_on_is_named_and_the_others_go_on(tmp_path, kept):
    """Six devices with a different fault each and a healthy seventh; once the faults are fixed, all take part."""
    experiment = own_experiment(tmp_path / "homes", count=7, rounds=ENDLESS)
    building, server = deployed(tmp_path, kept, experiment=experiment)
    folders = dict(zip(BAD, sorted((building / "devices").iterdir()), strict=False))
    spared = tmp_path / "spared"
    shutil.copytree(building / "devices", spared)
    for name, folder in folders.items():
        BAD[name][0](folder)
    devices, more = Devices(building, kept).start_all(), rounds_of(building)
    more()
    first = metrics(building)[0]["absent"]
    assert set(first) == {str(row) for row in range(len(BAD))}, first
    for row, (name, folder) in enumerate(folders.items()):
        _, told, logged = BAD[name]
        assert first[str(row)].startswith("failed: "), name
        assert told in first[str(row)], name
        devices.says(folder.name, logged)
        assert not [secret for secret in (FILE, "burglary", str(folder)) if secret in first[str(row)]], name
    sick = [folder.name for folder in folders.values()]
    until(lambda: all(status(building)[name]["problem"] for name in sick), "status says so too")
    assert status(building)["device-006"]["problem"] == ""
    for folder in folders.values():
        devices.kill(folder.name)
        shutil.rmtree(folder / "state" / ".model.safetensors.tmp", ignore_errors=True)
        shutil.copytree(spared / folder.name, folder, dirs_exist_ok=True)
        devices.start(folder.name)
    until(lambda: "absent" not in metrics(building)[-1], "all take part")
    record(building / "devices" / "device-006", seed=1, rows=720)
    before = status(building)["device-006"]["samples"]
    until(lambda: status(building)["device-006"]["samples"] > before, "new samples are noticed")
    stop(server)


@pytest.mark.slow(20)
def test_what_the_owner_switches_off_is_not_told(tmp_path, kept):
    experiment = own_experiment(tmp_path / "homes", rounds=1)
    building, server = deployed(tmp_path, kept, experiment=experiment)
    (building / "devices" / "device-002" / "own.toml").write_text(
        "[report]\nsamples = false\nloss = false\ntest = false\n"
    )
    Devices(building, kept).start_all()
    until(lambda: server.poll() is not None, "the end of the run")
    (line,) = metrics(building)
    counted = line["time"]["devices"]["samples"]
    assert counted[2] == counted[0]  # it counts like the median of those who say how many
    assert status(building)["device-002"]["samples"] is None
    assert line["mixed"]["local"]["devices"][2] is None
    assert line["mixed"]["local"]["devices"][1] is not None
    assert status(building)["device-002"]["score"] is None


@pytest.mark.skipif(EMULATED not in os.environ, reason="`make aarch64` sets up the emulated CPU and runs this")
@pytest.mark.slow(60)
def test_an_emulated_device_takes_part(tmp_path, kept):
    """Three resident devices run here, one on an emulated 64-bit ARM CPU: it is never absent, and the models agree."""
    python = os.environ[EMULATED].splitlines()
    facts = json.loads(subprocess.check_output([*python, "-m", "fedfilt.cli", "info", "--json"]))
    assert (facts["processor"], facts["training"]) == ("aarch64", "native core, neon")
    building, server = deployed(tmp_path, kept, "rounds=3", "scheduler.density=1.0")
    devices = Devices(building, kept)
    for number in range(3):
        devices.start(f"device-{number:03d}")
    log = tmp_path / "emulated.log"
    folder = building / "devices" / "device-003"
    kept.start([*python, *command("device", folder)[1:]], log)
    until(lambda: "training in native" in log.read_text(), "the emulated device connects")
    until(lambda: server.poll() is not None, "the run is complete")
    lines = metrics(building)
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert not any("absent" in line for line in lines)
    assert (folder / "state" / "model.safetensors").exists()
    models = load_file(building / "server" / "run" / "checkpoint" / "state.safetensors")["models"]
    apart = np.abs(models - expected(building, 3)).max(axis=1)
    print(f"seconds a round: {[round(line['seconds'], 1) for line in lines]}; models differ by {apart.max():.1g}")
    assert apart.max() < 1e-5


def test_a_folder_that_is_no_device_is_named(tmp_path):
    assert "must hold device.toml" in call("device", tmp_path).stderr
    (tmp_path / "device.toml").write_text("name = 'lamp'")
    assert "is not a device's folder" in call("device", tmp_path).stderr


def test_free_ports_are_free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
