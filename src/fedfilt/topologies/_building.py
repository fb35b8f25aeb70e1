"""What topologies of a building have in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedfilt.graph import Graph
from fedfilt.graph.building import Building


@dataclass(frozen=True)
class InBuilding(ABC):
    """Devices in a building of `rooms` rooms with `devices` devices in all, or in the CSV or TOML file `building`."""

    rooms: int = 4
    devices: int | None = None
    building: str = ""

    def place(self, seed: int) -> Building:
        """The building; one that is not read from a file is drawn with the seed."""
        return Building.of(self.building, self.rooms, self.devices, seed)

    @abstractmethod
    def __call__(self, seed: int) -> Graph: ...
