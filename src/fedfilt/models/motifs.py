from collections.abc import Iterator
from dataclasses import dataclass

from fedfilt.training.description import Convolution, Dense, Flatten, Layer, Pool, Relu


@dataclass(frozen=True)
class Motifs:
    """For windows (channels, time): a 1-D CNN that detects short motions anywhere in the window.

    `filters` convolutions of `kernel` samples, ReLU, the maximum over the whole window, then one linear layer. With
    `latent` channels > 0 an encoder of that size comes first: a convolution, ReLU and pooling by 4.

    >>> from fedfilt.training.description import described
    >>> described(Motifs((6, 100), 7)).layout.size
    4871
    """

    shape: tuple[int, ...]
    classes: int
    filters: int = 128  # motions to look for
    kernel: int = 5  # samples of a motion
    latent: int = 0  # channels of an encoder in front; 0: none

    def layers(self) -> Iterator[Layer]:
        """The layers, from input to output."""
        channels, length = self.shape
        if self.latent:
            yield Convolution(channels, self.latent, (9,), stride=(1,), padding=(4,))
            yield Relu()
            yield Pool((4,))
            channels, length = self.latent, length // 4
        if length < 1:
            raise ValueError(f"motifs with an encoder needs windows of at least 4 samples, got shape {self.shape}")
        yield Convolution(channels, self.filters, (self.kernel,), stride=(1,), padding=(self.kernel // 2,))
        yield Relu()
        yield Pool((length,))
        yield Flatten()
        yield Dense(self.filters, self.classes)
