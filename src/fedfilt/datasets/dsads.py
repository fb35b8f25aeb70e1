import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_choice
from fedfilt._types import Array
from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, DataMissing, Store
from fedfilt.data.windows import Recording, windows

UNITS = ("torso", "right arm", "left arm", "right leg", "left leg")
# Watches have an accelerometer, phones a gyroscope too, units everything
CHANNELS = {"watch": 3, "phone": 6, "unit": 9}
RATE = 25.0  # Hz
PUBLIC = "https://archive.ics.uci.edu/dataset/256/daily+and+sports+activities"
SEGMENT = (125, 45)  # 5 seconds at 25 Hz; 5 units x 9 channels


@dataclass(frozen=True)
class Dsads:
    """Daily and Sports Activities: 8 people x 5 units worn at once = 40 devices, 19 activities, 9 channels at 25 Hz.

    The file is part of the public archive (UCI data set 256): the first 15 of 60 segments of 5 s. `archive` is the path
    of the public zip, which must be downloaded by hand, or of another with its layout, to use instead. `sensors`
    "unlike" leaves the arms only an accelerometer (watches), the torso accelerometer and gyroscope (a phone), and the
    legs all nine channels; with "mixed", every home also has all three kinds, but each person wears them in other
    places.

    Watches may have half the rate, `watch_rate` 12.5. With `pad`, all windows have nine channels at the full rate:
    zeros for missing sensors, and the values of watches twice; without it, windows of each kind have their own shape.

    >>> Dsads(sensors="unlike").files[0].name
    'dsads-s01-s15.zip'
    """

    test_share: float = 1 / 3  # share of a recording to test on: its end
    soft: float = 0.0  # draws loud motions together: asinh(soft · x); 0 leaves all as it is
    sensors: str = "same"  # "same" on all units, "unlike" by place, or "mixed"
    archive: str = ""  # the public zip, or another of its layout, instead of the packed part
    watch_rate: float = RATE  # Hz, or half of it for watches
    pad: bool = True  # zeros for sensors that a device lacks; without, each kind has windows of its own shape

    files: ClassVar[tuple[DataFile, ...]] = (
        DataFile(
            "dsads",
            "dsads-s01-s15.zip",
            42745366,
            "301177827b030671ba52da132008239c88cc989b431eb188d5649a336d507511",
            by_hand="the public archive of which it is a part",
        ),
    )

    def __post_init__(self) -> None:
        check_choice("data.sensors", self.sensors, ("same", "unlike", "mixed"))
        if self.watch_rate not in (RATE, RATE / 2):
            raise ValueError(f"data.watch_rate must be {RATE:g} or {RATE / 2:g}, got {self.watch_rate!r}")

    def load(self, store: Store) -> Samples:
        """The segments of the recordings, each a window; the units of a person saw the same moments."""
        recordings = self.recordings(store)
        worn = [divmod(device, len(UNITS)) for device in sorted({recording.device for recording in recordings})]
        kinds = None if self.sensors == "same" else tuple(kind_of(self.sensors, *place) for place in worn)
        return windows("dsads", recordings, SEGMENT[0], SEGMENT[0], self.test_share, 19, kinds, self.soft)

    def recordings(self, store: Store) -> list[Recording]:
        """Read the segments, each a recording."""
        try:
            path = Path(self.archive) if self.archive else store.path(self.files[0])
        except DataMissing as error:
            raise DataMissing(
                f"{error}\nThat archive is UCI data set 256, {PUBLIC}: download it and set data.archive=data.zip"
            ) from None
        try:
            with zipfile.ZipFile(path) as file:
                segments = sorted((place, name) for name in file.namelist() if (place := _place(name)))
                held = [(place, _segment(file, name)) for place, name in segments]
        except (OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} cannot be read as a zip archive: {error}") from error
        if not held:
            raise ValueError(f"{path} holds no segments data/aXX/pY/sZZ.txt")
        people = sorted({person for (_, person, _), _ in held})
        found = []
        for moment, ((activity, person, _), table) in enumerate(held):
            for unit in range(len(UNITS)):
                number = people.index(person)
                kind, device = kind_of(self.sensors, number, unit), len(UNITS) * number + unit
                signal, rate = self._sensed(table[:, 9 * unit : 9 * unit + 9], kind)
                found.append(Recording(device, number, activity - 1, signal, rate, moment))
        return found

    def _sensed(self, table: Array, kind: str) -> tuple[Array, float]:
        """What a kind of device senses of a segment (time, channels), and at what rate."""
        every = round(RATE / self.watch_rate) if kind == "watch" else 1
        signal = table[::every, : CHANNELS[kind]].copy()
        if not self.pad:
            return signal, RATE / every
        return np.pad(signal.repeat(every, axis=0)[: len(table)], ((0, 0), (0, 9 - CHANNELS[kind]))), RATE


def kind_of(sensors: str, person: int, unit: int) -> str:
    """What kind of device a person wears at one of the five places.

    >>> [kind_of("mixed", 0, unit) for unit in range(5)]
    ['watch', 'phone', 'unit', 'watch', 'phone']
    """
    if sensors == "mixed":
        return tuple(CHANNELS)[(person + unit) % len(CHANNELS)]
    return ("phone", "watch", "watch", "unit", "unit")[unit] if sensors == "unlike" else "unit"


def _place(name: str) -> tuple[int, int, int] | None:
    """(activity, person, segment) of a member of the archive."""
    found = re.fullmatch(r"(?:.*/)?a(\d\d)/p(\d)/s(\d\d)\.txt", name)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _segment(file: zipfile.ZipFile, name: str) -> Array:
    with file.open(name) as member:
        text = member.read(1 << 20)
    try:
        table = np.array([line.split(b",") for line in text.split()], np.float64)
    except ValueError:
        table = np.empty((0, 0))
    if table.shape != SEGMENT:
        raise ValueError(f"{name} must hold {SEGMENT[0]} lines of {SEGMENT[1]} numbers, got shape {table.shape}")
    return table
