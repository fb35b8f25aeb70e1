"""Being a file is being tested: every part, found by its file name, keeps the contract of its folder."""

import dataclasses
import inspect
import math
import pickle
import re
import threading
import time
import tomllib
import warnings
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from fedfilt import Graph, Hardware, Plan, Training, Updates, _parts, mix, strength
from fedfilt.data.deal import Sizes
from fedfilt.data.own import Making, owner
from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, DataMissing, Store
from fedfilt.engines.local import Local
from fedfilt.home.bus import Memory
from fedfilt.home.clock import Clock
from fedfilt.home.readings import source_of
from fedfilt.populations import Everyday, Paper, Prescribed
from fedfilt.rounds.remembering import Remembered, remembers
from fedfilt.rounds.types import State, interpolating
from fedfilt.runs.config import from_table
from fedfilt.runs.tables import GraphTable
from fedfilt.sparsifiers import TopK
from fedfilt.system.orders import Job
from fedfilt.system.wire import unpack, wire_size
from fedfilt.training._torch import layout_of, row_of, state_dict, torch_module
from fedfilt.training.client import example, extra, passes
from fedfilt.training.trainer import Trainer
from fedfilt.training.work import Desk, Own, personal, work
from helpers import Odd, a_net, some_data, trained, until

EVERY = [(kind, name) for kind in _parts.FOLDERS for name in _parts.names(kind)]
PLAIN = [(kind, name) for kind, name in EVERY if kind not in ("models", "engines")]  # these are dataclasses
KEYS = {  # of the experiment's table, by folder
    "aggregators": "aggregator",
    "clients": "client",
    "datasets": "data",
    "engines": "engine",
    "models": "model",
    "partitions": "partition",
    "populations": "devices",
    "schedulers": "scheduler",
    "sparsifiers": "sparsifier",
    "topologies": "graph",
}
HELD = np.array([450, 0, *range(100, 118)])  # samples of 20 devices; one has none
UPDATE_BYTES = 212_024


def each(kind):
    return pytest.mark.parametrize("name", _parts.names(kind))


@pytest.fixture
def build(tmp_path):
    """Makes a part as its defaults say; the two that read a file of the user get one."""
    links, devices = tmp_path / "links.csv", tmp_path / "devices.csv"
    links.write_text("a,b,weight\n0,1,0.5\n1,2,1\n")
    devices.write_text("device,seconds_per_sample,bits_per_second\n" + "lamp,0.001,1e6\n" * len(HELD))
    return lambda kind, name: make(kind, options(name, str(links), str(devices)))


def options(name, links, devices):
    more: dict[str, Any] = {"edges": {"file": links, "devices": 4}, "measured": {"table": devices}}
    more |= {"csv": {"file": links}, "replay": {"file": links}, "mqtt": {"topic": "home/watch"}}
    return {"name": name, **more.get(name, {})}


def make(kind, table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # paper_literal warns when made; that has its own test
        return _parts.find(kind, table["name"])(**{key: value for key, value in table.items() if key != "name"})


def a_round(seed=0, count=20, size=7):
    rng = np.random.default_rng(seed)
    models = rng.standard_normal((count, size)).astype(np.float32)
    rows = rng.standard_normal((count, size)).astype(np.float32)
    return models, Updates(rows, rng.integers(1, 500, count).astype(float))


# --- every part ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_part_is_documented_by_an_example(kind, name):
    found = _parts.find(kind, name)
    assert found.__doc__
    assert ">>>" in found.__doc__, "show one runnable example"  # which pytest runs
    assert getattr(__import__(f"fedfilt.{kind}", fromlist=["_"]), found.__name__) is found


@pytest.mark.parametrize(("kind", "name"), PLAIN)
def test_part_is_frozen_and_picklable(build, kind, name):
    part = build(kind, name)
    assert dataclasses.is_dataclass(part)
    assert pickle.loads(pickle.dumps(part)) == part  # as it travels to the workers of this machine
    assert part == build(kind, name)
    assert hash(part) == hash(build(kind, name))
    for key in ("anything", *(field.name for field in dataclasses.fields(part))):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, key, 1)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name in EVERY if kind != "sources"])
