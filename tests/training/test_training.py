"""Training, testing and the local engine: equal to plain PyTorch, the same bits everywhere, nothing hidden."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedfilt
from fedfilt import Graph, mixing_matrix
from fedfilt import _parts as parts
from fedfilt._draws import generator
from fedfilt._types import Table
from fedfilt.aggregators import FedAvg, GFedFilt, Local
from fedfilt.engines.local import Local as LocalEngine
from fedfilt.filters import Tikhonov
from fedfilt.populations.paper import Paper
from fedfilt.rounds.play import play
from fedfilt.rounds.scores import accuracy, local_from_global, scores
from fedfilt.rounds.types import Evaluation, Experiment, State
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import line_of
from fedfilt.schedulers.everything import Everything
from fedfilt.system.orders import Job, Plan
from fedfilt.training._torch import glorot, layout_of, row_of, state_dict, torch_module
from fedfilt.training.description import described
from fedfilt.training.sgd import Diverged, Training
from helpers import Odd, a_net, some_data, sure


def hardware(data):
    return Paper().draw(np.array([len(rows) for rows in data.train]), 1000, np.random.default_rng(0))


def played(data, module, graph, rule, training=None, rounds=3, epochs=2, workers=1, seed=5):
    state = State(0, np.tile(row_of(module), (data.count, 1)))
    with LocalEngine(data, module, training or Training(0.1, 8), seed, workers) as engine:
        experiment = Experiment(
            graph, rule, Everything(epochs), engine, hardware(data), rounds, 1000, Evaluation(every=1)
        )
        steps = list(play(state, experiment))
    return steps[-1][0].models, [record for _, record in steps]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["fedavg", "local", "gfedfilt"])
def test_equals_an_independent_plain_pytorch_loop(name, momentum):
    """Own nn.Module per device, optim.SGD, mixing by a dense solve: weights within 1e-5 after 3 rounds."""
    data, graph = some_data(), Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])
    rule = {"fedavg": FedAvg(), "local": Local(), "gfedfilt": GFedFilt(Tikhonov(2.0))}[name]
    module, rate, size, epochs, seed = a_net(), 0.1, 8, 2, 5
    ours, _ = played(data, module, graph, rule, Training(rate, size, momentum), epochs=epochs, seed=seed)

    n = data.label_counts.sum(axis=1).astype(float)
    weights = np.diag(n / n.mean())
    mix = {
        "fedavg": np.tile(n / n.sum(), (4, 1)),
        "local": np.eye(4),
        "gfedfilt": np.linalg.solve(weights + 2.0 * graph.laplacian.toarray(), weights),
    }[name]
    models = [copy.deepcopy(module) for _ in range(4)]
    for round in range(3):
        for device, model in enumerate(models):
            x, y = torch.from_numpy(data.x[data.train[device]]), torch.from_numpy(data.y[data.train[device]])
            optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
            for epoch in range(epochs):
                order = generator(seed, round, device, epoch).permutation(len(y))
                for start in range(0, len(y), size):
                    batch = order[start : start + size]
                    optimiser.zero_grad()
                    functional.cross_entropy(model(x[batch]), y[batch]).backward()
                    optimiser.step()
        states = [copy.deepcopy(model.state_dict()) for model in models]
        for device, model in enumerate(models):
            mixed = {k: sum(mix[device, j] * states[j][k].double() for j in range(4)).float() for k in states[0]}
            model.load_state_dict(mixed)
    for device, model in enumerate(models):
        for key, tensor in layout_of(module).tensors(ours[device]).items():
            np.testing.assert_allclose(tensor, model.state_dict()[key].numpy(), atol=1e-5, err_msg=key)


def test_serial_and_two_workers_give_the_same_bits():
    data, graph = some_data(devices=7), Graph.from_edges(7, [(i, i + 1) for i in range(6)])
    one, records = played(data, a_net(), graph, GFedFilt(), workers=1)
    two, others = played(data, a_net(), graph, GFedFilt(), workers=2)
    np.testing.assert_array_equal(one, two)
    for a, b in zip(records, others, strict=True):
        np.testing.assert_array_equal(a.losses, b.losses)
        np.testing.assert_array_equal(a.mixed.global_test, b.mixed.global_test)
        np.testing.assert_array_equal(a.mixed.local_test, b.mixed.local_test)


def test_batches_depend_on_nothing_but_seed_round_device_and_epoch():
    """A job gives the same reply alone, among others, and after any other job."""
    data, module = some_data(), a_net()
    row = row_of(module)
    jobs = [Job(3, device, row, Plan(2, 0.7)) for device in range(4)]
    with LocalEngine(data, module, Training(0.1, 8), 1, 1) as engine:
        together = {reply.device: reply.update.copy() for reply in engine.train(jobs, math.inf)}
        for job in reversed(jobs):
            (alone,) = engine.train([job], math.inf)
            np.testing.assert_array_equal(alone.update, together[job.device])
        (later,) = engine.train([jobs[0]._replace(round=4)], math.inf)
        assert not np.array_equal(later.update, together[0])


def test_a_fraction_of_the_data_is_rounded_down_and_drawn_again_each_round():
    data, module = some_data(sizes=(40,)), nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
    row = row_of(module)
    with LocalEngine(data, module, Training(0.1, 8), 1, 1) as engine:
        replies = [next(engine.train([Job(r, 0, row, Plan(1, 0.33))], math.inf)) for r in (1, 2)]
        assert [reply.samples for reply in replies] == [13, 13]
        nothing = next(engine.train([Job(1, 0, row, Plan(1, 0.01))], math.inf))
        assert nothing.samples == 0
        assert not nothing.update.any()


def test_a_device_without_samples_trains_nothing_relays_and_receives():
    data = some_data(sizes=(40, 0, 33))
    graph = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])
    models, records = played(data, a_net(), graph, GFedFilt(Tikhonov(5.0)), rounds=2)
    assert records[0].samples.tolist() == [40, 0, 33, 40]
    assert math.isnan(records[0].losses[1])
    matrix = mixing_matrix(graph, Tikhonov(5.0), records[0].samples)
    np.testing.assert_allclose(models[1], matrix[1, [0, 2, 3]] @ _trained(data, graph, 2)[[0, 2, 3]], atol=1e-4)


def _trained(data, graph, rounds):
    """Models after the last local training, before mixing."""
    module = a_net()
    state = State(0, np.tile(row_of(module), (data.count, 1)))
    with LocalEngine(data, module, Training(0.1, 8), 5, 1) as engine:
        experiment = Experiment(
            graph, GFedFilt(Tikhonov(5.0)), Everything(2), engine, hardware(data), rounds, 1000, Evaluation(every=99)
        )
        for now, _ in play(state, experiment):
            if now.round == rounds - 1:
                state = now
        jobs = [Job(rounds, i, state.models[i], Plan(2)) for i in range(data.count)]
        return np.stack([state.models[reply.device] + reply.update for reply in engine.train(jobs, math.inf)])


@pytest.mark.parametrize("workers", [1, 2])
def test_divergence_is_named(workers):
    data = some_data()
    with pytest.raises(Diverged, match=r"device \d diverged in round 1:.*lower training\.learning_rate"):
        played(data, a_net(), Graph.from_edges(4, []), Local(), Training(1e20, 8), workers=workers)


@pytest.mark.parametrize(
    "module", [a_net(), nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.GELU(), nn.Linear(8, 3))]
)
def test_divergence_names_the_round_that_was_being_played(module):
    """In the native core and in torch; a run that goes on after round 4 diverges in round 5."""
    data = some_data()
    state = State(4, np.tile(row_of(module), (data.count, 1)))
    with LocalEngine(data, module, Training(1e20, 8), 0, 1) as engine:
        arguments = Graph.from_edges(4, []), Local(), Everything(2), engine, hardware(data), 6, 1000
        with pytest.raises(Diverged, match=r"device 0 diverged in round 5:"):
            next(play(state, Experiment(*arguments)))


@pytest.mark.slow(6)
def test_any_module_trains_with_its_buffers_and_its_own_randomness():
    data, graph = some_data(sizes=(32,)), Graph.from_edges(4, [(0, 1), (2, 3)])
    layout = layout_of(Odd())
    assert layout.size == 144 * 16 + 16 + 4 * 16 + 16 * 3 + 3 + 3
    before = torch.get_rng_state()
    torch.manual_seed(3)
    module = Odd()
    one, _ = played(data, module, graph, GFedFilt(), workers=1)
    two, _ = played(data, module, graph, GFedFilt(), workers=2)
    np.testing.assert_array_equal(one, two)
    tensors = layout.tensors(one[0])
    assert np.abs(tensors["norm.running_mean"]).max() > 0
    torch.set_rng_state(before)


@pytest.mark.slow(6)
def test_counters_do_not_leak_from_device_to_device():
    data = some_data(devices=6, shape=(4,), sizes=(16, 32))
    module = nn.Sequential(
        nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3)
    )  # its mean depends on how often it was called
    graph = Graph.from_edges(6, [])
    one, _ = played(data, module, graph, Local(), workers=1)
    alone, _ = played(data, module, graph, Local(), workers=2)
    np.testing.assert_array_equal(one, alone)


def test_a_model_may_know_more_labels_than_the_data_but_not_fewer():
    data = some_data(shape=(4,))
    wide = nn.Linear(4, 7)
    with torch.no_grad():
        wide.bias[6] = 100.0  # it says a label that nobody has
    _, records = played(data, wide, Graph.from_edges(4, []), Local(), Training(1e-6))
    assert records[0].mixed.global_test.shape == (4, 7, 7)
    assert accuracy(records[0].mixed.global_test).max() == 0
    with pytest.raises(ValueError, match="model must return 3 numbers, one per label"):
        played(data, nn.Linear(4, 2), Graph.from_edges(4, []), Local())


def test_layout_round_trip_and_bad_modules():
    for module in (a_net(), Odd(), nn.Conv1d(3, 4, 5)):
        layout = layout_of(module)
        fresh = copy.deepcopy(module)
        for parameter in fresh.parameters():
            nn.init.zeros_(parameter)
        fresh.load_state_dict(state_dict(layout, row_of(module)))
        for key, value in module.state_dict().items():
            assert torch.equal(value, fresh.state_dict()[key]), key
    with pytest.raises(ValueError, match=r"model must be float32, got torch\.float64 in weight"):
        layout_of(nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="parameters to train, got none"):
        layout_of(nn.ReLU())


@pytest.mark.parametrize("name", parts.names("models"))
def test_model_contract(name):
    kind = parts.find("models", name)
    shape = (6, 40) if name in ("cnn1d", "motifs") else (1, 28, 28)
    module = torch_module(kind(shape, 7))
    assert ">>>" in kind.__doc__
    assert module(torch.zeros(5, *shape)).shape == (5, 7)
    assert layout_of(module).size == sum(p.numel() for p in module.parameters())


def test_the_papers_network_has_53002_parameters():
    assert described(parts.find("models", "paper_cnn")((1, 28, 28), 10)).layout.size == 53_002


def test_glorot_start_is_within_its_bounds_and_seeded():
    rows, module = [], a_net()
    for seed in (1, 1, 2):
        glorot(module, seed)
        rows.append(row_of(module))
    np.testing.assert_array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])
    first = module.state_dict()
    assert first["0.weight"].abs().max() <= math.sqrt(6 / (9 * (1 + 8)))
    assert first["0.bias"].abs().max() == 0


def test_metrics_of_the_paper():
    confusion = np.array([[5, 1, 0], [2, 6, 0], [0, 0, 0]])
    found = scores(confusion)
    assert found.accuracy == 11 / 14
    assert found.precision == pytest.approx((5 / 7 + 6 / 7) / 2)
    assert found.recall == pytest.approx((5 / 6 + 6 / 8) / 2)
    assert found.f1 == pytest.approx(2 * found.precision * found.recall / (found.precision + found.recall))
    stack = np.stack([confusion, np.zeros((3, 3), int)])
    assert accuracy(stack)[0] == 11 / 14
    assert np.isnan(accuracy(stack)[1])
    own, rows = local_from_global(np.stack([confusion]), np.array([[0.5, 0.5, 0.0]]))
    assert own[0] == pytest.approx(found.recall)  # the mean recall over its own labels
    np.testing.assert_allclose(rows[0], np.array([[5 / 12, 1 / 12, 0.0], [2 / 16, 6 / 16, 0.0], [0.0, 0.0, 0.0]]))
    assert scores(rows.sum(axis=0)).accuracy == pytest.approx(own[0])


def test_confusions_count_every_test_once():
    data, module = some_data(), a_net()
    with LocalEngine(data, module, Training(), 0, 1) as engine:
        rows = np.tile(row_of(module), (4, 1))
        rows[2] *= -1
        tests = engine.test(State(1, rows))
    assert tests.global_test.sum(axis=(1, 2)).tolist() == [50] * 4
    assert sure(tests.local_test).sum(axis=(1, 2)).tolist() == [40, 25, 33, 1]
    for device in range(4):
        model = copy.deepcopy(module)
        model.load_state_dict(state_dict(layout_of(module), rows[device]))
        guess = model(torch.from_numpy(data.x[data.global_test])).argmax(dim=1).numpy()
        expected = np.zeros((3, 3), int)
        np.add.at(expected, (data.y[data.global_test], guess), 1)
        np.testing.assert_array_equal(tests.global_test[device], expected)


def test_a_run_of_a_config_is_the_papers_protocol():
    table = {
        "data": "digits",
        "model": "mlp",
        "samples": {"train": [5, 15], "local_test": 10, "global_test": 50},
        "rounds": 2,
        "evaluation": {"every": 1, "trained": True},
        "engine": {"workers": 1},
    }
    run = Run(from_table(table))
    start = run.start()
    assert (start.models == start.models[0]).all()
    with run.experiment() as experiment:
        steps = list(play(start, experiment))
    line = line_of(run, steps[-1][1])
    assert set(line) == {"round", "seconds", "loss", "samples", "time", "mixed", "trained"}
    for tests in (line["mixed"], line["trained"]):
        assert tests["local"]["worst"] == min(tests["local"]["devices"])
        assert np.array(tests["global"]["confusion"]).sum() == 20 * 50
        assert tests["global"]["mean"] == pytest.approx(np.mean(tests["global"]["devices"]), abs=1e-6)


def test_fit_trains_personal_models_of_the_users_own():
    """Two groups with opposite labels: personal models must learn what one shared model cannot."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 60, 5)).astype(np.float32)
    labels = (x[:, :, 0] > 0).astype(int)
    labels[3:] = 1 - labels[3:]
    graph = Graph.from_rooms(["a"] * 3 + ["b"] * 3, links=[(2, 3)])
    train = list(zip(x, labels, strict=True))
    options: Table = {"rounds": 15, "learning_rate": 0.3}
    own = fedfilt.fit(train, nn.Linear(5, 2), graph, GFedFilt(Tikhonov(0.5)), **options)
    shared = fedfilt.fit(train, nn.Linear(5, 2), graph, FedAvg(), **options)
    assert own.accuracy["local"].min() > 0.85
    assert shared.accuracy["local"].mean() < 0.65
    kept = own.data.local_test[4]
    guess = own.model(4)(torch.from_numpy(own.data.x[kept])).argmax(dim=1).numpy()
    assert (guess == own.data.y[kept]).mean() == pytest.approx(own.accuracy["local"][4])
    with pytest.raises(ValueError, match="graph must have 6 devices, one per entry of train, got 20"):
        fedfilt.fit(train, nn.Linear(5, 2), Graph.paper())
    with pytest.raises(ValueError, match="device must be a whole number from 0 to 5"):
        own.model(6)


@pytest.mark.parametrize("name", parts.names("schedulers"))
def test_scheduler_contract(name):
    scheduler = parts.find("schedulers", name)()
    assert ">>>" in sure(type(scheduler).__doc__)
    devices = Paper().draw(np.array([450, 0, 3, 100, 450]), 1000, np.random.default_rng(0))
    schedule = scheduler(devices, 1000)
    assert len(schedule.plans) == 5
    assert schedule.deadline > 0
    for plan in schedule.plans:
        assert 0 <= plan.data_fraction <= 1
        assert 0 <= plan.density <= 1
