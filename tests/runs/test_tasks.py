"""Tasks other than one label a sample, from a TOML to the report: right scores, with their names, everywhere."""

import json
import math
import tomllib

import numpy as np
import pytest
import tomli_w

import tasks
from fedfilt._trust import Untrusted
from fedfilt._types import Table
from fedfilt.engines.flower import messages
from fedfilt.flower.device import desk_of
from fedfilt.runs.build import Run, known
from fedfilt.runs.checkpoint import load_state, models_hash
from fedfilt.runs.config import from_table, load
from fedfilt.runs.lines import checked, read_lines, result_of
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records, find_runs
from fedfilt.show import figures
from fedfilt.show.dashboard import page as dashboard
from fedfilt.show.report.page import page
from fedfilt.show.words import sentence
from fedfilt.training import work
from fedfilt.training.goal import METRICS, Goal
from fedfilt.training.trainer import labels_of
from fedfilt.training.work import Desk, Own, examine
from helpers import call

SMALL = """
rounds = 8
data = { name = "tasks:Made", kind = "%s" }
partition = "uniform"
model = "logistic"
graph = { name = "rooms", rooms = 1, devices = 4 }
samples = { train = 40, local_test = 30, global_test = "whole" }
evaluation = { every = 4 }
training = { learning_rate = 0.2, %s }
engine = { workers = 1 }
"""


@pytest.fixture
def played(tmp_path):
    def play(kind, training, **changes):
        path = tmp_path / "task.toml"
        path.write_text(SMALL % (kind, training))
        config = load(path, [f"{key}={value}" for key, value in changes.items()], trust_code=True)
        run = Run(config)
        list(play_in_folder(run, tmp_path / "run"))
        return run, Records(tmp_path / "run")

    return play


def test_a_regression_from_a_toml(played, tmp_path):
    run, records = played("numbers", 'loss = "mse"')
    assert run.trainer.backend in ("native", "torch")
    assert records.metric == METRICS["rmse"]
    first, last = (line["mixed"]["local"] for line in records.tested("local"))
    assert last["mean"] < first["mean"] < 2
    assert last["scores"]["r2"] > 0.99
    assert last["worst"] == pytest.approx(last["devices"].max(), abs=1e-6)  # less is better
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["local"]["best"]["mean"] == last["mean"]
    assert result["local"]["best"]["metric"] == "rmse"
    words = sentence([records])
    assert f"has RMSE {last['mean']:.4g} on data like its own" in words
    assert "less is better" in words
    html = page([records])
    assert "RMSE at the last test" in html
    assert "accuracy at" not in html
    bars = figures.device_bars(records)
    assert "RMSE" in bars.layout.yaxis.title.text
    assert f"worst: device {last['worst_device']}" in bars.layout.annotations[0].text
    for figure in (figures.accuracy([records]), figures.device_curve([records], 1), figures.pareto([records])):
        assert "RMSE" in figure.layout.title.text
    shown = str(dashboard.table({"run": [records]}, records))
    assert "RMSE at the last test" in shown
    assert f"{last['mean']:.4g}" in shown
    assert "local RMSE" in str(dashboard.plan(records, 1, None))
    assert "local RMSE" in figures.building(records).layout.title.text
    assert "local_rmse,global_rmse" in (tmp_path / "run" / "devices.csv").read_text()


def test_one_logit_from_a_toml(played):
    run, records = played("yes_or_no", 'loss = "bce"', partition="dirichlet")
    assert run.trainer.description.outputs == 1  # though there are two labels
    assert records.metric == METRICS["accuracy"]
    assert records.tested("global")[-1]["mixed"]["global"]["mean"] > 0.9
    assert set(records.tested("global")[-1]["mixed"]["global"]["scores"]) == {"accuracy", "f1", "auroc"}


def test_many_labels_from_a_toml(played):
    run, records = played("many", 'loss = "bce", metric = "auroc"')
    assert run.trainer.description.outputs == 3
    assert records.metric == METRICS["auroc"]
    assert records.tested("local")[-1]["mixed"]["local"]["mean"] > 0.9


