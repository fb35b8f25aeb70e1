"""Real processes on loopback: a SuperLink and four SuperNodes, plain and with TLS and keys; kills and intruders.

Every wait has an end. Ports are free ones of loopback, and the processes that are killed are children of ours.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

pytest.importorskip("flwr")

from fedfilt.engines.local import Local
from fedfilt.flower.deploy.supervise import _end_with_parent, device_command, environment, free_port
from fedfilt.rounds.play import play
from fedfilt.runs.build import Run
from fedfilt.runs.config import load
from fedfilt.runs.lines import lines

SLOW = 900  # seconds; nothing here takes long, but a machine may be busy with other tests

EXPERIMENT = """
rounds = 2
data = "digits"
model = { name = "mlp", hidden = 16 }
samples = { train = 20, local_test = 10, global_test = 50 }
partition = { name = "labels", per_device = 3 }
training = { learning_rate = 0.1 }
graph = { name = "rooms", rooms = 1, devices = 4 }
scheduler = { name = "everything", epochs = 1, density = 0.2 }
evaluation = { every = 100 }
engine = { name = "flower", timeout_seconds = 900.0 }
"""


def fedfilt(*words):
    return [sys.executable, "-m", "fedfilt.cli", *map(str, words)]


def written(folder, *words):
    """A deployment folder on a free port, and its experiment file."""
    experiment = folder / "experiment.toml"
    experiment.write_text(EXPERIMENT)
    where = f"127.0.0.1:{free_port()}"
    command = fedfilt("deploy", "write", experiment, *words, "--out", folder / "building", "--address", where)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SLOW, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "building"


class Kept:
    """Processes of ours that end with the test."""

    def __init__(self):
        self._all = []

    def start(self, command, output, env=None):
        with output.open("ab") as stream:
            process = subprocess.Popen(
                list(map(str, command)),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # also if the tests are killed
            )
        self._all.append(process)
        return process

    def end(self):
        for process in self._all:
            process.terminate()
        for process in self._all:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def kept():
    processes = Kept()
    yield processes
    processes.end()


def until(true, what):
    end = time.monotonic() + SLOW
    while not (found := true()):
        assert time.monotonic() < end, f"waited {SLOW} s for {what}"
        time.sleep(0.1)
    return found


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
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if all(word in command for word in words):
                found.append(child)
    return found


def alive(pid):
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # that of a zombie is empty
    except OSError:
        return False


def metrics(building):
    folder = building / "server" / "run"
    return lines(folder) if (folder / "metrics.jsonl").exists() else []


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
    absent = [{int(device) for device in line.get("absent", {})} for line in metrics(building)]
    config = run.config
    with (
        Local(run.data, run.module, config.training, config.seed, 1, config.sparsifier) as inner,
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


def test_plain_on_loopback_equals_the_local_engine(tmp_path, kept):
    building = written(tmp_path, "--no-authentication")
    process = kept.start(fedfilt("deploy", "all", building), tmp_path / "all.log")
    until(lambda: process.poll() is not None, "the run")
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
        assert all((own[name] == tensor.numpy()).all() for name, tensor in kept_model.items())


def intruder(building, folder, name, of):
    """A copy of a device's folder that somebody has made."""
    copied = folder / "intruders" / name
    shutil.copytree(building / "devices" / of, copied, ignore=shutil.ignore_patterns("state", "flower", "*.log"))
    return copied


def intrude(kept, folder, *extra, command=None):
    command = [*(command or device_command(folder, free_port())), *extra]
    return kept.start(command, folder / "intruder.log", environment(folder / "flower"))


def said(folder):
    return " ".join((folder / "intruder.log").read_text().split())


def test_keys_kills_and_intruders(tmp_path, kept):
    """Kill -9 of the server app, the SuperLink and a SuperNode: no accepted round is lost, the bits are the same."""
    rounds = 14  # of some seconds: four until the intruders are gone, and some until device 3 is back
    building = written(tmp_path, f"rounds={rounds}")
    server = kept.start(fedfilt("deploy", "server", building / "server"), tmp_path / "server.log")
    link = building / "server" / "superlink.log"
    until(lambda: link.exists() and link.read_text().count("Created node_id") == 4, "the registration")
    devices = [
        kept.start(fedfilt("deploy", "device", building / "devices" / f"device-{n:03d}"), tmp_path / f"device-{n}.log")
        for n in range(4)
    ]

    def played():
        assert server.poll() is None or server.returncode == 0, (tmp_path / "server.log").read_text()
        return len(metrics(building))

    until(lambda: played() >= 1, "the first round")
    intruders = start_intruders(building, tmp_path, kept)

    def kill(process, *words):
        (pid, *_) = until(lambda: below(process.pid, *words), words)
        os.kill(pid, signal.SIGKILL)

    kill(server, "flwr-serverapp")
    now = played()
    until(lambda: played() > now, "a round after the server app was killed")
    check_intruders(building, intruders)
    kill(server, "fedfilt.flower.superlink")
    now = played()
    until(lambda: played() > now, "a round after the SuperLink was killed")
    until(lambda: below(devices[3].pid, "flwr-clientapp"), "a message at device 3")
    kill(devices[3], "fedfilt.flower.supernode")
    until(lambda: server.poll() is not None, "the end of the run")
    assert server.returncode == 0, (tmp_path / "server.log").read_text()
    check_result(building, rounds)
    absent = [line["round"] for line in metrics(building) if "3" in line.get("absent", {})]
    assert absent, "device 3 was killed while it worked"
    assert max(absent) < rounds, "device 3 came back under its identity"
    assert all(set(line.get("absent", {})) <= {"3"} for line in metrics(building))


