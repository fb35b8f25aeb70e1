"""two_level in whole runs: when it personalises, its costs, devices without a personal model, and what it refuses."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch import nn

import fedfilt
from fedfilt import Graph, Training
from fedfilt.aggregators import EmpiricalBayes, FedAvg
from fedfilt.clients import Averaged, Ditto, FineTune, Plain, Scaffold, TwoLevel
from fedfilt.models import MLP, Logistic
from fedfilt.rounds.types import Updates
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.rules import rule_name, with_rule
from fedfilt.show.shares import taken
from fedfilt.training.client import Own, seldom, usual
from fedfilt.training.trainer import Trainer
from fedfilt.training.work import Desk, personal, work
from helpers import SMALL, call, finish, some_data

QUICK = {"name": "two_level", "before": 3, "epochs": 2}
READINGS = ("personal", "balanced")


def played(folder, **changes):
    """(lines, run, arrays of the last checkpoint) of the small experiment."""
    table = {**SMALL, "client": QUICK, "aggregator": "empirical_bayes", **changes}
    run = Run(from_table(table))
    for _ in play_in_folder(run, folder):
        pass
    return read_lines(folder), run, load_file(folder / "checkpoint" / "state.safetensors")


def blocks(run, models):
    """(shared, personal, first, second), or (shared, filtered, personal, first, second)."""
    return [models[:, start : start + run.layout.size] for start in range(0, models.shape[1], run.layout.size)]


# --- when -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "rounds", "due"),
    [
        (TwoLevel(), 30, [21]),
        (TwoLevel(), 10, [1]),
        (TwoLevel(), 4, [1]),
        (TwoLevel(before=1), 4, [4]),
        (TwoLevel(before=2, every=3), 12, [2, 5, 8, 11]),
        (TwoLevel(before=2, every=1), 5, [1, 2, 3, 4]),
        (TwoLevel(every=4), 0, [4, 8, 12]),  # nobody knows how many there are
        (TwoLevel(), 0, []),
    ],
)
def test_devices_personalise_once_near_the_end_or_every_so_often(client, rounds, due):
    assert [round for round in range(1, (rounds or 12) + 1) if client.due(round, rounds)] == due
    assert [client.extra(round, rounds) for round in due] == [20.0] * len(due)


def test_ordinary_rounds_cost_what_fedavg_does_and_one_costs_more(tmp_path):
    lines, run, state = played(tmp_path / "two")
    plain, shared, one = played(tmp_path / "one", client="plain", aggregator="fedavg")
    np.testing.assert_array_equal(blocks(run, state["models"])[0], one["models"])  # the shared model is FedAvg's
    usual, full = (run.config.sparsifier.full_bytes(count * run.layout.size) for count in (1, 4))
    assert run.update_bytes == shared.update_bytes == usual
    assert [line["time"]["devices"]["bytes"][0] for line in lines] == [usual, usual, usual, full, usual, usual]
    assert [line["time"]["devices"]["epochs"][0] for line in lines] == [3, 3, 3, 3 + 4, 3, 3]
    for mine, theirs in zip(lines, plain, strict=True):
        more = 7 / 3 if mine["round"] == 4 else 1
        for key in ("flops", "devices"):
            found, wanted = (line["time"][key] for line in (mine, theirs))
            if key == "devices":
                found, wanted = (np.array(part["compute_seconds"]) for part in (found, wanted))
            np.testing.assert_allclose(found, more * np.array(wanted), rtol=1e-4)
    measured = [line.get("measured") for line in lines]
    assert [found is None for found in measured] == [True, True, True, False, True, True]
    assert 0 < measured[3]["halves"] <= 1
    assert len(measured[3]["reliability"]) == 20
    kept = fedfilt.Records(tmp_path / "two")
    assert kept.rounds[3]["measured"]["linked"] == measured[3]["linked"]
    assert kept.line(4)["measured"] == measured[3]
    assert measured[3]["linked_pairs"] + measured[3]["unlinked_pairs"] == 190
    assert not [line for line in lines if line.get("events")], "the guard minds nothing"
    assert not np.concatenate(blocks(run, state["models"])[2:]).any()
    assert len(np.unique(blocks(run, state["models"])[1], axis=0)) == 20


def test_what_was_not_sent_of_changes_is_forgotten(tmp_path):
    """With sparse updates, what is left of the changes would come in later rounds and be taken for new ones."""
    scheduler = {"name": "everything", "epochs": 2, "density": 0.3}
    lines, run, state = played(tmp_path / "run", scheduler=scheduler)
    assert ["measured" in line for line in lines] == [False, False, False, True, False, False]
    assert not state["residuals"][:, run.layout.size :].any()
    assert state["residuals"][:, : run.layout.size].any()


def test_more_rounds_personalise_once_more(tmp_path):
    run = tmp_path / "run"
    _, made, before = played(run)
    config = replace(made.config, rounds=9)
    for _ in play_in_folder(Run(config), run, resume=True):
        pass
    assert [line["round"] for line in read_lines(run) if "measured" in line] == [4, 7]
    after = load_file(run / "checkpoint" / "state.safetensors")
    assert (blocks(made, after["models"])[1] != blocks(made, before["models"])[1]).any()


# --- who --------------------------------------------------------------------------------------------------------------


def test_a_device_that_took_no_part_answers_with_the_shared_model(tmp_path):
    lines, run, state = played(tmp_path / "run", participation={"fraction": 0.5})
    shared, own, *_ = blocks(run, state["models"])
    drawn = next(line["drawn"] for line in lines if "measured" in line)
    assert 0 < len(drawn) < 20
    np.testing.assert_array_equal(np.flatnonzero(own.any(axis=1)), drawn)
    for device in range(20):
        tensors = load_file(tmp_path / "run" / "models" / f"device-{device:03d}.safetensors")
        also = {key.removeprefix("also.1."): array for key, array in tensors.items() if key.startswith("also.")}
        np.testing.assert_array_equal(run.layout.row(also), shared[device])
        first = own if device in drawn else shared
        np.testing.assert_array_equal(run.layout.row(tensors), first[device])


@pytest.mark.parametrize("start", ["neighbours", "mean", "own"])
def test_a_device_that_joins_later_has_no_personal_model(tmp_path, start):
    events = [{"round": 1, "leave": 5}, {"round": 6, "join": 5, "start": start}]
    _, run, state = played(tmp_path / "run", events=events)
    shared, own, *_ = blocks(run, state["models"])
    assert not own[5].any()
    assert own[4].any()
    np.testing.assert_array_equal(shared[5], shared[4])


@pytest.mark.parametrize("samples", [0, 1, 2, 3])
def test_a_device_with_few_samples_takes_part_as_far_as_it_can(samples):
    data = some_data(devices=1, sizes=(samples or 3,))
    client = TwoLevel(epochs=2, before=1)
    desk = Desk(Trainer(Logistic((1, 12, 12), 3), Training(0.1), (1, 12, 12)), fedfilt.sparsifiers.TopK(), 0, 3, client)
    own = Own(data.x, data.y, data.train[0][:samples])
    row = np.zeros(desk.width, np.float32)
    row[: desk.size] = desk.trainer.start(0)
    job = fedfilt.system.orders.Job(1, 0, row, fedfilt.Plan(2), rounds=1)
    update = fedfilt.system.wire.unpack(work(job, own, desk).content, desk.width, desk.least)
    came = [bool(update[place * desk.size :][: desk.size].any()) for place in range(4)]
    assert came == [samples > 0, samples > 0, samples > 1, samples > 1]
    rule, graph = EmpiricalBayes(), Graph.from_edges(1, [])
    models, kept = rule(row[None], Updates(update[None], np.array([float(samples)])), graph, rule.start(row[None]))
    assert np.isfinite(models).all()
    assert np.isfinite(kept.everyone["halves"])
    found = personal(models[0], None, 1, 0, own, desk)
    np.testing.assert_allclose(found[0], row[: desk.size] + update[desk.size : 2 * desk.size], atol=1e-5)


# --- strange homes ----------------------------------------------------------------------------------------------------

VOICES = [(TwoLevel(epochs=2, before=1), EmpiricalBayes(links=True))]
VOICES += [(TwoLevel(epochs=2, before=1, mu=10.0), EmpiricalBayes(reading, mu=10.0)) for reading in READINGS]


@pytest.mark.parametrize(
    "case", ["one", "two", "linked", "unlinked", "alike", "still", "opposite", "three samples", "no halves"]
)
@pytest.mark.parametrize(("client", "rule"), VOICES)
def test_strange_homes_have_finite_models(case, client, rule):
    """One device, two, all or no links, changes that are alike (S is singular), zero or opposite, few samples."""
    devices, links = {"one": 1, "two": 2}.get(case, 4), []
    sizes = {"three samples": (3,) * 4, "no halves": (1, 9, 14, 10)}.get(case, (12, 9, 14, 10)[:devices])
    data = some_data(devices=devices, sizes=sizes)
    arrays = [(data.x[rows], data.y[rows]) for rows in data.train]
    if case in ("alike", "opposite"):
        x, y = arrays[0]
        turn = 2 if case == "opposite" else 0  # the same inputs, other labels
        arrays = [(x, (y + turn * (device % 2)) % 3) for device in range(devices)]
    if case not in ("unlinked", "one"):
        links = [(i, j) for i in range(devices) for j in range(i) if case == "linked" or i == j + 1]
    options: dict[str, Any] = {"rounds": 2, "learning_rate": 1e-30 if case == "still" else 0.1, "batch_size": 32}
    options["global_test"] = data.x[:20], data.y[:20]
    fitted = fedfilt.fit(
        arrays, Logistic((1, 12, 12), 3), Graph.from_edges(devices, links), rule, client=client, **options
    )
    assert fitted.rows.shape == (devices, 3 if client.mu else 2, 3 * 145)
    assert np.isfinite(fitted.rows).all()
    measured = fitted.records[-1].measured
    assert all(np.isfinite(value).all() for value in measured.values())
    if case == "still":  # nothing changed: all decide with the shared model
        assert abs(fitted.rows - fitted.rows[0, 0]).max() < 1e-6
    if case == "alike":  # every step is on all samples, so that order does not matter
        assert abs(fitted.rows - fitted.rows[0]).max() < 1e-4
    if case == "opposite":
        assert measured["linked"] < 0 if rule.links else abs(fitted.rows[0, 0] - fitted.rows[1, 0]).max() > 0.01


# --- a filtered model beside the two ----------------------------------------------------------------------------------


def test_a_filtered_model_changes_neither_of_the_others_and_costs_what_it_takes(tmp_path):
    """It travels in every round: two models usually, five when changes go with them. It is trained in every round."""
    lines, run, state = played(tmp_path / "three", client={**QUICK, "mu": 10.0}, aggregator=FILTERED)
    two, plain, before = played(tmp_path / "two")
    shared, filtered, *others = blocks(run, state["models"])
    for mine, theirs in zip((shared, *others), blocks(plain, before["models"]), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(np.unique(filtered, axis=0)) == 20
    usual, full = (run.config.sparsifier.full_bytes(count * run.layout.size) for count in (2, 5))
    assert run.update_bytes == usual
    assert [line["time"]["devices"]["bytes"][0] for line in lines] == [usual, usual, usual, full, usual, usual]
    assert [line["time"]["devices"]["epochs"][0] for line in lines] == [3, 3, 3, 3 + 2, 3, 3]  # each twice
    for mine, theirs in zip(lines, two, strict=True):
        more = (2 * 3 + 4) / (3 + 4) if mine["round"] == 4 else 2
        found, wanted = (np.array(line["time"]["devices"]["compute_seconds"]) for line in (mine, theirs))
        np.testing.assert_allclose(found, more * wanted, rtol=1e-4)
    tensors = load_file(tmp_path / "three" / "models" / "device-003.safetensors")
    also = {key.removeprefix("also.2."): array for key, array in tensors.items() if key.startswith("also.2.")}
    np.testing.assert_array_equal(run.layout.row(also), shared[3] + filtered[3])
    assert not [line for line in lines if line.get("events")], "the guard minds nothing"


FILTERED = {"name": "empirical_bayes", "mu": 10.0}


@pytest.mark.parametrize("graph", ["empty", "complete"])
def test_a_filter_over_no_links_and_over_all(tmp_path, graph):
    """Without links devices train it alone; where all are linked, a strong filter leaves one model: FedAvg's."""
    client, rule = {**QUICK, "mu": 1e6}, {**FILTERED, "mu": 1e6}
    _, run, state = played(tmp_path / "run", client=client, aggregator=rule, graph={"name": "paper", "control": graph})
    shared, filtered, *_ = blocks(run, state["models"])
    alone = [len(np.unique((shared + filtered).round(3), axis=0)) == count for count in (1, 20)]
    assert alone == ([False, True] if graph == "empty" else [True, False])
    assert np.isfinite(state["models"]).all()


