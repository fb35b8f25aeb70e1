"""G-Fedfilt as a Flower strategy, and the quickstart that uses it."""

import importlib
import io
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

import fedfilt
from fedfilt import aggregators
from fedfilt.engines.flower.simulation import running_grid
from fedfilt.flower import GFedFilt
from fedfilt.rounds.types import Updates
from fedfilt.system.orders import Plan
from fedfilt.system.wire import pack
from helpers import ROOT, SLOW

SIZE = 5


def _learner(bad=None):
    """A client that adds its number + 1 to all values and sends the model, or a packed update if it has a density."""
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        number: Any = context.node_config["partition-id"]
        given = message.content.array_records["arrays"]["w"].numpy()
        config: Any = message.content["config"]
        arrays = {"w": Array(given + np.float32(number + 1)), "n": message.content.array_records["arrays"]["n"]}
        if "density" in config:
            arrays = {"update": Array(np.frombuffer(pack(np.full(SIZE, number + 1, np.float32)), np.uint8))}
        metrics: dict[str, Any] = {"num-examples": 10 * (number + 1), "given": float(given.sum())}
        if bad is not None and number == 1:
            bad(arrays, metrics)
        metrics |= {"epochs": int(config.get("epochs", 0)), "round": config["server-round"]}
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        total = float(message.content.array_records["arrays"]["w"].numpy().sum())
        metrics = MetricRecord({"sum": total, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


START = ArrayRecord({"w": Array(np.arange(SIZE, dtype=np.float32)), "n": Array(np.array(3))})


def numbers(grid):
    """Device (by node id) -> partition-id."""
    return [number for _, number in sorted(zip(grid.get_node_ids(), range(10), strict=False))]


def by_device(strategy, key):
    return [record[key] for _, record in sorted(strategy.train_metrics[1].items())]


@pytest.mark.slow(2)
@pytest.mark.parametrize("packed", [False, True])
def test_strategy_mixes_as_the_rule_does_and_tells_everyone_its_own_model_only(packed):
    graph = fedfilt.Graph.from_edges(3, [(0, 1), (1, 2)])
    plans = (lambda round: [Plan(epochs=round + i, density=0.5) for i in range(3)]) if packed else None
    strategy = GFedFilt(graph, plans=plans, min_available_nodes=3)
    with running_grid(_learner, 3) as grid:
        result = strategy.start(grid, START, num_rounds=2, timeout=SLOW)
    rows, rule = np.tile(np.arange(SIZE, dtype=np.float32), (3, 1)), aggregators.GFedFilt()
    samples = np.array([strategy.train_metrics[1][i]["num-examples"] for i in range(3)], float)
    for round in (1, 2):
        seen = [strategy.train_metrics[round][i]["given"] for i in range(3)]
        np.testing.assert_allclose(seen, rows.sum(axis=1), rtol=1e-6)  # each was given its own row
        learnt = np.repeat(samples[:, None] / 10, SIZE, axis=1).astype(np.float32)
        rows = rule(rows, Updates(learnt, samples), graph)
        tested = [strategy.evaluate_metrics[round][i]["sum"] for i in range(3)]
        np.testing.assert_allclose(tested, rows.sum(axis=1), rtol=1e-6)
    for row, model in zip(rows, strategy.models, strict=True):
        np.testing.assert_allclose(model["w"].numpy(), row, rtol=1e-6)
        assert model["n"].numpy() == 3
    np.testing.assert_allclose(result.arrays["w"].numpy(), np.average(rows, axis=0, weights=samples), rtol=1e-6)
    if packed:
        assert [strategy.train_metrics[2][i]["epochs"] for i in range(3)] == [2, 3, 4]
    assert result.evaluate_metrics_clientapp[2]["sum"] == pytest.approx(rows.sum(axis=1).mean(), rel=1e-6)


def _nan(arrays, metrics):
    arrays["w"] = Array(np.full(SIZE, np.nan, np.float32))


def _shape(arrays, metrics):
    arrays["w"] = Array(np.zeros(SIZE + 1, np.float32))


def _dtype(arrays, metrics):
    arrays["w"] = Array(np.zeros(SIZE))


def _key(arrays, metrics):
    arrays["more"] = Array(np.zeros(1, np.float32))


def _cut(arrays, metrics):
    whole = arrays["w"]
    arrays["w"] = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data[:-4])


def _claim(arrays, metrics):
    """A header that claims a terabyte."""
    whole = arrays["w"]
    data = whole.data.replace(b"(5,), }           ", b"(250000000000,), }")
    assert len(data) == len(whole.data)
    assert data != whole.data
    arrays["w"] = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=data)


def _archive(arrays, metrics):
    stream = io.BytesIO()
    np.savez_compressed(stream, np.zeros(SIZE, np.float32))
    arrays["w"] = Array(dtype="float32", shape=(SIZE,), stype="numpy.ndarray", data=stream.getvalue())


