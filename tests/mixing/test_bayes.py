"""Empirical Bayes mixing against the formulas written anew, as a graph filter, and on input that is bad or extreme."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import Graph
from fedfilt.mixing.bayes import combined, empirical_bayes, mean_cosines, measure


def oracle(D, A, B, n, balanced):
    """The method in a few lines, as it was first written down."""

    def dot(x, y):
        return np.sum(x * y, axis=1)

    c = max(dot(A, B).sum() / max(np.sqrt(dot(A, A) * dot(B, B)).sum(), 1e-12), 1e-3)
    r0 = 2 * c / (1 + c)
    kappa = np.mean(n) * (1 - r0) / r0
    r = n / (n + kappa)
    q = np.sqrt(np.maximum(dot(D, D), 1e-12))
    S = (D @ D.T).astype(float) / np.outer(q, q)
    np.fill_diagonal(S, r)
    l, U = np.linalg.eigh(S)  # noqa: E741
    S = (U * np.maximum(l, 0)) @ U.T
    H = np.linalg.solve(S + np.diag(1 - r) + 1e-9 * np.eye(len(n)), S).T
    if not balanced:
        H *= (np.diag(S) / np.maximum(np.diag(H @ S), 1e-12))[:, None]
    return q[:, None] * H / q[None]


def changes(count, size, seed=0, common=0.5, noise=1.0):
    """(changes, first, second, samples): a common part, one of each device's own, and noise as samples are few."""
    rng = np.random.default_rng(seed)
    n = rng.integers(3, 60, count).astype(float)
    signal = common * rng.standard_normal(size) + rng.standard_normal((count, size))
    halves = [signal + noise * rng.standard_normal((count, size)) * np.sqrt(40 / n)[:, None] for _ in range(2)]
    return (halves[0] + halves[1]) / 2, *halves, n


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("case", [(1, 5), (2, 30), (9, 300), (30, 20)])
def test_it_is_the_method_as_it_was_written_down(case, balanced):
    D, A, B, n = changes(*case)
    found, measured = empirical_bayes(D, A, B, n, balanced=balanced)
    np.testing.assert_allclose(found, oracle(D, A, B, n, balanced), atol=1e-6)
    np.testing.assert_allclose(combined(found, D), oracle(D, A, B, n, balanced) @ D, atol=1e-6)
    assert 0 < measured.halves < 1
    single = [one.astype(np.float32) for one in (D, A, B)]
    np.testing.assert_allclose(
        empirical_bayes(single[0], single[1], single[2], n, balanced=balanced)[0], found, atol=1e-3
    )
    assert combined(found, single[0]).dtype == np.float32


def test_with_two_numbers_on_a_regular_graph_it_is_a_graph_filter():
    """S = r I + a A + b (J - I - A) of a d-regular graph is a function of its Laplacian, and so is S (S + N)⁻¹.

    h(λ) = s / (s + 1 - r) with s(λ) = max(r - b + (a - b)(d - λ), 0); a constant signal, λ = 0, has b K more.
    """
    count, rng = 12, np.random.default_rng(3)
    graph = Graph.from_edges(count, [(i, (i + step) % count) for i in range(count) for step in (1, 2)])
    smooth = np.linalg.inv(np.eye(count) + 0.4 * graph.laplacian.toarray()) @ rng.standard_normal((count, 400))
    smooth /= np.linalg.norm(smooth, axis=1, keepdims=True)  # where all changes have one length, H is the filter itself
    halves = [smooth + 0.03 * rng.standard_normal(smooth.shape) for _ in range(2)]
    given = smooth, halves[0], halves[1], np.full(count, 20)
    found, measured = empirical_bayes(*given, links=graph, balanced=True)
    r, a, b, degree = measured.reliability[0], measured.linked, measured.unlinked, 4
    assert a > b + 0.1

    def response(frequencies):
        s = r - b + (a - b) * (degree - frequencies) + b * count * (abs(frequencies) < 1e-9)
        return np.maximum(s, 0) / (np.maximum(s, 0) + 1 - r + 1e-9)

    values, vectors = np.linalg.eigh(graph.laplacian.toarray())
    np.testing.assert_allclose(found, (vectors * response(values)) @ vectors.T, atol=1e-9)
    personal, _ = empirical_bayes(*given, links=graph)
    np.testing.assert_allclose(personal, found * (personal[0, 0] / found[0, 0]), atol=1e-9)  # all devices look alike
    np.testing.assert_allclose(empirical_bayes(*given, links=graph.adjacency.toarray() > 0)[0], personal)


def test_the_personal_reading_keeps_the_size_of_a_devices_own_signal():
    D, A, B, n = changes(6, 200)
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    found, measured = empirical_bayes(D, A, B, n)
    s = measured.cosines.copy()
    np.fill_diagonal(s, measured.reliability)
    np.testing.assert_allclose(np.diag(found @ s), np.diag(s), rtol=1e-6)


def test_a_device_with_few_samples_borrows_more():
    D, A, B, n = changes(8, 300, common=1.0)
    n[:] = 40
    few = n.copy()
    few[0] = 3
    for balanced in (False, True):
        rich, poor = (empirical_bayes(D, A, B, given, balanced=balanced)[0] for given in (n, few))
        assert poor[0, 0] / abs(poor[0]).sum() < rich[0, 0] / abs(rich[0]).sum()