@pytest.mark.parametrize("start", ["neighbours", "mean", "own"])
def test_a_device_that_joins_later_begins_with_a_filtered_model_too(tmp_path, start):
    events = [{"round": 1, "leave": 5}, {"round": 6, "join": 5, "start": start}]
    changes = {"client": {**QUICK, "mu": 10.0}, "aggregator": FILTERED, "events": events}
    _, run, state = played(tmp_path / "run", **changes)
    shared, filtered, own, *_ = blocks(run, state["models"])
    assert not own[5].any()
    assert filtered[5].any()
    np.testing.assert_array_equal(shared[5], shared[4])


def test_what_travels_seldom_is_the_last_of_what_travels():
    assert [seldom(client) for client in (Plain(), Ditto(), TwoLevel())] == [(), (), TwoLevel.seldom]
    assert [usual(client) for client in (Plain(), Scaffold(), TwoLevel(), TwoLevel(mu=1.0))] == [1, 2, 1, 2]
    odd: Any = SimpleNamespace(travels=("a", "b"), seldom=True)
    assert seldom(odd) == ("a", "b")
    odd.seldom = ("a",)
    with pytest.raises(ValueError, match="the last of its travels"):
        seldom(odd)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_what_all_devices_answer_alike_is_computed_once(tmp_path, monkeypatch):
    """The shared model is tested on everybody's samples once, a personal one for every device."""
    asked, raw = [], Trainer._raw

    def counting(self, row, x, rows, y, *known):
        if row.ndim == 1 and len(rows) == 50:
            asked.append(rows)
        return raw(self, row, x, rows, y, *known)

    monkeypatch.setattr(Trainer, "_raw", counting)
    lines, *_ = played(tmp_path / "run", evaluation={"every": 6})
    assert len(asked) == 20 + 1
    again, *_ = played(tmp_path / "again", evaluation={"every": 6}, engine={"workers": 2})
    assert again[-1]["mixed"] == lines[-1]["mixed"]


