"""Runs in their folders: resumed, killed, locked, damaged, compared; through the command line as a user would."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedfilt.models import MLP
from fedfilt.rounds.types import State
from fedfilt.runs import checkpoint
from fedfilt.runs import compare as comparing
from fedfilt.runs.build import Run
from fedfilt.runs.config import Config, from_table, load
from fedfilt.runs.lines import lines
from fedfilt.runs.play import play_in_folder

SMALL = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 16},
    "samples": {"train": 20, "local_test": 10, "global_test": 50},
    "training": {"learning_rate": 0.1},
    "rounds": 6,
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
    "engine": {"workers": 1},
}


def config_file(folder, **changes):
    path = folder / "small.toml"
    path.write_text(from_table({**SMALL, **changes}).toml())
    return path


def command(*words):
    return [sys.executable, "-m", "fedfilt.cli", *map(str, words)]


def call(*words, **options):
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=120, check=False, **options)


def finish(folder, resume=False, **changes):
    for _ in play_in_folder(Run(from_table({**SMALL, **changes})), folder, resume):
        pass
    return json.loads((folder / "result.json").read_text())


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the command line ---------------------------------------------------------------------------------------------


def test_run_leaves_a_complete_folder_and_models_for_plain_pytorch(tmp_path):
    done = call("run", config_file(tmp_path), "rounds=4", "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    folder = tmp_path / "run"
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.toml", "metrics.jsonl", "devices.csv", "partition.json", "environment.json", "result.json"}
    assert load(folder / "config.toml").rounds == 4
    assert [line["round"] for line in lines(folder)] == [1, 2, 3, 4]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["partition_hash"] == json.loads((folder / "partition.json").read_text())["hash"]
    assert result["seed"] == 0
    assert result["wall_seconds"] > 0
    assert (folder / "figures" / "labels.html").exists()

    model = MLP((1, 8, 8), 10, hidden=16)
    model.load_state_dict(load_file(folder / "models" / "device-007.safetensors"))
    run = Run(load(folder / "config.toml"))
    rows = run.data.local_test[7]
    hits = (model(torch.from_numpy(run.data.x[rows])).argmax(dim=1).numpy() == run.data.y[rows]).mean()
    assert hits == pytest.approx(lines(folder)[-1]["mixed"]["local"]["devices"][7], abs=1e-6)


def test_compare_uses_the_same_data_start_and_batches(tmp_path):
    words = [
        "compare",
        config_file(tmp_path),
        "--out",
        tmp_path / "c",
        "--rules",
        "fedavg,local,mu=0,mu=1e6",
        "--seeds",
        2,
    ]
    done = call(*words, "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["rule"]: row for row in json.loads(done.stdout)["rules"]}
    assert list(rows) == ["fedavg", "local", "mu=0", "mu=1e6"]
    assert rows["mu=0"]["local"] == rows["local"]["local"]  # exactly: the identity
    assert rows["mu=1e6"]["everybody"] == pytest.approx(rows["fedavg"]["everybody"], abs=0.003)
    hashes = {json.loads(p.read_text())["hash"] for p in (tmp_path / "c").glob("*/seed-0/partition.json")}
    assert len(hashes) == 1
    first = [lines(tmp_path / "c" / rule / "seed-0")[0]["loss"] for rule in rows]
    assert len(set(first)) == 1  # same start, same batches
    before = contents(tmp_path / "c" / "local")
    assert call(*words, "--resume").returncode == 0
    assert contents(tmp_path / "c" / "local") == before  # nothing is played again


def test_rules_by_name():
    assert comparing.rules("paper") == ["fedavg", "local", "mu=0.1", "mu=1", "mu=10", "mu=100"]
    for wrong in ("fedavg,fedavg", "", "a,,b"):
        with pytest.raises(ValueError, match="rules must be different names"):
            comparing.rules(wrong)
    with pytest.raises(ValueError, match="mu must be a number"):
        comparing.with_rule(from_table({}), "mu=x")
    updates = from_table({"aggregator": {"signal": "updates", "filter": {"name": "floor", "floor": 0.2}}})
    strong = comparing.with_rule(updates, "mu=3").aggregator
    assert (strong.signal, strong.filter.mu, strong.filter.floor) == ("updates", 3.0, 0.2)
    assert comparing.with_rule(updates, "gfedfilt") == updates
    heat = from_table({"aggregator": {"filter": "heat"}})
    with pytest.raises(ValueError, match="needs a filter with mu"):
        comparing.with_rule(heat, "mu=3")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.learning_rat=1", "did you mean 'learning_rate'"),
        ("aggregator=gfedfilf", "did you mean 'gfedfilt'"),
        ("rounds=many", "rounds must be a whole number, got 'many'"),
        ("partition.per_device=11", "per_device must be at most the number of labels, 10"),
        ("samples.train=100000", "digits has"),
        ("graph.devices=7", "graph.devices must be 20 for this graph, got 7"),
        ("model=cnn1d", "model cnn1d does not fit inputs of shape (1, 8, 8)"),
        ("training.learning_rate=1e30", "diverged"),
    ],
)
def test_bad_experiments_end_with_one_clear_line(tmp_path, override, message):
    done = call("run", config_file(tmp_path), override, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_missing_and_broken_experiment_files(tmp_path):
    assert "no experiment file" in call("run", tmp_path / "nothing.toml").stderr
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    assert "not valid TOML" in call("run", tmp_path / "broken.toml").stderr


# --- resuming -----------------------------------------------------------------------------------------------------


def test_resume_gives_the_same_bits(tmp_path):
    whole = finish(tmp_path / "whole")
    steps = play_in_folder(Run(from_table(SMALL)), tmp_path / "parts")
    for line in steps:
        if line["round"] == 5:  # one after a checkpoint: that round is lost and played again
            break
    steps.close()
    again = finish(tmp_path / "parts", resume=True)
    assert again["models_sha256"] == whole["models_sha256"]
    for a, b in zip(lines(tmp_path / "whole"), lines(tmp_path / "parts"), strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_killed_at_20_random_moments_and_resumed_gives_the_same_bits(tmp_path):
    """A real run in its own process group, ended by SIGKILL again and again, some with two workers."""
    rounds, generator = 400, random.Random(0)
    changes = {"rounds": rounds, "evaluation": {"every": 100}, "checkpoint": {"every": 1}}
    whole = finish(tmp_path / "whole", **changes)
    path, folder = config_file(tmp_path, **changes), tmp_path / "killed"
    saved = folder / "checkpoint" / "state.safetensors"
    kills = 0
    while kills < 20:
        before = saved.stat().st_mtime_ns if saved.exists() else 0
        workers = 2 if kills % 5 == 4 else 1
        words = command("run", path, f"engine.workers={workers}", "--out", folder, "--resume")
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if kills % 4 == 0 or (saved.exists() and saved.stat().st_mtime_ns > before):
                break  # some kills hit the start-up, most the rounds
            time.sleep(0.005)
        time.sleep(generator.uniform(0, 0.15))
        assert process.poll() is None, "the run ended before it could be killed: give it more rounds"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    reached = len(lines(folder))
    assert 0 < reached < rounds
    assert finish(folder, resume=True, **changes)["models_sha256"] == whole["models_sha256"]
    for a, b in zip(lines(tmp_path / "whole"), lines(folder), strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_workers_end_when_their_run_is_killed(tmp_path):
    changes = {"rounds": 100_000, "evaluation": {"every": 100_000}, "checkpoint": {"every": 1}}
    path, folder = config_file(tmp_path, **changes), tmp_path / "run"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    quiet["env"] = {**os.environ, "FEDFILT_NATIVE": "off"}  # torch trains in processes, the native core in threads
    process = subprocess.Popen(command("run", path, "engine.workers=2", "--out", folder), **quiet)
    deadline = time.monotonic() + 60
    while not (folder / "checkpoint" / "state.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.kill()
    process.wait()
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_ctrl_c_says_how_to_go_on(tmp_path):
    changes = {"rounds": 100_000, "evaluation": {"every": 100_000}, "checkpoint": {"every": 1}}
    path, folder = config_file(tmp_path, **changes), tmp_path / "run"
    process = subprocess.Popen(
        command("run", path, "--out", folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore Ctrl-C
    )
    deadline = time.monotonic() + 60
    while not (folder / "checkpoint" / "state.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"fedfilt run {folder}/config.toml --out {folder} --resume" in words


def test_a_changed_config_is_not_resumed(tmp_path):
    finish(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"another config \(training\.learning_rate was 0\.1, is 0\.2\)"):
        finish(tmp_path, resume=True, training={"learning_rate": 0.2})
    with pytest.raises(ValueError, match="holds a run already"):
        finish(tmp_path)
    after = contents(tmp_path)
    del before[Path("lock")], after[Path("lock")]
    assert after == before


def test_other_folders_are_not_written_into(tmp_path):
    (tmp_path / "lock").write_text("my own precious file about locks")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds other files"):
        finish(tmp_path, resume=True)
    assert contents(tmp_path) == before


def test_a_run_killed_at_its_very_first_write_can_be_resumed(tmp_path):
    (tmp_path / ".config.toml.tmp").write_text("half")
    (tmp_path / "lock").write_text("4711")
    finish(tmp_path, resume=True)


def test_a_finished_run_is_left_alone(tmp_path):
    finish(tmp_path)
    before = contents(tmp_path)
    finish(tmp_path, resume=True)
    after = contents(tmp_path)
    del before[Path("lock")], after[Path("lock")]
    assert after == before


def test_a_graph_that_changed_behind_the_config_is_not_resumed(tmp_path):
    edges = tmp_path / "edges.csv"
    edges.write_text("a,b\n0,1\n")
    changes = {"graph": {"name": "edges", "devices": 20, "file": str(edges)}}
    finish(tmp_path / "run", **changes)
    edges.write_text("a,b\n0,2\n")
    with pytest.raises(ValueError, match="was run with another graph"):
        finish(tmp_path / "run", resume=True, **changes)
    assert not comparing.finished(tmp_path / "run", from_table({**SMALL, **changes}))


def test_a_line_damaged_in_the_middle_is_named(tmp_path):
    finish(tmp_path)
    log = tmp_path / "metrics.jsonl"
    texts = log.read_text().splitlines()
    log.write_text("\n".join([texts[0], texts[1][:20], *texts[2:]]) + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged in line 2"):
        lines(tmp_path)


def test_workers_and_checkpoints_may_change_on_resume(tmp_path):
    finish(tmp_path)
    finish(tmp_path, resume=True, engine={"workers": 2}, checkpoint={"every": 3})


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other", "header", "round"])
def test_a_damaged_checkpoint_is_named_and_left_alone(tmp_path, damage):
    finish(tmp_path)
    path = tmp_path / "checkpoint" / "state.safetensors"
    content = path.read_bytes()
    broken = {
        "cut": content[:-100],
        "flip": content[:-50] + bytes([content[-50] ^ 1]) + content[-49:],
        "empty": b"",
        "other": b"something else entirely",
        "header": b"\xff" * 8 + content[8:],
        "round": content.replace(b'"round":"6"', b'"round":"4"'),
    }[damage]
    path.write_bytes(broken)
    with pytest.raises(checkpoint.BadCheckpoint, match="damaged"):
        finish(tmp_path, resume=True)
    assert path.read_bytes() == broken


def test_a_checkpoint_of_another_config_or_shape_is_refused(tmp_path):
    path = tmp_path / "state"
    checkpoint.save_state(path, State(3, np.ones((2, 5), np.float32)), "abc")
    assert checkpoint.load_state(path, "abc", (2, 5)).round == 3
    with pytest.raises(checkpoint.BadCheckpoint, match="belongs to another config"):
        checkpoint.load_state(path, "abd", (2, 5))
    with pytest.raises(checkpoint.BadCheckpoint, match=r"shape \(2, 5\), wanted float32 of \(2, 6\)"):
        checkpoint.load_state(path, "abc", (2, 6))


def test_a_folder_in_use_is_refused(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with checkpoint.locked(folder):
        done = call("run", config_file(tmp_path), "--out", folder, "--resume")
    assert done.returncode == 1
    assert f"in use by process {os.getpid()}" in done.stderr


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path):
    """Writes beyond a size fail, as on a full disk; what was saved before can still be resumed."""
    changes = {"rounds": 4, "checkpoint": {"every": 2}}
    whole = finish(tmp_path / "whole", **changes)
    steps = play_in_folder(Run(from_table({**SMALL, **changes})), tmp_path / "run")
    for line in steps:
        if line["round"] == 3:
            break
    steps.close()
    saved = tmp_path / "run" / "checkpoint" / "state.safetensors"
    before = saved.read_bytes()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))

    path = config_file(tmp_path, **changes)
    done = call("run", path, "--out", tmp_path / "run", "--resume", preexec_fn=limit)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert saved.read_bytes() == before
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert finish(tmp_path / "run", resume=True, **changes)["models_sha256"] == whole["models_sha256"]


def test_a_line_cut_by_a_crash_is_dropped(tmp_path):
    whole = finish(tmp_path / "whole")
    finish(tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_text(log.read_text() + '{"round": 7, "sec')
    assert len(lines(tmp_path / "run")) == 6
    assert finish(tmp_path / "run", resume=True)["models_sha256"] == whole["models_sha256"]


# --- configs ------------------------------------------------------------------------------------------------------


def test_a_resolved_config_means_the_same(tmp_path):
    config = from_table({**SMALL, "aggregator": {"filter": {"name": "floor", "floor": 0.2}}, "graph": "nearest"})
    (tmp_path / "c.toml").write_text(config.toml())
    again = load(tmp_path / "c.toml")
    assert again == config
    assert again.hash() == config.hash()


def test_command_line_beats_file_beats_default(tmp_path):
    path = config_file(tmp_path)
    assert Config().rounds == 200
    assert load(path).rounds == 6
    assert load(path, ["rounds=9"]).rounds == 9
    assert load(path, ["aggregator.filter.name=heat", "aggregator.filter.t=3"]).aggregator.filter.t == 3.0
    assert load(path, ["aggregator=fedavg"]).table()["aggregator"] == {"name": "fedavg"}
    changed = load(
        path, ["partition.per_device=5", "partition.name=room_labels", "graph.devices=20", "graph.name=nearest"]
    )
    assert (changed.partition.per_device, changed.graph.devices, changed.graph.name) == (5, 20, "nearest")


def test_a_name_and_its_options_in_any_order():
    for words in (
        ["scheduler=same_deadline", "scheduler.seconds=2"],
        ["scheduler.seconds=2", "scheduler=same_deadline"],
    ):
        assert load(None, words).scheduler.seconds == 2.0


def test_keys_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match=r"graph\.building means nothing for the graph 'paper'"):
        from_table({"graph": {"building": "home.csv"}})
    with pytest.raises(ValueError, match=r"graph\.file must name"):
        from_table({"graph": "edges"})


def test_a_start_is_seeded_for_every_kind_of_layer(tmp_path, monkeypatch):
    (tmp_path / "recurrent.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.gru = nn.GRU(8, 4, batch_first=True)\n        self.out = nn.Linear(4, 10)\n"
        "    def forward(self, x):\n        return self.out(self.gru(x.squeeze(1))[0][:, -1])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = [Run(from_table({**SMALL, "model": "recurrent:Net", "seed": seed})).start().models[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])


def test_a_part_that_cannot_be_saved_is_refused(tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("class Rule:\n    def __init__(self, x: int = 1):\n        self.x = x\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="must be a dataclass"):
        from_table({"aggregator": "plain:Rule"})


def test_code_outside_the_package_is_reached_by_module_and_class(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom torch import nn\n"
        "@dataclass(frozen=True)\nclass Half:\n    share: float = 0.5\n"
        "    def __call__(self, models, updates, graph):\n        return models + self.share * updates.rows\n"
        "class Net(nn.Sequential):\n    def __init__(self, width: int = 8):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    table = {**SMALL, "aggregator": {"name": "mine:Half", "share": 0.25}, "model": {"name": "mine:Net", "width": 4}}
    config = from_table(table)
    assert config.table()["aggregator"] == {"name": "mine:Half", "share": 0.25}
    assert Run(config).layout.size == 64 * 4 + 4 + 4 * 10 + 10


@pytest.mark.parametrize("name", ["distance", "nearest", "rooms", "complete", "empty"])
def test_every_topology(name):
    graph = from_table({"graph": {"name": name, "devices": 20}}).graph.graph(seed=0)
    assert graph.count == 20
    assert len(np.unique(graph.rooms)) == 4


def test_topology_from_files(tmp_path):
    (tmp_path / "home.csv").write_text("device,room,x,y,z\na,r,0,0,0\nb,r,1,0,0\nc,s,9,0,0\n")
    (tmp_path / "edges.csv").write_text("a,b,weight\n0,1,2.5\n1,2,\n")
    table = {"name": "edges", "building": str(tmp_path / "home.csv"), "file": str(tmp_path / "edges.csv")}
    graph = from_table({"graph": table}).graph.graph(seed=0)
    assert graph.adjacency.toarray().tolist() == [[0, 2.5, 0], [2.5, 0, 1], [0, 1, 0]]
    (tmp_path / "edges.csv").write_text("a,b\n0,x\n")
    with pytest.raises(ValueError, match="line 2: must be two device numbers"):
        from_table({"graph": table}).graph.graph(seed=0)


def test_docs_show_the_defaults():
    page = (Path(__file__).parent.parent / "docs" / "training.md").read_text()
    assert from_table({}).toml().strip() in page


def test_experiment_files_load():
    for path in (Path(__file__).parent.parent / "experiments").glob("*.toml"):
        assert load(path).rounds > 0