# --- bad input --------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw):
    count, size = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e6, 1e15]))
    rows = [scale * rng.standard_normal((count, size)).round(draw(st.integers(0, 3))) for _ in range(3)]
    if draw(st.booleans()):
        rows[1][:], rows[2][:] = rows[0], rows[0]  # no noise at all
    if draw(st.booleans()):
        rows[0][:] = rows[0][0]  # all alike
    for row in rows:
        row[rng.random(count) < 0.2] = 0
    samples = rng.integers(0, 4, count) * draw(st.sampled_from([1, 100]))
    links = np.triu(rng.random((count, count)) < draw(st.sampled_from([0.0, 0.4, 1.0])), 1)
    return (*rows, samples), links | links.T


@given(cases(), st.booleans(), st.booleans())
def test_it_is_finite_and_permuting_devices_permutes_it(case, linked, balanced):
    given, links = case
    options = {"links": links if linked else None, "balanced": balanced}
    found, measured = empirical_bayes(*given, **options)
    moved = combined(found, given[0])
    assert np.isfinite(found).all()
    assert np.isfinite(moved).all()
    assert ((measured.reliability >= 0) & (measured.reliability <= 1)).all()
    assert (abs(measured.cosines) <= 1).all()
    assert np.linalg.norm(moved) <= 1e4 * np.linalg.norm(given[0]) + 1e-9
    order = np.random.default_rng(1).permutation(len(found))
    other = [one[order] for one in given]
    again, _ = empirical_bayes(
        other[0], other[1], other[2], other[3], links[np.ix_(order, order)] if linked else None, balanced
    )
    np.testing.assert_allclose(combined(again, other[0]), moved[order], rtol=1e-5, atol=1e-5 * abs(given[0]).max())


@given(st.integers(1, 5), st.integers(1, 4), st.floats(-1, 1))
def test_one_device_keeps_its_change(size, samples, halves):
    change = np.ones((1, size))
    kept, measured = empirical_bayes(change, change, halves * change, [samples])
    shrunk, _ = empirical_bayes(change, change, halves * change, [samples], balanced=True)
    np.testing.assert_allclose(kept, 1, atol=1e-5)
    np.testing.assert_allclose(shrunk[0], measured.reliability, atol=1e-8)
    assert np.isnan(measured.linked)


def test_what_has_not_changed_takes_from_nobody_and_gives_nothing():
    D, A, B, n = changes(5, 40)
    D[2] = A[2] = B[2] = 0
    others = np.arange(5) != 2
    for links in (None, np.ones((5, 5), bool) & ~np.eye(5, dtype=bool)):
        found, measured = empirical_bayes(D, A, B, n, links)
        assert not found[2].any()
        assert not found[:, 2].any()
        some = None if links is None else links[:4, :4]
        alone, without = empirical_bayes(D[others], A[others], B[others], n[others], some)
        assert measured.halves == without.halves
        if links is not None:
            assert measured.linked == without.linked
            assert np.isnan(measured.unlinked)  # a complete graph: nobody is not linked
        assert alone.shape == (4, 4)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_a_device_without_samples_takes_from_nobody_and_gives_nothing(balanced, linked):
    D, A, B, _ = changes(5, 40)
    n, others, links = np.array([10, 0, 10, 20, 10]), np.arange(5) != 1, None
    if linked:
        links = np.diag([True] * 4, 1)
        links = links | links.T
    found, measured = empirical_bayes(D, A, B, n, links, balanced)
    assert not found[1].any()
    assert not found[:, 1].any()
    near = None if links is None else links[np.ix_(others, others)]
    alone, without = empirical_bayes(D[others], A[others], B[others], n[others], near, balanced)
    np.testing.assert_allclose(found[np.ix_(others, others)], alone, atol=1e-9)
    assert measured.halves == pytest.approx(without.halves)
    np.testing.assert_allclose([measured.linked, measured.unlinked], [without.linked, without.unlinked])


def test_halves_that_did_not_come_say_nothing():
    D, A, B, n = changes(5, 40)
    A[3], B[1] = 0, 0
    both = [0, 2, 4]
    assert measure(D, A, B, n).halves == pytest.approx(measure(D[both], A[both], B[both], n[both]).halves)
    none = measure(D, 0 * A, 0 * B, n)
    assert none.halves == 0
    assert (none.reliability < 0.01).all()
    assert np.isfinite(empirical_bayes(D, 0 * A, 0 * B, n)[0]).all()


def test_an_empty_and_a_complete_graph_have_one_side_only():
    D, A, B, n = changes(4, 40)
    empty, complete = Graph.from_edges(4, []), Graph.from_rooms(["a"] * 4)
    for graph, side in ((empty, 1), (complete, 0)):
        found, measured = empirical_bayes(D, A, B, n, graph)
        assert np.isnan([measured.linked, measured.unlinked]).tolist() == [side == 1, side == 0]
        assert np.isfinite(found).all()
    np.testing.assert_allclose(empirical_bayes(D, A, B, n, empty)[0], empirical_bayes(D, A, B, n, complete)[0])
    assert mean_cosines(np.eye(2), None) == pytest.approx((np.nan, np.nan), nan_ok=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"changes": np.zeros(3)}, "changes must have"),
        ({"second": np.zeros((2, 4))}, "second must have"),
        ({"first": np.full((3, 4), np.nan)}, "first must be finite"),
        ({"samples": [1, 2]}, "samples must be 3 numbers"),
        ({"samples": [1, 2, -1]}, "samples must be 3 numbers"),
        ({"links": Graph.from_edges(2, [])}, "links must be a graph of 3 devices"),
        ({"links": np.eye(3, dtype=bool)}, "without loops"),
    ],
)
def test_what_does_not_fit_is_named(changed, message):
    fitting = {"changes": np.ones((3, 4)), "first": np.ones((3, 4)), "second": np.ones((3, 4)), "samples": [1, 2, 3]}
    with pytest.raises(ValueError, match=message):
        empirical_bayes(**{**fitting, **changed})