@pytest.mark.parametrize(
    ("kind", "model", "least"),
    [("words", "tasks:Bag", 0.9), ("sequence", "tasks:Tagger", 0.9), ("two", "tasks:Two", 0.8)],
)
def test_torch_modules_of_integers_tokens_and_two_inputs_from_a_toml(kind, model, least, played):
    training = 'optimizer = "adam", loss = "smoothed"'
    run, records = played(kind, training, model=model, **{"training.learning_rate": 0.05, "rounds": 12})
    assert run.trainer.backend == "torch"
    assert records.metric == METRICS["accuracy"]
    assert records.tested("local")[-1]["mixed"]["local"]["mean"] > least
    assert run.flops_per_sample > 0


def test_a_loss_and_a_metric_of_ones_own_need_trust(played, tmp_path):
    training = 'loss = "tasks:huber", metric = "tasks:far_off"'
    run, records = played("numbers", training, rounds=12)
    assert run.trainer.backend == "torch"
    assert records.metric.words == "far off"
    assert records.metric.lower
    assert records.tested("global")[-1]["mixed"]["global"]["mean"] < 0.1
    assert "far off" in sentence([records])
    page([records])
    (tmp_path / "task.toml").write_text((SMALL % ("numbers", training)).replace("rounds", "seed = 3\nrounds"))
    with pytest.raises(Untrusted, match="names code, tasks:Made, tasks:far_off, tasks:huber"):
        load(tmp_path / "task.toml")
    for wrong, message in (
        ("tasks:nothing", "cannot load 'tasks:nothing' for training.loss"),
        ("tasks:Tagger", "must name a function"),
        ("tasks:WORDS", "must be a function of two arguments"),
    ):
        with pytest.raises(ValueError, match=message):
            Run(load(tmp_path / "task.toml", [f"training.loss={wrong}"], trust_code=True))


def test_a_device_knows_what_a_deployed_task_is_of(tmp_path):
    for kind, options in ("numbers", {"loss": "mse"}), ("many", {"loss": "bce"}), ("sequence", {}), ("words", {}):
        model = {"sequence": "tasks:Tagger", "words": "tasks:Bag"}.get(kind, "logistic")
        table = {"data": {"name": "tasks:Made", "kind": kind}, "partition": "uniform", "model": model}
        sizes = {"train": 8, "local_test": 10, "global_test": 10}
        run = Run(from_table({**table, "samples": sizes, "training": options}))
        desk = desk_of(tomllib.loads(tomli_w.dumps(known(run))))
        assert desk.classes == labels_of(run.trainer, run.data)
        assert desk.trainer.goal == run.trainer.goal
        own = Own(run.data.x, run.data.y, run.data.global_test)
        sent = messages.test_reply("run", 1, 0, (examine(run.start().models[0], own, desk), None), 0.0)
        each = len(own.rows) * math.prod(run.data.y.shape[1:])
        asked = desk.trainer.goal, desk.classes
        tested, _ = messages.read_test_reply(sent, "run", 1, 0, asked, (range(each, each + 1), None))
        assert tested.sums.tobytes() == examine(run.start().models[0], own, run_desk(run)).sums.tobytes()


def run_desk(run):
    return Desk(run.trainer, run.config.sparsifier, 0, labels_of(run.trainer, run.data), run.config.client)


@pytest.mark.parametrize("client", ["plain", "ditto"])
def test_what_an_optimizer_remembers_stays_on_the_device(client, tmp_path):
    def ended(name, kept="kept", stop=5):
        made = tomllib.loads(SMALL % ("numbers", 'loss = "mse", optimizer = "adam"'))
        made["training"]["optimizer_state"] = kept
        run = Run(from_table({**made, "client": client, "rounds": 5, "checkpoint": {"every": 2}}))
        for line in play_in_folder(run, tmp_path / name):
            if line["round"] == stop:
                break
        if stop < 5:
            list(play_in_folder(run, tmp_path / name, resume=True))
        saved = tmp_path / name / "checkpoint" / "state.safetensors"
        return load_state(saved, [run.config.hash()], run.start())[0]

    whole, resumed, fresh = ended("whole"), ended("resumed", stop=3), ended("fresh", "round")
    assert models_hash(whole.models) == models_hash(resumed.models)
    assert models_hash(whole.models) != models_hash(fresh.models)
    steps = [int(whole.clients[device]["optimizer.steps"][0]) for device in range(4)]
    assert steps == [5 * 3 * 2] * 4  # rounds, epochs, batches: of the model that travels
    assert ("personal" in whole.clients[0]) == (client == "ditto")


