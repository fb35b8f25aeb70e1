"""Recordings of wearables, cut into windows: in time, so that no window of the test overlaps one of training."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedfilt._checks import check_count, check_number
from fedfilt._types import Array
from fedfilt.data.samples import Samples

log = logging.getLogger("fedfilt")


class Recording(NamedTuple):
    """What one device measured while its wearer did one thing. Recordings stand in the order of time."""

    device: int  # from 0; the devices of a person are neighbours in number
    person: int
    label: int
    signal: Array  # (time, channels)
    rate: float = 50.0  # samples a second
    moment: int = -1  # the same number for recordings made at the same time; -1: not known


def windows(
    name: str,
    recordings: Sequence[Recording],
    window: int,
    step: int,
    test_share: float = 0.3,
    classes: int | None = None,
    kinds: tuple[str, ...] | None = None,
    soft: float = 0.0,
) -> Samples:
    """Windows (channels, time) of all recordings; the last `test_share` of every device's time is for testing.

    The cut is made in the time that a device recorded of a label: windows never cross it. Every channel of a device is
    scaled to mean 0 and spread 1 over its training windows and cut off at ±10; see `softened` for `soft`. A window with
    a sample that is not finite is left out.

    >>> walk = Recording(0, 0, 0, np.arange(20.0).reshape(10, 2))
    >>> samples = windows("made", [walk], window=2, step=1, test_share=0.4)
    >>> samples.x.shape, samples.test.sum()
    ((8, 2, 2), np.int64(3))
    """
    check_count("window", window, low=2)
    check_count("step", step)
    check_number("test_share", test_share, low=0, high=0.9)
    _check(name, recordings, classes)
    found: list[tuple[Array, Recording, bool, int]] = []  # (windows, recording, test, first moment)
    dropped = 0
    for part in _by_device_and_label(recordings):
        cut = round((1 - test_share) * sum(len(recording.signal) for recording in part))
        for recording in part:
            at = min(max(cut, 0), len(recording.signal))
            for piece, test, offset in ((recording.signal[:at], False, 0), (recording.signal[at:], True, at)):
                cuts, starts = _cut(piece, window, step)
                good = np.isfinite(cuts).all(axis=(1, 2))
                dropped += int((~good).sum())
                found += [(c, recording, test, offset + s) for c, s in zip(cuts[good], starts[good], strict=True)]
            cut -= len(recording.signal)
    if dropped:
        log.warning("%s: %d windows with samples that are not finite are left out", name, dropped)
    samples = _samples(name, recordings, found, classes, kinds)
    return replace(samples, x=softened(samples.x, soft))


def softened(x: Array, soft: float) -> Array:
    """Loud motions drawn together, so that quiet ones are told apart too: asinh(soft · x); 0 leaves all as it is.

    >>> softened(np.array([0.1, 1.0, 10.0]), 3.0).round(1).tolist()
    [0.3, 1.8, 4.1]
    """
    check_number("soft", soft, low=0)
    return np.arcsinh(soft * x).astype(x.dtype) if soft else x


def _check(name: str, recordings: Sequence[Recording], classes: int | None) -> None:
    if not recordings:
        raise ValueError(f"{name} must have recordings, got none")
    first = recordings[0]
    owner: dict[int, int] = {}
    for recording in recordings:
        who = f"{name}: a recording of device {recording.device}"
        check_count(f"the label of {who}", recording.label, low=0, high=None if classes is None else classes - 1)
        if recording.signal.ndim != 2 or recording.signal.shape[1] != first.signal.shape[1]:
            raise ValueError(
                f"{who} must have {first.signal.shape[1]} channels like others, got shape {recording.signal.shape}; "
                "give channels that a device lacks as zeros, and its kind"
            )
        if recording.rate != first.rate:
            raise ValueError(
                f"{who} has {recording.rate:g} samples a second, others {first.rate:g}; bring all to one rate first"
            )
        if owner.setdefault(recording.device, recording.person) != recording.person:
            raise ValueError(f"{who} is of person {recording.person}, others of {owner[recording.device]}")
    if sorted(owner) != list(range(len(owner))):
        raise ValueError(f"{name}: devices must be numbered 0, 1, 2, ..., got {sorted(owner)}")


def _by_device_and_label(recordings: Sequence[Recording]) -> list[list[Recording]]:
    parts: dict[tuple[int, int], list[Recording]] = {}
    for recording in recordings:
        parts.setdefault((recording.device, recording.label), []).append(recording)
    return [parts[key] for key in sorted(parts)]


def _cut(piece: Array, window: int, step: int) -> tuple[Array, Array]:
    """(windows (n, channels, time), where each starts)."""
    if len(piece) < window:
        return np.empty((0, piece.shape[1], window)), np.empty(0, np.int64)
    cuts = np.lib.stride_tricks.sliding_window_view(piece, window, axis=0)[::step]
    return cuts, step * np.arange(len(cuts))


def _samples(
    name: str,
    recordings: Sequence[Recording],
    found: list[tuple[Array, Recording, bool, int]],
    classes: int | None,
    kinds: tuple[str, ...] | None,
) -> Samples:
    devices = np.array([recording.device for _, recording, _, _ in found], np.int64)
    test = np.array([is_test for _, _, is_test, _ in found], bool)
    x = np.stack([cut for cut, _, _, _ in found]).astype(np.float32) if found else np.empty((0, 1, 1), np.float32)
    for device in range(max(recording.device for recording in recordings) + 1):
        own = devices == device
        if not (own & ~test).any():
            raise ValueError(f"{name}: device {device} has no whole window to train on; record more, or shorten window")
        known = x[own & ~test].astype(np.float64)
        mean, spread = known.mean(axis=(0, 2)), known.std(axis=(0, 2))
        spread = np.where(spread > 1e-9, spread, 1)  # a channel that never changes is 0
        x[own] = np.clip((x[own] - mean[:, None]) / spread[:, None], -10, 10)
    labels = np.array([recording.label for _, recording, _, _ in found], np.int64)
    people = np.array([recording.person for _, recording, _, _ in found], np.int64)
    known_moments = all(recording.moment >= 0 for recording in recordings)
    moments = np.array([(recording.moment << 32) + start for _, recording, _, start in found], np.int64)
    number = int(max(recording.label for recording in recordings)) + 1 if classes is None else classes
    return Samples(name, x, labels, number, test, people, devices, moments if known_moments else None, kinds)
