"""Deployments with their processes: written, started, stopped, and what is refused."""

import json
import subprocess
import sys

import pytest
from safetensors.numpy import load_file

pytest.importorskip("flwr")

from deployments import DEALT, alive, below, check_result, deployed, metrics, own_experiment, written
from fedfilt.flower.deploy import serve
from fedfilt.flower.deploy.supervise import environment
from fedfilt.runs.build import Run
from fedfilt.runs.config import load
from helpers import ROOT, SLOW, call, command, until


def without_broker_packages(code, *words):
    """What a Python says that has none of the packages of `fedfilt[mqtt]`."""
    code = f"import sys; sys.modules['paho'] = sys.modules['cbor2'] = None; {code}"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=SLOW, check=False
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def test_every_module_of_deployments_loads_without_broker_packages():
    """`fedfilt[flower]` is enough for a deployment without a home."""
    folder = ROOT / "src" / "fedfilt" / "flower" / "deploy"
    names = [f"fedfilt.flower.deploy.{path.stem}" for path in folder.glob("[a-z]*.py")]
    assert "fedfilt.flower.deploy.serve" in names
    without_broker_packages("import importlib; [importlib.import_module(name) for name in sys.argv[1:]]", *names)


@pytest.mark.slow(15)
def test_a_deployment_is_changed_and_looked_at_without_broker_packages(tmp_path):
    building = written(tmp_path, experiment=own_experiment(tmp_path / "homes"))
    main = "from fedfilt.__main__ import main; main()"
    for words in (["renew"], ["add", "lamp", "--links", "device-000"], ["replace", "lamp"], ["remove", "lamp"]):
        assert without_broker_packages(main, "deploy", *words, "--building", building)
    told = json.loads(without_broker_packages(main, "deploy", "status", "--json", "--building", building))
    assert len(told["devices"]) == 5  # one that is removed leaves with the next round


@pytest.mark.slow(30)
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


@pytest.mark.slow(90)
def test_supernodes_with_own_data_give_the_same_bits(tmp_path, kept):
    """Flower's SuperNodes, with TLS and keys, on what the devices have themselves; the graph is learned."""
    graph = {"name": "homes", "rooms": 2, "devices": 4, "inside": False, "between": "updates", "k": 1}
    experiment = own_experiment(tmp_path / "homes", rounds=2, graph=graph)
    building = written(tmp_path, experiment=experiment)
    process = kept.start(command("deploy", "all", building, "--supernode"), tmp_path / "all.log")
    until(lambda: process.poll() is not None, "the end of the run")
    assert process.returncode == 0, (tmp_path / "all.log").read_text()
    assert not any("absent" in line for line in metrics(building))
    check_result(building, 2)
    local = call("run", tmp_path / "experiment.toml", "engine=local", "--out", tmp_path / "local", "--json")
    result = json.loads((building / "server" / "run" / "result.json").read_text())
    assert result["models_sha256"] == json.loads(local.stdout)["models_sha256"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-authentication", "--address", "192.168.1.10:9092"], "without authentication, anybody who can reach"),
        (["--address", "nowhere"], "address must be HOST:PORT"),
        (["--address", "127.0.0.1:99999"], "address must be HOST:PORT"),
        (["partition.per_device=11"], "per_device must be at most"),
    ],
)
def test_bad_deployments_are_refused_and_nothing_is_written(tmp_path, words, message):
    (tmp_path / "e.toml").write_text(DEALT)
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
    assert f" device {building}/devices/device-002" in unit
    env = environment(tmp_path)
    assert (env["FLWR_TELEMETRY_ENABLED"], env["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    before = sorted(building.rglob("*"))
    done = call("deploy", "write", tmp_path / "experiment.toml", "--out", building)
    assert done.returncode == 1
    assert "exists already" in " ".join(done.stderr.split())
    assert sorted(building.rglob("*")) == before


def test_a_server_without_authentication_does_not_start_on_a_network(tmp_path):
    building = written(tmp_path, "--no-authentication")
    table = building / "server" / "deployment.toml"
    table.write_text(table.read_text().replace("127.0.0.1", "0.0.0.0"))
    before = sorted(building.rglob("*"))
    done = call("deploy", "server", building / "server")
    assert done.returncode == 1
    assert "without authentication, anybody who can reach 0.0.0.0" in " ".join(done.stderr.split())
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


def test_a_log_to_which_another_process_appends_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "MOST_LOG", 100)
    path = tmp_path / "superlink.log"
    serve.bound(path)
    with path.open("ab", buffering=0) as stream:
        for number in range(100):
            stream.write(b"line %03d\n" % number)
            serve.bound(path)
    assert path.stat().st_size <= 100
    older = (tmp_path / "superlink.1.log").read_text()
    assert (older + path.read_text()).endswith("line 097\nline 098\nline 099\n")
    assert len(older) < 120


LOSES = """
import os, signal, time
from fedfilt.flower.deploy.supervise import stoppable

class Loses:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)

with stoppable(again=0.2):
    Loses()
    print("lost", flush=True)
    time.sleep(600)
    print("missed")
"""


def test_a_signal_that_got_lost_is_raised_again():
    done = subprocess.run([sys.executable, "-c", LOSES], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "lost\n", done.stderr
    assert done.returncode == 0