def _metric(arrays, metrics):
    metrics["given"] = [1.0, 2.0]


def _negative(arrays, metrics):
    metrics["num-examples"] = -5


def _absurd(arrays, metrics):
    metrics["num-examples"] = 10**15


def _tiny(arrays, metrics):
    metrics["num-examples"] = 1e-14


def _half(arrays, metrics):
    metrics["num-examples"] = 2.5


def _no_number(arrays, metrics):
    metrics["num-examples"] = float("nan")


def _list(arrays, metrics):
    metrics["num-examples"] = [3, 4]


def _nan_metric(arrays, metrics):
    metrics["given"] = float("nan")


def _huge_metric(arrays, metrics):
    metrics["given"] = 1e308


def _no_type(arrays, metrics):
    whole = arrays["w"]
    data = whole.data.replace(b"'<f4'", b"'<Q9'")
    arrays["w"] = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=data)


def _error(arrays, metrics):
    raise RuntimeError("out of battery")


@pytest.mark.parametrize(
    "bad",
    [
        *[_nan, _shape, _dtype, _key, _cut, _claim, _archive, _metric, _negative, _absurd, _error],
        *[_tiny, _half, _no_number, _list, _nan_metric, _huge_metric, _no_type],
    ],
)
def test_strategy_leaves_a_bad_reply_out_and_names_it(bad):
    graph = fedfilt.Graph.from_edges(3, [(0, 1), (1, 2)])
    strategy = GFedFilt(graph, fraction_evaluate=0.0, min_available_nodes=3)
    with running_grid(lambda: _learner(bad), 3) as grid:
        strategy.start(grid, START, num_rounds=1, timeout=SLOW)
    (wrong,) = strategy.rejected[1]
    present = sorted(strategy.train_metrics[1])
    assert sorted([wrong, *present]) == [0, 1, 2]
    updates = Updates(np.zeros((3, SIZE), np.float32), np.zeros(3))
    for i in present:
        updates.weights[i] = strategy.train_metrics[1][i]["num-examples"]
        updates.rows[i] = updates.weights[i] / 10
    rows = aggregators.GFedFilt()(np.tile(np.arange(SIZE, dtype=np.float32), (3, 1)), updates, graph)
    np.testing.assert_array_equal([model["w"].numpy() for model in strategy.models], rows)


def _many(arrays, metrics):
    metrics["num-examples"] = 10**9


def _huge(arrays, metrics):
    arrays["w"] = Array(np.full(SIZE, 1e30, np.float32))


@pytest.mark.slow(2)
@pytest.mark.parametrize("bad", [_many, _huge])
def test_one_node_does_not_take_over_the_models_of_the_others(bad):
    def models(guard, change):
        strategy = GFedFilt(None, fraction_evaluate=0.0, min_available_nodes=5, guard=guard)
        with running_grid(lambda: _learner(change), 5) as grid:
            strategy.start(grid, START, num_rounds=3, timeout=SLOW)
        said = {device: record["num-examples"] for device, record in strategy.train_metrics[1].items()}
        (hostile,) = [device for device, samples in said.items() if samples in (20, 10**9)]
        others = [device for device in range(5) if device != hostile]
        return strategy, hostile, np.array([strategy.models[device]["w"].numpy() for device in others])

    _, _, honest = models(None, None)
    strategy, hostile, found = models(fedfilt.Guard(), bad)
    assert np.abs(found - honest).max() < 8  # it adds at most 5 in a round
    if bad is _huge:
        named = [(round, event.device, event.what) for round, events in strategy.happened.items() for event in events]
        assert named == [(1, hostile, "clipped"), (2, hostile, "clipped"), (3, hostile, "quarantined")]
        assert np.abs(models(None, bad)[2]).max() > 1e20


def test_a_claim_of_many_samples_does_not_take_over_the_metrics():
    def lies(arrays, metrics):
        metrics |= {"num-examples": 10**9, "given": -1e6}

    strategy = GFedFilt(None, fraction_evaluate=0.0, min_available_nodes=5)
    with running_grid(lambda: _learner(lies), 5) as grid:
        result = strategy.start(grid, START, num_rounds=1, timeout=SLOW)
    said = strategy.train_metrics[1].values()
    weights = [min(int(record["num-examples"]), 10 * 40) for record in said]  # the median is 40
    wanted = np.average([float(record["given"]) for record in said], weights=weights)
    assert result.train_metrics_clientapp[1]["given"] == pytest.approx(wanted)
    assert not strategy.rejected[1]


