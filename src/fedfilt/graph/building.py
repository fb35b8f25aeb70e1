"""The building: rooms on floors, and the positions of the devices."""

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfilt._brief import brief
from fedfilt._checks import check_count, check_number
from fedfilt._reading import csv_text, read_toml
from fedfilt._types import Array
from fedfilt.graph.graph import Graph


@dataclass(frozen=True, eq=False, repr=False)
class Building:
    """Devices in rooms: a name, a room and a position (x, y, z in metres) each.

    >>> building = Building.generate(rooms=4, devices=20, seed=0)
    >>> building.count, len(building.room_names)
    (20, 4)
    >>> building.graph(reach=6.0).count
    20
    """

    names: tuple[str, ...]
    rooms: Array  # (K,) index into room_names
    positions: Array  # (K, 3) metres
    room_names: tuple[str, ...]
    boxes: Array | None = None  # (rooms, 2, 3) lower and upper corner of every room, if known

    def __repr__(self) -> str:
        return brief(self)

    @property
    def count(self) -> int:
        """Number of devices K."""
        return len(self.names)

    @classmethod
    def generate(
        cls,
        rooms: int = 4,
        devices: int | None = None,
        per_room: tuple[int, int] = (4, 7),
        size: tuple[float, float, float] = (10.0, 10.0, 10.0),
        floors: int = 1,
        seed: int = 0,
    ) -> "Building":
        """Rooms of equal size in a grid on each floor, with devices at random positions.

        The number of devices in a room is uniform on `per_room` (the paper: 4 to 7), given their total `devices` if
        that is set. The defaults with devices=20 give the paper's building.
        """
        rooms = check_count("rooms", rooms)
        floors = check_count("floors", floors, high=rooms)
        low = check_count("per_room[0]", per_room[0], low=0)
        high = check_count("per_room[1]", per_room[1], low=max(low, 1))
        extent = np.array([check_number("size", side, low=0, above=True) for side in size])
        if extent.shape != (3,):
            raise ValueError(f"size must be (length, width, height) in metres, got {size!r}")
        rng = np.random.default_rng(seed)
        if devices is None:
            counts = rng.integers(low, high + 1, size=rooms)
        else:
            devices = check_count("devices", devices)
            if not rooms * low <= devices <= rooms * high:
                raise ValueError(
                    f"devices must be from {rooms * low} to {rooms * high} ({low} to {high} in each of {rooms} "
                    f"rooms), got {devices}"
                )
            counts = _counts_with_sum(rng, rooms, low, high, devices)
        if counts.sum() == 0:
            raise ValueError(f"per_room {per_room!r} left the building without a device; try another seed")
        on_floor = -(-rooms // floors)
        columns = int(np.ceil(np.sqrt(on_floor)))
        floor, place = np.divmod(np.arange(rooms), on_floor)
        corner = np.column_stack([place % columns, place // columns, floor]) * extent
        room = np.repeat(np.arange(rooms), counts)
        positions = corner[room] + rng.random((len(room), 3)) * extent
        names = tuple(f"device-{i}" for i in range(len(room)))
        room_names = tuple(f"room-{i}" for i in range(rooms))
        return cls(names, room, positions, room_names, np.stack([corner, corner + extent], axis=1))

    @classmethod
    def from_table(cls, path: str | Path) -> "Building":
        """Your own building, from a CSV or TOML file.

        CSV: a header `device,room,x,y,z` and one line per device. TOML: `[[devices]]` with `name`, `room` and
        `position = [x, y, z]`, and optionally `[[rooms]]` with `name`, `origin` and `size` to draw the walls.
        """
        path = Path(path)
        read = {".csv": _read_csv, ".toml": _read_toml}.get(path.suffix.lower())
        if read is None:
            raise ValueError(f"path must end in .csv or .toml, got {path.name!r}")
        devices, boxes = read(path)
        if not devices:
            raise ValueError(f"{path}: must list at least one device, got none")
        names = [name for name, _, _ in devices]
        for name, times in Counter(names).items():
            if times > 1:
                raise ValueError(f"{path}: device names must differ, got {name!r} twice")
        room_names = tuple(boxes) if boxes else tuple(dict.fromkeys(room for _, room, _ in devices))
        for name, room, _ in devices:
            if room not in room_names:
                raise ValueError(f"{path}: device {name!r} is in room {room!r}, allowed: {', '.join(room_names)}")
        rooms = np.array([room_names.index(room) for _, room, _ in devices])
        corners = np.array(list(boxes.values())) if boxes else None
        return cls(tuple(names), rooms, np.array([place for _, _, place in devices]), room_names, corners)

    @classmethod
    def of(cls, path: str, rooms: int, devices: int | None, seed: int) -> "Building":
        """The building in the file `path`; without a path, one generated from the seed."""
        return cls.from_table(path) if path else cls.generate(rooms, devices, seed=seed)

    def graph(self, reach: float) -> Graph:
        """The graph that links devices nearer than `reach` metres (the paper's rule), with rooms and positions."""
        return Graph.within_distance(self.positions, reach, rooms=self.rooms)


def _counts_with_sum(rng: np.random.Generator, rooms: int, low: int, high: int, total: int) -> Array:
    """Independent uniform counts on [low, high], given their sum: exact, room by room."""
    choices = np.arange(low, high + 1)
    # log_chance[r][s]: log probability, up to a constant, that r rooms sum to r * low + s
    log_chance = [np.zeros(1)]
    with np.errstate(divide="ignore"):
        for _ in range(rooms):
            last = log_chance[-1]
            shifts = [np.pad(last, (k, high - low - k), constant_values=-np.inf) for k in range(len(choices))]
            log_chance.append(np.logaddexp.reduce(shifts))
    counts = np.empty(rooms, dtype=np.int64)
    left = total - rooms * low
    for room in range(rooms):
        rest = log_chance.pop(-2)
        after = left - (choices - low)
        possible = (after >= 0) & (after < len(rest))
        likely = np.where(possible, rest[np.clip(after, 0, len(rest) - 1)], -np.inf)
        chance = np.exp(likely - likely.max())
        counts[room] = rng.choice(choices, p=chance / chance.sum())
        left -= counts[room] - low
    return counts


_Devices = list[tuple[str, str, list[float]]]
_Boxes = dict[str, list[list[float]]]


def _read_csv(path: Path) -> tuple[_Devices, _Boxes]:
    with csv_text(path) as file:
        table = csv.DictReader(file)
        missing = {"device", "room", "x", "y", "z"} - set(table.fieldnames or [])
        if missing:
            raise ValueError(f"{path}: header must have device,room,x,y,z; missing {', '.join(sorted(missing))}")
        try:
            return [
                (row["device"], row["room"], _triple(f"{path} line {table.line_num}", [row["x"], row["y"], row["z"]]))
                for row in table
            ], {}
        except csv.Error as error:
            raise ValueError(f"{path} line {table.line_num}: {error}") from None


def _read_toml(path: Path) -> tuple[_Devices, _Boxes]:
    try:
        table = read_toml(path, links=True)
    except ValueError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from error
    try:
        boxes: _Boxes = {}
        for room in table.get("rooms", []):
            origin = _triple(f"{path} origin of room {room['name']!r}", room["origin"])
            size = _triple(f"{path} size of room {room['name']!r}", room["size"])
            boxes[str(room["name"])] = [origin, [a + b for a, b in zip(origin, size, strict=True)]]
        return [
            (str(d["name"]), str(d["room"]), _triple(f"{path} position of {d['name']!r}", d["position"]))
            for d in table.get("devices", [])
        ], boxes
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: devices need name, room and position, rooms need name, origin and size; got {error!r}"
        ) from error


def _triple(name: str, values: Any) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        numbers = []
    if len(numbers) != 3 or not np.isfinite(numbers).all():
        raise ValueError(f"{name}: must be three finite numbers in metres, got {values!r}")
    return numbers
