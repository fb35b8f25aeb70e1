"""The scheduler: the paper's problem P'' solved exactly, its deadlines, radios and populations."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import _parts as parts
from fedfilt._types import Table
from fedfilt.populations import Everyday, Measured, Paper, Prescribed
from fedfilt.schedulers import SameDeadline, same_deadline
from fedfilt.system import radio
from fedfilt.system.hardware import Hardware, heterogeneity
from fedfilt.system.planning import Demands, deadline, solve, solve_demands
from fedfilt.system.wire import wire_size

BYTES = wire_size(53_002, 53_002)


def population(rule=None, samples=450, count=20, seed=0):
    return (rule or Paper()).draw(np.full(count, samples), BYTES, np.random.default_rng(seed))


# --- the solution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "expected", "outcome"),
    [
        ((1, 1, 0.4, 0, 0, np.inf), (1, 0.3, 0.1, 0.4, 0.22), "sync"),
        ((1, 1, 2, 0, 0, np.inf), (1, 1, 1, 2, 0.68), "sync"),
        ((1, 0.1, 2.1, 0, 0, np.inf), (2, 1, 1, 2.1, 0.76), "sync"),
        ((0.1, 0.1, 2, 0, 0, np.inf), (5, 1, 1, 0.6, 1.0), "idle_saturated"),
        ((1, 1, 2, 1, 1, 1.2), (1, 1, 0.2, 1.2, 0.52), "idle_energy"),
        ((1, 1, 2, 1, 1, 0.3), (0, 0, 0, 0, 0), "infeasible_energy"),
        ((1, 1, 2.05, 0, 0, np.inf), (1, 1, 1, 2.0, 0.68), "idle_integer"),
        ((1, 1, 0.39, 0, 0, np.inf), (0, 0, 0, 0, 0), "infeasible_time"),
    ],
)
def test_vectors(case, expected, outcome):
    a, t, end, e_a, e_t, limit = case
    plan = solve([a], [t], end, e_a, e_t, limit)
    found = plan.epochs[0], plan.data_fraction[0], plan.density[0], plan.seconds[0], plan.utility[0]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert plan.outcome[0] == outcome
    assert vars(same_deadline)["solve_demands"] is solve_demands  # which the scheduler uses too


def instances(count, seed):
    rng = np.random.default_rng(seed)
    a, t = 10 ** rng.uniform(-1, 1, (2, count))
    e_a, e_t = 10 ** rng.uniform(-1, 1, (2, count)) * (rng.random(count) < 0.8)
    end = 3.0
    limit = np.where(rng.random(count) < 0.3, np.inf, 10 ** rng.uniform(-1, 1.5, count))
    return a, t, end, e_a, e_t, limit


@pytest.mark.slow(3)
def test_10_000_instances_agree_with_cvxpy():
    """One batched linear program per number of epochs; the best of them is the optimum."""
    cvxpy = pytest.importorskip("cvxpy")
    a, t, end, e_a, e_t, limit = instances(10_000, 0)
    plan = solve(a, t, end, e_a, e_t, limit)
    best = np.full(len(a), -np.inf)
    for epochs in range(1, 6):
        able = (epochs * 0.3 * a + 0.1 * t <= end) & (epochs * 0.3 * e_a + 0.1 * e_t <= limit)
        q, s = cvxpy.Variable(able.sum()), cvxpy.Variable(able.sum())
        finite = np.isfinite(limit[able])
        constraints = [q >= 0.3, q <= 1, s >= 0.1, s <= 1]
        constraints.append(cvxpy.multiply(epochs * a[able], q) + cvxpy.multiply(t[able], s) <= end)
        energy = cvxpy.multiply(epochs * e_a[able], q) + cvxpy.multiply(e_t[able], s)
        constraints.append(energy[finite] <= limit[able][finite])
        problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(0.4 * q + 0.2 * s)), constraints)
        problem.solve(solver=cvxpy.HIGHS)
        utility = 0.4 * epochs / 5 + 0.4 * q.value + 0.2 * s.value
        best[able] = np.maximum(best[able], utility)
    found = plan.epochs > 0
    np.testing.assert_array_equal(found, np.isfinite(best))
    np.testing.assert_allclose(plan.utility[found], best[found], atol=1e-6)


def check_constraints(plan, a, t, end, e_a, e_t, limit, least=(1, 0.3, 0.1), most=5):
    taken = plan.epochs > 0
    within = 1 + 1e-9
    assert (plan.seconds <= end * within).all()
    assert (plan.joules[taken] <= limit[taken] * within).all()
    assert ((plan.epochs >= least[0]) & (plan.epochs <= most))[taken].all()
    assert ((plan.data_fraction >= least[1] / within) & (plan.data_fraction <= within))[taken].all()
    assert ((plan.density >= least[2] / within) & (plan.density <= within))[taken].all()
    np.testing.assert_allclose(plan.seconds, plan.epochs * plan.data_fraction * a + plan.density * t)
    np.testing.assert_allclose(plan.joules, plan.epochs * plan.data_fraction * e_a + plan.density * e_t)


@pytest.mark.parametrize("exponent", [1.0, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_no_constraint_is_violated_and_brute_force_finds_nothing_better(seed, exponent):
    a, t, end, e_a, e_t, limit = case = instances(300, seed + 10)
    plan = solve(*case, exponent=exponent)
    check_constraints(plan, *case)
    grid_q, grid_s = np.linspace(0.3, 1, 60), np.linspace(0.1, 1, 60)
    best = np.full(300, -np.inf)
    for epochs, q, s in itertools.product(range(1, 6), grid_q, grid_s):
        able = (epochs * q * a + s * t <= end) & (epochs * q * e_a + s * e_t <= limit)
        utility = 0.4 * (epochs / 5) ** exponent + 0.4 * q**exponent + 0.2 * s**exponent
        best = np.where(able, np.maximum(best, utility), best)
    assert (plan.utility >= best - 1e-9)[np.isfinite(best)].all()
    step = 0.4 * 0.7 / 59 + 0.2 * 0.9 / 59
    bound = step if exponent == 1 else 2 * step
    assert (plan.utility <= best + bound)[np.isfinite(best)].all()


def test_ties_go_to_fewest_epochs_then_most_data():
    plan = solve([1.0], [0.1], 2.1)
    assert (plan.epochs[0], plan.data_fraction[0]) == (2, 1.0)
    # data and density trade one for one: the same utility for any split
    plan = solve([1.0], [1.0], 1.3, importance=(0.0, 0.5, 0.5), epochs=(1, 1))
    assert (plan.data_fraction[0], plan.density[0]) == (1.0, pytest.approx(0.3))


def test_equality_is_the_papers_constraint():
    case = instances(500, 5)
    equality: Table = {"equality": True}
    plan = solve(*case, **equality)
    taken = plan.epochs > 0
    check_constraints(plan, *case)
    np.testing.assert_allclose(plan.seconds[taken], case[2], rtol=1e-9)
    assert set(plan.outcome[~taken]) <= {"infeasible_time", "infeasible_energy"}
    loose = solve(*case)
    assert (loose.utility >= plan.utility - 1e-12).all()
    assert taken[loose.outcome == "sync"].all()
    concave, free = solve(*case, **equality, exponent=0.5), solve(*case, exponent=0.5)
    synced = free.outcome == "sync"
    np.testing.assert_allclose(concave.utility[synced], free.utility[synced], atol=1e-7)


def test_a_concave_utility_shares_the_time_out():
    straight = solve([1.0], [1.0], 1.2, epochs=(1, 1))
    concave = solve([1.0], [1.0], 1.2, epochs=(1, 1), exponent=0.5)
    assert straight.density[0] == pytest.approx(0.2)  # all to the data, which weighs more
    assert 0.2 < concave.density[0] < 0.5
    gain = 0.2 * concave.density[0] ** -0.5, 0.4 * concave.data_fraction[0] ** -0.5
    assert gain[0] == pytest.approx(gain[1], rel=1e-3)  # a second more is worth the same in both


# --- deadlines ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_the_default_deadline_is_a_tenth_of_the_slowest_full_latency(seed, count):
    rng = np.random.default_rng(seed)
    demands = Demands.of(10 ** rng.uniform(-3, 3, count), 10 ** rng.uniform(-3, 3, count))
    full = 3 * demands.compute_seconds + demands.send_seconds
    assert deadline("slowest_minimum", demands) == pytest.approx(0.1 * full.max())


def test_deadline_rules():
    demands = Demands.of([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert deadline("fastest_full", demands) == 4.0
    assert deadline("trade_off", demands, theta=0.0) == deadline("slowest_minimum", demands) == pytest.approx(1.0)
    assert deadline("trade_off", demands, theta=1.0) == 10.0
    assert deadline("seconds", demands, seconds=2.5) == 2.5
    end = deadline("target_utility", demands, target=0.7)
    mean = [solve([1.0, 2.0, 3.0], [1.0] * 3, end * f).utility.mean() for f in (1.0, 0.999)]
    assert mean[0] >= 0.7 - 1e-9 > mean[1]
    assert deadline("target_utility", demands, target=0.0) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="did you mean 'fastest_full'"):
        deadline("fastest_ful", demands)


def test_a_device_that_cannot_afford_the_least_never_sets_the_deadline():
    demands = Demands.of([1.0, 100.0], [1.0, 100.0], 1.0, 1.0, [10.0, 0.01])
    assert deadline("slowest_minimum", demands) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="energy_limit is too low for the least work of every device"):
        deadline("slowest_minimum", Demands.of([1.0], [1.0], 1.0, 1.0, 0.01))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compute_seconds": [0.0]}, "compute_seconds must be finite and > 0"),
        ({"compute_seconds": [-1.0]}, "compute_seconds must be finite and > 0"),
        ({"compute_seconds": []}, "compute_seconds must have shape"),
        ({"send_seconds": [np.inf]}, "send_seconds must be >= 0 and finite"),
        ({"send_seconds": [1.0, 2.0]}, r"send_seconds must be one number or have shape \(1,\)"),
        ({"deadline": 0.0}, "deadline must be a finite number > 0"),
        ({"importance": (0.5, 0.4, 0.2)}, "importance must be three weights .* that sum to 1"),
        ({"importance": (1.4, -0.4, 0.0)}, "importance must be a finite number >= 0"),
        ({"data_fraction_min": 0.0}, r"data_fraction_min must be a finite number > 0 and <= 1"),
        ({"density_min": 1.5}, "density_min must be a finite number > 0 and <= 1"),
        ({"epochs": (5, 1)}, "epochs must be .fewest, most."),
        ({"compute_seconds": [np.inf]}, "compute_seconds must be finite and > 0, got inf"),
        ({"importance": 1.0}, "importance must be 3 numbers"),
        ({"epochs": 3}, "epochs must be 2 numbers"),
        ({"epochs": (1, 2, 3)}, "epochs must be 2 numbers"),
        ({"epochs": (0, 1)}, r"epochs\[0\] must be a whole number >= 1"),
        ({"energy_limit": -1.0}, "energy_limit must be >= 0"),
        ({"compute_joules": np.nan}, "compute_joules must be >= 0"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        solve(**{"compute_seconds": [1.0], "send_seconds": [1.0], "deadline": 1.0, **change})


# --- radios and populations ---------------------------------------------------------------------------------------


def test_the_papers_numbers():
    rate = radio.bits_per_second(1e6, radio.signal_to_noise_hz(0.75, 1.5))
    assert rate == pytest.approx(47.919e6, rel=1e-5)
    assert 53_002 * 32 / rate == pytest.approx(0.035394, rel=1e-4)
    assert radio.compute_seconds(3, 450, 3e4, 2.25e9) == pytest.approx(0.018)
    assert radio.compute_joules(3, 450, 3e4, 2.25e9) == pytest.approx(0.0205031, rel=1e-5)


def test_bandwidth_of_the_notes_and_equal_split():
    seconds, bands = radio.allocate_bandwidth([0.5, 1.0], [1.0, 1.0], [10.0, 10.0], 2.0)
    assert seconds == pytest.approx(1.2092029, abs=1e-7)
    np.testing.assert_allclose(bands, [0.268107, 1.731893], atol=1e-6)
    assert radio.allocate_bandwidth(0.0, [1.0, 1.0], 10.0, 2.0)[0] == pytest.approx(0.28906, abs=1e-5)
    cases: list[Any] = [([], [], []), ([1.0, 2.0], [1.0] * 3, 10.0)]
    for wrong in cases:
        with pytest.raises(ValueError, match=r"one (number )?per device"):
            radio.allocate_bandwidth(wrong[0], wrong[1], wrong[2], 2.0)
    equal = max(c + 1 / radio.bits_per_second(1.0, 10.0) for c in (0.5, 1.0))
    assert equal == pytest.approx(1.2890648, abs=1e-7)


@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
@pytest.mark.slow(5)
def test_optimal_bandwidth_lets_all_finish_together_and_never_later(count, seed):
    rng = np.random.default_rng(seed)
    start, bits, signal = rng.uniform(0, 1, count), rng.uniform(0.1, 5, count), 10 ** rng.uniform(0, 3, count)
    seconds, bands = radio.allocate_bandwidth(start, bits, signal, 4.0)
    assert bands.sum() == pytest.approx(4.0)
    np.testing.assert_allclose(start + bits / radio.bits_per_second(bands, signal), seconds, rtol=1e-6)
    equal = start + bits / radio.bits_per_second(np.full(count, 4.0 / count), signal)
    assert seconds <= equal.max() * (1 + 1e-9)


@pytest.mark.parametrize("name", ["bandwidth_hz", "signal_hz"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_zero_or_negative_radio(name, value):
    with pytest.raises(ValueError, match=f"{name} must be finite and > 0"):
        radio.bits_per_second(**{"bandwidth_hz": 1.0, "signal_hz": 1.0, name: value})


def test_zero_or_negative_clock_power_and_bits():
    one = np.ones(2)
    with pytest.raises(ValueError, match="clock_hz must be finite and > 0"):
        radio.compute_seconds(1, 1, 1, 0)
    with pytest.raises(ValueError, match="transmit_watts must be finite and > 0"):
        radio.signal_to_noise_hz(-1, 0)
    with pytest.raises(ValueError, match="bits must be finite and > 0"):
        radio.allocate_bandwidth([1.0], [0.0], [1.0], 1.0)
    with pytest.raises(ValueError, match="total_hz must be a finite number > 0"):
        radio.allocate_bandwidth([1.0], [1.0], [1.0], 0.0)
    with pytest.raises(ValueError, match="clock_hz must be one finite number > 0 per device"):
        Hardware(one, one, np.array([1.0, 0.0]), one, one, one, one)


@pytest.mark.parametrize(("value", "ratio"), [(0.31, 1.92), (0.54, 3.17), (0.65, 6.83)])
def test_a_prescribed_heterogeneity_is_hit_exactly(value, ratio):
    devices = population(Prescribed(value, ratio))
    full = 3 * devices.compute_seconds() + devices.send_seconds(BYTES)
    assert heterogeneity(full) == pytest.approx(value, abs=1e-9)
    assert full.max() / full.min() == pytest.approx(ratio, abs=1e-9)
    many = Prescribed(value, ratio).draw(np.full(8000, 450), BYTES, np.random.default_rng(0))
    assert np.isfinite(many.send_seconds(BYTES)).all()
    with pytest.raises(ValueError, match="heterogeneity must be from"):
        population(Prescribed(0.9, ratio))


def test_heterogeneity_of_the_notes():
    assert heterogeneity([1, 2, 4, 4]) == 0.5
    for wrong in ([], [1, 0], [1, np.nan], [[1]]):
        with pytest.raises(ValueError, match="seconds must be finite and > 0"):
            heterogeneity(wrong)


@pytest.mark.parametrize("name", parts.names("populations"))
def test_population_contract(name, tmp_path):
    (tmp_path / "home.csv").write_text("device,seconds_per_sample,bits_per_second\n" + "tv,0.001,1e6\n" * 20)
    kind = parts.find("populations", name)
    rule = kind(str(tmp_path / "home.csv")) if kind is Measured else kind()
    assert ">>>" in kind.__doc__
    one, two = population(rule), population(rule)
    for field in ("cycles_per_sample", "clock_hz", "transmit_watts", "gain_db", "bandwidth_hz"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
    assert one.count == 20
    assert (one.compute_seconds() > 0).all()
    assert (one.send_seconds(BYTES) > 0).all()


def test_the_papers_population_is_within_its_table():
    devices = population(count=2000)
    for field, low, high in [
        ("cycles_per_sample", 1e4, 5e4),
        ("clock_hz", 1e9, 3.5e9),
        ("transmit_watts", 0.5, 1),
        ("gain_db", 1, 2),
    ]:
        values = getattr(devices, field)
        assert low <= values.min() < values.max() <= high
    assert devices.bandwidth_hz[0] == 20e6 / 2000


def test_measured_devices_cost_what_was_measured(tmp_path):
    path = tmp_path / "home.csv"
    path.write_text("device,seconds_per_sample,bits_per_second,energy_limit\ntv,0.002,8e6,\nwatch,0.01,1e6,0.5\n")
    devices = Measured(str(path)).draw(np.array([100, 50]), BYTES, np.random.default_rng(0))
    np.testing.assert_allclose(devices.compute_seconds(), [0.2, 0.5])
    np.testing.assert_allclose(devices.send_seconds(1e6), [1.0, 8.0])
    assert devices.energy_limit.tolist() == [np.inf, 0.5]
    with pytest.raises(ValueError, match="must have 3 lines, one per device, got 2"):
        Measured(str(path)).draw(np.ones(3), BYTES, np.random.default_rng(0))
    path.write_text("device,seconds_per_sample,bits_per_second\ntv,fast,1\n")
    with pytest.raises(ValueError, match="line 2: seconds_per_sample must be a number, got 'fast'"):
        Measured(str(path)).draw(np.ones(1), BYTES, np.random.default_rng(0))


def test_unknown_kind_of_device():
    with pytest.raises(ValueError, match="did you mean 'phone'"):
        Everyday("phnoe")


# --- the scheduler ------------------------------------------------------------------------------------------------


def seconds_of(schedule, devices):
    seconds, joules = [], []
    for i, plan in enumerate(schedule.plans):
        work = plan.epochs * plan.data_fraction
        seconds.append(work * devices.compute_seconds()[i] / plan.clock + plan.density * devices.send_seconds(BYTES)[i])
        joules.append(work * devices.compute_joules()[i] * plan.clock**2)
    return np.array(seconds), np.array(joules)


@pytest.mark.parametrize(("value", "ratio"), [(0.31, 1.92), (0.54, 3.17), (0.65, 6.83)])
def test_desynchronisation_falls_by_99_percent(value, ratio):
    devices = population(Prescribed(value, ratio))
    full = 3 * devices.compute_seconds() + devices.send_seconds(BYTES)
    schedule = SameDeadline()(devices, BYTES)
    seconds, _ = seconds_of(schedule, devices)
    assert schedule.deadline == pytest.approx(0.1 * full.max())
    assert schedule.deadline - seconds.min() <= 0.01 * (full.max() - full.min())
    assert (seconds <= schedule.deadline * (1 + 1e-9)).all()


@pytest.mark.parametrize("samples", [45, 450])
@pytest.mark.parametrize(("value", "ratio"), [(0.31, 1.92), (0.54, 3.17), (0.65, 6.83)])
def test_equality_brings_all_devices_to_the_deadline(value, ratio, samples):
    """The paper's C1 as printed; what is left is the rounding to whole samples."""
    devices = population(Prescribed(value, ratio), samples=samples)
    within, exact = (SameDeadline(deadline="fastest_full", equality=e)(devices, BYTES) for e in (False, True))
    assert {plan.outcome for plan in within.plans} == {"sync", "idle_integer"}  # nobody does all it may
    assert {plan.outcome for plan in exact.plans} == {"sync"}
    assert exact.deadline == within.deadline
    left, before = exact.deadline - seconds_of(exact, devices)[0], within.deadline - seconds_of(within, devices)[0]
    sample = np.array([plan.epochs for plan in exact.plans]) * devices.compute_seconds() / samples
    assert ((left >= -1e-12) & (left < sample + 1e-12)).all()
    assert left.max() < 0.5 * before.max()
    shortest, same = (SameDeadline(equality=e)(devices, BYTES) for e in (False, True))
    assert shortest == same  # under the printed deadline nobody idles anyway


