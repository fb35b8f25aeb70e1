"""Real processes on loopback: a SuperLink and four SuperNodes, plain and with TLS and keys; kills and intruders.

Every wait is for an event and has an end of its own. Ports are free ones of loopback, and the processes that are killed
are children of ours.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from aarch64 import EMULATED
from helpers import ROOM, SLOW, call, command, until

pytest.importorskip("flwr")

from fedfilt.engines.flower.identity import registered
from fedfilt.engines.local import Local
from fedfilt.flower.deploy.address import address
from fedfilt.flower.deploy.certificates import certificates, new_key
from fedfilt.flower.deploy.control import control
from fedfilt.flower.deploy.supervise import device_command, end_with_parent, environment
from fedfilt.rounds.play import play
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table, load
from fedfilt.runs.lines import read_lines

EXPERIMENT = from_table(
    ROOM | {"rounds": 2, "evaluation": {"every": 100}, "engine": {"name": "flower", "timeout_seconds": SLOW}}
).toml()


def free_port():
    """A port of loopback that nobody uses, and that the system gives to nobody who asks for any."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while listeners(port := random.SystemRandom().randrange(10_000, first)):
        pass
    return port


def listeners(port):
    """Sockets that listen on a port, as Linux numbers them."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"}


def listens(pid, port):
    """Whether it is this process that listens on a port."""
    wanted = listeners(port)
    try:
        return any(os.readlink(file) in wanted for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def written(folder, *words):
    """A deployment folder on a free port, and its experiment file."""
    folder.mkdir(exist_ok=True)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    where = f"127.0.0.1:{free_port()}"
    options = "--out", folder / "building", "--address", where
    done = call("deploy", "write", folder / "experiment.toml", *words, *options)
    assert done.returncode == 0, done.stderr
    return folder / "building"


def written_table(building):
    return tomllib.loads((building / "server" / "deployment.toml").read_text())


class Kept:
    """Processes of ours that end with the test."""

    def __init__(self):
        self._all = []

    def start(self, words, output, env=None):
        with output.open("ab") as stream:
            process = subprocess.Popen(
                list(map(str, words)),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=end_with_parent,  # also if the tests are killed
            )
        self._all.append(process)
        return process

    def end(self):
        for process in reversed(self._all):
            process.terminate()
        for process in self._all:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def kept():
    processes = Kept()
    yield processes
    processes.end()


def deployed(folder, kept, *words):
    """(folder, process) of a new deployment whose edge server has started; its SuperLink has the port."""
    for attempt in itertools.count():
        building = written(folder / f"attempt-{attempt}", *words)
        port = address(written_table(building)["address"]).port
        log = building.parent / "server.log"
        server = kept.start(command("deploy", "server", building / "server"), log)

        def found(server=server, port=port, log=log):
            if any(listens(pid, port) for pid in below(server.pid, "fedfilt.flower.deploy.superlink")):
                return "ours"
            assert server.poll() is None, log.read_text()
            return "cannot listen on" in log.read_text() and "taken"  # by somebody, since we looked

        if until(found, "the SuperLink listens") == "ours":
            return building, server
        assert attempt < 9
        server.terminate()
        server.wait(SLOW)
    raise AssertionError


def below(pid, *words):
    """Ids of the processes below one of ours whose command has all the words."""
    found, stack = [], [pid]
    while stack:
        parent = stack.pop()
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            stack.append(child)
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if all(word in line for word in words):
                found.append(child)
    return found


def alive(pid):
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # that of a zombie is empty
    except OSError:
        return False


def metrics(building):
    folder = building / "server" / "run"
    return read_lines(folder) if (folder / "metrics.jsonl").exists() else []


class Without:
    """The local engine, with the replies of some devices lost in some rounds: what a run must come to."""

    def __init__(self, inner, absent):
        self._inner, self._absent = inner, absent
        self.test = inner.test

    def train(self, jobs, deadline):
        lost = self._absent[jobs[0].round]
        return [reply for reply in self._inner.train(jobs, deadline) if reply.device not in lost]


def expected(building):
    """The models that the local engine comes to when the same devices are absent in the same rounds."""
    run = Run(load(building / "server" / "run" / "config.toml"))
    absent = {line["round"]: {int(device) for device in line.get("absent", {})} for line in metrics(building)}
    config = run.config
    with (
        Local(run.data, run.model, config.training, config.seed, 1, config.sparsifier) as inner,
        run.experiment(Without(inner, absent)) as experiment,
    ):
        *_, (last, _) = play(run.start(), experiment)
    return last.models


def check_result(building, rounds):
    done = metrics(building)
    assert [line["round"] for line in done] == list(range(1, rounds + 1))  # each accepted round once
    folder = building / "server" / "run"
    models = load_file(folder / "checkpoint" / "state.safetensors")["models"]
    np.testing.assert_array_equal(models, expected(building))
    return models


@pytest.mark.slow(70)
def test_plain_on_loopback_is_stopped_started_again_and_equals_the_local_engine(tmp_path, kept):
    """SIGTERM ends SuperLink, server app and all, nothing is left behind; started again, the run goes on to its end."""
    building, server = deployed(tmp_path, kept, "--no-authentication")
    run_folder = building / "server" / "run"
    until((run_folder / "config.toml").exists, "the start of the run")
    pids = {int((run_folder / "lock").read_text()), *below(server.pid)}
    assert len(pids) >= 3
    server.terminate()
    until(lambda: server.poll() is not None, "the end of the server")
    assert server.returncode == 0
    until(lambda: not any(map(alive, pids)), "the end of all its processes")

    process = kept.start(command("deploy", "all", building), tmp_path / "all.log")
    until(lambda: process.poll() is not None, "the end of the run")
    told = (tmp_path / "all.log").read_text()
    assert process.returncode == 0, told
    assert [f"round {n} of 2 took" in told for n in (1, 2)] == [True, True]
    assert not any("absent" in line for line in metrics(building))
    models = check_result(building, 2)
    result = json.loads((building / "server" / "run" / "result.json").read_text())
    assert result["local"]["last"]["round"] == 2
    run = Run(load(building / "server" / "run" / "config.toml"))
    for number in range(4):  # every device has its own, final model on its own disk
        own = load_file(building / "devices" / f"device-{number:03d}" / "state" / "model.safetensors")
        kept_model = run.layout.tensors(models[number])
        assert all((own[name] == tensor).all() for name, tensor in kept_model.items())


@pytest.mark.slow(120)
def test_keys_kills_and_intruders(tmp_path, kept):
    """Kill -9 of the server app, the SuperLink and a SuperNode: no accepted round is lost, the bits are the same.

    A SuperNode that was killed is missed by Flower, and taken again, after a minute. Meanwhile the server app is killed
    too, and intruders try their luck.
    """
    rounds = 4
    building, server = deployed(tmp_path, kept, f"rounds={rounds}")
    link, told = building / "server" / "superlink.log", building.parent / "server.log"
    until(lambda: link.read_text().count("Created node_id") == 4, "the registration of four keys")
    logs = [tmp_path / f"device-{n}.log" for n in range(4)]
    devices = [
        kept.start(command("deploy", "device", building / "devices" / f"device-{n:03d}"), logs[n]) for n in range(4)
    ]
    intruders = made_intruders(building, tmp_path / "intruders", kept)

    def played():
        assert server.poll() is None or server.returncode == 0, told.read_text()
        return len(metrics(building))

    def kill(process, *words):
        (pid, *_) = until(lambda: below(process.pid, *words), f"{process.args} starts {words}")
        os.kill(pid, signal.SIGKILL)

    until(lambda: played() >= 1, "the first round")
    stop_at_work(devices[3], logs[3], first=played() + 1)
    kill(devices[3], "fedfilt.flower.deploy.supernode")
    now = played()
    kill(server, "flwr-serverapp")
    for intruder in intruders.values():
        intruder.start()
    check_intruders(building, intruders, node_of(logs[2]))
    until(lambda: played() > now, "a round after the server app was killed")
    until(lambda: any("3" in line.get("absent", {}) for line in metrics(building)), "a round without device 3")
    now = played()
    assert now < rounds
    kill(server, "fedfilt.flower.deploy.superlink")
    until(lambda: played() > now, "a round after the SuperLink was killed")
    until(lambda: server.poll() is not None, "the end of the run")
    assert server.returncode == 0, told.read_text()
    check_result(building, rounds)
    absent = [line["round"] for line in metrics(building) if "3" in line.get("absent", {})]
    assert absent, "device 3 was killed while it worked"
    assert max(absent) < rounds, "device 3 came back under its identity"
    assert node_of(logs[3], 0) == node_of(logs[3], -1)
    assert all(set(line.get("absent", {})) <= {"3"} for line in metrics(building))
    assert "does not hold the key of a device; it is left out" in (building / "server" / "run.log").read_text()
    false = intruders["another's name"]
    assert false.process.poll() is None
    assert "Receiving" not in false.said(), "it was never sent a message"


def node_of(log, start=0):
    """The node that the SuperLink took a SuperNode for, at one of its starts."""
    return [line.split()[-1] for line in log.read_text().splitlines() if "SuperNode ID" in line][start]


def has(text, words):
    return words in text()


def stop_at_work(device, log, first):
    """Stop the app that works on a device's message of this round, or of a later one, before it can answer."""
    for round in itertools.count(first):

        def since(mark=f"ROUND {round}]"):
            return log.read_text().partition(mark)[2]

        until(partial(has, since, "Received successfully"), f"an order of round {round}")
        for pid in until(lambda: below(device.pid, "flwr-clientapp"), "the start of the app"):
            os.kill(pid, signal.SIGSTOP)
        if "Sending" not in since():
            return
        for pid in below(device.pid, "flwr-clientapp"):
            os.kill(pid, signal.SIGCONT)


