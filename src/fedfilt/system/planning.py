"""Problem P'': how much each device trains and sends so that all finish by a common deadline, solved in closed form.

For a fixed number of epochs α the best density for a data fraction q is S(q) = min(1, (T - αaq)/t, (E - αe_a q)/e_t),
where a, t are the seconds of an epoch on all data and of sending the whole update, e_a, e_t the joules. The utility
is concave and piecewise linear in q, so its maximum is at an end of [q_min, q_u] or at one of three breakpoints.
Trying every α gives the optimum.
"""

from typing import Any, NamedTuple

import numpy as np

from fedfilt._checks import check_choice, check_count, check_number, check_numbers
from fedfilt._types import Array

SYNC, SATURATED, ENERGY, INTEGER = "sync", "idle_saturated", "idle_energy", "idle_integer"
NO_ENERGY, NO_TIME = "infeasible_energy", "infeasible_time"
RULES = ("slowest_minimum", "fastest_full", "trade_off", "seconds", "target_utility")
FULL = (3, 1.0, 1.0)  # the paper's baseline: epochs, data fraction, density


class Optimum(NamedTuple):
    """The optimum for each device. An infeasible device has zeros and does not take part."""

    epochs: Array
    data_fraction: Array
    density: Array
    seconds: Array
    joules: Array
    utility: Array
    outcome: Array  # of texts: sync, idle_saturated, idle_energy, idle_integer, infeasible_energy, infeasible_time


class Demands(NamedTuple):
    """What devices could do, and how far that may be reduced: checked arguments of `solve`."""

    compute_seconds: Array  # an epoch on all data
    send_seconds: Array  # the whole update
    compute_joules: Array
    send_joules: Array
    energy_limit: Array
    data_fraction_min: Array
    importance: tuple[float, ...]
    epochs: tuple[int, int]
    density_min: float
    exponent: float

    @classmethod
    def of(
        cls,
        compute_seconds: Any,
        send_seconds: Any,
        compute_joules: Any = 0.0,
        send_joules: Any = 0.0,
        energy_limit: Any = np.inf,
        importance: tuple[float, float, float] = (0.4, 0.4, 0.2),
        epochs: tuple[int, int] = (1, 5),
        data_fraction_min: Any = 0.3,
        density_min: float = 0.1,
        exponent: float = 1.0,
    ) -> "Demands":
        """Check and shape the arguments of `solve`."""
        compute = np.atleast_1d(check_numbers("compute_seconds", compute_seconds, "numbers, one per device"))
        if compute.ndim != 1 or not len(compute):
            raise ValueError(f"compute_seconds must have shape (K,), one per device, got shape {compute.shape}")
        count = len(compute)
        send = _per_device("send_seconds", send_seconds, count)
        joules = _per_device("compute_joules", compute_joules, count), _per_device("send_joules", send_joules, count)
        limit = _per_device("energy_limit", energy_limit, count, infinite=True)
        for name, value in (("compute_seconds", compute), ("send_seconds", send)):
            if not np.isfinite(value).all() or (value <= 0).any():
                wrong = value[~(np.isfinite(value) & (value > 0))][0]
                raise ValueError(f"{name} must be finite and > 0, got {wrong:g}")
        weights = tuple(
            check_number("importance", weight, low=0, high=1) for weight in _several("importance", importance, 3)
        )
        if abs(sum(weights) - 1) > 1e-9:
            raise ValueError(
                f"importance must be three weights (epochs, data, density) that sum to 1, got {importance!r}"
            )
        low, high = (check_count(f"epochs[{i}]", value) for i, value in enumerate(_several("epochs", epochs, 2)))
        if high < low:
            raise ValueError(f"epochs must be (fewest, most), got {tuple(epochs)!r}")
        fraction = _per_device("data_fraction_min", data_fraction_min, count)
        for name, value in (("data_fraction_min", fraction.min()), ("data_fraction_min", fraction.max())):
            check_number(name, float(value), low=0, high=1, above=True)
        check_number("density_min", density_min, low=0, high=1, above=True)
        check_number("exponent", exponent, low=0, high=1, above=True)
        return cls(compute, send, *joules, limit, fraction, weights, (low, high), density_min, exponent)

    def seconds(self, epochs: Any, data_fraction: Any, density: Any) -> Array:
        """Seconds a device needs with given settings."""
        return epochs * data_fraction * self.compute_seconds + density * self.send_seconds

    def joules(self, epochs: Any, data_fraction: Any, density: Any) -> Array:
        """Joules a device needs with given settings."""
        return epochs * data_fraction * self.compute_joules + density * self.send_joules

    @property
    def least(self) -> tuple[int, Array, float]:
        """The least work for a device: (epochs, data fraction, density)."""
        return self.epochs[0], self.data_fraction_min, self.density_min

    @property
    def affordable(self) -> Array:
        """Devices whose energy limit allows at least the least work."""
        return self.joules(*self.least) <= self.energy_limit * (1 + 1e-12)

    def only(self, chosen: Array) -> "Demands":
        """The same for some devices."""
        return self._replace(**{name: getattr(self, name)[chosen] for name in self._fields[:6]})


