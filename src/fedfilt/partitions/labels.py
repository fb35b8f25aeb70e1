from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.data.deal import Sizes, deal_by_shares
from fedfilt.data.samples import FederatedData, Samples


@dataclass(frozen=True)
class Labels:
    """Every device has `per_device` random labels in equal parts: the paper's MNIST_2, MNIST_4, MNIST_10 and Setup 2.

    Every label is held by some device unless cover=False.

    >>> Labels(per_device=4).draw(count=20, classes=10, rng=np.random.default_rng(0)).sum(axis=1).tolist() == [4] * 20
    True
    """

    per_device: int = 2  # labels of a device
    cover: bool = True  # whether somebody holds each label

    def __post_init__(self) -> None:
        check_count("per_device", self.per_device)

    def draw(self, count: int, classes: int, rng: np.random.Generator) -> Array:
        """(count, classes) True where the device holds the label."""
        if self.per_device > classes:
            raise ValueError(f"per_device must be at most the number of labels, {classes}, got {self.per_device}")
        if self.cover and count * self.per_device < classes:
            raise ValueError(
                f"{count} devices with {self.per_device} labels each cannot hold all {classes}; set cover = false"
            )
        held = np.zeros((count, classes), dtype=bool)
        for device in range(count):
            held[device, rng.choice(classes, self.per_device, replace=False)] = True
        for missing in np.flatnonzero(~held.any(axis=0)) if self.cover else ():
            spare = np.argwhere(held & (held.sum(axis=0) > 1))  # labels that somebody else holds too
            device, label = spare[rng.integers(len(spare))]
            held[device, label], held[device, missing] = False, True
        return held

    def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
        held = self.draw(len(rooms), samples.classes, rng)
        return deal_by_shares(samples, held / self.per_device, sizes, rng)