class Intruder:
    """The folder of an intruder: a changed copy of a device's folder."""

    def __init__(self, kept, folder, of, *options, without=()):
        self._kept, self._options, self._without, self.folder = kept, options, without, folder
        ignored = shutil.ignore_patterns("state", "flower", "*.log")
        shutil.copytree(of, folder, ignore=ignored)
        self.log = folder / "intruder.log"

    def start(self):
        """Start a SuperNode; what an earlier one said is forgotten."""
        words = device_command(self.folder, free_port())
        for option in self._without:
            place = words.index(option)
            del words[place : place + 2]
        self.log.unlink(missing_ok=True)
        self.process = self._kept.start([*words, *self._options], self.log, environment(self.folder / "flower"))

    def said(self):
        return " ".join(self.log.read_text().split())

    def is_refused(self, reason):
        """Whether it has ended for this reason; if it did not get so far as to be refused, it is started again."""
        assert "SuperNode ID" not in self.said(), self.folder.name
        if self.process.poll() is None:
            return False
        assert self.process.returncode != 0, self.folder.name
        if reason in self.said():
            return True
        assert "failed to start" in self.said() or "timed out" in self.said(), (self.folder.name, self.said()[-1500:])
        self.start()
        return False

    def is_online(self):
        """Whether it was taken; it is started again if it could not even start."""
        if "SuperNode ID" in self.said():
            return True
        if self.process.poll() is not None:
            assert "failed to start" in self.said(), self.said()[-1500:]
            self.start()
        return False


