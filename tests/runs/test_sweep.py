"""Settings tried with every rule, and samples held out to choose by."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt.data import FederatedData
from fedfilt.data.deal import held_out
from fedfilt.rounds import types
from fedfilt.rounds.timeline import Timeline, _of_present
from fedfilt.runs import compare as comparing
from fedfilt.runs.build import Run
from fedfilt.runs.checkpoint import load_state
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.records import find_runs
from fedfilt.runs.sweep import combinations, variants
from fedfilt.show.report import write
from fedfilt.training.goal import METRICS
from helpers import ROOM, SMALL, call, config_file, contents, finish

# --- a grid -----------------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination_with_every_rule():
    config = from_table(SMALL)
    found = variants(config, ["fedavg", "mu=1"], ["training.learning_rate=.1,0.2", "scheduler.epochs=1,2"])
    assert [one.name for one in found[:4]] == [
        "fedavg learning_rate=0.1 epochs=1",
        "fedavg learning_rate=0.1 epochs=2",
        "fedavg learning_rate=0.2 epochs=1",
        "fedavg learning_rate=0.2 epochs=2",
    ]
    assert [(one.config.training.learning_rate, one.config.scheduler.epochs) for one in found[4:]] == [
        (0.1, 1),
        (0.1, 2),
        (0.2, 1),
        (0.2, 2),
    ]
    assert len({one.config.hash() for one in found}) == 8
    assert [one.name for one in variants(config, ["fedavg"])] == ["fedavg"]


def test_controls_are_of_rules_that_use_the_graph(tmp_path):
    rules = [
        "fedavg",
        "room_average",
        "sfl",
        "ditto+mu=1",
        "fedavgm:aggregator=gfedfilt",
        "fedu:eta=1:mu=100",
        "attention",
    ]
    found = variants(from_table(SMALL), rules, ["training.learning_rate=0.1,0.2"], controls=True)
    with_controls = {one.rule.split(" graph=")[0] for one in found if "graph=" in one.name}
    assert with_controls == {"sfl", "ditto+mu=1", "fedavgm:aggregator=gfedfilt", "fedu:eta=1:mu=100"}
    one = next(one for one in found if one.name == "sfl learning_rate=0.2 graph=empty")
    assert (one.rule, one.config.graph.control) == ("sfl graph=empty", "empty")
    assert one.config.training.learning_rate == 0.2
    assert len(found) == 2 * (7 + 3 * 4)
    with pytest.raises(ValueError, match="runs of a comparison must differ"):
        variants(from_table(SMALL), ["mu=1"], ["graph.control=empty,complete"], controls=True)
    same = variants(from_table(SMALL), ["mu=1", "gfedfilt"], controls=True)  # as tuning may choose
    assert len(same) == 8
    assert len({one.config.hash() for one in same}) == 4


def test_controls_are_played_and_shown_beside_the_graph(tmp_path):
    out = call(
        "compare", config_file(tmp_path), "rounds=2", "--rules", "fedavg,mu=10", "--controls", "--out", tmp_path / "c"
    )
    names = ["fedavg", "mu=10", "mu=10 graph=shuffled", "mu=10 graph=complete", "mu=10 graph=empty"]
    table = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert [row["rule"] for row in table["rules"]] == names
    assert "shuffled" in out.stdout
    hashes = {name: json.loads((tmp_path / "c" / name / "seed-0" / "result.json").read_text()) for name in names}
    assert len({one["models_sha256"] for one in hashes.values()}) == 5
    alone = finish(tmp_path / "alone", rounds=2, aggregator="local")
    assert alone["models_sha256"] == hashes["mu=10 graph=empty"]["models_sha256"], "nobody is linked"
    page = write([tmp_path / "c"], tmp_path / "page.html").read_text()
    assert all(f"control={control}" in page for control in ("shuffled", "complete", "empty"))
    again = call(
        "compare",
        config_file(tmp_path),
        "rounds=2",
        "--rules",
        "fedavg,mu=10",
        "--controls",
        "--resume",
        "--out",
        tmp_path / "c",
    )
    assert again.returncode == 0


def test_names_tell_keys_and_values_apart():
    config = from_table({**SMALL, "aggregator": {"filter": "heat"}, "scheduler": "same_deadline"})
    keys = ["scheduler.epochs=[1, 3],[1, 5]", "guard.clip=2.0", "privacy.clip=1.0"]
    names = [one.name for one in variants(config, ["gfedfilt"], keys)]
    assert names == [
        "gfedfilt epochs=_1,_3_ guard.clip=2.0 privacy.clip=1.0",
        "gfedfilt epochs=_1,_5_ guard.clip=2.0 privacy.clip=1.0",
    ]
    assert [one.name for one in variants(config, ["gfedfilt"], ["graph=rooms,complete"])] == [
        "gfedfilt graph=rooms",
        "gfedfilt graph=complete",
    ]
    assert combinations(['data.table="a,b",c']) == [('data.table="a,b"',), ("data.table=c",)]


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("training.learning_rat=0.1,0.2", "did you mean 'learning_rate'"),
        ("learning_rate=0.1,0.2", "unknown key in the experiment 'learning_rate'"),
        ("training.learning_rate=", "over must be a key with its values, such as"),
        ("training.learning_rate=0.1,,0.2", "over must be a key with its values, such as"),
        ("training.learning_rate", "over must be a key with its values, such as"),
        ("=0.1", "over must be a key with its values, such as"),
        ("training.learning_rate=0.1,.1", "runs of a comparison must differ"),
        ("engine.workers=1,2", "runs of a comparison must differ"),
        ("training.learning_rate=fast", "training.learning_rate must be a number, got 'fast'"),
        ("seed=0,1", "over must be a setting, got 'seed'"),
        ("aggregator.filter.mu=1,2", "unknown key in aggregator 'filter'"),
    ],
)
def test_bad_grids_are_named_before_anything_is_trained(tmp_path, over, words):
    done = call("compare", config_file(tmp_path), "--rules", "fedavg", "--over", over, "--out", tmp_path / "c")
    assert done.returncode == 1
    assert words in " ".join(done.stderr.split())
    assert not (tmp_path / "c").exists()


def test_a_key_may_be_given_once(tmp_path):
    with pytest.raises(ValueError, match=r"got 'training.learning_rate' twice"):
        combinations(["training.learning_rate=1,2", "training.learning_rate=3"])


# --- a comparison over settings ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """(folder, words, what was printed as JSON): three learning rates, two rules, two seeds, samples held out."""
    folder = tmp_path_factory.mktemp("swept")
    words = ["compare", config_file(folder, rounds=4), "evaluation.validation=0.25", "--rules", "fedavg,mu=1"]
    words += ["--over", "training.learning_rate=0.001,0.1", "--seeds", 2, "--out", folder / "c"]
    done = call(*words, "--json")
    assert done.returncode == 0, done.stderr
    return folder, words, json.loads(done.stdout)


def test_runs_are_those_of_run_and_have_one_partition_per_seed(swept, tmp_path):
    folder, _, found = swept
    names = [row["rule"] for row in found["rules"]]
    assert names == [f"{rule} learning_rate={rate}" for rule in ("fedavg", "mu=1") for rate in ("0.001", "0.1")]
    for seed in (0, 1):
        places = [folder / "c" / name / f"seed-{seed}" for name in names]
        assert len({json.loads((place / "partition.json").read_text())["hash"] for place in places}) == 1
    mine = finish(tmp_path / "one", rounds=4, seed=1, evaluation={"every": 2, "validation": 0.25}, aggregator="fedavg")
    theirs = json.loads((folder / "c" / names[1] / "seed-1" / "result.json").read_text())
    assert mine["models_sha256"] == theirs["models_sha256"]
    assert mine["config_hash"] == theirs["config_hash"]


def test_the_best_on_validation_is_the_headline(swept):
    folder, words, found = swept
    assert found["chosen"] == ["fedavg learning_rate=0.1", "mu=1 learning_rate=0.1"]
    scores = {row["rule"]: row["validation"] for row in found["rules"]}
    for rule, one in zip(("fedavg", "mu=1"), found["chosen"], strict=True):
        assert scores[one] == max(score for name, score in scores.items() if name.split()[0] == rule)
    said = call(*words, "--resume").stdout  # nothing is left to play
    head, tests = said.split("accuracy in the last round")
    assert all(name in head for name in scores)
    assert "learning_rate=0.001" not in tests  # tests of settings that were not chosen are no headline
    assert json.loads((folder / "c" / "comparison.json").read_text()) == found


def test_without_validation_all_tests_are_shown_and_a_hint_is_given(tmp_path):
    words = ["compare", config_file(tmp_path, rounds=1), "--rules", "local", "--out", tmp_path / "c"]
    done = call(*words, "--over", "training.learning_rate=0.1,0.2")
    assert "evaluation.validation=0.2" in done.stdout
    found = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert found["chosen"] is None
    assert [row["validation"] for row in found["rules"]] == [None, None]


def test_one_that_was_interrupted_plays_only_what_is_left(swept, tmp_path):
    folder, words, found = swept
    shutil.copytree(folder / "c", tmp_path / "c")
    lost = tmp_path / "c" / "mu=1 learning_rate=0.1" / "seed-0"
    before = contents(tmp_path / "c")
    shutil.rmtree(lost)
    again = call(*words[:-1], tmp_path / "c", "--resume", "--json")
    assert json.loads(again.stdout)["rules"] == found["rules"]
    after = contents(tmp_path / "c")
    kept = {path for path in before if lost.relative_to(tmp_path / "c") not in path.parents}
    assert all(after[path] == before[path] for path in kept if path.name == "metrics.jsonl")


def test_the_report_shows_all_runs(swept, tmp_path):
    folder, _, found = swept
    page = write([folder / "c"], tmp_path / "report.html").read_text()
    for row in found["rules"]:
        assert row["rule"].split()[1] in page
    runs = find_runs([folder / "c"])
    assert len(runs) == 8
    assert all(run.tested("validation") for run in runs)


# --- samples held out -------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=4), st.floats(0.05, 0.9))
def test_a_share_of_every_device_is_held_out_alike_in_labels(labels, share):
    if not any(labels):
        return
    data = FederatedData.from_arrays([(np.zeros((len(some), 2)), np.array(some, int)) for some in labels])
    wanted = [min(round(share * len(some)), max(len(some) - 1, 0)) for some in labels]
    if not any(wanted):
        with pytest.raises(ValueError, match=r"evaluation.validation = .* gives no device a sample"):
            held_out(data, share, np.random.default_rng(0))
        return
    found = held_out(data, share, np.random.default_rng(0))
    for before, train, held, number in zip(data.train, found.train, found.validation or (), wanted, strict=True):
        assert len(held) == number
        np.testing.assert_array_equal(np.sort(np.concatenate([train, held])), before)
        for label in range(data.classes):
            total, some = ((data.y[rows] == label).sum() for rows in (before, held))
            assert abs(some - total * number / max(len(before), 1)) < 1


def test_validation_is_off_by_default_and_does_not_touch_the_tests():
    plain = Run(from_table(SMALL))
    held = Run(from_table({**SMALL, "evaluation": {"validation": 0.2}}))
    other = Run(from_table({**SMALL, "evaluation": {"validation": 0.2}, "seed": 1}))
    assert plain.data.validation is None
    for a, b in zip(plain.data.local_test or (), held.data.local_test or (), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(rows) for rows in held.data.train] == [16] * 20
    assert plain.config.hash() == from_table({**SMALL, "evaluation": {"every": 2, "validation": 0.0}}).hash()
    assert plain.config.hash() != held.config.hash()
    assert held.data.hash != plain.data.hash
    rows = [np.sort(run.data.x[run.data.validation[0]].reshape(4, -1).sum(axis=1)) for run in (held, other)]
    assert not np.array_equal(rows[0], rows[1])


def test_validation_is_tested_by_whatever_trains(tmp_path):
    """Right about a row by row oracle; the same with workers and over Flower; absent devices count nowhere."""
    changes = {"evaluation": {"every": 2, "validation": 0.25}, "rounds": 2}
    finish(tmp_path / "run", **changes)
    line = read_lines(tmp_path / "run")[-1]
    run = Run(from_table({**SMALL, **changes}))
    state, _ = load_state(tmp_path / "run" / "checkpoint" / "state.safetensors", [run.config.hash()], run.start())
    data = run.data
    right = [
        float((run.trainer.predict(row, data.x[rows]).argmax(axis=1) == data.y[rows]).mean())
        for row, rows in zip(state.models, data.validation or (), strict=True)
    ]
    np.testing.assert_allclose(line["mixed"]["validation"]["devices"], right, atol=1e-6)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["validation"]["last"]["mean"] == np.mean(right)
    finish(tmp_path / "many", **changes, engine={"workers": 2})
    assert read_lines(tmp_path / "many")[-1]["mixed"] == line["mixed"]


def test_tests_of_devices_that_are_away_leave_validation_out_too():
    run = Run(from_table({**SMALL, "events": [{"round": 1, "leave": 3}]}))
    assert isinstance(run.events, Timeline)
    matrices, losses = np.ones((20, 2, 2), np.int64), np.ones(20)
    found = _of_present(types.Tests(matrices, matrices, losses, losses, matrices, losses), run.events.at(1))
    assert found is not None
    assert not found.validation[3].any()
    assert not found.local_test[3].any()
    assert np.isnan([found.validation_loss[3], found.global_loss[3]]).all()
    assert found.validation.sum() == found.global_test.sum() == 19 * 4


@pytest.mark.slow(2)
def test_validation_of_a_simulation_over_flower(tmp_path):
    found = []
    for name in ("local", "flower"):
        changes = {"evaluation": {"validation": 0.25}, "rounds": 1, "engine": {"name": name, "workers": 1}}
        finish(tmp_path / name, **ROOM | changes)
        found.append(read_lines(tmp_path / name)[-1]["mixed"])
    assert found[0] == found[1]
    assert "validation" in found[0]


def test_validation_is_of_the_models_that_devices_decide_with(tmp_path):
    """Ditto's devices decide with personal models, which are better on their own data than the row they were given."""
    changes = {"evaluation": {"every": 2, "validation": 0.25}, "client": "ditto", "aggregator": "fedavg"}
    ditto = finish(tmp_path / "ditto", **changes)["validation"]["last"]["mean"]
    plain = finish(tmp_path / "plain", **{**changes, "client": "plain"})["validation"]["last"]["mean"]
    assert ditto > plain + 0.1
    with pytest.raises(ValueError, match=r"evaluation.validation needs engine.name = 'local' with the client Ditto"):
        Run(from_table({**SMALL, **changes, "engine": {"name": "flower"}}))


