from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.data.deal import Sizes, deal_by_shares
from fedfilt.data.samples import FederatedData, Samples


@dataclass(frozen=True)
class RoomLabels:
    """Devices in the same room share `shared` of their `per_device` labels: the paper's Setup 1 (3 of 4).

    Every label is held by some device unless cover=False.

    >>> held = RoomLabels().draw(rooms=np.repeat([0, 1], 5), classes=10, rng=np.random.default_rng(0))
    >>> int((held[:5].sum(axis=0) == 5).sum()) >= 3
    True
    """

    per_device: int = 4  # labels of a device
    shared: int = 3  # labels that all devices of a room have
    cover: bool = True  # whether somebody holds each label

    def __post_init__(self) -> None:
        check_count("per_device", self.per_device)
        check_count("shared", self.shared, low=0, high=self.per_device)

    def draw(self, rooms: Array, classes: int, rng: np.random.Generator) -> Array:
        """(devices, classes) True where the device holds the label."""
        if self.per_device > classes:
            raise ValueError(f"per_device must be at most the number of labels, {classes}, got {self.per_device}")
        held = np.zeros((len(rooms), classes), dtype=bool)
        for _ in range(1000):
            held[:] = False
            for room in np.unique(rooms):
                common = rng.choice(classes, self.shared, replace=False)
                others = np.setdiff1d(np.arange(classes), common)
                for device in np.flatnonzero(rooms == room):
                    held[device, common] = True
                    held[device, rng.choice(others, self.per_device - self.shared, replace=False)] = True
            if not self.cover or held.any(axis=0).all():
                return held
        raise ValueError(
            f"{len(np.unique(rooms))} rooms sharing {self.shared} of {self.per_device} labels did not come to hold all "
            f"{classes} labels in 1000 draws; share fewer or set cover = false"
        )

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        held = self.draw(rooms, samples.classes, rng)
        return deal_by_shares(samples, held / self.per_device, sizes, rng)