def test_a_device_that_cannot_end_at_the_deadline_does_what_it_can_by_it():
    devices = population(Prescribed())
    limit = np.full(20, np.inf)
    limit[3] = 1.01 * (0.3 * devices.compute_joules() + 0.1 * devices.send_joules(BYTES))[3]  # hardly more than least
    weak = Hardware(**{**devices.__dict__, "energy_limit": limit})
    plans = SameDeadline(deadline="fastest_full", equality=True)(weak, BYTES).plans
    assert (plans[3].outcome, plans[3].epochs) == ("idle_energy", 1)
    assert plans[3] == SameDeadline(deadline="fastest_full")(weak, BYTES).plans[3]
    assert all(plan.outcome == "sync" for i, plan in enumerate(plans) if i != 3)
    longest = SameDeadline(deadline="seconds", seconds=100.0, equality=True)(devices, BYTES)
    assert {(plan.outcome, plan.epochs) for plan in longest.plans} == {("idle_saturated", 5)}


def test_whole_samples_and_the_time_they_free_goes_to_the_density():
    devices = population(Prescribed(), samples=45)
    for plan in SameDeadline()(devices, BYTES).plans:
        assert plan.data_fraction * 45 == pytest.approx(round(plan.data_fraction * 45))
    seconds, _ = seconds_of(SameDeadline()(devices, BYTES), devices)
    np.testing.assert_allclose(seconds, SameDeadline()(devices, BYTES).deadline)


