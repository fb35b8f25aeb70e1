"""Cuts recordings of wearables into windows, split in time so that test and training windows never overlap."""

import json
import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedfilt._checks import check_count, check_number
from fedfilt._types import Array
from fedfilt.data.samples import Samples, flat

log = logging.getLogger("fedfilt")

TRAIN, VALIDATION, TEST = range(3)  # parts of a device's time
LARGEST = 1e100  # mean or square of a channel; float32 values stay below


class Recording(NamedTuple):
    """What one device measured during one activity of its wearer. Recordings are in order of time."""

    device: int  # from 0; the devices of a person have consecutive numbers
    person: int
    label: int
    signal: Array  # (time, channels)
    rate: float = 50.0  # samples per second
    moment: int = -1  # the same number for recordings made at the same time; -1: unknown


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

    The time that a device recorded for each label is split, and windows never cross the split. Every channel of a
    device is scaled to mean 0 and spread 1 over its training windows and clipped to ±10; see `softened` for `soft`.
    Windows with samples that are not finite are dropped.

    Devices of different kinds may have different channels and rates: `window` and `step` count rows of the fastest
    device, windows of the others last as long, and the samples have `shapes`.

    >>> walk = Recording(0, 0, 0, np.arange(20.0).reshape(10, 2))
    >>> samples = windows("made", [walk], window=2, step=1, test_share=0.4)
    >>> samples.x.shape, samples.test.sum()
    ((8, 2, 2), np.int64(3))
    """
    _check(name, recordings, classes, kinds)
    fastest, found = max(recording.rate for recording in recordings), []
    for rate in sorted({recording.rate for recording in recordings}, reverse=True):
        rows, hop = (math.ceil(number * rate / fastest - 1e-9) for number in (window, step))
        cuts = cut_windows(name, [one for one in recordings if one.rate == rate], rows, hop, test_share)
        found += [cut._replace(start=round(cut.start * fastest / rate)) for cut in cuts]
    found.sort(key=lambda cut: (cut.recording.device, cut.recording.label))  # the same order for all rates
    return _samples(name, recordings, found, classes, kinds, soft)


class Cut(NamedTuple):
    """A window, and where it was cut."""

    window: Array  # (channels, time)
    recording: Recording
    part: int  # TRAIN, VALIDATION or TEST
    start: int  # in the recording


def cut_windows(
    name: str,
    recordings: Sequence[Recording],
    window: int,
    step: int,
    test_share: float,
    validation_share: float = 0.0,
) -> list[Cut]:
    """Windows of every device and label, in order of time; none crosses the end of a part."""
    check_count("window", window, low=2)
    check_count("step", step)
    check_number("test_share", test_share, low=0, high=0.9)
    found: list[Cut] = []
    dropped = 0
    for same in _by_device_and_label(recordings):
        ends = part_ends(sum(len(recording.signal) for recording in same), validation_share, test_share)
        before = 0
        for recording in same:
            at = [min(max(end - before, 0), len(recording.signal)) for end in (0, *ends)]
            for part in (TRAIN, VALIDATION, TEST):
                cuts, starts = _cut(recording.signal[at[part] : at[part + 1]], window, step)
                good = np.isfinite(cuts).all(axis=(1, 2))
                dropped += int((~good).sum())
                pairs = zip(cuts[good], starts[good], strict=True)
                found += [Cut(values, recording, part, at[part] + start) for values, start in pairs]
            before += len(recording.signal)
    if dropped:
        log.warning("%s: %d windows with samples that are not finite are skipped", name, dropped)
    return found


def part_ends(total: int, validation_share: float, test_share: float) -> tuple[int, int, int]:
    """Where training, validation and test end in the recorded time of a label; training comes first.

    >>> part_ends(10, 0.1, 0.2), part_ends(3, 0.1, 0.2), part_ends(1, 0.1, 0.2)
    ((7, 8, 10), (2, 2, 3), (1, 1, 1))
    """
    train = max(round((1 - test_share - validation_share) * total), min(total, 1))
    return train, max(round((1 - test_share) * total), train), total


class Scaling(NamedTuple):
    """How a device scales its samples: each channel, or each feature of samples without channels, separately."""

    mean: Array
    spread: Array
    soft: float = 0.0  # see `softened`

    @classmethod
    def of(cls, x: Array, soft: float = 0.0) -> "Scaling":
        """The scaling that gives samples x (n, channels, ...) mean 0 and spread 1; without samples, none.

        >>> Scaling.of(np.array([[[0.0, 2.0]], [[4.0, 6.0]]]))
        Scaling(mean=array([3.]), spread=array([2.23606798]), soft=0.0)
        """
        if not len(x):
            return cls(np.zeros(x.shape[1]), np.ones(x.shape[1]), soft)
        known, axes = np.ascontiguousarray(x, np.float64), (0, *range(2, x.ndim))
        spread = known.std(axis=axes)
        return cls(known.mean(axis=axes), np.where(spread > 1e-9, spread, 1), soft)  # a constant channel becomes 0

    def apply(self, x: Array) -> Array:
        """Samples (n, channels, ...) scaled, clipped to ±10 and softened, as float32."""
        mean, spread = (values.reshape(-1, *[1] * (x.ndim - 2)) for values in (self.mean, self.spread))
        return softened(np.clip((x - mean) / spread, -10, 10).astype(np.float32), self.soft)

    @property
    def unknown(self) -> bool:
        """Whether it was made without samples."""
        return bool((self.mean == 0).all() and (self.spread == 1).all())

    def to_json(self) -> str:
        """The exact scaling as text."""
        return json.dumps({"mean": self.mean.tolist(), "spread": self.spread.tolist(), "soft": self.soft})

    @classmethod
    def from_json(cls, text: str) -> "Scaling":
        """Read the scaling from such a text.

        >>> Scaling.from_json(Scaling(np.array([0.1]), np.array([3.0])).to_json())
        Scaling(mean=array([0.1]), spread=array([3.]), soft=0.0)
        """
        try:
            table: dict[str, Any] = json.loads(text)
            mean, spread = (np.array(table[key], np.float64) for key in ("mean", "spread"))
            soft = check_number("soft", table["soft"], low=0)
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"not a scaling: {error}") from None
        if mean.ndim != 1 or mean.shape != spread.shape or not np.isfinite([mean, spread]).all() or (spread <= 0).any():
            raise ValueError("not a scaling: it must have a finite mean and a spread > 0 per channel")
        return cls(mean, spread, soft)


class Seen(NamedTuple):
    """Statistics of all that a device's sensors have measured, labelled or not: enough for scaling."""

    windows: int
    mean: Array  # of every channel
    square: Array  # mean of the squares

    @classmethod
    def of(cls, x: Array) -> "Seen":
        """The statistics of windows (n, channels, ...).

        >>> one, other = Seen.of(np.array([[[0.0, 2.0]]])), Seen.of(np.array([[[4.0, 6.0]]]))
        >>> one.and_then(other).scaling()
        Scaling(mean=array([3.]), spread=array([2.23606798]), soft=0.0)
        """
        known, axes = x.astype(np.float64), (0, *range(2, x.ndim))
        return cls(len(x), known.mean(axis=axes), (known * known).mean(axis=axes))

    def and_then(self, new: "Seen", most: int = 20_000) -> "Seen":
        """Combined with `new` windows; beyond `most` windows, old ones fade."""
        share = new.windows / (self.windows + new.windows)
        mean, square = (old + share * (late - old) for old, late in zip(self[1:], new[1:], strict=True))
        return Seen(min(self.windows + new.windows, most), mean, square)

    def scaling(self, soft: float = 0.0) -> Scaling:
        """The scaling that gives everything measured mean 0 and spread 1."""
        spread = np.sqrt(np.maximum(self.square - self.mean**2, 0))
        return Scaling(self.mean, np.where(spread > 1e-9, spread, 1), soft)

    def to_json(self) -> str:
        """The statistics as text."""
        return json.dumps({"windows": self.windows, "mean": self.mean.tolist(), "square": self.square.tolist()})

    @classmethod
    def from_json(cls, text: str) -> "Seen":
        """Read statistics from such a text."""
        try:
            table: dict[str, Any] = json.loads(text)
            mean, square = (np.array(table[key], np.float64) for key in ("mean", "square"))
            windows = check_count("windows", table["windows"])
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"not what a device has seen: {error}") from None
        if mean.ndim != 1 or mean.shape != square.shape or not (np.abs([mean, square]) <= LARGEST).all():
            raise ValueError(f"not what a device has seen: per channel, mean and square must be at most {LARGEST:g}")
        return cls(windows, mean, square)


