"""Runs that are alike are played side by side and train once what they have in common: no bit may change by that."""

import json
from dataclasses import replace

import pytest

from fedfilt.runs.build import Run
from fedfilt.runs.compare import play_variants
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.sweep import variants
from fedfilt.training.trainer import Trainer

SMALL = {
    "rounds": 5,
    "data": "digits",
    "partition": {"name": "labels", "per_device": 4},
    "samples": {"train": 12, "local_test": 12, "global_test": 50},
    "graph": {"name": "nearest", "rooms": 2, "devices": 8, "k": 1},
    "model": "logistic",
    "evaluation": {"every": 2, "validation": 0.2},
    "engine": {"workers": 1},
}
ALIKE = ("fedavg", "finetune", "averaged:client=finetune", "ditto", "label_prior", "two_level:before=3")

TIRED = """
from dataclasses import dataclass

from fedfilt.clients.plain import Plain


@dataclass(frozen=True)
class Tired:
    like = "plain"
    rule = "fedavg"

    def __call__(self, task):
        if task.round == 3:
            raise ValueError("too tired in round 3")
        return Plain()(task)
"""


@pytest.fixture
def trained(monkeypatch):
    """The devices that were trained, one after the other."""
    devices, train = [], Trainer.train

    def counting(self, *args, **how):
        devices.append(how["device"])
        return train(self, *args, **how)

    monkeypatch.setattr(Trainer, "train", counting)
    return devices


def kept(folder):
    """What a run has written, but for what it took and where."""
    lines = [{key: value for key, value in line.items() if key != "seconds"} for line in read_lines(folder)]
    result = json.loads((folder / "result.json").read_text())
    del result["wall_seconds"]
    models = [path.read_bytes() for path in sorted((folder / "models").iterdir())]
    return lines, result, models, (folder / "devices.csv").read_text()


@pytest.mark.slow(10)
def test_what_is_played_side_by_side_has_the_bits_of_runs_alone(tmp_path, trained):
    config = from_table(SMALL)
    found = variants(config, [*ALIKE, "mu=1", "fedprox"])
    found += variants(config, ["two_level:before=3+empirical_bayes:links=true"], controls=True)
    rounds = [(one.rule, one.line["round"]) for one in play_variants(found, [3], tmp_path / "together")]
    together = len(trained)
    for one in found:
        run = Run(replace(one.config, seed=3))
        for _ in play_in_folder(run, tmp_path / one.name):
            pass
        assert kept(tmp_path / one.name) == kept(tmp_path / "together" / one.name / "seed-3")
    assert together < 0.55 * (len(trained) - together)
    assert rounds[: len(ALIKE)] == [(rule, 1) for rule in ALIKE]  # side by side
    assert sorted(rounds) == sorted((one.name, number) for one in found for number in range(1, 6))


def test_a_run_that_is_resumed_catches_up_with_the_others(tmp_path):
    found = variants(from_table(SMALL | {"checkpoint": {"every": 2}}), ["fedavg", "finetune"])
    for step in play_variants(found, [0], tmp_path / "killed"):
        if step.line["round"] == 4:
            break
    (tmp_path / "killed" / "finetune" / "seed-0" / "checkpoint" / "state.safetensors").unlink()
    rounds = [(one.rule, one.line["round"]) for one in play_variants(found, [0], tmp_path / "killed", resume=True)]
    assert rounds[:3] == [("fedavg", 5), *(("finetune", number) for number in range(1, 3))]
    for _ in play_variants(found, [0], tmp_path / "whole"):
        pass
    for one in found:
        assert kept(tmp_path / "killed" / one.name / "seed-0") == kept(tmp_path / "whole" / one.name / "seed-0")


def test_one_that_fails_leaves_the_others_alone(tmp_path, monkeypatch):
    (tmp_path / "tired.py").write_text(TIRED)
    monkeypatch.syspath_prepend(tmp_path)
    found = variants(from_table(SMALL), ["fedavg", "tired:Tired", "finetune"])
    with pytest.raises(ValueError, match="too tired in round 3"):
        list(play_variants(found, [0], tmp_path / "runs"))
    failed = {}
    steps = list(play_variants(found, [0], tmp_path / "more", failed=failed))
    assert {name: why for (name, _), why in failed.items()} == {"tired:Tired": "too tired in round 3"}
    reached = {
        name: max(one.line["round"] for one in steps if one.rule == name) for name in {one.rule for one in steps}
    }
    assert reached == {"fedavg": 5, "tired:Tired": 2, "finetune": 5}
    progress = [one.before + one.line["round"] for one in steps]
    assert progress == list(range(1, 13))


def test_without_tests_only_the_samples_that_were_held_out_are_looked_at(tmp_path):
    whole = from_table(SMALL | {"client": "finetune", "aggregator": "fedavg"})
    less = replace(whole, evaluation=replace(whole.evaluation, tests=False))
    for name, config in (("whole", whole), ("less", less)):
        for _ in play_in_folder(Run(config), tmp_path / name):
            pass
    (lines, result, models, _), (fewer, shorter, same, devices) = kept(tmp_path / "whole"), kept(tmp_path / "less")
    assert models == same
    assert result["models_sha256"] == shorter["models_sha256"]
    tested = [line["mixed"] for line in fewer if "mixed" in line]
    assert tested == [{"validation": line["mixed"]["validation"]} for line in lines if "mixed" in line]
    assert len(tested) == 3
    assert devices.splitlines()[1].endswith(",,")
    with pytest.raises(ValueError, match=r"evaluation.tests = false needs evaluation.validation"):
        from_table({"evaluation": {"tests": False}})
