"""What rows may say about other devices: the noise hides every update, rows hide devices among others, bits stay."""

import json
import math
import stat
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from fedfilt import Graph, Guard, Privacy, Updates, fit, mix
from fedfilt.aggregators import FedAvg, GFedFilt, Local, RoomAverage, SelfBlend
from fedfilt.engines import local
from fedfilt.filters import Heat, Tikhonov
from fedfilt.models import Logistic
from fedfilt.rounds.accounting import epsilon, noise_for
from fedfilt.rounds.play import play
from fedfilt.rounds.privacy import Protected, clipped, factored, rounded, too_few
from fedfilt.rounds.shares import error_of_mixed, error_of_reading, others, shares_of
from fedfilt.rounds.types import interpolating
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.folder import secret_seed
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from helpers import SMALL, as_far_as, finish, strengths, unlike_run, weighted_graphs

RULES = [FedAvg(), RoomAverage(), SelfBlend(0.3), Local(), GFedFilt(Heat(2.0)), GFedFilt(signal="updates")]
NOISY = {"clip": 0.5, "noise": 0.3, "least_others": 2, "grid": 1e-3}


def protected(rule, privacy, seed=0):
    return Protected(privacy, privacy.noise, seed).rule(rule, np.random.default_rng(seed))


def rules():
    return st.one_of(st.sampled_from(RULES), strengths.map(lambda mu: GFedFilt(Tikhonov(mu))))


# --- noise ----------------------------------------------------------------------------------------------------------


@given(weighted_graphs(zeros=True), rules())
def test_noise_hides_any_change_of_one_update(drawn, rule):
    graph, weights, _ = drawn
    shares = shares_of(rule, graph, weights)
    spread, sensitivity = factored(shares.tobytes(), graph.count)
    lengths = []
    for column in shares.T:  # what an update of length 1 changes in all rows
        hidden, *_ = np.linalg.lstsq(spread, column, rcond=None)
        np.testing.assert_allclose(spread @ hidden, column, atol=1e-7)  # nothing changes where there is no noise
        lengths.append(np.linalg.norm(hidden))
    assert max(lengths) <= sensitivity * (1 + 1e-6) + 1e-9  # so the noise, sensitivity times a normal z, covers it


@given(weighted_graphs(connected=True), strengths)
def test_noise_in_a_row_follows_from_what_the_device_keeps_of_its_own(drawn, mu):
    graph = drawn[0]
    shares = shares_of(GFedFilt(Tikhonov(mu)), graph)
    spread, sensitivity = factored(shares.tobytes(), graph.count)
    in_rows = sensitivity * np.linalg.norm(spread, axis=1)
    np.testing.assert_allclose(in_rows, np.sqrt(np.diag(shares) * np.diag(shares).max()), rtol=1e-6)
    of_updates = np.linalg.norm(shares, axis=1)  # what noise on the updates themselves would leave in each row
    assert np.sqrt((in_rows**2).mean()) <= np.sqrt(np.diag(shares).max() / np.diag(shares).mean()) * (
        np.sqrt((of_updates**2).mean()) + 1e-9
    )


def test_an_average_of_many_needs_little_noise():
    spread, sensitivity = factored(shares_of(FedAvg(), Graph.paper()).tobytes(), 20)
    np.testing.assert_allclose(sensitivity * np.linalg.norm(spread, axis=1), 1 / 20)


@pytest.mark.parametrize("rule", RULES)
def test_noise_is_as_large_as_promised_and_the_rest_is_the_rule(rule):
    graph = Graph.paper()
    rng = np.random.default_rng(0)
    models, rows = rng.standard_normal((2, 20, 20_000)).astype(np.float32)
    updates = Updates(rows * np.float32(0.001), rng.integers(1, 90, 20).astype(float))  # short: none is clipped
    plain = rule(models, updates, graph)
    drawn = protected(rule, Privacy(clip=2.0, noise=0.7))(models, updates, graph) - plain
    spread, sensitivity = factored(shares_of(rule, graph, updates.weights).tobytes(), 20)
    expected = (0.7 * 2.0 * sensitivity) ** 2 * spread @ spread.T
    scale = expected.diagonal().max()
    np.testing.assert_allclose(drawn.astype(float) @ drawn.T / drawn.shape[1], expected, atol=0.05 * scale)
    assert abs(drawn.mean()) < 0.05 * math.sqrt(scale)


