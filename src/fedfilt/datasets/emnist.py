import gzip
import zipfile
import zlib
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
        """Read the digits from the archive; its images are stored sideways and turned while reading."""
        x, y = np.empty((0, 1, 28, 28), np.uint8), []
        path = store.path(self.files[0])
        try:
            with zipfile.ZipFile(path) as archive:
                for part in ("train", "test"):
                    name = f"gzip/emnist-digits-{part}-labels-idx1-ubyte.gz"
                    with archive.open(name) as packed, gzip.open(packed) as file:
                        y.append(parse_idx(file, name).astype(np.int64))
                total, start = sum(map(len, y)), 0
                x = np.empty((total, 1, 28, 28), np.uint8)
                for part, labels in zip(("train", "test"), y, strict=True):
                    name = f"gzip/emnist-digits-{part}-images-idx3-ubyte.gz"
                    with archive.open(name) as packed, gzip.open(packed) as file:
                        parse_idx(file, name, into=x[start : start + len(labels), 0], turned=True)
                    start += len(labels)
        except (zipfile.BadZipFile, KeyError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged, or not EMNIST's archive: {error}") from error
        test = np.arange(total) >= len(y[0])
        return Samples("emnist", x, np.concatenate(y), 10, test)
