"""Runs and comparisons through the command line, as a user would."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from fedfilt._files import locked
from fedfilt.models import MLP
from fedfilt.runs import compare as comparing
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table, load
from fedfilt.runs.lines import read_lines
from fedfilt.training._torch import torch_module
from helpers import SMALL, call, config_file, contents, process, sure


@pytest.mark.slow(4)
def test_run_leaves_a_complete_folder_and_models_for_plain_pytorch(tmp_path):
    done = process("run", config_file(tmp_path), "rounds=4", "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    folder = tmp_path / "run"
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.toml", "metrics.jsonl", "devices.csv", "partition.json", "environment.json", "result.json"}
    assert load(folder / "config.toml").rounds == 4
    assert [line["round"] for line in read_lines(folder)] == [1, 2, 3, 4]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["partition_hash"] == json.loads((folder / "partition.json").read_text())["hash"]
    assert result["seed"] == 0
    assert result["wall_seconds"] > 0
    assert (folder / "figures" / "labels.html").exists()

    model = torch_module(MLP((1, 8, 8), 10, hidden=16))
    model.load_state_dict(load_file(folder / "models" / "device-007.safetensors"))
    run = Run(load(folder / "config.toml"))
    rows = sure(run.data.local_test)[7]
    hits = (model(torch.from_numpy(run.data.x[rows])).argmax(dim=1).numpy() == run.data.y[rows]).mean()
    assert hits == pytest.approx(read_lines(folder)[-1]["mixed"]["local"]["devices"][7], abs=1e-6)


@pytest.mark.slow(6)
def test_compare_uses_the_same_data_start_and_batches(tmp_path):
    words = ["compare", config_file(tmp_path), "--out", tmp_path / "c"]
    words += ["--rules", "fedavg,local,mu=0,mu=1e6", "--seeds", 2]
    done = process(*words, "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["rule"]: row for row in json.loads(done.stdout)["rules"]}
    assert list(rows) == ["fedavg", "local", "mu=0", "mu=1e6"]
    assert rows["mu=0"]["local"] == rows["local"]["local"]  # exactly: the identity
    assert rows["mu=1e6"]["everybody"] == pytest.approx(rows["fedavg"]["everybody"], abs=0.003)
    hashes = {json.loads(p.read_text())["hash"] for p in (tmp_path / "c").glob("*/seed-0/partition.json")}
    assert len(hashes) == 1
    first = [read_lines(tmp_path / "c" / rule / "seed-0")[0]["loss"] for rule in rows]
    assert len(set(first)) == 1  # same start, same batches
    before = contents(tmp_path / "c" / "local")
    assert call(*words, "--resume").returncode == 0
    assert contents(tmp_path / "c" / "local") == before  # nothing is played again


def test_a_comparison_is_refused_before_anything_is_trained(tmp_path):
    config = from_table({**SMALL, "rounds": 2})
    played = list(comparing.compare(config, ["mu=1"], [0], tmp_path / "c"))
    assert [(one.rule, one.seed, one.line["round"]) for one in played] == [("mu=1", 0, 1), ("mu=1", 0, 2)]
    shorter = from_table({**SMALL, "rounds": 1})
    for resume, words in ((False, "holds a run already"), (True, "rounds was 2, is 1")):
        with pytest.raises(ValueError, match=words):
            next(comparing.compare(shorter, ["fedavg", "mu=1"], [0], tmp_path / "c", resume))
    assert not (tmp_path / "c" / "fedavg").exists()


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
        ("training.learning_rate=1e30", "device 0 diverged in round 1: its model or loss is no longer finite"),
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


def test_a_folder_where_an_experiment_belongs_is_answered_with_what_to_type(tmp_path):
    path = config_file(tmp_path, rounds=1)
    assert call("run", path, "--out", tmp_path / "r").returncode == 0
    said = call("plan", tmp_path / "r").stderr
    assert f"{tmp_path / 'r'} is the folder of a run." in said
    again = f"run {tmp_path / 'r'}/config.toml --out {tmp_path / 'r'} --resume"
    assert f"To resume it: fedfilt {again};" in said
    assert call(*again.split()).returncode == 0  # what it says works
    assert call("run", tmp_path / "r").returncode == 0  # and so does this
    assert "is a folder; name an experiment file in it, such as small.toml" in call("run", tmp_path).stderr
    (tmp_path / "empty").mkdir()
    assert call("plan", tmp_path / "empty").stderr.strip().endswith("empty is a folder; name an experiment file")


@pytest.mark.parametrize("command", ["run", "compare"])
def test_what_was_never_begun_is_not_gone_on_with(tmp_path, command):
    done = call(command, config_file(tmp_path), "--out", tmp_path / "typo", "--resume")
    assert done.returncode == 1
    assert f"there is no folder {tmp_path / 'typo'} to resume; leave out --resume to start" in done.stderr
    assert not (tmp_path / "typo").exists()


def test_a_folder_in_use_is_refused(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder):
        done = call("run", config_file(tmp_path), "--out", folder, "--resume")
    assert done.returncode == 1
    assert f"in use by process {os.getpid()}" in done.stderr


def test_no_page_is_made_of_no_results(tmp_path):
    done = call("paper", "all", "--page-only", "--store", tmp_path / "typo", "--out", tmp_path / "docs")
    assert done.returncode == 1
    assert "there are no results in" in done.stderr
    assert not (tmp_path / "docs").exists()