def softened(x: Array, soft: float) -> Array:
    """Compress strong motions so that weak ones stay distinct: asinh(soft · x); 0 changes nothing.

    >>> softened(np.array([0.1, 1.0, 10.0]), 3.0).round(1).tolist()
    [0.3, 1.8, 4.1]
    """
    check_number("soft", soft, low=0)
    return np.arcsinh(soft * x).astype(x.dtype) if soft else x


def _check(name: str, recordings: Sequence[Recording], classes: int | None, kinds: tuple[str, ...] | None) -> None:
    if not recordings:
        raise ValueError(f"{name} must have recordings, got none")
    like: dict[str, Recording] = {}
    owner: dict[int, int] = {}
    for recording in recordings:
        if kinds is not None and recording.device >= len(kinds):
            raise ValueError(f"{name}: kinds must be one per device, got {len(kinds)} and device {recording.device}")
        first = like.setdefault("" if kinds is None else kinds[recording.device], recording)
        who = f"{name}: a recording of device {recording.device}"
        check_count(f"the label of {who}", recording.label, low=0, high=None if classes is None else classes - 1)
        if recording.signal.ndim != 2 or recording.signal.shape[1] != first.signal.shape[1]:
            raise ValueError(
                f"{who} must have {first.signal.shape[1]} channels like others, got shape {recording.signal.shape}; "
                "set the kind of every device and use encoders for kinds (encoder.latent), or fill missing channels "
                "with zeros"
            )
        if recording.rate != first.rate:
            raise ValueError(
                f"{who} has {recording.rate:g} samples per second, others {first.rate:g}; bring all to one rate first, "
                "or set the kind of every device and use encoders for kinds (encoder.latent)"
            )
        if owner.setdefault(recording.device, recording.person) != recording.person:
            raise ValueError(f"{who} belongs to person {recording.person}, others to person {owner[recording.device]}")
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
    found: Sequence[Cut],
    classes: int | None,
    kinds: tuple[str, ...] | None,
    soft: float,
) -> Samples:
    devices = np.array([cut.recording.device for cut in found], np.int64)
    test = np.array([cut.part == TEST for cut in found], bool)
    held: list[Array] = []
    for device in range(max(recording.device for recording in recordings) + 1):
        own = np.flatnonzero(devices == device)
        if test[own].all():
            raise ValueError(
                f"{name}: device {device} has no whole window for training; record more, or shorten window"
            )
        values = np.stack([found[int(i)].window for i in own]).astype(np.float32)
        held.append(Scaling.of(values[~test[own]], soft).apply(values))
    shapes = tuple(values.shape[1:] for values in held)
    unlike = len(set(shapes)) > 1
    held = flat(held) if unlike else held
    x = np.empty((len(found), *held[0].shape[1:]), np.float32)
    for device, values in enumerate(held):
        x[devices == device] = values
    labels = np.array([cut.recording.label for cut in found], np.int64)
    people = np.array([cut.recording.person for cut in found], np.int64)
    known_moments = all(recording.moment >= 0 for recording in recordings)
    moments = np.array([(cut.recording.moment << 32) + cut.start for cut in found], np.int64)
    number = int(max(recording.label for recording in recordings)) + 1 if classes is None else classes
    known = moments if known_moments else None
    return Samples(name, x, labels, number, test, people, devices, known, kinds, shapes if unlike else None)