def test_fit_predicts_with_the_mean_and_says_what_it_cannot_give():
    data = some_data(devices=3, sizes=(24, 18, 20))
    arrays = [(data.x[rows], data.y[rows]) for rows in data.train]
    options = {"rounds": 2, "learning_rate": 0.1, "global_test": (data.x[:20], data.y[:20])}
    graph, model = Graph.from_edges(3, [(0, 1)]), Logistic((1, 12, 12), 3)
    fitted = fedfilt.fit(arrays, model, graph, EmpiricalBayes(), client=TwoLevel(epochs=2, before=1), **options)
    assert fitted.rows.shape == (3, 2, 3 * 145)
    single = [fitted.trainer.predict(row, data.x[:4]) for row in fitted.rows[1]]
    np.testing.assert_allclose(fitted.predict(1, data.x[:4]), np.mean(single, axis=0), atol=1e-6)
    assert "435 parameters" in repr(fitted)
    with pytest.raises(ValueError, match="averages the answers of 2 models: use predict"):
        fitted.model(1)


def test_averages_of_numbers_and_choices_are_tested_too():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 4)).astype(np.float32)
    for loss, y in {"mse": rng.standard_normal((7, 2)), "bce": rng.random((7, 2)) < 0.5, "mae": rng.random(7)}.items():
        targets = y.astype(np.float32) if y.dtype.kind == "f" else y
        outputs = 1 if y.ndim == 1 else 2
        trainer = Trainer(MLP((4,), outputs, hidden=3), Training(loss=loss), (4,), targets)
        rows = np.stack([trainer.start(seed) for seed in (0, 1)])
        said = np.mean([trainer.predict(row, x) for row in rows], axis=0)
        np.testing.assert_allclose(trainer.predict(rows, x), said, atol=1e-6)
        sums, total = trainer.test(rows, x, targets, np.arange(7), outputs)
        np.testing.assert_allclose(sums, trainer.goal.sums(targets, said, outputs), rtol=1e-5)
        truth = targets.reshape(said.shape).astype(float)
        with np.errstate(invalid="ignore"):
            each = {
                "mse": (said - truth) ** 2,
                "mae": abs(said - truth),
                "bce": -np.log(np.where(truth > 0.5, said, 1 - said)),
            }[loss]
        assert total == pytest.approx(each.mean(axis=1).sum(), rel=1e-4)
        same, alone = trainer.test(np.stack([rows[0]] * 2), x, targets, np.arange(7), outputs)
        assert alone == trainer.test(rows[0], x, targets, np.arange(7), outputs)[1]
        assert same.shape == sums.shape


