"""The devices' hardware: what training and sending cost each of them."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedfilt._brief import brief
from fedfilt._checks import check_number, check_numbers
from fedfilt._draws import RoundKey, in_round
from fedfilt._types import Array
from fedfilt.system import radio

COLUMNS = ("cycles_per_sample", "clock_hz", "transmit_watts", "gain_db", "bandwidth_hz", "energy_limit")


@dataclass(frozen=True, eq=False, repr=False)
class Hardware:
    """Clock, radio and battery of K devices, one number each; see `fedfilt.system.radio` for the equations.

    `variability` is the spread (σ of a log-normal factor) of a device's speed and rate from round to round, which the
    plan knows because devices report their state at the start of a round. `error` is the spread that the plan does not
    know.

    >>> from fedfilt.populations import Paper
    >>> hardware = Paper().draw(np.full(20, 450), 212008, np.random.default_rng(0))
    >>> hardware.count, hardware.compute_seconds().shape
    (20, (20,))
    """

    samples: Array
    cycles_per_sample: Array
    clock_hz: Array
    transmit_watts: Array
    gain_db: Array  # minus path loss
    bandwidth_hz: Array
    energy_limit: Array  # joules per round
    kinds: tuple[str, ...] = ()
    variability: float = 0.0
    error: float = 0.0
    rate_factor: Array | float = 1.0  # by which a device's rate differs in this round
    shared_band: bool = True  # whether the bandwidth of one device could be given to another

    def __repr__(self) -> str:
        return brief(self)

    def __post_init__(self) -> None:
        for name in ("cycles_per_sample", "clock_hz", "transmit_watts", "bandwidth_hz"):
            value = getattr(self, name)
            if value.shape != self.samples.shape or not np.isfinite(value).all() or (value <= 0).any():
                raise ValueError(f"{name} must be one finite number > 0 per device, got {value}")
        check_number("variability", self.variability, low=0)
        check_number("error", self.error, low=0)

    @property
    def count(self) -> int:
        """Number of devices K."""
        return len(self.samples)

    def extended(self, count: int) -> "Hardware":
        """The hardware extended to more devices; new devices are copies of the first ones."""
        rows = np.arange(count) % self.count
        columns = ("samples", *COLUMNS)
        kinds = tuple(self.kinds[row] for row in rows) if self.kinds else ()
        return replace(self, kinds=kinds, **{name: getattr(self, name)[rows] for name in columns})

    def compute_seconds(self) -> Array:
        """Seconds for an epoch on all of a device's data; a device without samples counts as having one."""
        return radio.compute_seconds(1, np.maximum(self.samples, 1), self.cycles_per_sample, self.clock_hz)

    def compute_joules(self) -> Array:
        """Joules for an epoch on all of a device's data."""
        return radio.compute_joules(1, np.maximum(self.samples, 1), self.cycles_per_sample, self.clock_hz)

    def signal_hz(self) -> Array:
        """Signal over noise density."""
        return radio.signal_to_noise_hz(self.transmit_watts, self.gain_db)

    def bits_per_second(self) -> Array:
        """Rate of every device's uplink."""
        return self.rate_factor * radio.bits_per_second(self.bandwidth_hz, self.signal_hz())

    def send_seconds(self, size: float) -> Array:
        """Seconds to send `size` bytes."""
        return 8 * size / self.bits_per_second()

    def send_joules(self, size: float) -> Array:
        """Joules to send `size` bytes."""
        return self.transmit_watts * self.send_seconds(size)

    def at(self, seed: int, round: int) -> "Hardware":
        """The devices in a round, as far as they know their own state when the plan is made."""
        return self._shaken(self.variability, seed, round, RoundKey.SPEED)

    def in_truth(self, seed: int, round: int) -> "Hardware":
        """The devices as they turn out to be in that round; call it on the result of `at`."""
        return self._shaken(self.error, seed, round, RoundKey.SURPRISE)

    def _shaken(self, spread: float, seed: int, round: int, key: int) -> "Hardware":
        if not spread:
            return self
        clock, rate = np.exp(spread * in_round(seed, round, key).standard_normal((2, self.count)))
        cycles = self.cycles_per_sample / clock
        return replace(self, cycles_per_sample=cycles, rate_factor=self.rate_factor * rate)

    @property
    def hash(self) -> str:
        """sha256 of all numbers."""
        digest = hashlib.sha256(f"{self.variability} {self.error}".encode())
        for name in ("samples", *COLUMNS):
            digest.update(getattr(self, name).astype(np.float64).tobytes())
        return digest.hexdigest()


def heterogeneity(seconds: Any) -> float:
    """The paper's H = 1 - mean(min τ / τ) of the devices' latencies: 0 if all are equal, at most 1 - 1/K.

    >>> heterogeneity([1, 2, 4, 4])
    0.5
    """
    latency = check_numbers("seconds", seconds, "numbers, one per device")
    if latency.ndim != 1 or not len(latency) or not np.isfinite(latency).all() or (latency <= 0).any():
        raise ValueError(f"seconds must be finite and > 0, one per device, got {seconds!r}")
    return float(1 - (latency.min() / latency).mean())