@pytest.mark.parametrize("since", [1, 2])
def test_of_two_nodes_the_one_whose_metrics_become_strange_is_left_out_and_never_the_other(since):
    rounds = iter(range(1, 4))

    def more(arrays, metrics):
        if next(rounds) >= since:
            metrics["more"] = 1.0

    strategy = GFedFilt(None, fraction_evaluate=0.0, min_available_nodes=2)
    with running_grid(lambda: _learner(more), 2) as grid:
        result = strategy.start(grid, START, num_rounds=3, timeout=SLOW)
    (strange,) = [device for device, record in strategy.train_metrics[1].items() if record["num-examples"] == 20]
    left_out = [sorted(strategy.rejected[round]) for round in (1, 2, 3)]
    assert left_out == ([[], [strange], [strange]] if since == 2 else [[], [], []])  # or nobody can say who is right
    assert all(set(told) == {"given", "epochs", "round"} for told in result.train_metrics_clientapp.values())


def test_if_no_reply_is_finite_the_models_go_back_and_nothing_is_raised():
    graph = fedfilt.Graph.from_edges(3, [(0, 1), (1, 2)])
    strategy = GFedFilt(graph, fraction_evaluate=0.0, min_available_nodes=3)
    rounds = iter([False] * 6 + [True] * 30)

    def spoilt():
        app = ClientApp()

        @app.train()
        def _train(message: Message, context: Context) -> Message:
            given = message.content.array_records["arrays"]["w"].numpy()
            arrays = {"w": Array(given + np.float32(np.nan if next(rounds) else 1)), "n": Array(np.array(3))}
            metrics = MetricRecord({"num-examples": 5})
            return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

        return app

    with running_grid(spoilt, 3) as grid:
        strategy.start(grid, START, num_rounds=5, timeout=SLOW)
    assert [len(strategy.rejected[round]) for round in range(1, 6)] == [0, 0, 3, 3, 3]
    assert [event.what for event in strategy.happened[3]][:1] == ["setback"]
    rows = np.array([model["w"].numpy() for model in strategy.models])
    assert np.isfinite(rows).all()


def test_strategy_refuses_settings_that_make_no_sense():
    graph = fedfilt.Graph.from_edges(3, [(0, 1)])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"fraction_train": 1.5}, "fraction_train must be"),
        ({"min_train_nodes": -1}, "min_train_nodes must be"),
        ({"devices": ["a"]}, "devices must be one name per row"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            GFedFilt(graph, **options)
    with running_grid(_learner, 3) as grid, pytest.raises(ValueError, match="plans must return one plan for each"):
        GFedFilt(graph, plans=lambda round: [Plan()]).start(grid, START, num_rounds=1)


def test_metrics_are_averaged_as_flowers_own_strategies_do():
    rng = np.random.default_rng(0)
    records = [
        MetricRecord({"num-examples": n, "loss": rng.random(), "count": n + 1, "each": rng.random(3).tolist()})
        for n in (7, 1, 0, 12)
    ]
    told = [RecordDict({"metrics": record}) for record in records]
    strategy = GFedFilt()
    assert strategy.train_metrics_aggr_fn is strategy.evaluate_metrics_aggr_fn
    found, wanted = (rule(told, "num-examples") for rule in (strategy.train_metrics_aggr_fn, aggregate_metricrecords))
    assert list(found) == list(wanted) == ["loss", "count", "each"]
    for name in wanted:
        assert type(found[name]) is type(wanted[name])
        assert found[name] == pytest.approx(wanted[name])


def _quickstart():
    return importlib.import_module("flower_app.client_app").app


@pytest.mark.slow(3)
@pytest.mark.parametrize("strategy", ["GFedFilt", "FedAvg"])
def test_the_quickstart_differs_from_a_plain_flower_app_in_two_lines(tmp_path, monkeypatch, strategy):
    """As it is, and with the two lines as Flower's own quickstart has them."""
    folder = ROOT / "examples" / "flower_quickstart"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    code = (folder / "flower_app" / "server_app.py").read_text()
    changes = [
        line[1:] for line in (folder / "README.md").read_text().splitlines() if line[:2] in ("+f", "-f", "+ ", "- ")
    ]
    assert len(changes) == 4
    if strategy == "FedAvg":
        for old, new in ((changes[1], changes[0]), (changes[3], changes[2])):
            assert old in code
            code = code.replace(old, new)
    space: dict[str, Any] = {"__name__": "server_app"}
    exec(compile(code, "server_app.py", "exec"), space)
    with running_grid(_quickstart, 4, 1, folder) as grid:
        config: dict[str, Any] = {
            "num-server-rounds": 2,
            "fraction-evaluate": 1.0,
            "local-epochs": 2,
            "learning-rate": 0.1,
        }
        space["app"](grid=grid, context=Context(1, 0, {}, RecordDict(), config))
    model = torch.load(tmp_path / "final_model.pt", weights_only=True)  # the example's own file; nothing in it is run
    assert model["0.weight"].shape == (32, 64)


def test_the_docs_show_what_works():
    text = (ROOT / "docs" / "deploy.md").read_text()
    (code,) = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    space: dict[str, Any] = {}
    exec(compile(code, "deploy.md", "exec"), space)
    assert space["strategy"].graph.count == 6
