import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, Store


@dataclass(frozen=True)
class Femnist:
    """FEMNIST digits by writer (LEAF's split as TensorFlow Federated publishes it): 3,383 writers. Needs h5py.

    >>> Femnist.files[0].name
    'fed_emnist_digitsonly.tar.bz2'
    """

    files: ClassVar[tuple[DataFile, ...]] = (
        DataFile(
            "femnist",
            "fed_emnist_digitsonly.tar.bz2",
            1 << 30,  # an upper bound: only the sha256 is published
            "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b",
            urls=("https://storage.googleapis.com/tff-datasets-public/fed_emnist_digitsonly.tar.bz2",),
        ),
    )

    def load(self, store: Store) -> Samples:
        """Read all writers' digits; ink is made 1 and paper 0, as in MNIST."""
        try:
            import h5py
        except ImportError:
            raise ValueError("femnist needs the package h5py: pip install h5py") from None
        x, y, writers, test = [], [], [], []
        # A part has a gigabyte of floats: it is unpacked to disk, and writers are read one by one
        with tarfile.open(store.path(self.files[0])) as archive, tempfile.TemporaryDirectory() as folder:
            for part in ("train", "test"):
                member = archive.extractfile(f"fed_emnist_digitsonly_{part}.h5")
                if member is None:
                    raise ValueError(f"{self.files[0].name} has no {part} part")
                path = Path(folder) / f"{part}.h5"
                with path.open("wb") as out:
                    shutil.copyfileobj(member, out, 1 << 20)
                with h5py.File(path, "r") as file:
                    for writer, digits in sorted(file["examples"].items()):
                        x.append(np.round(255 * (1 - digits["pixels"][:])).astype(np.uint8))
                        y.append(digits["label"][:].ravel().astype(np.int64))
                        writers += [writer] * len(y[-1])
                        test += [part == "test"] * len(y[-1])
        numbers = np.unique(np.array(writers), return_inverse=True)[1]
        return Samples("femnist", np.concatenate(x)[:, None], np.concatenate(y), 10, np.array(test), numbers)