def test_clients_take_part_in_a_grid(tmp_path):
    words = ["--rules", "fedavg,ditto:weight=1", "--over", "training.learning_rate=0.05,0.1", "--out", tmp_path / "c"]
    done = call("compare", config_file(tmp_path, rounds=1), *words, "--json")
    assert done.returncode == 0, done.stderr
    assert [row["rule"] for row in json.loads(done.stdout)["rules"]] == [
        f"{rule} learning_rate={rate}" for rule in ("fedavg", "ditto:weight=1") for rate in ("0.05", "0.1")
    ]


def test_own_data_has_a_share_of_its_own(tmp_path):
    words = ("data", "split", config_file(tmp_path), "evaluation.validation=0.25", "--out", tmp_path / "homes")
    assert call(*words).returncode == 0
    experiment = tmp_path / "homes" / "experiment.toml"
    done = call("run", experiment, "rounds=1", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert len(read_lines(tmp_path / "run")[0]["mixed"]["validation"]["devices"]) == 20
    done = call("run", experiment, "evaluation.validation=0.1", "--out", tmp_path / "other")
    assert "evaluation.validation must equal data.validation_share = 0.25" in " ".join(done.stderr.split())
    done = call("run", experiment, 'data.folders=""', "--out", tmp_path / "other")
    assert "evaluation.validation needs the samples here" in " ".join(done.stderr.split())


def test_the_best_may_be_the_lowest():
    found = variants(from_table(SMALL), ["fedavg"], ["training.learning_rate=0.1,0.2"])
    for metric, wanted in (("accuracy", "0.2"), ("rmse", "0.1")):
        rows = [
            comparing.Row._make([one.name, 1, *[0.0] * 7, score, METRICS[metric]])
            for one, score in zip(found, (1.0, 2.0), strict=True)
        ]
        assert [row.rule for row in comparing.chosen(rows, found)] == [f"fedavg learning_rate={wanted}"]


def test_samples_without_labels_are_held_out_too():
    data = FederatedData.from_arrays([(np.zeros((10, 2)), np.linspace(0, 1, 10)), (np.zeros((5, 2)), np.zeros(5))])
    found = held_out(data, 0.2, np.random.default_rng(0))
    assert [len(rows) for rows in found.validation or ()] == [2, 1]