def test_optimal_bandwidth_is_never_slower():
    devices = population(Paper(path_loss_db=100))
    equal, optimal = SameDeadline()(devices, BYTES), SameDeadline(bandwidth="optimal")(devices, BYTES)
    assert optimal.deadline < equal.deadline
    assert sum(plan.bandwidth_hz for plan in optimal.plans) == pytest.approx(20e6)


def test_optimal_bandwidth_respects_batteries_and_the_excluded():
    devices = population(count=3)
    least = 0.3 * devices.compute_joules() + 0.1 * devices.send_joules(BYTES)
    gain = np.array([-100.0, -100.0, -135.0])
    weak = Hardware(**{**devices.__dict__, "gain_db": gain, "energy_limit": np.array([np.inf, np.inf, 1e-6])})
    equal, optimal = SameDeadline()(weak, BYTES), SameDeadline(bandwidth="optimal")(weak, BYTES)
    assert optimal.deadline <= equal.deadline  # the excluded device takes no band
    assert sum(plan.bandwidth_hz for plan in optimal.plans if plan.epochs) == pytest.approx(20e6)
    tight = Hardware(**{**devices.__dict__, "energy_limit": 1.05 * least})
    assert all(plan.epochs for plan in SameDeadline(bandwidth="optimal")(tight, BYTES).plans)
    shaken = population(Paper(variability=0.5, path_loss_db=100)).at(0, 3)
    assert sum(p.bandwidth_hz for p in SameDeadline(bandwidth="optimal")(shaken, BYTES).plans) == pytest.approx(20e6)
    with pytest.raises(ValueError, match="separate links"):
        SameDeadline(bandwidth="optimal")(Hardware(**{**devices.__dict__, "shared_band": False}), BYTES)


