from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_number
from fedfilt._types import Array
from fedfilt.system import radio
from fedfilt.system.hardware import Hardware, heterogeneity


@dataclass(frozen=True)
class Prescribed:
    """Devices with an exactly prescribed heterogeneity H and slowest/fastest ratio at full work (3 epochs, all data).

    τ_i = m (1 + (ratio - 1) u_i^γ), u_i = i / (K - 1), with γ found for H; every device sends in share · m and computes
    the rest.
    The paper's cases (H, ratio): (0.31, 1.92), (0.54, 3.17), (0.65, 6.83).

    >>> from fedfilt.system.hardware import heterogeneity
    >>> devices = Prescribed(0.54, 3.17).draw(np.full(20, 450), 212008, np.random.default_rng(0))
    >>> full = 3 * devices.compute_seconds() + devices.send_seconds(212008)
    >>> round(heterogeneity(full), 9), round(float(full.max() / full.min()), 9)
    (0.54, 3.17)
    """

    heterogeneity: float = 0.31  # H of the paper
    ratio: float = 1.92  # of the slowest to the fastest device
    fastest_seconds: float = 0.9  # of the fastest device, for everything
    send_share: float = 0.5  # of these seconds that goes into sending
    variability: float = 0.0  # spread from round to round that devices report before the plan is made
    error: float = 0.0  # spread that nobody knows in advance

    def __post_init__(self) -> None:
        check_number("heterogeneity", self.heterogeneity, low=0, high=1)
        check_number("ratio", self.ratio, low=1)
        check_number("fastest_seconds", self.fastest_seconds, low=0, above=True)
        check_number("send_share", self.send_share, low=0, high=0.99, above=True)

    def draw(self, samples: Array, update_bytes: int, rng: np.random.Generator) -> Hardware:
        """The hardware: the speeds are fixed, and it is drawn at random which device has which."""
        count = len(samples)
        place = np.arange(count) / max(count - 1, 1)

        def latency(power: float) -> Array:
            return self.fastest_seconds * (1 + (self.ratio - 1) * place**power)

        low, high = 1e-6, 1e6  # a larger power makes more devices fast: H falls
        if not heterogeneity(latency(high)) - 1e-9 <= self.heterogeneity <= heterogeneity(latency(low)) + 1e-9:
            raise ValueError(
                f"heterogeneity must be from {heterogeneity(latency(high)):.4g} to {heterogeneity(latency(low)):.4g} "
                f"for {count} devices of ratio {self.ratio:g}, got {self.heterogeneity:g}"
            )
        for _ in range(200):
            middle = np.sqrt(low * high)
            low, high = (middle, high) if heterogeneity(latency(middle)) > self.heterogeneity else (low, middle)
        seconds = rng.permutation(latency(np.sqrt(low * high)))
        send = np.full(count, self.send_share * self.fastest_seconds)
        clock = np.full(count, 2.25e9)
        band = np.maximum(20e6 / count, 8 * update_bytes / send / 10)  # at least what 10 bits per second and Hz need
        power = np.full(count, 0.75)
        cycles = (seconds - send) / 3 * clock / np.maximum(samples, 1)
        signal = band * (2 ** (8 * update_bytes / send / band) - 1)  # that carries the update in just that time
        gain = 10 * np.log10(signal * radio.watts(radio.NOISE_DBM_PER_HZ) / power)
        limit = np.full(count, np.inf)
        held = np.asarray(samples)
        return Hardware(held, cycles, clock, power, gain, band, limit, (), self.variability, self.error)
