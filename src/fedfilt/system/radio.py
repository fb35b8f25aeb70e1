"""Clocks and radios: the paper's equations for rates, seconds and joules."""

from typing import Any

import numpy as np

from fedfilt._checks import check_number, check_numbers
from fedfilt._types import Array

NOISE_DBM_PER_HZ = -174.0
SWITCHED_CAPACITANCE = 1e-28  # joules per cycle and Hz²


def watts(dbm: Any) -> Array:
    """Decibel-milliwatts as watts."""
    return np.asarray(10 ** (np.asarray(dbm, dtype=float) / 10) / 1000)


def signal_to_noise_hz(transmit_watts: Any, gain_db: Any, noise_dbm_per_hz: float = NOISE_DBM_PER_HZ) -> Array:
    """ξp / n₀ in Hz: the bandwidth at which signal and noise are equally strong."""
    power = _positive("transmit_watts", transmit_watts)
    return power * 10 ** (np.asarray(gain_db, dtype=float) / 10) / watts(noise_dbm_per_hz)


def bits_per_second(bandwidth_hz: Any, signal_hz: Any) -> Array:
    """r = b log₂(1 + g / b), with g = ξp / n₀ from `signal_to_noise_hz`.

    >>> float(bits_per_second(1e6, signal_to_noise_hz(0.75, 1.5)).round(-3))
    47919000.0
    """
    band = _positive("bandwidth_hz", bandwidth_hz)
    return band * np.log2(1 + _positive("signal_hz", signal_hz) / band)


def compute_seconds(epochs: Any, samples: Any, cycles_per_sample: Any, clock_hz: Any) -> Array:
    """τ_comp = α ψ ρ / f.

    >>> float(compute_seconds(3, 450, 3e4, 2.25e9))
    0.018
    """
    clock = _positive("clock_hz", clock_hz)
    return np.asarray(epochs) * np.asarray(samples) * _positive("cycles_per_sample", cycles_per_sample) / clock


def compute_joules(
    epochs: Any, samples: Any, cycles_per_sample: Any, clock_hz: Any, capacitance: float = SWITCHED_CAPACITANCE
) -> Array:
    """E_comp = ς α ψ ρ f².

    >>> float(compute_joules(3, 450, 3e4, 2.25e9).round(7))
    0.0205031
    """
    work = np.asarray(epochs) * np.asarray(samples) * _positive("cycles_per_sample", cycles_per_sample)
    return capacitance * work * _positive("clock_hz", clock_hz) ** 2


def allocate_bandwidth(compute_seconds: Any, bits: Any, signal_hz: Any, total_hz: float) -> tuple[float, Array]:
    """Split the bandwidth so that all devices finish together, as early as possible: (seconds, bandwidth per device).

    A device that computes for c_i and sends n_i bits needs the band b_i(T) with r_i(b_i) = n_i / (T - c_i). As r is
    increasing and concave in b, Σ b_i(T) falls with T; T is found where it is the total.

    >>> seconds, bands = allocate_bandwidth([0.5, 1.0], [1.0, 1.0], [10.0, 10.0], 2.0)
    >>> round(seconds, 7), bands.round(6).tolist()
    (1.2092029, [0.268107, 1.731893])
    """
    start = check_numbers("compute_seconds", compute_seconds, "numbers, one per device")
    size, signal = _positive("bits", bits), _positive("signal_hz", signal_hz)
    try:
        start, size, signal = np.broadcast_arrays(np.atleast_1d(start), size, signal)
    except ValueError:
        shapes = f"{start.shape}, {size.shape} and {signal.shape}"
        raise ValueError(f"compute_seconds, bits and signal_hz must have one number per device, got {shapes}") from None
    if start.ndim != 1 or not len(start) or not np.isfinite(start).all() or (start < 0).any():
        raise ValueError(f"compute_seconds must be finite and >= 0, one per device, got {compute_seconds!r}")
    total = check_number("total_hz", total_hz, low=0, above=True)
    equal = start + size / bits_per_second(np.full(len(start), total / len(start)), signal)
    low, high = float(start.max()), float(equal.max())  # the equal split is enough for the last of them
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _bands(size / (middle - start), signal, total).sum() > total:
            low = middle
        else:
            high = middle
    bands = _bands(size / (high - start), signal, total)
    return high, bands * (total / bands.sum())


def _bands(rates: Array, signal: Array, total: float) -> Array:
    """Smallest bandwidth that carries each rate (infinite above twice the total), by bisection."""
    limit = signal / np.log(2)  # what unlimited bandwidth would carry
    low, high = np.zeros_like(rates), np.full_like(rates, 2 * total)
    for _ in range(100):
        middle = (low + high) / 2
        enough = middle * np.log2(1 + signal / np.maximum(middle, 1e-300)) >= rates
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(rates < limit, high, 2 * total)


def _positive(name: str, value: Any) -> Array:
    array = check_numbers(name, value, "numbers, one per device")
    if not np.isfinite(array).all() or (array <= 0).any():
        raise ValueError(
            f"{name} must be finite and > 0, got {array[~(array > 0)].min() if (array <= 0).any() else array}"
        )
    return array