def test_a_rule_that_is_not_linear_gets_no_noise():
    @dataclass(frozen=True)
    class Largest:
        def __call__(self, models, updates, graph):
            return models + np.broadcast_to(updates.rows.max(axis=0), models.shape)

    models, rows = np.random.default_rng(0).standard_normal((2, 4, 30)).astype(np.float32)
    with pytest.raises(ValueError, match="linear in the updates"):
        protected(Largest(), Privacy(clip=9.0, noise=1.0))(models, Updates(rows, np.ones(4)), Graph.from_edges(4, []))


def test_nothing_that_depends_on_others_updates_comes_before_the_noise():
    """A guard cuts updates by the median of all: with noise each is cut by itself."""
    noisy = from_table({**SMALL, "privacy": {"clip": 1.0, "noise": 1.0}, "guard": {"robust": "filter"}})
    assert Run(noisy).guard == Guard(on=False, robust="filter")
    assert isinstance(Run(noisy).aggregator, GFedFilt)
    assert not Privacy(blind=True).guard(Guard()).on
    assert Privacy(least_others=2, grid=0.1).guard(Guard()).on
    for changes in ({"clip": 1.0}, {"least_others": 2}, {"grid": 0.1}):
        with pytest.raises(ValueError, match="cannot read rows"):
            Privacy(blind=True, **changes)


@given(st.integers(0, 1000), st.floats(0.01, 10))
def test_clipping_shortens_what_is_long_and_nothing_else(seed, clip):
    rows = np.random.default_rng(seed).standard_normal((4, 5)) * 10.0 ** np.arange(-2, 2)[:, None]
    found = clipped(rows, clip)
    before, after = np.linalg.norm(rows, axis=1), np.linalg.norm(found, axis=1)
    np.testing.assert_allclose(after, np.minimum(before, clip))
    np.testing.assert_allclose(found / after[:, None], rows / before[:, None])
    np.testing.assert_array_equal(found[before <= clip], rows[before <= clip])


# --- epsilon ----------------------------------------------------------------------------------------------------------


def exact_epsilon(strength, delta):
    """Of a Gaussian mechanism, from Balle and Wang's formula for delta; composed ones are one (Gaussian DP)."""

    def over(epsilon):
        least = math.exp(epsilon + norm.logcdf(-epsilon / strength - strength / 2))
        return norm.cdf(strength / 2 - epsilon / strength) - least - delta

    return brentq(over, 0, strength**2 / 2 + 40 * strength, xtol=1e-9)


NOISES, LENGTHS, DELTAS = st.floats(0.3, 100), st.integers(1, 500), st.sampled_from([1e-3, 1e-5, 1e-8])


@settings(max_examples=30, deadline=None)
@given(NOISES, LENGTHS, DELTAS)
def test_epsilon_is_that_of_the_closed_form(noise, rounds, delta):
    found, exact = epsilon(noise, rounds, delta), exact_epsilon(math.sqrt(rounds) / noise, delta)
    assert exact * 0.9999 <= found <= exact * 1.01
    if exact > 0.1:
        assert found <= exact * 1.001


