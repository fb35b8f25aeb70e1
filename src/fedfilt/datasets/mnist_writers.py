from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedfilt.data._idx import read_idx
from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, Store
from fedfilt.datasets.mnist import Mnist


def _file(part: str, size: int, sha256: str) -> DataFile:
    name = f"qmnist-{part}-labels-idx2-int.gz"
    url = f"https://raw.githubusercontent.com/facebookresearch/qmnist/master/{name}"
    return DataFile("qmnist", name, size, sha256, urls=(url,))


@dataclass(frozen=True)
class MnistWriters:
    """MNIST with the person who wrote each digit (QMNIST's labels): 539 writers in train, others in test.

    >>> [file.name for file in MnistWriters.files]
    ['qmnist-train-labels-idx2-int.gz', 'qmnist-test-labels-idx2-int.gz']
    """

    files: ClassVar[tuple[DataFile, ...]] = (
        _file("train", 463024, "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f"),
        _file("test", 526800, "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06"),
    )

    def load(self, store: Store) -> Samples:
        """Read the files, downloading them if needed; row i of the labels belongs to digit i of MNIST."""
        digits = Mnist().load(store)
        train, test = (read_idx(store.path(file)) for file in self.files)
        labels = np.concatenate([train, test[:10_000]])
        if not np.array_equal(labels[:, 0], digits.y):
            raise ValueError("the labels of QMNIST do not belong to these MNIST files")
        return replace(digits, name="mnist_writers", writers=labels[:, 2].astype(np.int64))