def test_averages_over_tokens_and_by_a_loss_of_ones_own():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 4)).astype(np.float32), rng.integers(0, 3, (6, 2))
    net = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))  # three labels for each of two tokens
    for loss in ("cross_entropy", own_loss):
        trainer = Trainer(net, Training(loss=loss), (4,), y)
        rows = np.stack([trainer.start(seed) for seed in (0, 1)])
        said = np.mean([trainer.predict(row, x) for row in rows], axis=0)
        assert said.shape == (6, 2, 3)
        sums, total = trainer.test(rows, x, y, np.arange(6), 3)
        wanted = np.zeros((3, 3), int)
        np.add.at(wanted, (y.ravel(), said.reshape(-1, 3).argmax(axis=1)), 1)
        np.testing.assert_array_equal(sums, wanted)
        right = np.log(np.take_along_axis(said, y[:, :, None], axis=2))
        assert total == pytest.approx(-6 * right.mean() * (2 if loss is own_loss else 1), rel=1e-4)


def own_loss(outputs, labels):
    return 2 * nn.functional.cross_entropy(outputs, labels)


def test_models_are_also_tested_before_mixing_and_on_held_out_samples(tmp_path):
    often = {"every": 1, "trained": True, "validation": 0.3}
    lines, *_ = played(tmp_path / "two", evaluation=often)
    plain, *_ = played(tmp_path / "one", evaluation=often, client="plain", aggregator="fedavg")
    for mine, theirs in zip(lines, plain, strict=True):  # while devices have no personal model, all is FedAvg's
        if mine["round"] <= 4:
            assert mine["trained"]["local"]["mean"] == theirs["trained"]["local"]["mean"]
    assert lines[2]["mixed"]["validation"]["mean"] == plain[2]["mixed"]["validation"]["mean"]
    assert lines[5]["mixed"]["validation"]["mean"] != plain[5]["mixed"]["validation"]["mean"]