@pytest.mark.filterwarnings("ignore:paper_literal")
def test_part_comes_back_from_the_file_of_an_experiment(build, tmp_path, kind, name):
    own = options(name, str(tmp_path / "links.csv"), str(tmp_path / "devices.csv"))
    if kind == "filters":
        table: dict[str, Any] = {"aggregator": {"name": "gfedfilt", "filter": own}}
    else:
        table = {KEYS[kind]: own}
    config = from_table(table)
    again = from_table(tomllib.loads(config.toml()))
    assert again == config
    assert again.hash() == config.hash()
    found = config.aggregator.filter if kind == "filters" else getattr(config, KEYS[kind])
    if kind in ("models", "engines"):
        assert found.name == name
    else:
        assert (found.topology if kind == "topologies" else found) == build(kind, name)


# --- filters ------------------------------------------------------------------------------------------------------


@each("filters")
def test_filter_is_a_function_of_frequency(build, name):
    frequencies = np.linspace(0, 50, 501)
    gains = build("filters", name)(frequencies)
    assert gains.shape == frequencies.shape
    assert gains.dtype == np.float64
    assert gains[0] == 1, "equal models must stay equal"
    assert (abs(gains) <= 1).all(), "mixing must not blow up"


@each("filters")
def test_filter_has_true_partial_fractions(build, name):
    response = build("filters", name)
    if hasattr(response, "partial_fractions"):
        constant, terms = response.partial_fractions()
        frequencies = np.linspace(0, 50, 501)
        total = constant + sum(share / (1 + mu * frequencies) for share, mu in terms)
        np.testing.assert_allclose(total, response(frequencies), atol=1e-14)


@each("filters")
def test_filter_keeps_dtype_and_says_how_strong_it_is(build, name):
    graph, response = Graph.paper(), build("filters", name)
    models, _ = a_round()
    assert mix(graph, response, models).dtype == np.float32
    found = strength(graph, response)
    assert 0 < found.self_weight <= 1
    assert 0 <= round(found.neighbours, 9) <= 19
    assert "of its own model" in str(found)


# --- aggregators --------------------------------------------------------------------------------------------------


def forgetful(rule):
    """A rule as it acts in its first round; one that remembers too."""
    if not remembers(rule):
        return rule
    return lambda models, updates, graph: rule(models, updates, graph, rule.start(models))[0]


@each("aggregators")
def test_permuting_devices_permutes_the_result(build, name):
    graph, rule = Graph.paper(), forgetful(build("aggregators", name))
    models, updates = a_round()
    updates.weights[[3, 8]] = 0
    updates.rows[[3, 8]] = 0
    order = np.random.default_rng(1).permutation(20)
    shuffled = rule(models[order], Updates(updates.rows[order], updates.weights[order]), graph.subgraph(order))
    np.testing.assert_allclose(shuffled, rule(models, updates, graph)[order], atol=2e-6)


@each("aggregators")
def test_equal_models_stay_equal(build, name):
    graph, rule = Graph.paper(), forgetful(build("aggregators", name))
    models, updates = a_round()
    models[:], updates.rows[:] = models[0], updates.rows[0]
    result = rule(models, Updates(updates.rows, np.ones(20)), graph)
    np.testing.assert_allclose(result, np.broadcast_to(result[0], result.shape), atol=2e-6)


@each("aggregators")
def test_float32_in_float32_out_and_inputs_untouched(build, name):
    rule = forgetful(build("aggregators", name))
    models, updates = a_round()
    before = models.copy(), updates.rows.copy(), updates.weights.copy()
    result = rule(models, updates, Graph.paper())
    assert result.dtype == np.float32
    assert result.shape == models.shape
    assert not np.shares_memory(result, models)
    for old, new in zip(before, (models, *updates), strict=True):
        np.testing.assert_array_equal(old, new)


@each("aggregators")
def test_what_does_not_belong_together_is_refused(build, name):
    rule, graph = forgetful(build("aggregators", name)), Graph.paper()
    models, updates = a_round()
    for bad, message in [
        ((models[:19], updates), "models must have shape"),
        ((models.astype(int), updates), "models must be a NumPy array of float32"),
        ((models, updates._replace(rows=updates.rows[0])), "updates.rows must have shape"),
        ((models, updates._replace(rows=updates.rows.astype(float))), "updates.rows must be float32"),
        ((models, updates._replace(weights=updates.weights[:5])), "updates.weights must have shape"),
        ((models, updates._replace(weights=updates.weights * np.nan)), "updates.weights must be finite"),
        ((models, updates._replace(weights=-updates.weights)), "updates.weights must be finite and >= 0"),
        ((models, updates._replace(weights=updates.weights.tolist())), "updates.weights must be a NumPy array"),
    ]:
        with pytest.raises(ValueError, match=message):
            rule(*bad, graph)