@settings(max_examples=10, deadline=None)
@given(NOISES, LENGTHS, DELTAS)
def test_epsilon_grows_with_rounds_and_falls_with_noise_and_delta(noise, rounds, delta):
    middle = epsilon(noise, rounds, delta)
    assert epsilon(noise, rounds + max(1, rounds // 10), delta) > middle > epsilon(noise * 1.1, rounds, delta)
    assert epsilon(noise, rounds, delta * 2) < middle
    assert epsilon(noise, 0, delta) == 0


def test_epsilon_is_that_of_rounds_composed_one_by_one():
    import dp_accounting

    one_by_one = dp_accounting.pld.PLDAccountant()
    renyi = dp_accounting.rdp.RdpAccountant()
    for _ in range(12):
        one_by_one.compose(dp_accounting.GaussianDpEvent(3.0))
        renyi.compose(dp_accounting.GaussianDpEvent(3.0))
    assert epsilon(3.0, 12, 1e-5) == pytest.approx(one_by_one.get_epsilon(1e-5), rel=0.01)
    assert epsilon(3.0, 12, 1e-5) < renyi.get_epsilon(1e-5)  # which is an upper bound


@pytest.mark.parametrize(("target", "rounds"), [(0.5, 3), (8.0, 200), (200.0, 40)])
def test_noise_for_an_epsilon_reaches_it(target, rounds):
    noise = noise_for(target, rounds, 1e-5)
    assert 0.99 * target < epsilon(noise, rounds, 1e-5) <= target
    assert Privacy(clip=1.0, epsilon=target).multiplier(rounds) == noise


def test_so_little_noise_promises_nothing():
    assert epsilon(0.01, 40, 1e-5) == math.inf


# --- enough others, rounding ----------------------------------------------------------------------------------------


@given(weighted_graphs(connected=True), strengths, st.integers(2, 5), st.data())
def test_a_row_with_enough_others_fits_any_update_of_each(drawn, mu, least, data):
    graph, weights, signal = drawn
    shares = shares_of(GFedFilt(Tikhonov(mu)), graph, weights)
    enough = np.flatnonzero(~too_few(shares, least) & (others(shares) > 0))
    if not len(enough):
        return
    device = data.draw(st.sampled_from(enough.tolist()))
    victim = data.draw(st.sampled_from([j for j in range(graph.count) if j != device]))
    change = np.array([3.0, -1.0, 0.5])  # of the victim's model: whatever one likes
    rest = [k for k in range(graph.count) if k not in (device, victim)]
    weight = np.abs(shares[device, rest])
    told = signal.copy()
    told[victim] += change
    told[rest] -= np.sign(shares[device, rest])[:, None] * shares[device, victim] / weight.sum() * change
    np.testing.assert_allclose(shares[device] @ told, shares[device] @ signal, atol=1e-8)  # the same row
    moved = np.linalg.norm(told[rest] - signal[rest], axis=1).max()
    assert moved <= np.linalg.norm(change) / (least - 1) * (1 + 1e-6)


@pytest.mark.parametrize("signal", ["models", "updates"])
def test_rows_with_too_few_others_are_the_devices_own(signal):
    graph = Graph.from_edges(6, [(0, 1), (2, 3), (3, 4), (4, 5), (5, 2), (2, 4), (3, 5)])  # two, and four
    models, rows = np.random.default_rng(0).standard_normal((2, 6, 7)).astype(np.float32)
    updates = Updates(rows, np.ones(6))
    rule = GFedFilt(Tikhonov(1.0), signal)
    found = protected(rule, Privacy(least_others=3))(models, updates, graph)
    np.testing.assert_array_equal(found[:2], (models + rows)[:2])
    np.testing.assert_array_equal(found[2:], rule(models, updates, graph)[2:])
    away = Updates(rows * (np.arange(6) < 5)[:, None], 1.0 * (np.arange(6) < 5))  # now one of the four is missing
    found = protected(rule, Privacy(least_others=3))(models, away, graph)
    np.testing.assert_array_equal(found[:5], (models + rows)[:5])


def test_a_newcomer_with_one_link_is_not_given_its_neighbours_model():
    graph = Graph.from_edges(5, [(0, 1), (1, 2), (2, 0), (0, 3), (3, 2), (2, 4)])
    models = np.random.default_rng(0).standard_normal((5, 7))
    nothing = Updates(np.zeros((5, 7)), np.array([1.0, 1, 1, 1, 0]))  # device 4 joins: it brings nothing
    plain = GFedFilt()(models, nothing, graph)
    np.testing.assert_allclose(plain[4], plain[2])  # its only neighbour's
    given = interpolating(protected(GFedFilt(), Privacy(clip=1.0, noise=1.0, grid=0.1)))(models, nothing, graph)
    np.testing.assert_array_equal(given, plain)  # of rows that were handed out: no more noise is needed
    held = interpolating(protected(GFedFilt(), Privacy(least_others=4)))(models, nothing, graph)
    np.testing.assert_array_equal(held[4], models[4])


@given(st.integers(0, 1000), st.floats(1e-3, 0.5))
def test_rounding_keeps_to_the_grid_and_the_mean(seed, grid):
    rng = np.random.default_rng(seed)
    row = rng.standard_normal(6)
    found = rounded(np.tile(row, (1000, 1)), grid, rng)
    np.testing.assert_allclose(found, np.round(found / grid) * grid, atol=1e-9)
    assert np.abs(found - row).max() <= grid * (1 + 1e-9)
    np.testing.assert_allclose(found.mean(axis=0), row, atol=6 * grid / 2 / math.sqrt(1000))


# --- what can be read -----------------------------------------------------------------------------------------------


@given(weighted_graphs(connected=True), strengths.filter(lambda mu: mu > 0.01))
def test_any_device_reads_the_sum_of_its_neighbours(drawn, mu):
    graph, weights, signal = drawn
    mass = weights / weights.mean()
    mixed = mix(graph, Tikhonov(mu), signal, weights)
    for device in range(graph.count):
        links = graph.adjacency[[device]].toarray()[0]
        known = (mass[device] + mu * links.sum()) * mixed[device] - mass[device] * signal[device]
        np.testing.assert_allclose(known / mu, links @ mixed, atol=1e-5 / min(mu, 1))


@given(weighted_graphs(connected=True), rules(), st.data())
def test_the_error_of_reading_is_that_of_the_best_estimate(drawn, rule, data):
    graph, weights, _ = drawn
    count = graph.count
    shares = shares_of(rule, graph, weights)
    group = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True))
    error = error_of_reading(shares, group)
    unknown = [j for j in range(count) if j not in group]
    assert (error[group] == 0).all()
    assert ((error >= 0) & (error <= 1)).all()
    if not unknown:
        return
    rows = shares[np.ix_(group, unknown)]
    best = np.linalg.pinv(rows, rcond=1e-6) @ rows  # of independent updates of variance 1, times themselves
    np.testing.assert_allclose(
        error[unknown] ** 2, np.diag((best - np.eye(len(unknown))) @ (best - np.eye(len(unknown))).T), atol=1e-5
    )
    updates = np.random.default_rng(0).standard_normal((count, 3))
    read = np.linalg.pinv(rows, rcond=1e-6) @ (
        (shares @ updates)[group] - shares[np.ix_(group, group)] @ updates[group]
    )
    exactly = error[unknown] < 1e-6
    np.testing.assert_allclose(read[exactly], updates[unknown][exactly], atol=1e-4)