def test_a_run_whose_devices_average_is_not_exported_as_one_model(tmp_path):
    finish(tmp_path / "run", rounds=1, client=QUICK, aggregator="empirical_bayes")
    for kind in ("--c", "--onnx"):
        done = call("export", tmp_path / "run", kind, "--device", 0)
        assert done.returncode != 0
        assert "answers with the average of 2 models" in done.stderr.replace("\n", " ")
    ran = call("report", tmp_path / "run")
    assert ran.returncode == 0, ran.stderr
    shares = taken(fedfilt.Records(tmp_path / "run"), [0])[0]
    assert [part.share for part in shares] == pytest.approx([1 / 20] * 9)  # as FedAvg does


# --- by name, and what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "client", "aggregator"),
    [
        ("two_level", TwoLevel(), EmpiricalBayes()),
        ("two_level:before=3:answers=shared", TwoLevel(before=3, answers="shared"), EmpiricalBayes()),
        ("two_level+empirical_bayes:reading=balanced", TwoLevel(), EmpiricalBayes("balanced")),
        ("two_level+empirical_bayes:links=True", TwoLevel(), EmpiricalBayes(links=True)),
        ("two_level:mu=10", TwoLevel(mu=10.0), EmpiricalBayes(mu=10.0)),
        ("two_level:mu=1+empirical_bayes:links=True:mu=1", TwoLevel(mu=1.0), EmpiricalBayes(links=True, mu=1.0)),
        ("averaged", Averaged(), FedAvg()),
        ("averaged:client=ditto:weight=2", Averaged(Ditto(2.0)), FedAvg()),
        ("averaged:client=finetune:layers=head:epochs=3", Averaged(FineTune(3, ("head",))), FedAvg()),
        ("averaged:client=two_level:answers=personal", Averaged(TwoLevel(answers="personal")), EmpiricalBayes()),
    ],
)
def test_names(rule, client, aggregator):
    config = with_rule(from_table(SMALL), rule.replace("True", "true"))
    assert (config.client, config.aggregator) == (client, aggregator)
    name = rule_name(config.table())
    assert sorted(name.split(":")) == sorted(rule.split(":"))
    again = with_rule(from_table(SMALL), name.replace("True", "true"))
    assert (again.client, again.aggregator) == (client, aggregator)


