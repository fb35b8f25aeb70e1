from collections.abc import Iterator
from dataclasses import dataclass

from fedfilt.training.description import Convolution, Dense, Flatten, Layer, Pool, Relu


@dataclass(frozen=True)
class CNN1d:
    """For windows of sensor signals (channels, time): two blocks of 1-D convolution, ReLU and pooling, then 64 neurons.

    >>> from fedfilt.training.description import described
    >>> described(CNN1d((6, 128), 7)).layout.size
    72199
    """

    shape: tuple[int, ...]
    classes: int
    kernel: int = 5  # samples that a convolution sees

    def layers(self) -> Iterator[Layer]:
        """The layers, from input to output."""
        channels, length = self.shape
        if length < 4:
            raise ValueError(f"cnn1d needs windows of at least 4 samples, got shape {self.shape}")
        for inputs in (channels, 32):
            yield Convolution(inputs, 32, (self.kernel,), stride=(1,), padding=(self.kernel // 2,))
            yield Relu()
            yield Pool((2,))
            length = (length + 1 - self.kernel % 2) // 2  # an even kernel makes the window one longer
        yield Flatten()
        yield Dense(32 * length, 64)
        yield Relu()
        yield Dense(64, self.classes)