def test_sums_that_cannot_be_are_refused():
    sums, asked = Goal("numbers").sums(np.ones(5), np.zeros(5), 1), (Goal("numbers"), 1)

    def read(sums, asked=asked):
        sent = messages.test_reply("run", 1, 0, (work.Tested(sums, 0.5), None), 0.0)
        return messages.read_test_reply(sent, "run", 1, 0, asked, (range(5, 6), None))[0]

    assert read(sums).sums.tolist() == sums.tolist()
    for wrong in (sums * np.nan, sums * 2, sums * [[1, -1, 1, 1, 1]], sums * [[1, np.inf, 1, 1, 1]]):
        with pytest.raises(messages.BadMessage, match="local must count 5 samples"):
            read(wrong)
    with pytest.raises(messages.BadMessage, match="local must be 3 x 5 numbers"):
        read(sums, (Goal("numbers"), 3))
    own = Goal.of("mse", tasks.far_off)
    with pytest.raises(messages.BadMessage, match="local must count 5 samples"):
        read(own.sums(np.ones(4), np.zeros((4, 1)), 1), (own, 1))


def test_diabetes(tmp_path):
    path = tmp_path / "diabetes.toml"
    path.write_text(
        'rounds = 10\ndata = "diabetes"\npartition = "uniform"\nmodel = "logistic"\n[training]\nloss = "mse"\n'
        'learning_rate = 0.05\n[samples]\ntrain = 15\nlocal_test = 20\nglobal_test = "whole"\n'
    )
    done = call("compare", path, "--rules", "fedavg,local", "--out", tmp_path / "both")
    assert "RMSE in the last round" in done.stdout
    assert (
        "does best with fedavg, on its own data (RMSE 0." in done.stdout
    )  # patients do not differ by device: sharing helps
    runs = find_runs([tmp_path / "both"])
    assert "less is better" in sentence(runs)
    alone = call("run", path, "rounds=2", "--out", tmp_path / "alone")
    assert "RMSE" in alone.stdout
    assert "R2" in alone.stdout
    assert "accuracy" not in alone.stdout


def test_tasks_that_do_not_fit_are_refused_before_training(tmp_path):
    base: Table = {"data": {"name": "tasks:Made"}, "model": "logistic", "samples": {"train": 10, "local_test": 10}}
    table = {**base, "partition": "uniform", "samples": {**base["samples"], "global_test": 10}}
    with pytest.raises(ValueError, match="cross_entropy needs integer labels"):
        Run(from_table(table))
    with pytest.raises(ValueError, match="deals by labels, but samples of numbers have none; use uniform"):
        Run(from_table({**table, "partition": "dirichlet", "training": {"loss": "mse"}}))


def test_lines_of_scores_are_checked():
    line = {"round": 1, "time": {}, "mixed": {"local": {"mean": 0.5, "devices": [0.5], "metric": "rmse"}}}
    checked(line)
    for wrong in ({"metric": "<b>rmse</b>"}, {"metric": 5}, {"lower": "yes"}, {"scores": {"r2": "good"}}):
        with pytest.raises(ValueError, match="must be"):
            checked({**line, "mixed": {"local": {**line["mixed"]["local"], **wrong}}})


def test_the_best_of_errors_is_the_least(played):
    run, records = played("numbers", 'loss = "mae", metric = "mae"')
    lines = read_lines(records.folder)
    means = [line["mixed"]["global"]["mean"] for line in lines if "mixed" in line]
    assert result_of(lines)["global"]["best"]["mean"] == min(means)
    assert run.trainer.backend == "torch"  # the native core does not know it
    assert np.isfinite(records.accuracies("global")).all()
