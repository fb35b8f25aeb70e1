"""Clients and rules that remember, in whole runs: by name, resumed, with devices that come and go, and misbehaving."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fedfilt
from fedfilt import Evaluation, Experiment, Graph, Remembered, Sent, State, Training, Updates, play
from fedfilt.aggregators import FedAdam, FedAvg, FedAvgM, FedDyn, FedYogi, GFedFilt
from fedfilt.clients import Ditto, FedPer, FineTune, LabelPrior
from fedfilt.clients.plain import Plain
from fedfilt.engines.local import Local
from fedfilt.filters import Tikhonov
from fedfilt.models import Logistic
from fedfilt.populations import Paper
from fedfilt.rounds.timeline import Event, Timeline
from fedfilt.runs.build import Run
from fedfilt.runs.compare import compare
from fedfilt.runs.config import config_of, from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records
from fedfilt.runs.rules import rule_name, with_rule
from fedfilt.schedulers import Everything
from fedfilt.show.dashboard.page import neighbours
from fedfilt.show.shares import taken
from fedfilt.training.client import example, extra, passes
from helpers import MINE, SMALL, finish, process, some_data, trained

TWO = Graph.from_edges(2, [(0, 1)])

# --- by name ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "client", "aggregator"),
    [
        ("fedavg", {"name": "plain"}, {"name": "fedavg"}),
        ("mu=3", {"name": "plain"}, {"name": "gfedfilt"}),
        ("ditto", {"name": "ditto", "weight": 0.1}, {"name": "fedavg"}),
        ("ditto:weight=2", {"name": "ditto", "weight": 2.0}, {"name": "fedavg"}),
        ("ditto:weight=2+mu=3", {"name": "ditto", "weight": 2.0}, {"name": "gfedfilt"}),
        ("feddyn:alpha=0.5", {"name": "feddyn", "alpha": 0.5}, {"name": "feddyn", "alpha": 0.5}),
        ("fedamp:proximal=2", {"name": "fedamp", "proximal": 2.0}, {"name": "fedamp", "share": 0.9}),
        ("fedamp+fedamp:share=0.5", {"name": "fedamp", "proximal": 0.1}, {"name": "fedamp", "share": 0.5}),
        ("ifca:clusters=3", {"name": "ifca", "clusters": 3}, {"name": "ifca", "clusters": 3}),
        ("label_prior:smoothing=0.5", {"name": "label_prior", "smoothing": 0.5}, {"name": "fedavg"}),
        ("finetune+attention:strength=2", {"name": "finetune"}, {"name": "attention", "strength": 2.0}),
        ("fedper:keep=0|head", {"name": "fedper", "keep": ["0", "head"]}, {"name": "fedavg"}),
        ("fedadam:rate=0.5", {"name": "plain"}, {"name": "fedadam", "rate": 0.5}),
        ("scaffold+fedavgm:momentum=0.5", {"name": "scaffold"}, {"name": "fedavgm", "momentum": 0.5}),
    ],
)
def test_a_rule_and_its_name_belong_together(rule, client, aggregator):
    table = with_rule(from_table(SMALL), rule).table()
    assert client.items() <= table["client"].items()
    assert aggregator.items() <= table["aggregator"].items()
    assert rule_name(table) == rule
    assert rule_name(with_rule(from_table(table), rule).table()) == rule


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("dito", "did you mean"),
        ("ditto:wait=1", "did you mean"),
        ("ditto:weight", "name:option=value"),
        ("ditto+fedagv", "did you mean"),
        ("ditto:weight=-1", "weight must be"),
    ],
)
def test_a_rule_that_is_none_is_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        with_rule(from_table(SMALL), rule)


def test_the_plain_client_does_not_count_in_a_hash():
    assert from_table(SMALL).hash() == from_table({**SMALL, "client": "plain"}).hash()
    assert from_table(SMALL).hash() != from_table({**SMALL, "client": "ditto"}).hash()
    assert from_table({**SMALL, "client": "ditto"}).counted()["client"] == {"name": "ditto"}


def test_rules_with_different_clients_are_compared(tmp_path):
    config = from_table({**SMALL, "rounds": 2})
    names = ["fedavg", "ditto:weight=1", "ditto+mu=1", "fedadam:rate=0.1"]
    lines = list(compare(config, names, [0], tmp_path))
    assert {line.rule for line in lines} == set(names)
    alone = finish(tmp_path / "alone", rounds=2, client={"name": "ditto", "weight": 1.0}, aggregator="fedavg")
    table = fedfilt.Records(tmp_path / "ditto:weight=1" / "seed-0")
    assert table.result["models_sha256"] == alone["models_sha256"]


# --- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    ["ditto", "scaffold", "fedrep", "feddyn", "fedadam", "ditto+fedavgm", "two_level:before=2", "two_level:mu=10"],
)
def test_a_run_that_was_interrupted_has_the_same_bits(tmp_path, rule):
    config = with_rule(from_table(SMALL), rule)
    for line in play_in_folder(Run(config), tmp_path / "parts"):
        if line["round"] == 3:
            break
    for folder in ("whole", "parts"):
        for _ in play_in_folder(Run(config), tmp_path / folder, resume=True):
            pass
    whole, parts = (load_file(tmp_path / name / "checkpoint" / "state.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert any(name.startswith(("client.", "memory.rule.")) for name in whole)
    for name, array in whole.items():
        np.testing.assert_array_equal(array, parts[name], err_msg=name)
    for path in sorted((tmp_path / "whole" / "models").iterdir()):
        assert path.read_bytes() == (tmp_path / "parts" / "models" / path.name).read_bytes()


@pytest.mark.parametrize(("rule", "times"), [("fedrep", 2), ("fedrep:head_epochs=10", 13 / 3), ("ditto", 2)])
def test_time_and_work_of_a_round_are_those_of_what_is_trained(tmp_path, rule, times):
    client = with_rule(from_table(SMALL), rule).client
    task = example(client)
    assert trained(client, task) == passes(client) * (task.epochs + extra(client, 1, 1))
    done = {name: finish(tmp_path / name, **with_rule(from_table(SMALL), name).table()) for name in ("fedavg", rule)}
    lines = [read_lines(tmp_path / name)[0]["time"] for name in done]
    plain, mine = (np.array(line["devices"]["compute_seconds"]) for line in lines)
    np.testing.assert_allclose(mine, times * plain, rtol=1e-5)
    assert lines[1]["flops"] == pytest.approx(times * lines[0]["flops"])


def test_the_models_of_a_run_are_those_that_devices_decide_with(tmp_path):
    finish(tmp_path / "run", client="ditto", aggregator="fedavg")
    run = Run(from_table({**SMALL, "client": "ditto", "aggregator": "fedavg"}))
    state = load_file(tmp_path / "run" / "checkpoint" / "state.safetensors")
    for device in (0, 7):
        tensors = load_file(tmp_path / "run" / "models" / f"device-{device:03d}.safetensors")
        np.testing.assert_array_equal(run.layout.row(tensors), state[f"client.{device}.personal"])


# --- rules that remember ----------------------------------------------------------------------------------------------


def steps(rule, updates, rounds=4, size=3):
    graph, models = Graph.from_edges(len(updates.rows), [(0, 1)]), np.zeros((len(updates.rows), size), np.float32)
    kept = rule.start(models)
    for _ in range(rounds):
        models, kept = rule(models, updates, graph, kept)
    return models


def test_server_optimisers_are_their_papers():
    rng = np.random.default_rng(0)
    rows, weights = rng.standard_normal((3, 3)).astype(np.float32), np.array([1.0, 2.0, 5.0])
    delta = weights / weights.sum() @ rows  # every round again, as the updates are
    m, x = np.zeros(3), np.zeros(3)
    for _ in range(4):
        m = 0.7 * m + delta
        x = x + 0.5 * m
    np.testing.assert_allclose(steps(FedAvgM(0.7, 0.5), Updates(rows, weights)), np.tile(x, (3, 1)), rtol=1e-5)
    for rule, yogi in ((FedAdam(0.1), False), (FedYogi(0.1), True)):
        m, v, x = np.zeros(3), np.full(3, 1e-6), np.zeros(3)
        for _ in range(4):
            m = 0.9 * m + 0.1 * delta
            v = v - 0.01 * delta**2 * np.sign(v - delta**2) if yogi else 0.99 * v + 0.01 * delta**2
            x = x + 0.1 * m / (np.sqrt(v) + 1e-3)
        np.testing.assert_allclose(steps(rule, Updates(rows, weights)), np.tile(x, (3, 1)), rtol=1e-4)


def test_a_server_optimiser_of_rate_one_without_memory_is_its_inner_rule():
    rows = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    updates, models, graph = Updates(rows, np.ones(4)), np.zeros_like(rows), Graph.from_edges(4, [(0, 1), (1, 2)])
    for inner in (FedAvg(), GFedFilt(Tikhonov(2.0))):
        rule = FedAvgM(momentum=0.0, aggregator=inner)
        found, _ = rule(models, updates, graph, rule.start(models))
        np.testing.assert_allclose(found, inner(models, updates, graph), rtol=1e-5)


class Steps:
    """An engine whose devices learn the same in every round."""

    def train(self, jobs, deadline):
        return [fedfilt.rounds.types.Reply(job.device, np.full(2, job.device + 1, np.float32), 10, 0.0) for job in jobs]


def played(rule, events, rounds=5, count=3):
    graph, hardware = Graph.from_rooms(["a"] * count), Paper().draw(np.full(count, 10), 8, np.random.default_rng(0))
    experiment = Experiment(graph, rule, Everything(1), Steps(), hardware, rounds, 8, Evaluation(every=99))
    experiment = replace(experiment, events=Timeline(events, graph, rounds) if events else None, rounds=rounds + 1)
    states = play(State(0, np.zeros((count, 2), np.float32)), experiment)
    return [next(states)[0] for _ in range(rounds)]


def test_a_rule_remembers_devices_that_are_away_and_of_new_ones_what_it_does_of_others():
    events = [Event(round=2, leave=(1,)), Event(round=4, join=(1,), start="mean")]
    states = played(FedAvgM(0.5), events)
    kept = [state.memory["rule.devices.momentum"] for state in states]
    np.testing.assert_array_equal(kept[1][1], kept[0][1])  # away
    assert (kept[1][0] != kept[0][0]).all()
    np.testing.assert_allclose(kept[3][1], kept[3][0])  # what it began with is the mean of the others'
    whole = played(FedAvgM(0.5), [])
    assert (whole[2].memory["rule.devices.momentum"] != kept[2]).any()


def test_nothing_is_remembered_of_a_rule_from_another_run():
    first, second = (played(FedDyn(0.5), []) for _ in range(2))
    np.testing.assert_array_equal(first[-1].models, second[-1].models)
    assert set(first[-1].memory) == {"rule.everyone.h"}


@pytest.mark.parametrize(
    "changes",
    [
        {"guard": {"robust": "filter"}},
        {"privacy": {"clip": 1.0, "noise": 1.0}},
        {"privacy": {"blind": True}},
    ],
)
def test_a_rule_that_remembers_does_not_go_with_what_needs_a_linear_one(changes):
    with pytest.raises(ValueError, match="has memory, which cannot be combined with"):
        Run(from_table({**SMALL, "aggregator": "fedadam", **changes}))


# --- what is refused --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """A client that gives something else."""

    how: str

    def __call__(self, task):
        loss = task.train(task.model)
        return {
            "none": None,
            "short": Sent(task.model[:-1], loss),
            "double": Sent(task.model.astype(float), loss),
            "list": Sent(task.model, loss, {"kept": [1, 2]}),  # type: ignore[dict-item]
            "more": Sent(task.model, loss, travelling={"control": task.model}),
            "nan": Sent(task.model, loss, {"kept": task.model * np.nan}),
        }[self.how]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("none", "client Wrong must return Sent"),
        ("short", "client Wrong must send model as float32 of shape"),
        ("double", "got float64"),
        ("list", "must keep arrays of numbers, got kept as list"),
        ("more", r"must send \[\] with its model, got \['control'\]"),
        ("nan", "no longer finite"),
    ],
)
def test_what_a_client_gives_is_checked(how, message):
    data = some_data(devices=2, sizes=(12, 8))
    with pytest.raises((ValueError, ArithmeticError), match=message):
        fedfilt.fit(
            [(data.x[rows], data.y[rows]) for rows in data.train],
            Logistic((1, 12, 12), 3),
            Graph.from_edges(2, [(0, 1)]),
            client=Wrong(how),
            guard=None,
            rounds=1,
        )


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (lambda models: models.tolist(), "rule .* must return float32 models of shape .*, got list"),
        (lambda models: models[:-1], r"got float32 of \(2, 2\)"),
        (lambda models: models.astype(float), "got float64"),
        (lambda models: np.where(np.arange(3)[:, None] == 1, np.float32(np.nan), models), "infinity for device 1"),
    ],
)
def test_what_a_rule_gives_is_checked(found, message):
    def mine(models, updates, graph):
        return found(models)

    with pytest.raises(ValueError, match=message):
        played(mine, [])


def test_layers_that_a_model_does_not_have_are_named_before_training():
    for client in ({"name": "fedper", "keep": ["heat"]}, {"name": "finetune", "layers": ["heat"]}):
        with pytest.raises(ValueError, match="did you mean 'head'"):
            Run(from_table({**SMALL, "client": client}))
    with pytest.raises(ValueError, match="normalisation"):
        Run(from_table({**SMALL, "client": "fedbn"}))


# --- from Python, and from outside ------------------------------------------------------------------------------------


def test_fit_takes_a_client_and_gives_the_models_that_decide():
    data = some_data(devices=3, sizes=(24, 18, 20))
    arrays = [(data.x[rows], data.y[rows]) for rows in data.train]
    options = {"rounds": 2, "learning_rate": 0.1, "global_test": (data.x[:20], data.y[:20])}
    graph, model = Graph.from_edges(3, [(0, 1)]), Logistic((1, 12, 12), 3)
    shared = fedfilt.fit(arrays, model, graph, FedAvg(), **options)
    for client in (Ditto(), FineTune(3), FedPer()):
        own = fedfilt.fit(arrays, model, graph, FedAvg(), client=client, **options)
        assert len({row.tobytes() for row in own.rows}) == 3
    assert len({row.tobytes() for row in shared.rows}) == 1


def test_a_method_of_ones_own_takes_part_without_another_edit(tmp_path):
    """In run, compare and the report; in a deployment: tests/flower/test_resident.py; in the folder of clients, the
    contract tests find it: tests/test_package.py."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "small.toml").write_text(from_table(SMALL).toml())
    path = Path("small.toml")
    ran = process("run", path, "client=mine:Halfway", "rounds=2", "--out", "one", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert load_file(tmp_path / "one" / "checkpoint" / "state.safetensors")["client.0.times"] == [2]
    rules = "fedavg,mine:Halfway:share=0.25,mine:Halfway+mu=1"
    ran = process("compare", path, "rounds=2", "--rules", rules, "--out", "several", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert {path.name for path in (tmp_path / "several").iterdir() if path.is_dir()} >= set(rules.split(","))
    ran = process("report", "several", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "Halfway" in (tmp_path / "several" / "report.html").read_text()


def test_training_alone_needs_no_engine():
    with Local(some_data(), Logistic((1, 12, 12), 3), Training(), workers=1) as engine:
        state = State(1, np.zeros((4, engine.layout.size), np.float32))
        np.testing.assert_array_equal(engine.personal(state), state.models)
    assert Remembered().named() == {}


def test_a_graph_is_learned_from_models_alone(tmp_path):
    """What travels with a model says nothing about likeness."""
    graph = {"name": "homes", "rooms": 2, "devices": 6, "between": "updates", "k": 2}
    found = []
    for client in ("plain", "scaffold"):
        run = Run(from_table({**SMALL, "graph": graph, "client": client}))
        run.learn_graph()
        found.append(run.graph.hash)
    assert found[0] == found[1]


def test_the_dashboard_says_what_shares_are_of(tmp_path):
    """A client that decides with a model of its own is given a row, and that is what the shares are of."""
    finish(tmp_path, rounds=1, client="ditto", aggregator="fedavg")
    assert "row it received is made of (the client ditto decides" in str(neighbours(Records(tmp_path), 0, None))
    path = tmp_path / "config.toml"
    for name, words in (("plain", "its new model is made of"), ("mine:Client", "mine:Client may decide with another")):
        path.write_text(path.read_text().replace('"ditto"', f'"{name}"').replace('"plain"', f'"{name}"'))
        assert words in str(neighbours(Records(tmp_path), 0, None))


def test_pages_show_runs_of_rules_that_remember(tmp_path):
    inner = {"name": "gfedfilt", "filter": {"name": "tikhonov", "mu": 3.0}}
    for name, rule in {"one": "fedadam", "two": {"name": "fedavgm", "aggregator": inner}}.items():
        finish(tmp_path / name, rounds=2, aggregator=rule)
        ran = process("report", tmp_path / name)
        assert ran.returncode == 0, ran.stderr
        shares = taken(fedfilt.Records(tmp_path / name), [0])
        assert abs(sum(part.share for part in shares[0])) > 0.1
    assert fedfilt.Records(tmp_path / "two").rule == "fedavgm:aggregator=gfedfilt"
    ran = process("audit", tmp_path / "one")
    assert ran.returncode in (0, 1), ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_shared_model_stays_one_when_a_device_joins():
    for rule in (FedAdam(0.1), FedYogi(0.1), FedAvgM(0.5)):
        states = played(rule, [Event(round=1, leave=(2,)), Event(round=4, join=(2,), start="mean")], rounds=7)
        assert np.ptp(states[-1].models, axis=0).max() < 1e-5


@pytest.mark.slow(10)
@pytest.mark.parametrize("client", ["ditto", "finetune"])
def test_a_simulation_over_flower_that_was_interrupted_has_the_same_bits(tmp_path, client):
    place = {"graph": {"name": "rooms", "rooms": 1, "devices": 4}, "partition": {"name": "labels", "per_device": 3}}
    config = from_table({**SMALL, **place, "client": client, "rounds": 5})
    config = replace(config, engine=replace(config.engine, name="flower"))
    for line in play_in_folder(Run(config), tmp_path / "parts"):
        if line["round"] == 3:
            break
    if client == "ditto":
        with pytest.raises(ValueError, match=r"on the devices; continue with engine\.name = 'flower'"):
            list(
                play_in_folder(
                    Run(replace(config, engine=replace(config.engine, name="local"))), tmp_path / "parts", True
                )
            )
    for folder in ("whole", "parts"):
        for _ in play_in_folder(Run(config), tmp_path / folder, resume=True):
            pass
    whole, parts = (fedfilt.Records(tmp_path / name) for name in ("whole", "parts"))
    assert whole.result["models_sha256"] == parts.result["models_sha256"]
    last = [read_lines(tmp_path / name)[-1]["mixed"] for name in ("whole", "parts")]
    assert last[0] == last[1]  # of the models that devices decide with


def test_both_halves_of_feddyn_have_the_same_alpha():
    with pytest.raises(ValueError, match=r"must be the same, got 0\.1 and 0\.5"):
        Run(from_table({**SMALL, "client": "feddyn", "aggregator": {"name": "feddyn", "alpha": 0.5}}))
    assert with_rule(from_table(SMALL), "feddyn:alpha=0.5").aggregator == FedDyn(0.5)


def test_the_rule_scaffold_needs_its_client():
    with pytest.raises(ValueError, match="the rule scaffold needs rows of the client scaffold"):
        Run(from_table({**SMALL, "aggregator": "scaffold"}))
    Run(from_table({**SMALL, "aggregator": "scaffold", "client": "scaffold"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregator": "ifca"}, "the rule ifca needs rows of the client ifca with the same options"),
        ({"aggregator": {"name": "ifca", "clusters": 3}, "client": "ifca"}, "with the same options"),
        ({"aggregator": {"name": "ifca", "clusters": 30}, "client": {"name": "ifca", "clusters": 30}}, "from 2 to 20"),
        ({"client": {"name": "ifca", "clusters": 1}}, "client.clusters must be a whole number from 2 to 100"),
        ({"client": {"name": "finetune", "layers": ["norms"]}}, "unknown layer 'norms'"),
        (
            {"aggregator": "attention", "privacy": {"least_others": 2}},
            "Attention weighs updates by their content, which",
        ),
        ({"client": "fedbn"}, "fedbn needs a model with normalisation layers"),
        (
            {"client": "label_prior", "data": "diabetes", "partition": "uniform", "training.loss": "mse"}
            | {"samples": {"train": 5, "local_test": 5, "global_test": 5}},
            "the client label_prior needs labels to count, got numbers",
        ),
    ],
)
def test_a_method_that_cannot_do_what_it_is_asked_for_says_so_before_training(changes, message):
    with pytest.raises(ValueError, match=message):
        Run(config_of({**SMALL, "graph": "paper", "aggregator": "fedavg"}, changes))


class Scales(torch.nn.Module):
    """A model without a head: it only scales and moves its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(3)

    def forward(self, x):
        return self.norm(x)


def test_a_model_without_a_head_is_refused_by_methods_that_need_one():
    data = some_data(devices=2, shape=(3,), sizes=(9, 8))
    for client in (FineTune(layers=("head",)), FedPer(), LabelPrior()):
        with pytest.raises(ValueError, match="unknown layer 'head"):
            Run(replace(from_table({**SMALL, "graph": "paper"}), client=client), data=data, graph=TWO, model=Scales())
    Run(replace(from_table(SMALL), client=FineTune()), data=data, graph=TWO, model=Scales())


def test_new_rivals_go_on_after_a_kill_with_the_same_bits(tmp_path):
    for rule in ("fedamp", "ifca:clusters=3", "label_prior", "attention:strength=2"):
        table = with_rule(from_table(SMALL), rule).table()
        whole = finish(tmp_path / rule / "whole", **table)
        for line in play_in_folder(Run(from_table(table)), tmp_path / rule / "parts"):
            if line["round"] == 4:
                break
        parts = finish(tmp_path / rule / "parts", resume=True, **table)
        assert parts["models_sha256"] == whole["models_sha256"]
        last = [read_lines(tmp_path / rule / name)[-1]["mixed"] for name in ("whole", "parts")]
        assert last[0] == last[1]


@pytest.mark.parametrize(("momentum", "epochs"), [(0.0, 3), (0.5, 1), (0.9, 10), (0.99, 30)])
def test_steps_reach_further_with_momentum(monkeypatch, momentum, epochs):
    task, velocity, reached = example(Plain()), 0.0, 0.0
    monkeypatch.setattr(task, "_trainer", SimpleNamespace(training=Training(momentum=momentum)))
    for _ in range(task.steps(epochs)):
        velocity = momentum * velocity + 1
        reached += velocity
    assert task.reach(epochs) == pytest.approx(reached)