def test_every_device_that_takes_part_has_a_sample():
    for samples in (1, 2, 3):
        devices = population(samples=samples)
        assert all(plan.data_fraction * samples >= 1 - 1e-9 for plan in SameDeadline()(devices, BYTES).plans)


def test_slower_clocks_cost_fewer_joules_at_the_same_deadline():
    devices = population()
    options: Table = {"deadline": "trade_off", "theta": 0.9}
    fast, slow = (SameDeadline(**options, slow_clocks=s)(devices, BYTES) for s in (False, True))
    assert any(plan.outcome.startswith("idle") for plan in fast.plans)
    assert fast.deadline == slow.deadline
    (quick, hot), (late, cool) = seconds_of(fast, devices), seconds_of(slow, devices)
    assert (late <= slow.deadline * (1 + 1e-9)).all()
    assert late.sum() > quick.sum()
    assert cool.sum() < 0.9 * hot.sum()


def test_infeasible_devices_are_named_and_left_out():
    devices = population()
    limit = np.full(20, np.inf)
    limit[3] = 1e-9
    weak = Hardware(**{**devices.__dict__, "energy_limit": limit})
    plans = SameDeadline()(weak, BYTES).plans
    assert plans[3].outcome == "infeasible_energy"
    assert plans[3].epochs == 0
    assert all(plan.epochs for i, plan in enumerate(plans) if i != 3)
    with pytest.raises(ValueError, match="no device can do its least by the deadline"):
        SameDeadline(deadline="seconds", seconds=1e-9)(devices, BYTES)
    idle = population(samples=0, count=2)
    some = Hardware(**{**idle.__dict__, "samples": np.array([0, 5])})
    assert SameDeadline()(some, BYTES).plans[0].outcome == "no_samples"


def test_variability_is_seeded_known_to_the_plan_and_error_is_not():
    devices = population(Paper(variability=0.3, error=0.2))
    first, again, other = devices.at(0, 1), devices.at(0, 1), devices.at(0, 2)
    np.testing.assert_array_equal(first.compute_seconds(), again.compute_seconds())
    assert not np.array_equal(first.compute_seconds(), other.compute_seconds())
    true = first.in_truth(0, 1)
    ratio = np.log(true.compute_seconds() / first.compute_seconds())
    assert 0.1 < ratio.std() < 0.35
    rate = np.log(true.bits_per_second() / first.bits_per_second())
    assert 0.1 < rate.std() < 0.35