@each("aggregators")
def test_nobody_present_changes_nothing(build, name):
    rule = forgetful(build("aggregators", name))
    models, updates = a_round()
    nobody = Updates(np.zeros_like(updates.rows), np.zeros(20))
    if name == "self_blend":
        models[:] = models[0]  # its mean is over all models when nobody reports
    np.testing.assert_allclose(rule(models, nobody, Graph.paper()), models, rtol=1e-6)


@each("aggregators")
def test_an_absent_device_moves_nobody_else(build, name):
    rule = forgetful(build("aggregators", name))
    models, updates = a_round()
    updates.weights[4] = 0
    updates.rows[4] = 0
    result = rule(models, updates, Graph.paper())
    models[4] = 99
    others = np.arange(20) != 4
    np.testing.assert_array_equal(rule(models, updates, Graph.paper())[others], result[others])


@each("aggregators")
def test_what_a_rule_remembers_is_of_devices_or_of_all(build, name):
    rule, graph = build("aggregators", name), Graph.paper()
    if not remembers(rule):
        return
    models, updates = a_round()
    kept = rule.start(models)
    for _ in range(3):
        before = {key: array.copy() for part in kept for key, array in part.items()}
        models, after = rule(models, updates, graph, kept)
        for key, array in ((key, array) for part in kept for key, array in part.items()):
            np.testing.assert_array_equal(array, before[key], err_msg=f"{key} was changed in place")
        assert ({*kept.devices}, {*kept.everyone}) == ({*after.devices}, {*after.everyone})
        assert all(len(array) == len(models) and array.dtype == np.float32 for array in after.devices.values())
        assert models.dtype == np.float32
        kept = after
    assert interpolating(rule)(models, updates, graph).shape == models.shape
    named = Remembered.of(kept.named())
    assert ({*kept.devices}, {*kept.everyone}) == ({*named.devices}, {*named.everyone})


# --- clients ------------------------------------------------------------------------------------------------------


def a_desk(client):
    """A desk with a model that every client can train: it has a head, and normalises."""
    return Desk(Trainer(Odd(), Training(0.1, 4), (1, 12, 12)), TopK(), 3, 3, client)


@each("clients")
def test_client_says_what_it_keeps_and_leaves_what_it_is_given_alone(build, name):
    desk, data = a_desk(build("clients", name)), some_data(devices=2, sizes=(12, 8))
    first = desk.trainer.start(1)
    row, state = np.concatenate([first, np.zeros(desk.width - desk.size, np.float32)]), None
    own = Own(data.x, data.y, data.train[0])
    for round in (1, 2, 3):
        job = Job(round, 0, row.copy(), Plan(2), state=state)
        before = None if state is None else {key: array.copy() for key, array in state.items()}
        done, again = work(job, own, desk), work(job, own, desk)
        assert done.content == again.content, "it depends on something else than its task"
        np.testing.assert_array_equal(job.model, row)
        for key, array in (state or {}).items():
            np.testing.assert_array_equal(array, before[key], err_msg=f"{key} was changed in place")
        assert done.samples == 12
        assert np.isfinite(done.loss)
        if state is not None:
            assert {key: array.shape for key, array in done.state.items()} == {
                key: array.shape for key, array in state.items()
            }
        state, row = done.state, row + unpack(done.content, desk.width, desk.least)
        given = row.copy()
        decided = personal(row, state, round, 0, own, desk)
        np.testing.assert_array_equal(row, given)
        assert (decided.shape[-1], decided.ndim in (1, 2), decided.dtype) == (desk.size, True, np.float32)
        np.testing.assert_array_equal(personal(row, state, round, 0, own, desk), decided)
    assert (row[: desk.size] != first).any() or row[desk.size :].any(), "it learnt something"


@each("clients")
def test_client_does_nothing_without_samples_and_knows_its_rule(build, name):
    client = build("clients", name)
    desk, data = a_desk(client), some_data(devices=2, sizes=(12, 8))
    row = np.zeros(desk.width, np.float32)
    none = Own(data.x, data.y, data.train[0][:0])
    done = work(Job(1, 0, row, Plan(2)), none, desk)
    assert (done.samples, done.state) == (0, None)
    assert not unpack(done.content, desk.width, desk.least).any()
    for decided in np.atleast_2d(personal(row, None, 1, 0, none, desk)):
        np.testing.assert_array_equal(decided, row[: desk.size])
    assert getattr(client, "rule", "fedavg") in _parts.names("aggregators")
    assert getattr(client, "passes", 1.0) >= 1


