import gzip
import zipfile
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt.data._idx import parse_idx
from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, Store


@dataclass(frozen=True)
class Emnist:
    """EMNIST digits: 240,000 + 40,000 handwritten digits of 28 x 28 pixels (a download of 562 MB).

    >>> Emnist.files[0].name
    'gzip.zip'
    """

    files: ClassVar[tuple[DataFile, ...]] = (
        DataFile(
            "emnist",
            "gzip.zip",
            561753746,
            "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
            urls=("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
        ),
    )

    def load(self, store: Store) -> Samples:
        """Read the digits out of the archive; its images are stored on their side."""
        parts = {}
        with zipfile.ZipFile(store.path(self.files[0])) as archive:
            for part in ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1"):
                name = f"gzip/emnist-digits-{part}-ubyte.gz"
                with archive.open(name) as packed, gzip.open(packed) as file:
                    parts[part] = parse_idx(file, name)
        x = np.concatenate([parts["train-images-idx3"], parts["test-images-idx3"]]).transpose(0, 2, 1)
        y = np.concatenate([parts["train-labels-idx1"], parts["test-labels-idx1"]]).astype(np.int64)
        test = np.arange(len(y)) >= len(parts["train-labels-idx1"])
        return Samples("emnist", np.ascontiguousarray(x)[:, None], y, 10, test)