def made_intruders(building, folder, kept):
    """Five who have no business here; a sixth, who gives orders from elsewhere, is in test_flower_device.py."""
    where, devices = address(written_table(building)["address"]), building / "devices"
    few = ("--max-retries", "2", "--max-wait-time", "5")
    folder.mkdir()
    found = {}

    def made(name, of, *options, **more):
        found[name] = Intruder(kept, folder / name, devices / of, *options, **more)
        return found[name].folder

    authority = made("wrong authority", "device-001", *few)
    (authority / "ca.crt").write_bytes(certificates(folder / "other", where))

    stranger = made("unregistered key", "device-001", *few)
    (stranger / "key").unlink()
    new_key(stranger)

    made("copied key", "device-002", *few)

    keys = "--root-certificates", "--auth-supernode-private-key"
    made("plaintext", "device-001", "--insecure", *few, without=keys)

    named = made("another's name", "device-001")
    (named / "key").unlink()
    table = {"authentication": True, "device": [{"name": "device-001", "public_key": new_key(named)}]}
    with control(str(where), building / "server" / "certificates" / "ca.crt") as link:
        for device in registered(table) or []:  # whoever got this done, the row belongs to the other key
            link.register(device.name, device.public_key)
    return found


def check_intruders(building, intruders, copied):
    """Each is refused, and the reason is in a log; `copied` is the node whose key was copied."""
    reasons = {
        "wrong authority": "CERTIFICATE_VERIFY_FAILED",
        "unregistered key": "Failed to activate SuperNode",
        "copied key": "Failed to activate SuperNode",
        "plaintext": "Failed to initialize the connection to the SuperLink",  # closed or reset, as it happens
    }
    for name, reason in reasons.items():
        until(partial(intruders[name].is_refused, reason), f"the refusal of the {name}")
    link = (building / "server" / "superlink.log").read_text()
    assert "No SuperNode found with the given public key" in link  # the unregistered one
    assert f"SuperNode with node ID {copied} could not be activated" in link  # the copy of one that is online
    until(intruders["another's name"].is_online, "the arrival of the false name")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-authentication", "--address", "192.168.1.10:9092"], "without authentication anybody who reaches"),
        (["--address", "nowhere"], "address must be HOST:PORT"),
        (["--address", "127.0.0.1:99999"], "address must be HOST:PORT"),
        (["partition.per_device=11"], "per_device must be at most"),
    ],
)
def test_bad_deployments_are_refused_and_nothing_is_written(tmp_path, words, message):
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    overrides = [word for word in words if "=" in word]
    options = [word for word in words if "=" not in word]
    done = call("deploy", "write", tmp_path / "e.toml", *overrides, "--out", tmp_path / "b", *options)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["e.toml"]


