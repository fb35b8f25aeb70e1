"""What topologies of a building have in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.graph.building import Building

MOST_DEVICES, MOST_LINKS = 1_000_000, 5_000_000  # of a graph that an experiment describes; a link takes about 200 bytes
MOST_ROOMS = 4000  # if the total number of devices is set: drawing the number per room takes quadratic time
BUSIEST = 7  # devices of a room, see `Building.generate`


def check_size(devices: int, links: int = 0) -> None:
    """Refuse a graph that would not fit in memory, before it is made."""
    for key, value, most in (("devices", devices, MOST_DEVICES), ("links", links, MOST_LINKS)):
        if value > most:
            raise ValueError(
                f"graph must have at most {most} {key}, got {value}; make a larger one in Python, with fedfilt.Graph"
            )


def within(groups: Array) -> int:
    """Links between all devices of the same group.

    >>> within(np.array([0, 0, 0, 1]))
    3
    """
    sizes = np.unique(groups, return_counts=True)[1]
    return int((sizes * (sizes - 1) // 2).sum())


@dataclass(frozen=True)
class InBuilding(ABC):
    """Devices in a building: `rooms` rooms with `devices` devices in total, or the CSV or TOML file `building`."""

    rooms: int = 4  # that are drawn
    devices: int | None = None  # in all; by default 4 to 7 are drawn for each room
    building: str = ""  # a CSV table device,room,x,y,z or a TOML file of your own building

    def place(self, seed: int) -> Building:
        """The building, read from the file or generated from the seed."""
        if not self.building:
            check_size(self.rooms * BUSIEST if self.devices is None else self.devices)
            if self.devices is not None and self.rooms > MOST_ROOMS:
                raise ValueError(f"graph.rooms must be at most {MOST_ROOMS} if graph.devices is set, got {self.rooms}")
        return Building.of(self.building, self.rooms, self.devices, seed)

    @abstractmethod
    def __call__(self, seed: int) -> Graph: ...