@each("clients")
def test_what_is_counted_of_a_client_is_what_it_trains(build, name):
    client = build("clients", name)
    task = example(client)
    task.rounds = 1
    assert trained(client, task) == pytest.approx(passes(client) * (task.epochs + extra(client, 1, 1)))


# --- topologies ---------------------------------------------------------------------------------------------------


def check_graph(graph):
    links = graph.adjacency.toarray()
    assert links.shape == (graph.count, graph.count)
    assert graph.count >= 1
    assert np.isfinite(links).all()
    assert (links >= 0).all()
    assert not links.diagonal().any(), "no device is linked to itself"
    np.testing.assert_array_equal(links, links.T)
    assert graph.rooms is None or len(graph.rooms) == graph.count


@each("topologies")
def test_topology_gives_the_same_graph_for_the_same_seed(build, name):
    topology = build("topologies", name)
    graph = topology(3)
    check_graph(graph)
    assert topology(3).hash == graph.hash
    assert getattr(topology, "devices", None) in (None, graph.count)
    assert GraphTable(topology).graph(3).hash == graph.hash


@each("topologies")
def test_topology_that_learns_says_whether_it_will(build, name):
    topology = build("topologies", name)
    assert hasattr(topology, "learned") == hasattr(topology, "learn")
    if hasattr(topology, "learn"):
        assert isinstance(topology.learned, bool)
        graph = topology(3)
        updates, _ = a_round(count=graph.count)
        learned = topology.learn(3, updates)
        check_graph(learned)
        assert learned.count == graph.count
        assert learned.hash == topology.learn(3, updates).hash


# --- partitions ---------------------------------------------------------------------------------------------------

ROOMS = np.array([0, 0, 1, 1])


def recordings():
    """Samples of five labels that four people recorded, each with a device."""
    y = np.tile(np.arange(5), 140)
    people = np.arange(len(y)) // 5 % 4
    x = np.random.default_rng(0).standard_normal((len(y), 1, 2, 2)).astype(np.float32)
    return Samples("recordings", x, y, 5, np.arange(len(y)) >= 500, writers=people, devices=people)


@each("partitions")
@pytest.mark.parametrize(
    "sizes", [Sizes(20, 10, 20), Sizes((10, 30), 5, "whole"), Sizes(20, "whole", "whole")], ids=str
)
def test_partition_deals_no_sample_twice(build, name, sizes):
    samples, partition = recordings(), build("partitions", name)
    data = partition(samples, ROOMS, sizes, np.random.default_rng(3))
    assert data.count == len(ROOMS)
    assert (data.name, data.classes) == (samples.name, samples.classes)
    low, high = sizes.train_range
    if not hasattr(partition, "least") and not hasattr(partition, "high"):  # numbers of its own
        assert all(low <= len(rows) <= high for rows in data.train)
    dealt = np.concatenate([*data.train, *(data.validation or ())])
    assert len(np.unique(dealt)) == len(dealt)
    tests = np.concatenate([*(data.local_test or ()), data.global_test])
    assert not np.isin(tests, dealt).any(), "nothing is tested on what somebody trained on"
    assert ((dealt >= 0) & (dealt < len(data.y))).all()
    assert data.local_test is None or len(data.local_test) == len(ROOMS)
    assert len(data.global_test)
    assert partition(samples, ROOMS, sizes, np.random.default_rng(3)).hash == data.hash


# --- populations --------------------------------------------------------------------------------------------------


@each("populations")
def test_population_gives_every_device_its_hardware(build, name):
    population = build("populations", name)
    hardware = population.draw(HELD, UPDATE_BYTES, np.random.default_rng(3))
    assert isinstance(hardware, Hardware)
    assert hardware.count == len(HELD)
    np.testing.assert_array_equal(hardware.samples, HELD)
    for numbers in (
        hardware.cycles_per_sample,
        hardware.clock_hz,
        hardware.transmit_watts,
        hardware.bandwidth_hz,
        hardware.compute_seconds(),
        hardware.compute_joules(),
        hardware.send_seconds(UPDATE_BYTES),
        hardware.send_joules(UPDATE_BYTES),
    ):
        assert numbers.shape == HELD.shape
        assert np.isfinite(numbers).all()
        assert (numbers > 0).all()
    assert np.isfinite(hardware.gain_db).all()
    assert (hardware.energy_limit > 0).all()
    assert len(hardware.kinds) in (0, len(HELD))
    assert population.draw(HELD, UPDATE_BYTES, np.random.default_rng(3)).hash == hardware.hash


