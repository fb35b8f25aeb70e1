"""The tutorial examples/smart_home.py runs, in a short form, from an archive of the public layout to the vote."""

import re
import runpy
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from fedfilt import Graph
from fedfilt.data.deal import Sizes
from fedfilt.data.store import Store
from fedfilt.datasets import Dsads
from fedfilt.models import Motifs
from fedfilt.partitions import Wearers
from fedfilt.rounds.timeline import Timeline
from fedfilt.runs.config import load
from fedfilt.training._torch import torch_module
from helpers import ROOT, SLOW, sure

TUTORIAL = ROOT / "examples" / "smart_home.py"


def an_archive(path, people=4, activities=19, segments=3):
    """Every activity is a rhythm of its own, every person and unit has a style."""
    rng = np.random.default_rng(0)
    time = np.arange(125)[:, None]
    phase = rng.uniform(0, 6, (people, 45))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for activity in range(1, activities + 1):
            for person in range(1, people + 1):
                for segment in range(1, segments + 1):
                    table = np.sin(activity * time / 12 + phase[person - 1]) + 0.2 * rng.standard_normal((125, 45))
                    lines = "\n".join(",".join(f"{value:.3f}" for value in row) for row in table)
                    archive.writestr(f"data/a{activity:02d}/p{person}/s{segment:02d}.txt", lines + "\n")
    return path


@pytest.mark.slow(8)
def test_the_tutorial_runs_in_a_short_form(tmp_path):
    archive = an_archive(tmp_path / "data.zip")
    words = [sys.executable, "-W", "error", TUTORIAL, "--short", "--archive", archive, "--out", tmp_path / "out"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SLOW, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "4 people x 5 units, 1140 windows of 9 channels x 125 samples"
    assert [line.split()[0] for line in lines[1:4]] == ["local", "fedavg", "gfedfilt"]
    assert lines[4].startswith("device 0 joined in round 2: ")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"signals.html", "accuracy.html", "vote.html"}


def test_the_tutorial_without_data_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFILT_CACHE", str(tmp_path))
    monkeypatch.delenv("FEDFILT_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", [str(TUTORIAL), "--short"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="UCI data set 256"):  # its words, and with them code 1
        runpy.run_path(str(TUTORIAL), run_name="__main__")
    assert not any(tmp_path.rglob("*.html"))


@pytest.mark.slow(3)
def test_the_cnn_is_no_worse_than_a_logistic_regression_on_statistics(tmp_path):
    samples = Dsads(archive=str(an_archive(tmp_path / "data.zip", people=2, segments=6))).load(Store())
    data = Wearers()(samples, np.zeros(10, int), Sizes(57, "whole", "whole"), np.random.default_rng(0))
    own, test = data.train[3], sure(data.local_test)[3]
    statistics = np.concatenate([data.x.mean(2), data.x.std(2), data.x.min(2), data.x.max(2)], axis=1)
    simple = LogisticRegression(max_iter=1000).fit(statistics[own], data.y[own]).score(statistics[test], data.y[test])
    torch.manual_seed(0)
    module = torch_module(Motifs((9, 125), 19))
    optimiser = torch.optim.SGD(module.parameters(), 0.02, 0.9)
    x, y = torch.from_numpy(data.x[own]), torch.from_numpy(data.y[own])
    for _ in range(60):
        for batch in torch.randperm(len(y)).split(16):
            optimiser.zero_grad()
            functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
    guess = module(torch.from_numpy(data.x[test])).argmax(dim=1).numpy()
    assert (guess == data.y[test]).mean() >= simple


def fences(kind):
    page = (ROOT / "docs" / "smart_home.md").read_text()
    return re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)


def test_the_page_shows_what_runs(tmp_path, capsys):
    (code,) = fences("python")
    exec(code, {"__name__": "__main__"})
    assert capsys.readouterr().out == "[0]\n"
    graph, events = fences("toml")
    (tmp_path / "x.toml").write_text(graph)
    assert load(tmp_path / "x.toml").graph.graph(0).count == 16
    (tmp_path / "x.toml").write_text(events)
    config = load(tmp_path / "x.toml")
    timeline = Timeline(config.events, Graph.paper(), config.rounds)
    assert [int(timeline.at(round).online.sum()) for round in (1, 20, 40, 45, 50)] == [18, 20, 19, 20, 19]


def test_the_experiment_files_fit_together():
    smart_home = SimpleNamespace(**runpy.run_path(str(ROOT / "experiments" / "smart_home.py")))
    for name in ("watch", "hapt", "dsads"):
        hashes = set()
        for overrides in smart_home.variants(name).values():
            config = smart_home.config_of(name, 1, overrides)
            assert config.data.__class__.__name__.lower() == name
            assert config.graph.graph(1).count == config.graph.topology.devices
            hashes.add(config.hash())
        assert len(hashes) == len(smart_home.variants(name))