def solve(
    compute_seconds: Any,
    send_seconds: Any,
    deadline: float,
    compute_joules: Any = 0.0,
    send_joules: Any = 0.0,
    energy_limit: Any = np.inf,
    equality: bool = False,
    **limits: Any,
) -> Optimum:
    """The exact optimum of P'' for every device: maximise μ₁ α/α_max + μ₂ q + μ₃ s within deadline and energy limit.

    `compute_seconds` is an epoch on all data, `send_seconds` the whole update; the joules likewise. Ties go to fewest
    epochs, then most data. `equality` demands seconds = deadline as printed in the paper; a device that would have to
    be slowed down for that is infeasible_time. `limits` are those of `Demands.of`: importance, epochs,
    data_fraction_min, density_min, and `exponent`, which below 1 makes the utility concave: it shares time out instead
    of giving all of it to one term.

    >>> plan = solve([1.0, 0.1], [1.0, 0.1], deadline=2.0)
    >>> plan.epochs.tolist(), plan.data_fraction.tolist(), plan.density.tolist(), plan.outcome.tolist()
    ([1, 5], [1.0, 1.0], [1.0, 1.0], ['sync', 'idle_saturated'])
    """
    demands = Demands.of(compute_seconds, send_seconds, compute_joules, send_joules, energy_limit, **limits)
    return solve_demands(demands, check_number("deadline", deadline, low=0, above=True), equality)


def solve_demands(demands: Demands, deadline: float, equality: bool = False) -> Optimum:
    """`solve` for checked arguments."""
    count = len(demands.compute_seconds)
    best = np.full(count, -np.inf)
    chosen = np.zeros((3, count))
    for epochs in range(demands.epochs[0], demands.epochs[1] + 1):
        q, s, feasible = _best_fraction(demands, epochs, deadline, equality)
        utility = np.where(feasible, _utility(demands, epochs, q, s), -np.inf)
        better = utility > best + 1e-12  # ties: fewest epochs
        best = np.where(better, utility, best)
        chosen = np.where(better, [np.full(count, float(epochs)), q, s], chosen)
    found = np.isfinite(best)
    a, q, s = chosen
    seconds, joules = demands.seconds(a, q, s), demands.joules(a, q, s)
    outcome = np.select(
        [
            ~demands.affordable,
            ~found,
            seconds >= deadline * (1 - 1e-9),
            (a == demands.epochs[1]) & (q >= 1 - 1e-12) & (s >= 1 - 1e-12),
            joules >= demands.energy_limit * (1 - 1e-9),
        ],
        [NO_ENERGY, NO_TIME, SYNC, SATURATED, ENERGY],
        INTEGER,
    )
    return Optimum(a.astype(np.int64), q, s, seconds, joules, np.where(found, best, 0.0), outcome)


def _utility(demands: Demands, epochs: int, q: Array, s: Array) -> Array:
    one, two, three = demands.importance
    power = demands.exponent
    utility: Array = one * (epochs / demands.epochs[1]) ** power + two * q**power + three * s**power
    return utility


def _best_fraction(demands: Demands, epochs: int, deadline: float, equality: bool) -> tuple[Array, Array, Array]:
    """The best data fraction and density for a number of epochs, and whether a solution exists."""
    a, t = epochs * demands.compute_seconds, demands.send_seconds
    e_a, e_t, limit = epochs * demands.compute_joules, demands.send_joules, demands.energy_limit
    low, s_min = demands.data_fraction_min, demands.density_min
    with np.errstate(divide="ignore", invalid="ignore"):
        high = np.minimum(1, (deadline - t * s_min) / a)
        high = np.minimum(high, _ratio(limit - e_t * s_min, e_a))
        breaks = [(deadline - t) / a, _ratio(limit - e_t, e_a), _ratio(deadline * e_t - limit * t, a * e_t - e_a * t)]
        if equality:
            # s = (T - aq)/t must be in [s_min, 1], and the joules e_t T/t + q (e_a - e_t a/t) within the limit
            low = np.maximum(low, breaks[0])
            slope, bound = e_a - e_t * a / t, limit - e_t * deadline / t
            high = np.where(slope > 0, np.minimum(high, _ratio(bound, slope)), high)
            low = np.where(slope < 0, np.maximum(low, _ratio(bound, slope)), low)
            high = np.where((slope == 0) & (bound < 0), -np.inf, high)
    feasible = (high >= low - 1e-12) & demands.affordable
    high = np.maximum(high, low)

    def density(q: Array) -> Array:
        room = (deadline - a * q) / t
        energy = np.where(e_t > 0, (limit - e_a * q) / np.where(e_t > 0, e_t, 1), np.inf)
        return np.clip(np.minimum(room, energy), s_min, 1)

    at = [low, high]
    if not equality:  # under equality the utility is linear, or concave, between the ends
        at += [np.clip(np.nan_to_num(b, nan=1.0, posinf=1.0, neginf=0.0), low, high) for b in breaks]
    if demands.exponent < 1:
        at.append(_search(lambda q: _utility(demands, epochs, q, density(q)), low, high))
    best_q, best_s, best = low, density(low), np.full(len(a), -np.inf)
    for q in at:
        s = density(q)
        utility = _utility(demands, epochs, q, s)
        if equality:
            exact = abs(a * q + t * s - deadline) <= 1e-9 * deadline
            utility = np.where(exact, utility, -np.inf)
        better = (utility > best + 1e-12) | ((utility > best - 1e-12) & (q > best_q))  # ties: most data
        best_q, best_s = np.where(better, q, best_q), np.where(better, s, best_s)
        best = np.maximum(best, utility)
    return best_q, best_s, feasible & np.isfinite(best)


