from dataclasses import dataclass, replace

import numpy as np

from fedfilt._checks import check_choice, check_number
from fedfilt._types import Array
from fedfilt.system import radio
from fedfilt.system.hardware import Hardware
from fedfilt.system.orders import Plan, Schedule, whole
from fedfilt.system.planning import RULES, Demands, Optimum, deadline, solve_demands


@dataclass(frozen=True)
class SameDeadline:
    """Every device does as much as it can by a common deadline: problem P'', solved exactly in `system/planning.py`.

    `equality` requires every device to finish exactly at the deadline, as in the paper's printed C1; a device that
    cannot (no whole number of epochs fits, it already does all it may, or its battery is too weak) does as much as it
    can by then, as without `equality`. `bandwidth` "optimal" splits the band so that the least work ends earliest,
    instead of equally; `slow_clocks` lets devices that would idle compute more slowly, for fewer joules; `exponent` < 1
    makes the utility concave.

    >>> from fedfilt.populations import Prescribed
    >>> devices = Prescribed(0.31, 1.92).draw(np.full(20, 450), 212024, np.random.default_rng(0))
    >>> schedule = SameDeadline()(devices, 212024)
    >>> {plan.outcome for plan in schedule.plans}
    {'sync'}
    """

    deadline: str = "slowest_minimum"  # "slowest_minimum", "fastest_full", "trade_off", "seconds" or "target_utility"
    theta: float = 0.5  # where "trade_off" is between the slowest device's least and its all
    seconds: float = 1.0  # of a round, for "seconds"
    target: float = 0.8  # mean utility, for "target_utility"
    importance: tuple[float, float, float] = (0.4, 0.4, 0.2)  # of epochs, data and what is sent
    epochs: tuple[int, int] = (1, 5)  # least and most
    data_fraction_min: float = 0.3  # of a device's samples
    density_min: float = 0.1  # of the update's bytes
    exponent: float = 1.0  # below 1, time is spread over the three terms
    bandwidth: str = "equal"  # "equal" or "optimal"
    slow_clocks: bool = False  # devices that would idle compute more slowly
    equality: bool = False  # devices end exactly at the deadline, if they can

    def __post_init__(self) -> None:
        check_choice("deadline", self.deadline, RULES)
        check_choice("bandwidth", self.bandwidth, ("equal", "optimal"))
        self._demands(np.ones(1), np.ones(1), np.zeros(1), np.zeros(1), np.ones(1), np.ones(1))  # checks the rest

    def __call__(self, hardware: Hardware, update_bytes: int) -> Schedule:
        working = hardware.samples > 0  # a device without samples has nothing to train or send
        if not working.any():
            raise ValueError("no device has samples to train on")
        demands, end = self._bounds(hardware, update_bytes, working)
        if self.bandwidth == "optimal":
            anew = self._shared_out(hardware, update_bytes, working & demands.affordable)
            better, sooner = self._bounds(anew, update_bytes, working)
            # Sending in a narrower band takes more joules: if a battery cannot afford that, the split stays equal
            if (better.affordable | ~demands.affordable).all() and sooner <= end:
                hardware, demands, end = anew, better, sooner
        plans = self._solved(demands, end)
        taken = working & (plans.epochs > 0)
        if not taken.any():
            raise ValueError(f"no device can do its least by the deadline of {end:.4g} s; allow more time")
        fraction, density = self._whole_samples(hardware.samples, demands, plans, end)
        clock = np.ones(hardware.count)
        if self.slow_clocks:
            computing = plans.epochs * fraction * demands.compute_seconds
            with np.errstate(divide="ignore", invalid="ignore"):
                clock = np.clip(computing / (end - density * demands.send_seconds), 1e-3, 1)
        return Schedule(
            [
                Plan(
                    int(plans.epochs[i]),
                    float(fraction[i]),
                    float(density[i]),
                    float(clock[i]),
                    float(hardware.bandwidth_hz[i]),
                    str(plans.outcome[i]),
                )
                if taken[i]
                else Plan(0, 0.0, 0.0, outcome=str(plans.outcome[i]) if working[i] else "no_samples")
                for i in range(hardware.count)
            ],
            end,
        )

    def _solved(self, demands: Demands, end: float) -> Optimum:
        """The optimum by the deadline; with `equality`, exactly at it for devices that can."""
        within = solve_demands(demands, end)
        if not self.equality:
            return within
        exact = solve_demands(demands, end, equality=True)
        return Optimum(*(np.where(exact.epochs > 0, *pair) for pair in zip(exact, within, strict=True)))

    def _bounds(self, hardware: Hardware, update_bytes: int, working: Array) -> tuple[Demands, float]:
        """The devices' demands, and the deadline that follows."""
        demands = self._demands(
            hardware.compute_seconds(),
            hardware.send_seconds(update_bytes),
            hardware.compute_joules(),
            hardware.send_joules(update_bytes),
            hardware.energy_limit,
            hardware.samples,
        )
        options = {"theta": self.theta, "seconds": self.seconds, "target": self.target}
        return demands, deadline(self.deadline, demands.only(working), **options)

    def _demands(
        self, compute: Array, send: Array, compute_joules: Array, send_joules: Array, limit: Array, samples: Array
    ) -> Demands:
        check_number("data_fraction_min", self.data_fraction_min, low=0, high=1, above=True)
        fraction = np.maximum(self.data_fraction_min, 1 / np.maximum(samples, 1))  # at least one sample
        bounds = self.importance, self.epochs, fraction, self.density_min, self.exponent
        return Demands.of(compute, send, compute_joules, send_joules, limit, *bounds)

    def _shared_out(self, hardware: Hardware, update_bytes: int, taking_part: Array) -> Hardware:
        """Split the whole bandwidth so that all devices finish their least work together, as early as possible."""
        if not hardware.shared_band:
            raise ValueError("bandwidth = 'optimal' needs devices that share a band; these have separate links")
        least = self.epochs[0] * self.data_fraction_min * hardware.compute_seconds()
        bits = 8 * self.density_min * update_bytes / np.broadcast_to(hardware.rate_factor, hardware.count)
        band = hardware.bandwidth_hz.copy()
        signal, total = hardware.signal_hz()[taking_part], float(band.sum())
        band[taking_part] = radio.allocate_bandwidth(least[taking_part], bits[taking_part], signal, total)[1]
        return replace(hardware, bandwidth_hz=band)

    def _whole_samples(self, samples: Array, demands: Demands, plans: Optimum, end: float) -> tuple[Array, Array]:
        """Data fractions rounded down to whole samples; the time and energy that frees goes to the density."""
        held = np.maximum(samples, 1)
        fraction = whole(plans.data_fraction, held) / held
        work = plans.epochs * fraction
        room = (end - work * demands.compute_seconds) / demands.send_seconds
        with np.errstate(divide="ignore", invalid="ignore"):
            spare = (demands.energy_limit - work * demands.compute_joules) / demands.send_joules
        spare = np.where(demands.send_joules > 0, spare, np.inf)
        return fraction, np.clip(np.minimum(room, spare), plans.density, 1)
