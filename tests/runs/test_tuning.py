"""Settings chosen for each rule on samples that were held out, and rules compared with them on other seeds."""

import itertools
import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

import fedfilt
from fedfilt.runs import tuning
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.rules import with_rule
from fedfilt.runs.tuning import RATE, Tuned, drawn, rates, searched
from helpers import SMALL, call, config_file, finish

QUICK = {**SMALL, "rounds": 2, "samples": {"train": 12, "local_test": 5, "global_test": 20}}
RULES = ["fedavg", "ditto", "feddyn"]
RIVAL = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt import Sent


@dataclass(frozen=True)
class Halfway:
    """Keeps a share of what it had trained before."""

    share: float = 0.5
    rule = "fedavg"
    search: ClassVar = {"share": (0.1, 0.9)}

    def start(self, task):
        return {"own": task.model.copy()}

    def __call__(self, task):
        loss = task.train(task.model)
        return Sent(task.model, loss, {"own": task.model.copy()})

    def personal(self, task):
        share = np.float32(self.share)
        return share * task.state["own"] + (1 - share) * task.model
'''


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Three rules with ten runs each."""
    folder = tmp_path_factory.mktemp("tuned") / "t"
    return fedfilt.tune(QUICK, RULES, 10, 2, folder, progress=False)


def test_every_rule_has_the_same_budget_of_seeds_that_a_comparison_does_not_use(tuned):
    assert tuned.seeds == (100, 101)
    for rule in RULES:
        runs = sorted(place.parent for place in tuned.folder.glob(f"{rule} *" + "/seed-*/result.json"))
        assert len(runs) == 10
        assert {run.name for run in runs} == {"seed-100", "seed-101"}
        assert len(tuned.rules[rule]) == 5
        assert {one.settings[RATE] for one in tuned.rules[rule] if len(one.settings) == 1} >= {0.01, 0.1, 1.0}
    assert all(0.01 <= one.settings.get("client.weight", 1) <= 10 for one in tuned.rules["ditto"])
    assert sum("client.weight" in one.settings for one in tuned.rules["ditto"]) == 2


def test_the_best_on_samples_held_out_is_chosen(tuned):
    for rule in RULES:
        found = {}
        for place in tuned.folder.glob(f"{rule} *"):
            last = [read_lines(place / f"seed-{seed}")[-1]["mixed"]["validation"] for seed in tuned.seeds]
            found[place.name] = -np.mean([t["mean"] for t in last]), np.mean([t["loss"] for t in last])
        assert tuned.rules[rule][0].validation == pytest.approx(-min(found.values())[0])
        words = min(found, key=found.__getitem__).split()[1:]
        chosen = [float(f"{value:g}") for value in tuned.settings(rule).values()]
        assert [float(word.partition("=")[2]) for word in words] == chosen
        told = [(-one.validation, one.loss) for one in tuned.rules[rule]]
        np.testing.assert_allclose(told, sorted(found.values()))


def test_an_option_that_client_and_rule_share_is_set_for_both(tuned):
    settings = {RATE: 0.1, "client.alpha": 0.3}
    made = tuning._variant(from_table(QUICK), "feddyn", settings).config
    assert made.client.alpha == made.aggregator.alpha == 0.3
    alone = tuning._variant(from_table(QUICK), "feddyn+fedavg", settings).config
    assert alone.client.alpha == 0.3
    assert not hasattr(alone.aggregator, "alpha")


@pytest.mark.parametrize("steps", [1, 17, 45])
def test_a_tuning_that_was_stopped_goes_on_to_the_same_choices(tuned, tmp_path, steps):
    config, seeds, folder = from_table(QUICK), [100, 101], tmp_path / "t"
    for _ in itertools.islice(tuning.tune(config, RULES, 10, seeds, folder), steps):
        pass
    assert not (folder / tuning.FILE).exists()
    with pytest.raises(ValueError, match="holds no finished tuning"):
        Tuned.of(folder)
    again = fedfilt.tune(QUICK, RULES, 10, 2, folder, resume=True, progress=False)
    assert (folder / tuning.FILE).read_bytes() == (tuned.folder / tuning.FILE).read_bytes()
    assert again.rules == tuned.rules


def test_a_folder_keeps_the_rules_that_were_tuned_in_it(tmp_path):
    def again(rules, resume, **changes):
        how = {"budget": 3, "seeds": 1, "folder": tmp_path / "t", "progress": False, **changes}
        return fedfilt.tune(QUICK, rules, resume=resume, **how)

    first = again("fedavg", False)
    written = (tmp_path / "t" / tuning.FILE).read_bytes()
    with pytest.raises(ValueError, match="holds a tuning already; go on with --resume"):
        again("local", False)
    assert Tuned.of(tmp_path / "t" / tuning.FILE).folder == tmp_path / "t"  # the file itself will do
    for changes, words in (
        ({"budget": 4}, "budget was 3, is 4"),
        ({"first_seed": 7}, r"seeds was \[100\], is \[7\]"),
        ({"evaluation": {"validation": 0.5}}, "evaluation.validation was 0.25, is 0.5"),
        ({"scheduler": {"epochs": 2}}, "its experiment differs in scheduler"),
    ):
        with pytest.raises(ValueError, match=f"holds another tuning .{words}"):
            again("local", True, **changes)
    assert (tmp_path / "t" / tuning.FILE).read_bytes() == written
    both = again("local", True)
    assert list(both.rules) == ["fedavg", "local"]
    assert both.rules["fedavg"] == first.rules["fedavg"]
    assert again("fedavg", True).rules == both.rules


def test_several_runs_do_not_go_into_the_folder_of_one(tmp_path):
    finish(tmp_path / "run", rounds=1)
    before = sorted((tmp_path / "run").iterdir())
    (tmp_path / "file").write_text("")
    for place, words in (("run", "is the folder of a single run; choose another --out"), ("file", "is a file")):
        with pytest.raises(ValueError, match=words):
            fedfilt.tune(QUICK, "fedavg", 1, 1, tmp_path / place, progress=False)
        with pytest.raises(ValueError, match=words):
            fedfilt.compare(QUICK, "fedavg", folder=tmp_path / place, progress=False)
    assert sorted((tmp_path / "run").iterdir()) == before


@pytest.mark.parametrize(("first", "changes"), [(0, []), (3, ["seed=1"]), (100, []), (6, [])])
def test_the_command_that_is_proposed_is_on_seeds_that_were_not_used(tmp_path, first, changes):
    file, out = config_file(tmp_path, **QUICK), tmp_path / "t"
    how = ["--rules", "fedavg", "--budget", 1, "--seeds", 1, "--first-seed", first, "--out", out]
    done = call("tune", file, *changes, *how)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.splitlines()[-1])
    assert words[:2] == ["fedfilt", "compare"]
    assert any(word.startswith("seed=") for word in words[3 + len(changes) :]) == (first < 5)
    done = call(*words[1:])
    assert done.returncode == 0, done.stderr


def test_settings_that_fail_are_left_out_with_the_reason(tmp_path):
    table = {**QUICK, "graph": {"name": "complete", "devices": 20}}
    found = fedfilt.tune(table, "fedu:eta=0.05", 5, 1, tmp_path / "t", progress=False)
    failed = [one for one in found.rules["fedu:eta=0.05"] if one.validation is None]
    assert failed
    assert all("eta * mu must be at most" in one.why and one.settings["aggregator.mu"] > 1 for one in failed)
    assert (
        "aggregator.mu" not in found.settings("fedu:eta=0.05") or found.settings("fedu:eta=0.05")["aggregator.mu"] < 2
    )
    with pytest.raises(ValueError, match=r"no setting of fedu:eta=1.0 could be played to its end: eta \* mu must be"):
        fedfilt.tune(table, "fedu:eta=1.0", 1, 1, tmp_path / "none", progress=False)
    assert not (tmp_path / "none" / tuning.FILE).exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rules": "fedavgg"}, "did you mean 'fedavg'"),
        ({"rules": "fedper:keep=tail"}, "tail"),
        ({"budget": 1}, "budget must be"),
        ({"seeds": 0}, "seeds must be"),
        ({"first_seed": -1}, "first_seed must be"),
    ],
)
def test_bad_tunings_are_named_before_anything_is_trained(tmp_path, changes, words):
    how = {"rules": "fedavg", "budget": 4, "seeds": 2, "folder": tmp_path / "t", "progress": False, **changes}
    with pytest.raises(ValueError, match=words):
        fedfilt.tune(QUICK, **how)
    assert not (tmp_path / "t").exists()


def test_a_search_must_name_options(monkeypatch):
    config = with_rule(from_table(QUICK), "ditto")
    for wrong in ({"weigth": (0.1, 1.0)}, {"weight": (0.0, 1.0)}, {"weight": (1.0, 0.1)}, {"weight": (1.0,)}):
        monkeypatch.setattr(type(config.client), "search", wrong)
        with pytest.raises(ValueError, match=r"Ditto.search must name options with the ends of a range above 0"):
            searched(config, "ditto")


@given(st.floats(1e-4, 10), st.integers(1, 30), st.integers(0, 2**31))
def test_settings_are_spread_evenly_over_their_ranges(rate, number, seed):
    grid = rates(rate, number)
    space = {"client.weight": (0.01, 10.0), "client.epochs": (1, 30)}
    found = drawn(rate, space, number, seed)
    assert len(grid) + len(found) == number
    assert len(grid) % 2 == 1
    assert grid[len(grid) // 2] == pytest.approx(rate, rel=0.005)
    assert all(0.01 * 0.99 <= one["client.weight"] <= 10.1 for one in found)
    assert all(isinstance(one["client.epochs"], int) and 1 <= one["client.epochs"] <= 30 for one in found)
    places = np.sort([np.log(one["client.weight"] / 0.01) / np.log(1000) for one in found]) * len(found)
    assert (np.abs(places - np.arange(len(found)) - 0.5) <= 0.5 + 0.01 * len(found)).all()  # one in each part
    assert found == drawn(rate, space, number, seed)


# --- compared with what was chosen ------------------------------------------------------------------------------------


def test_rules_are_compared_with_their_settings_on_other_seeds(tuned, tmp_path):
    found = fedfilt.compare(QUICK, seeds=3, folder=tmp_path / "c", tuned=tuned, progress=False)
    assert {run.folder.parent.name for run in found} == set(RULES)
    for run in found:
        settings = tuned.settings(run.folder.parent.name)
        assert run.config["training"]["learning_rate"] == settings[RATE]
        assert run.config["evaluation"]["validation"] == 0
        if "client.weight" in settings:
            assert run.config["client"]["weight"] == settings["client.weight"]
    told = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert told["against"] == "fedavg"
    for test, rows in told["differences"].items():
        scores = {
            rule: [read_lines(tmp_path / "c" / rule / f"seed-{s}")[-1]["mixed"][test]["mean"] for s in range(3)]
            for rule in RULES
        }
        assert [row["name"] for row in rows] == ["ditto", "feddyn"]
        for row in rows:
            wanted = ttest_rel(scores[row["name"]], scores["fedavg"]).confidence_interval(0.95)
            assert (row["low"], row["high"]) == pytest.approx((wanted.low, wanted.high))
            assert row["mean"] == pytest.approx(np.mean(scores[row["name"]]) - np.mean(scores["fedavg"]))


def test_seeds_that_settings_were_chosen_with_are_refused(tuned, tmp_path, caplog):
    where = {"folder": tmp_path / "c", "progress": False}
    with pytest.raises(
        ValueError, match=r"seed must not .* with \(\[100, 101\] in .*; choose another, such as seed=102"
    ):
        fedfilt.compare(QUICK, seeds=3, tuned=tuned, seed=99, **where)
    with pytest.raises(ValueError, match="over tries settings, but tuned has already chosen them"):
        fedfilt.compare(QUICK, tuned=tuned.folder, over=["training.learning_rate=1,2"], **where)
    with pytest.raises(ValueError, match="unknown rule that was tuned 'local'"):
        fedfilt.compare(QUICK, "fedavg,local", tuned=tuned, **where)
    with pytest.raises(ValueError, match="unknown against 'local'"):
        fedfilt.compare(QUICK, "fedavg", tuned=tuned, against="local", **where)
    assert not (tmp_path / "c").exists()
    fedfilt.compare(QUICK, "fedavg", tuned=tuned, **{**where, "scheduler": {"epochs": 1}})
    assert "was tuned for another experiment, which differs in scheduler" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"rules": {}, "metric": "accuracy", "lower": false, "seeds": [], "budget": 1, "experiment": {}}',
        '{"rules": {"fedavg": []}}',
        '{"rules": {"fedavg": [{"settings": 1}]}}',
    ],
)
def test_a_file_that_is_none_is_named(tuned, tmp_path, text):
    (tmp_path / tuning.FILE).write_text(text)
    with pytest.raises(ValueError, match="is not a file of fedfilt tune"):
        Tuned.of(tmp_path)
    shutil.copy(tuned.folder / tuning.FILE, tmp_path)
    bad = (
        (tmp_path / tuning.FILE)
        .read_text()
        .replace('"training.learning_rate": ', '"training.learning_rate": "a", "b": ')
    )
    (tmp_path / tuning.FILE).write_text(bad)
    with pytest.raises(ValueError, match="settings and scores must be numbers"):
        Tuned.of(tmp_path)


def test_a_rival_of_one_file_takes_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(RIVAL.splitlines()) < 60
    Path("rival_tuned.py").write_text(RIVAL)
    file, rules = config_file(tmp_path, **QUICK), "finetune,rival_tuned:Halfway"
    done = call("tune", file, "--rules", rules, "--budget", 3, "--seeds", 1, "--out", tmp_path / "t")
    assert done.returncode == 0, done.stderr
    printed = shlex.split(done.stdout.rpartition("fedfilt compare ")[2])
    assert printed[-1] == "--trust-code"
    found = Tuned.of(tmp_path / "t")
    assert any("client.share" in one.settings for one in found.rules["rival_tuned:Halfway"])
    done = call("compare", *printed, "--seeds", 2)
    assert done.returncode == 0, done.stderr
    assert "difference from finetune" in done.stdout
    assert "rival_tuned:Halfway" in done.stdout
    done = call("advise", file, "client=rival_tuned:Halfway", "aggregator=fedavg", "--rounds", 1)
    assert done.returncode == 0, done.stderr
    assert "rival_tuned:Halfway" in done.stdout
