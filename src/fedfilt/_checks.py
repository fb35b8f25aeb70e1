"""Checks of user input: every error names the argument, the value and what is allowed."""

import difflib
import math
import numbers
import re
from collections.abc import Iterable

import numpy as np

from fedfilt._types import Array

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def check_number(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, above: bool = False
) -> float:
    """Return `value` as a float if it is a finite number in [low, high] (or (low, high] if `above`)."""
    allowed = f"a finite number {'>' if above else '>='} {low:g}" if low > -math.inf else "a finite number"
    if high < math.inf:
        allowed += f" and <= {high:g}"
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < low or number > high or (above and number <= low):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return number


def check_span(name: str, text: str, longest: float = math.inf) -> float:
    """Return a time span such as 30s, 20min, 6h, 2d or 1w in seconds, if it is longer than 0.

    >>> check_span("every", "90s"), check_span("every", "1.5 h")
    (90.0, 5400.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)", text.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= longest:
        limit = "" if longest == math.inf else f" of at most {longest:g} s"
        raise ValueError(f"{name} must be a time{limit} such as 30s, 20min, 6h or 2d, got {text!r}")
    return seconds


def check_count(name: str, value: object, low: int = 1, high: int | None = None) -> int:
    """Return `value` as an int if it is a whole number in [low, high]."""
    fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not fits or value < low or (high is not None and value > high):  # type: ignore[operator]
        allowed = f">= {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {allowed}, got {value!r}")
    return int(value)  # type: ignore[call-overload]


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`; otherwise name the nearest one."""
    choices = list(choices)
    if value in choices:
        return str(value)
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {name} {value!r}{hint} (allowed: {', '.join(sorted(set(choices)))})")


def check_signal(name: str, value: object, count: int) -> Array:
    """Return `value` if it is a finite float (K, B) array with one row per device."""
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float32, np.float64):
        got = f"dtype {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"{name} must be a NumPy array of float32 or float64, got {got}")
    if value.ndim != 2 or value.shape[0] != count:
        raise ValueError(f"{name} must have shape ({count}, B), one row per device, got shape {value.shape}")
    # min and max propagate NaN and, unlike isfinite(value), need no memory
    if value.size and not (np.isfinite(value.min()) and np.isfinite(value.max())):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return value


def check_row(name: str, value: object, size: int, kind: type[np.generic] = np.float32) -> Array:
    """Return a copy of `value` if it is a finite (B,) array of exactly this type, one number per column of a row."""
    if not isinstance(value, np.ndarray) or value.dtype != kind or value.shape != (size,):
        got = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"{name} must be a NumPy array of {np.dtype(kind)} with shape ({size},), got {got}")
    if not np.isfinite(value).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return np.array(value)


def check_numbers(name: str, value: object, what: str) -> Array:
    """Return `value` as a new float64 array if it holds real numbers: no strings, complex or masked values."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "buif" or isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{name} must be {what}, got {value!r}")
    return array.astype(np.float64)


def check_weights(name: str, value: object, count: int, per: str = "device") -> Array:
    """Return `value` as float64 if it holds one finite, non-negative weight per device; None means equal weights."""
    if value is None:
        return np.ones(count)
    weights = check_numbers(name, value, f"numbers, one per {per}")
    if weights.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), one per {per}, got shape {weights.shape}")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"{name} must be finite and >= 0, got values from {weights.min():g} to {weights.max():g}")
    return weights