def _search(function: Any, low: Array, high: Array) -> Array:
    """The maximiser of a concave function on [low, high], for all devices at once, by golden section."""
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        rising = function(left) < function(right)
        low, high = np.where(rising, left, low), np.where(rising, high, right)
    return (low + high) / 2


def _ratio(above: Array, below: Array) -> Array:
    """above / below, infinite where there is nothing to divide by."""
    return np.where(below != 0, above / np.where(below != 0, below, 1), np.inf)


def deadline(
    rule: str,
    demands: Demands,
    *,
    theta: float = 0.5,
    seconds: float = 1.0,
    target: float = 0.8,
) -> float:
    """The common deadline in seconds, by a rule. Devices that cannot afford the least are left out first.

    slowest_minimum: the slowest device doing its least (the paper's T_opt). fastest_full: the fastest device doing all
    (3 epochs, all data, whole update; what the paper's table fits). trade_off: T_opt + theta (T_full - T_opt), T_full
    the slowest device doing all. seconds: as given. target_utility: the smallest whose mean utility reaches `target`.

    >>> demands = Demands.of([1.0, 2.0], [1.0, 1.0])
    >>> deadline("slowest_minimum", demands), deadline("fastest_full", demands)
    (0.7, 4.0)
    """
    check_choice("deadline rule", rule, RULES)
    if not demands.affordable.any():
        raise ValueError(
            f"energy_limit is too low for the least work of every device: the cheapest needs "
            f"{demands.joules(*demands.least).min():.4g} J, the largest limit is {demands.energy_limit.max():.4g} J"
        )
    able = demands.only(demands.affordable)
    least = able.seconds(*able.least)
    full = np.maximum(able.seconds(*FULL), least)
    if rule == "slowest_minimum":
        return float(least.max())
    if rule == "fastest_full":
        return float(full.min())
    if rule == "trade_off":
        share = check_number("theta", theta, low=0, high=1)
        return float(least.max() + share * (full.max() - least.max()))
    if rule == "seconds":
        return check_number("seconds", seconds, low=0, above=True)
    check_number("target", target, low=0, high=1)
    low, high = float(least.max()), float(able.seconds(able.epochs[1], 1.0, 1.0).max())
    reach = [float(solve_demands(able, edge).utility.mean()) for edge in (low, high)]
    if reach[0] >= target:
        return low
    if reach[1] < target - 1e-12:
        raise ValueError(f"target must be at most {reach[1]:.4g}, the mean utility without a deadline, got {target:g}")
    for _ in range(100):
        middle = (low + high) / 2
        if solve_demands(able, middle).utility.mean() >= target:
            high = middle
        else:
            low = middle
    return high


def _several(name: str, value: Any, count: int) -> tuple[Any, ...]:
    try:
        several = tuple(value)
    except TypeError:
        several = ()
    if len(several) != count:
        raise ValueError(f"{name} must be {count} numbers, got {value!r}")
    return several


def _per_device(name: str, value: Any, count: int, infinite: bool = False) -> Array:
    array = check_numbers(name, value, "numbers, one per device")
    if array.ndim == 0:
        array = np.full(count, float(array))
    if array.shape != (count,):
        raise ValueError(f"{name} must be one number or have shape ({count},), got shape {array.shape}")
    if np.isnan(array).any() or (array < 0).any() or (not infinite and np.isinf(array).any()):
        raise ValueError(
            f"{name} must be >= 0{'' if infinite else ' and finite'}, got {array.min():g} to {array.max():g}"
        )
    return array