def test_a_deployment_folder_has_keys_only_their_owner_can_read_and_says_no_to_telemetry(tmp_path):
    building = written(tmp_path)
    for key in [*building.rglob("key"), *building.rglob("*.key")]:
        assert key.stat().st_mode & 0o777 == 0o600, key
    assert len({path.read_bytes() for path in building.rglob("key")}) == 4
    assert not list((building / "devices").rglob("ca.key"))
    unit = (building / "devices" / "device-002" / "fedfilt-device-002.service").read_text()
    assert f"deploy device {building}/devices/device-002" in unit
    env = environment(tmp_path)
    assert (env["FLWR_TELEMETRY_ENABLED"], env["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    before = sorted(building.rglob("*"))
    done = call("deploy", "write", tmp_path / "experiment.toml", "--out", building)
    assert done.returncode == 1
    assert "is there already" in " ".join(done.stderr.split())
    assert sorted(building.rglob("*")) == before


def test_a_server_without_authentication_does_not_start_on_a_network(tmp_path):
    building = written(tmp_path, "--no-authentication")
    table = building / "server" / "deployment.toml"
    table.write_text(table.read_text().replace("127.0.0.1", "0.0.0.0"))
    before = sorted(building.rglob("*"))
    done = call("deploy", "server", building / "server")
    assert done.returncode == 1
    assert "without authentication anybody who reaches 0.0.0.0" in " ".join(done.stderr.split())
    assert sorted(building.rglob("*")) == before


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("fedfilt.cli, fedfilt.flower.deploy.supervise", {"torch", "numpy", "flwr"}),
        ("fedfilt.cli, fedfilt.flower.deploy.serve, fedfilt.flower.deploy.control", {"torch"}),
    ],
)
def test_supervisors_are_small(modules, unwanted):
    """What runs all the time on a device besides its SuperNode, and on the edge server, does not load torch."""
    code = f"import sys, {modules}; print({unwanted} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- resident devices ---------------------------------------------------------------------------------------------


