from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt.data._pickles import read_npy_dict
from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, Package, Store
from fedfilt.data.windows import Recording, windows

WHEEL = ("seglearn", "1.2.5", "ec6b952c85c9627050102854b372d85951563d3b990df677d7c55547e87413dd")


@dataclass(frozen=True)
class Watch:
    """Smartwatch exercises: 10 people x 2 arms = 20 devices, 7 exercises, 6 channels at 50 Hz.

    Device 2p is the left arm of person p, 2p + 1 the right. The end of every recording is for testing.
    `soft` is that of `fedfilt.data.windows.softened`, as in other recordings.

    >>> Watch(window=100).files[0].name
    'watch_dataset.npy'
    """

    window: int = 100  # rows of a window
    step: int = 50  # rows between the starts of two windows
    test_share: float = 0.3  # share of a recording to test on: its end
    soft: float = 0.0  # draws loud motions together: asinh(soft · x); 0 leaves all as it is

    channels: ClassVar[tuple[str, ...]] = ("ax", "ay", "az", "wx", "wy", "wz")
    labels: ClassVar[tuple[str, ...]] = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
    files: ClassVar[tuple[DataFile, ...]] = (
        DataFile(
            "watch",
            "watch_dataset.npy",
            18118091,
            "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537",
            package=Package(*WHEEL, "seglearn/data/watch_dataset.npy"),
        ),
    )

    def load(self, store: Store) -> Samples:
        """The windows of the recordings."""
        return windows("watch", self.recordings(store), self.window, self.step, self.test_share, soft=self.soft)

    def recordings(self, store: Store) -> list[Recording]:
        """Read the recordings, downloading them if needed; nothing in the file is run."""
        path = store.path(self.files[0])
        held = read_npy_dict(path.read_bytes(), path.name)
        people = np.unique(held["subject"]).tolist()
        found = []
        for signal, label, person, side in zip(held["X"], held["y"], held["subject"], held["side"], strict=True):
            number = people.index(person)
            found.append(Recording(2 * number + int(side), number, int(label), signal))
        return found