def test_two_level_and_its_rule_need_each_other():
    with pytest.raises(ValueError, match="two_level needs aggregator = 'empirical_bayes', got '"):
        Run(from_table({**SMALL, "client": "two_level", "aggregator": "fedavg"}))
    with pytest.raises(ValueError, match="empirical_bayes needs rows of the client two_level"):
        Run(from_table({**SMALL, "aggregator": "empirical_bayes"}))
    with pytest.raises(ValueError, match="with the same options"):
        Run(from_table({**SMALL, "client": {"name": "two_level", "mu": 10.0}, "aggregator": "empirical_bayes"}))
    with pytest.raises(ValueError, match="answers must be 'average', got 'personal'"):
        TwoLevel(mu=1.0, answers="personal")
    with pytest.raises(ValueError, match=r"aggregator\.mu"):
        EmpiricalBayes(mu=-1.0)
    with pytest.raises(ValueError, match="must have a personal model"):
        Averaged(Plain())
    for wrong in ({"epochs": 0}, {"before": 0}, {"every": -1}, {"answers": "loud"}, {"mu": -1}):
        with pytest.raises(ValueError, match=f"client.{next(iter(wrong))}"):
            TwoLevel(**wrong)
    with pytest.raises(ValueError, match="reading"):
        EmpiricalBayes("loud")
    with pytest.raises(ValueError, match="at most 5000 devices"):
        EmpiricalBayes().start(np.zeros((5001, 4), np.float32))


def test_links_and_readings_change_the_personal_models_alone(tmp_path):
    found = []
    options: dict[str, dict[str, Any]] = {"a": {}, "b": {"links": True}, "c": {"reading": "balanced"}}
    for name, rule in options.items():
        _, run, state = played(tmp_path / name, aggregator={"name": "empirical_bayes", **rule})
        found.append(blocks(run, state["models"]))
    for other in found[1:]:
        np.testing.assert_array_equal(other[0], found[0][0])
        assert (other[1] != found[0][1]).any()