def said_by(log, words):
    return lambda: words in log.read_text()


@pytest.mark.slow(45)
def test_resident_devices_give_the_bits_of_the_local_engine(tmp_path, kept):
    """One light process per device, without torch; one leaves in good order and comes back, a stranger stays out."""
    building, server = deployed(tmp_path, kept, "rounds=4")
    folders = sorted((building / "devices").iterdir())
    logs = [tmp_path / f"{folder.name}.log" for folder in folders]

    def start(number):
        return kept.start(command("device", folders[number]), logs[number])

    devices = [start(number) for number in range(len(folders))]
    for log in logs:
        until(said_by(log, "is connected to"), "the device connects")
    stranger = tmp_path / "stranger"
    shutil.copytree(folders[2], stranger)
    for name in ("key", "key.pub"):
        (stranger / name).unlink()
    new_key(stranger)
    kept.start(command("device", stranger), tmp_path / "stranger.log")
    until(lambda: len(metrics(building)) >= 1, "a round is played")
    devices[3].terminate()
    assert devices[3].wait(SLOW) == 0
    logs[3] = tmp_path / "again.log"
    devices[3] = start(3)
    until(said_by(logs[3], "is connected to"), "the device comes back")
    for device in devices:
        libraries = Path(f"/proc/{device.pid}/maps").read_text()
        assert not [name for name in ("libtorch", "/scipy/") if name in libraries]
    until(lambda: server.poll() is not None, "the run is complete")
    check_result(building, 4)
    until(said_by(tmp_path / "stranger.log", "does not know this key"), "the stranger is told why")
    for folder in folders:
        assert (folder / "state" / "model.safetensors").exists()


@pytest.mark.skipif(EMULATED not in os.environ, reason="`make aarch64` sets up the emulated CPU and runs this")
@pytest.mark.slow(60)
def test_an_emulated_device_takes_part(tmp_path, kept):
    """Three resident devices run here, one on an emulated 64-bit ARM CPU: it is never absent, and the models agree."""
    python = os.environ[EMULATED].splitlines()
    facts = json.loads(subprocess.check_output([*python, "-m", "fedfilt.cli", "info", "--json"]))
    assert (facts["processor"], facts["training"]) == ("aarch64", "native core, neon")
    building, server = deployed(tmp_path, kept, "rounds=3", "scheduler.density=1.0")
    folders = sorted((building / "devices").iterdir())
    logs = [tmp_path / f"{folder.name}.log" for folder in folders]
    commands = [command("device", folder) for folder in folders]
    commands[3] = [*python, *commands[3][1:]]
    devices = [kept.start(words, log) for words, log in zip(commands, logs, strict=True)]
    until(said_by(logs[3], "training in native"), "the emulated device connects")
    until(lambda: server.poll() is not None, "the run is complete")
    assert all(device.poll() is None for device in devices), [log.read_text() for log in logs]
    lines = metrics(building)
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert not any("absent" in line for line in lines)
    assert (folders[3] / "state" / "model.safetensors").exists()
    models = load_file(building / "server" / "run" / "checkpoint" / "state.safetensors")["models"]
    apart = np.abs(models - expected(building)).max(axis=1)
    print(f"seconds a round: {[round(line['seconds'], 1) for line in lines]}; models differ by {apart.max():.1g}")
    assert apart.max() < 1e-5


def test_a_folder_that_is_no_device_is_named(tmp_path):
    assert "must hold device.toml" in call("device", tmp_path).stderr
    (tmp_path / "device.toml").write_text("name = 'lamp'")
    assert "is not the folder of a device" in call("device", tmp_path).stderr