def test_a_pair_reads_updates_and_a_leaf_a_personal_model():
    pair = shares_of(GFedFilt(), Graph.from_edges(2, [(0, 1)]))
    assert error_of_reading(pair, [0])[1] < 1e-7
    leaf = shares_of(GFedFilt(), Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 1), (2, 4)]))
    assert error_of_reading(leaf, [0])[1:].min() > 0.2
    assert error_of_mixed(leaf, [0])[1] < 1e-7
    assert error_of_mixed(leaf, [2])[[0, 1, 3, 4]].min() > 0.01


# --- whole runs -----------------------------------------------------------------------------------------------------


def test_protected_runs_have_the_same_bits_serial_parallel_and_resumed(tmp_path):
    joins = [{"round": 3, "join": 19}]
    whole = finish(tmp_path / "whole", privacy=NOISY, events=joins)
    parallel = finish(tmp_path / "parallel", privacy=NOISY, events=joins, engine={"workers": 2})
    as_far_as(4, tmp_path / "parts", privacy=NOISY, events=joins)
    lines, models = as_far_as(6, tmp_path / "parts", privacy=NOISY, events=joins)
    assert whole["models_sha256"] == parallel["models_sha256"] == models
    assert lines == [{**line, "seconds": 0} for line in read_lines(tmp_path / "whole")]
    assert finish(tmp_path / "plain")["models_sha256"] != models
    assert finish(tmp_path / "another", privacy={**NOISY, "grid": 0.0})["models_sha256"] != models


def test_every_line_says_what_each_device_has_spent(tmp_path):
    events = [{"round": 3, "offline": [2, 5], "until": 6}]
    result = finish(tmp_path / "run", privacy={"clip": 1.0, "noise": 5.0}, events=events)
    lines = read_lines(tmp_path / "run")
    for number, line in enumerate(lines, start=1):
        spent = line["privacy"]
        assert spent["epsilon"] == pytest.approx(epsilon(5.0, number, 1e-5), rel=1e-5)
        missed = [max(0, min(number, 5) - 2) * (device in (2, 5)) for device in range(20)]
        assert spent["rounds"] == [number - less for less in missed]
        assert spent["devices"][2] == pytest.approx(epsilon(5.0, number - missed[2], 1e-5), rel=1e-5)
    assert result["privacy"] == {"epsilon": lines[-1]["privacy"]["epsilon"], "delta": 1e-5, "noise": 5.0}
    little = finish(tmp_path / "little", rounds=1, privacy={"clip": 1.0, "noise": 0.005})
    assert little["privacy"]["epsilon"] is None  # JSON has no infinity, and a number that large says nothing


def test_an_epsilon_is_kept_over_all_rounds(tmp_path):
    result = finish(tmp_path / "run", privacy={"clip": 1.0, "epsilon": 20.0})
    assert 19.8 < result["privacy"]["epsilon"] <= 20.0