def test_nothing_is_left_behind_when_the_server_is_stopped(tmp_path, kept):
    """SIGTERM in the middle of a run ends SuperLink, server app and all; started again, the run goes on."""
    building = written(tmp_path, "--no-authentication")
    server = kept.start(fedfilt("deploy", "server", building / "server"), tmp_path / "server.log")
    lock = building / "server" / "run" / "lock"
    until(lambda: lock.exists() and lock.read_text(), "the server app")
    pids = [int(lock.read_text()), *below(server.pid)]
    assert len(pids) >= 3
    server.terminate()
    until(lambda: server.poll() is not None, "the end of the server")
    assert server.returncode == 0
    until(lambda: not any(map(alive, pids)), "the end of all its processes")


def start_intruders(building, folder, kept):
    """Six who have no business here; the sixth, who wants to give orders from elsewhere, is in test_flower.py."""
    from fedfilt.flower.deploy import write as deploy
    from fedfilt.flower.deploy.control import control

    where = deploy.address(json_of(building)["address"])
    found = {}
    few = ("--max-retries", "2", "--max-wait-time", "5")

    other = intruder(building, folder, "wrong authority", "device-001")
    (other / "ca.crt").write_bytes(deploy._certificates(folder / "other", where))
    found["wrong authority"] = other, intrude(kept, other, *few)

    stranger = intruder(building, folder, "unregistered key", "device-001")
    (stranger / "key").unlink()
    deploy._key(stranger)
    found["unregistered key"] = stranger, intrude(kept, stranger, *few)

    copy = intruder(building, folder, "copied key", "device-002")
    found["copied key"] = copy, intrude(kept, copy, *few)

    plain = intruder(building, folder, "plaintext", "device-001")
    command = device_command(plain, free_port())
    for option in ("--root-certificates", "--auth-supernode-private-key"):
        place = command.index(option)
        del command[place : place + 2]
    found["plaintext"] = plain, intrude(kept, plain, "--insecure", *few, command=command)

    named = intruder(building, folder, "another's name", "device-001")
    (named / "key").unlink()
    public = deploy._key(named)
    (key,) = deploy.registered({"authentication": True, "device": [{"name": "device-001", "public_key": public}]})
    with control(str(where), building / "server" / "certificates" / "ca.crt") as link:
        link.register("device-001", key.public_key)  # whoever got this done, the row belongs to the other key
    found["another's name"] = named, intrude(kept, named)
    return found


def check_intruders(building, intruders):
    """Each was refused, and the reason is in a log."""
    reasons = {
        "wrong authority": "CERTIFICATE_VERIFY_FAILED",
        "unregistered key": "Failed to activate SuperNode",
        "copied key": "Failed to activate SuperNode",
        "plaintext": "Failed to initialize the connection to the SuperLink",  # closed or reset, as it happens
    }
    for name, reason in reasons.items():
        folder, process = intruders[name]
        until(lambda process=process: process.poll() is not None, f"the end of the intruder with {name}")
        assert process.returncode != 0, name
        assert reason in said(folder), (name, said(folder)[-1500:])
        assert "SuperNode ID" not in said(folder), name
    link = (building / "server" / "superlink.log").read_text()
    assert "No SuperNode found with the given public key" in link  # the unregistered one
    assert "could not be activated" in link  # the copy of one that is online
    log = building / "server" / "run.log"
    until(lambda: "does not hold the key of a device; it is left out" in log.read_text(), "the false name")
    folder, process = intruders["another's name"]
    assert process.poll() is None
    assert "Receiving" not in said(folder), "it was never sent a message"


def json_of(building):
    return tomllib.loads((building / "server" / "deployment.toml").read_text())


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
    command = fedfilt("deploy", "write", tmp_path / "e.toml", *overrides, "--out", tmp_path / "b", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SLOW, check=False)
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
    again = fedfilt("deploy", "write", tmp_path / "experiment.toml", "--out", building)
    done = subprocess.run(again, capture_output=True, text=True, timeout=SLOW, check=False)
    assert done.returncode == 1
    assert "is there already" in done.stderr
    assert sorted(building.rglob("*")) == before


def test_a_server_without_authentication_does_not_start_on_a_network(tmp_path):
    building = written(tmp_path, "--no-authentication")
    table = building / "server" / "deployment.toml"
    table.write_text(table.read_text().replace("127.0.0.1", "0.0.0.0"))
    command = fedfilt("deploy", "server", building / "server")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SLOW, check=False)
    assert done.returncode == 1
    assert "without authentication anybody who reaches 0.0.0.0" in done.stderr


def test_supervisors_are_small():
    """What runs all the time on a device besides its SuperNode does not load torch."""
    code = "import sys, fedfilt.cli, fedfilt.flower.keeping; print({'torch', 'numpy', 'flwr'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
    code = "import sys, fedfilt.flower.keeping, fedfilt.flower.control; print({'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
