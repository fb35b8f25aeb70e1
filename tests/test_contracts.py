"""Being a file is being tested: every filter and every aggregator, found by its file name, keeps its contract."""

import pickle
import warnings

import numpy as np
import pytest

from fedfilt import Graph, Updates, mix, strength
from fedfilt import _parts as parts


def each(kind):
    return pytest.mark.parametrize("name", parts.names(kind))


def build(kind, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # paper_literal warns when made; that has its own test
        return parts.find(kind, name)()


def a_round(seed=0, count=20, size=7):
    rng = np.random.default_rng(seed)
    models = rng.standard_normal((count, size)).astype(np.float32)
    rows = rng.standard_normal((count, size)).astype(np.float32)
    return models, Updates(rows, rng.integers(1, 500, count).astype(float))


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("filters", "aggregators") for n in parts.names(k)])
def test_part_is_documented_frozen_and_picklable(kind, name):
    part = build(kind, name)
    assert type(part).__doc__
    assert ">>>" in type(part).__doc__, "show one runnable example"
    assert pickle.loads(pickle.dumps(part)) == part  # as it travels to the workers of this machine
    assert hash(part) == hash(build(kind, name))
    with pytest.raises(AttributeError):
        part.anything = 1


@each("filters")
def test_filter_is_a_function_of_frequency(name):
    frequencies = np.linspace(0, 50, 501)
    gains = build("filters", name)(frequencies)
    assert gains.shape == frequencies.shape
    assert gains.dtype == np.float64
    assert gains[0] == 1, "equal models must stay equal"
    assert (abs(gains) <= 1).all(), "mixing must not blow up"


@each("filters")
def test_filter_has_true_partial_fractions(name):
    response = build("filters", name)
    if hasattr(response, "partial_fractions"):
        constant, terms = response.partial_fractions()
        frequencies = np.linspace(0, 50, 501)
        total = constant + sum(share / (1 + mu * frequencies) for share, mu in terms)
        np.testing.assert_allclose(total, response(frequencies), atol=1e-14)


@each("filters")
def test_filter_keeps_dtype_and_says_how_strong_it_is(name):
    graph, response = Graph.paper(), build("filters", name)
    models, _ = a_round()
    assert mix(graph, response, models).dtype == np.float32
    found = strength(graph, response)
    assert 0 < found.self_weight <= 1
    assert 0 <= round(found.neighbours, 9) <= 19
    assert "of its own model" in str(found)


@each("aggregators")
def test_permuting_devices_permutes_the_result(name):
    graph, rule = Graph.paper(), build("aggregators", name)
    models, updates = a_round()
    updates.weights[[3, 8]] = 0
    updates.rows[[3, 8]] = 0
    order = np.random.default_rng(1).permutation(20)
    shuffled = rule(models[order], Updates(updates.rows[order], updates.weights[order]), graph.subgraph(order))
    np.testing.assert_allclose(shuffled, rule(models, updates, graph)[order], atol=2e-6)


@each("aggregators")
def test_equal_models_stay_equal(name):
    graph, rule = Graph.paper(), build("aggregators", name)
    models, updates = a_round()
    models[:], updates.rows[:] = models[0], updates.rows[0]
    result = rule(models, Updates(updates.rows, np.ones(20)), graph)
    np.testing.assert_allclose(result, np.broadcast_to(result[0], result.shape), atol=2e-6)


@each("aggregators")
def test_float32_in_float32_out_and_inputs_untouched(name):
    rule = build("aggregators", name)
    models, updates = a_round()
    before = models.copy(), updates.rows.copy(), updates.weights.copy()
    result = rule(models, updates, Graph.paper())
    assert result.dtype == np.float32
    assert result.shape == models.shape
    assert not np.shares_memory(result, models)
    for old, new in zip(before, (models, *updates), strict=True):
        np.testing.assert_array_equal(old, new)


@each("aggregators")
def test_what_does_not_belong_together_is_refused(name):
    rule, graph = build("aggregators", name), Graph.paper()
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
def test_nobody_present_changes_nothing(name):
    rule = build("aggregators", name)
    models, updates = a_round()
    nobody = Updates(np.zeros_like(updates.rows), np.zeros(20))
    if name == "self_blend":
        models[:] = models[0]  # its mean is over all models when nobody reports
    np.testing.assert_allclose(rule(models, nobody, Graph.paper()), models, rtol=1e-6)


@each("aggregators")
def test_an_absent_device_moves_nobody_else(name):
    rule = build("aggregators", name)
    models, updates = a_round()
    updates.weights[4] = 0
    updates.rows[4] = 0
    result = rule(models, updates, Graph.paper())
    models[4] = 99
    others = np.arange(20) != 4
    np.testing.assert_array_equal(rule(models, updates, Graph.paper())[others], result[others])