@pytest.mark.parametrize("mixing", ["trunk", "alone"])
def test_unlike_devices_are_protected_in_all_their_columns(mixing):
    events = [{"round": 2, "offline": 0}]
    run = unlike_run(mixing, events)
    noisy = unlike_run(mixing, events)
    noisy.config = from_table({**noisy.config.table(), "privacy": {"clip": 100.0, "noise": 0.01}})
    with run.experiment() as plain, noisy.experiment() as other:
        first, second = next(play(run.start(), plain))[0], next(play(noisy.start(), other))[0]
    off = (second.models - first.models).astype(float)
    assert (off != 0).all()
    private = run.config.kinds.private(run.layout)
    blocks = [off[:, ~private]] if (~private).any() else []
    apart = [off[np.ix_(np.arange(first, 6, 2), private)] for first in (0, 1)]
    for one in [*blocks, *apart]:  # no two parts of a row have the same noise
        shape = one[:2, :50]
        assert len(np.unique(shape)) == shape.size
    together = np.corrcoef(apart[0][0], apart[1][0])[0, 1]
    assert abs(together) < 0.2


def test_real_devices_cannot_draw_the_noise_themselves(tmp_path):
    table = {**SMALL, "rounds": 2, "privacy": {"clip": 1.0, "noise": 1.0}, "engine": {"name": "flower", "workers": 1}}

    def played(folder):
        run = Run(from_table(table))
        with local.Local(run.data, run.model, run.config.training, run.config.seed, 1) as engine:
            for _ in play_in_folder(run, folder, True, engine):
                pass
        return json.loads((folder / "result.json").read_text())["models_sha256"]

    first = played(tmp_path / "first")
    assert played(tmp_path / "second") != first  # the same seed, which every device has
    key = tmp_path / "first" / "checkpoint" / "noise.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert secret_seed(key) == secret_seed(key) != secret_seed(tmp_path / "second" / "checkpoint" / "noise.key")
    (tmp_path / "third" / "checkpoint").mkdir(parents=True)
    (tmp_path / "third" / "config.toml").write_text((tmp_path / "first" / "config.toml").read_text())
    (tmp_path / "third" / "checkpoint" / "noise.key").write_bytes(key.read_bytes())
    assert played(tmp_path / "third") == first
    key.write_bytes(b"short")
    with pytest.raises(ValueError, match="must hold 32 bytes, got 5"):
        secret_seed(key)


def test_fit_protects_too():
    inputs = np.random.default_rng(0).standard_normal((2, 20, 3)).astype(np.float32)
    train = [(one, (one[:, 0] > 0).astype(int)) for one in inputs]
    model, graph = Logistic((3,), 2), Graph.from_edges(2, [(0, 1)])
    alone = fit(train, model, graph, Local(), rounds=2)
    kept = fit(train, model, graph, rounds=2, privacy=Privacy(least_others=2))
    np.testing.assert_array_equal(kept.rows, alone.rows)


def test_without_the_table_nothing_changes():
    plain = from_table(SMALL)
    assert from_table({**SMALL, "privacy": {}}).hash() == plain.hash()
    assert from_table({**SMALL, "privacy": {"grid": 0.1}}).hash() != plain.hash()
    assert Privacy().script(None, 0, 10) is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"noise": 1.0}, "privacy.clip, which must be > 0"),
        ({"clip": 1.0, "noise": 1.0, "epsilon": 3.0}, "noise or epsilon, not both"),
        ({"clip": -1.0}, "privacy.clip must be a finite number >= 0"),
        ({"least_others": 1}, "privacy.least_others must be 0 .off. or at least 2"),
        ({"clip": 1.0, "noise": 1e-9}, "privacy.noise must be 0 or at least 0.001"),
        ({"delta": 0.0}, "privacy.delta must be a finite number > 0"),
        ({"nose": 1.0}, "did you mean 'noise'"),
    ],
)
def test_wrong_tables_are_refused(table, words):
    with pytest.raises(ValueError, match=words):
        from_table({**SMALL, "privacy": table})


def test_noise_needs_its_accountant_and_a_graph_of_its_own(monkeypatch):
    noisy = {**SMALL, "privacy": {"clip": 1.0, "noise": 1.0}}
    learned = {"name": "homes", "rooms": 10, "devices": 20, "between": "updates"}
    with pytest.raises(ValueError, match="learned from their first updates"):
        Run(from_table({**noisy, "graph": learned}))
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ValueError, match=r"pip install 'fedfilt\[privacy\]'"):
        Run(from_table(noisy))
    Run(from_table({**SMALL, "privacy": {"grid": 0.1}}))  # which needs none