# --- schedulers ---------------------------------------------------------------------------------------------------


@each("schedulers")
@pytest.mark.parametrize("population", [Paper(), Prescribed(), Everyday()], ids=lambda one: type(one).__name__)
def test_scheduler_plans_what_every_device_can_do(build, name, population):
    hardware = population.draw(HELD, UPDATE_BYTES, np.random.default_rng(3))
    schedule = build("schedulers", name)(hardware, UPDATE_BYTES)
    assert schedule.deadline > 0
    assert len(schedule.plans) == hardware.count
    whole, sending = hardware.compute_seconds(), hardware.send_seconds(UPDATE_BYTES)
    for device, plan in enumerate(schedule.plans):
        assert isinstance(plan.epochs, int)
        assert plan.epochs >= 0
        assert 0 <= plan.data_fraction <= 1
        assert 0 <= plan.density <= 1
        assert 0 < plan.clock <= 1
        assert plan.bandwidth_hz >= 0
        if not HELD[device]:
            assert plan.samples(0) == 0
            assert plan.epochs == 0, "a device without samples has nothing to do"
        elif plan.epochs:
            assert plan.samples(HELD[device]) >= 1
            assert plan.density > 0
            busy = plan.epochs * plan.data_fraction * whole[device] / plan.clock + plan.density * sending[device]
            assert busy <= schedule.deadline * (1 + 1e-9)
    assert any(plan.epochs for plan in schedule.plans), "somebody trains"
    again = build("schedulers", name)(hardware, UPDATE_BYTES)
    assert (list(again.plans), again.deadline) == (list(schedule.plans), schedule.deadline)


# --- sources ------------------------------------------------------------------------------------------------------


@each("sources")
def test_source_comes_back_from_own_settings(build, tmp_path, name):
    own = options(name, "links.csv", "")
    (tmp_path / "own.toml").write_text(tomli_w.dumps({"source": own}))
    assert source_of(owner(tmp_path).source, tmp_path) == build("sources", name)
    (tmp_path / "own.toml").write_text(tomli_w.dumps({"source": {**own, "spede": 1}}))
    with pytest.raises(ValueError, match="unknown key of \\[source\\] 'spede'"):
        source_of(owner(tmp_path).source, tmp_path)


@each("sources")
def test_source_gives_readings_until_it_is_stopped(build, tmp_path, name):
    """A reading has a time and a number per channel; a source ends when it is told to, also if nothing comes."""
    making = Making(shape=(2, 4), labels=("walk", "rest"), channels=("a", "weight"), rate=10.0)
    source, bus, stop, got = build("sources", name), Memory(), threading.Event(), []
    rows = "".join(f"{i / 100},{i},{-i},\n" for i in range(50))
    (tmp_path / "links.csv").write_text("time,a,weight,label\n" + rows)

    def read():
        for reading in source.readings(making, bus, Clock(), stop):
            got.append(reading)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for number in range(200):
        bus.publish("home/watch", b'{"a": 1, "weight": 2}')
        with (tmp_path / "links.csv").open("a") as file:
            file.write(f"{1 + number / 100},1,2,\n")
        time.sleep(0.001)
    until(lambda: got, "a reading", 30.0)
    stop.set()
    reader.join(2.0)
    assert not reader.is_alive()
    for reading in got:
        assert math.isfinite(reading.time)
        assert np.shape(reading.values) == (2,)
        assert isinstance(reading.label, str)


# --- sparsifiers --------------------------------------------------------------------------------------------------


