from dataclasses import dataclass
from typing import ClassVar

from fedfilt.data._idx import read_mnist
from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, Store


def _file(name: str, size: int, sha256: str) -> DataFile:
    return DataFile(
        "fashion_mnist",
        name,
        size,
        sha256,
        urls=(f"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/{name}.gz",),
        folders=("/usr/share/datasets/fashion-mnist",),  # Debian's package dataset-fashion-mnist
    )


@dataclass(frozen=True)
class FashionMnist:
    """Fashion-MNIST: 60,000 + 10,000 pictures of clothes of 28 x 28 pixels, 10 labels.

    >>> len(FashionMnist.files)
    4
    """

    files: ClassVar[tuple[DataFile, ...]] = (
        _file(
            "train-images-idx3-ubyte",
            47040016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        _file("train-labels-idx1-ubyte", 60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        _file("t10k-images-idx3-ubyte", 7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        _file("t10k-labels-idx1-ubyte", 10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    )

    def load(self, store: Store) -> Samples:
        """Read the files, downloading them if needed."""
        return read_mnist("fashion_mnist", [store.path(file) for file in self.files])