@each("sparsifiers")
@pytest.mark.parametrize("size", [1, 17, 1000])
@pytest.mark.parametrize("density", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("owing", [False, True], ids=["nothing owed", "something owed"])
def test_sparsifier_sends_what_fits_and_keeps_the_rest(build, name, size, density, owing):
    sparsifier = build("sparsifiers", name)
    update, rest = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
    before = update.copy(), rest.copy()
    content, left = sparsifier(update, rest if owing else None, density)
    for old, new in zip(before, (update, rest), strict=True):
        np.testing.assert_array_equal(old, new)
    assert len(content) <= max(density * sparsifier.full_bytes(size), wire_size(size, 1)), "at least one value may go"
    sent = unpack(content, size)
    wanted = update + rest if owing else update
    if density == 1:
        assert len(content) == sparsifier.full_bytes(size)
    if density == 1 or left is not None:
        np.testing.assert_allclose(sent if left is None else sent + left, wanted, rtol=1e-6, atol=1e-7)
    again, _ = sparsifier(update, rest if owing else None, density)
    assert again == content


# --- datasets -----------------------------------------------------------------------------------------------------


class NoStore(Store):
    """A store that has nothing and fetches nothing."""

    def path(self, file):
        raise DataMissing(f"cannot get {file.name}")


@each("datasets")
def test_dataset_says_which_files_it_needs(build, name):
    data = build("datasets", name)
    for file in data.files:
        assert isinstance(file, DataFile)
        assert re.fullmatch(r"[\w-]+", file.folder)
        assert re.fullmatch(r"[\w.-]+", file.name)
        assert file.size > 0
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert all(url.startswith("https://") for url in file.urls)
    assert len({(file.folder, file.name) for file in data.files}) == len(data.files)
    if data.files:
        with pytest.raises(DataMissing, match="cannot get"):
            data.load(NoStore())
        return
    if hasattr(data, "federated"):
        with pytest.raises(ValueError, match="not dealt"):
            data.load(NoStore())
        return
    samples = data.load(NoStore())
    assert samples.name == name
    assert len(samples.x) == len(samples.y) == len(samples.test)
    assert samples.x.dtype in (np.uint8, np.float32)
    assert np.isfinite(samples.y).all()
    if samples.labelled:
        assert 0 <= samples.y.min() <= samples.y.max() < samples.classes
    assert samples.test.dtype == bool
    assert 0 < samples.test.sum() < len(samples.test)


# --- models -------------------------------------------------------------------------------------------------------


def as_module(model):
    return model if isinstance(model, torch.nn.Module) else torch_module(model)


@each("models")
def test_model_gives_a_number_per_class_for_any_batch(name):
    kind, classes, fitting = _parts.find("models", name), 4, 0
    taken = inspect.signature(kind).parameters
    assert list(taken)[:2] == ["shape", "classes"]
    assert all(taken[option].default is not inspect.Parameter.empty for option in list(taken)[2:])
    for shape in [(5,), (1, 28, 28), (3, 32, 32), (6, 100), (9, 128)]:
        try:
            model = kind(shape, classes)
            module = as_module(model)
        except ValueError:
            continue  # not for such samples
        fitting += 1
        module.eval()
        layout = layout_of(module)
        row = row_of(module)
        assert row.dtype == np.float32
        other = as_module(pickle.loads(pickle.dumps(model))).eval()  # as it travels to worker processes
        for parameter in other.parameters():
            torch.nn.init.zeros_(parameter)
        other.load_state_dict(state_dict(layout, row))
        np.testing.assert_array_equal(row_of(other), row)
        for count in (1, 2, 7):
            batch = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
            with torch.no_grad():
                found = module(batch)
                assert torch.equal(other(batch), found)
            assert found.shape == (count, classes)
            assert torch.isfinite(found).all()
    assert fitting, "no kind of samples fits"


# --- engines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow(5)] * (name == "flower")) for name in _parts.names("engines")]
)
def test_engine_trains_and_tests_as_the_local_one_does(name):
    data, module = some_data(devices=3, sizes=(12, 7, 9)), a_net()
    how: tuple[Any, ...] = data, module, Training(0.1, 4), 5, 1, TopK()
    row = row_of(module)
    jobs = [Job(1, 2, row, Plan(2)), Job(1, 0, row, Plan(1, data_fraction=0.5, density=0.2))]

    def played(kind):
        with kind(*how) as engine:
            replies = {r.device: r._replace(update=r.update.copy()) for r in engine.train(jobs, math.inf)}
            models = np.tile(row, (3, 1))
            for device, reply in replies.items():
                models[device] += reply.update
            return replies, engine.test(State(1, models))

    replies, tests = played(_parts.find("engines", name))
    wanted, known = played(Local)
    assert set(replies) == {0, 2}
    for device, reply in replies.items():
        assert not reply.absent
        assert not reply.late
        assert (reply.samples, reply.size) == (wanted[device].samples, wanted[device].size)
        assert reply.loss == wanted[device].loss
        assert reply.update.any()
        np.testing.assert_array_equal(reply.update, wanted[device].update)
    assert (replies[0].samples, replies[2].samples) == (6, 9)
    for found, right in zip(tests, known, strict=True):
        np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(tests.global_test.sum(axis=(1, 2)), len(data.global_test))
