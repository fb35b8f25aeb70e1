from collections.abc import Iterator
from dataclasses import dataclass

from fedfilt.training.description import Convolution, Dense, Flatten, Layer, Pool, Relu


@dataclass(frozen=True)
class PaperCNN:
    """The paper's network: two blocks of 3 x 3 convolution with stride 2, ReLU and pooling, then 128 neurons.

    >>> from fedfilt.training.description import described
    >>> described(PaperCNN((1, 28, 28), 10)).layout.size
    53002
    """

    shape: tuple[int, ...]
    classes: int

    def layers(self) -> Iterator[Layer]:
        """The layers, from input to output."""
        channels, height, width = self.shape
        for outputs in (32, 64):  # convolution and pooling each halve the picture, the first rounding up
            yield Convolution(channels, outputs, (3, 3), stride=(2, 2), padding=(1, 1))
            yield Relu()
            yield Pool((2, 2))
            channels, height, width = outputs, (height + 1) // 2 // 2, (width + 1) // 2 // 2
        if height < 1 or width < 1:
            raise ValueError(f"paper_cnn needs pictures of at least 11 x 11 pixels, got shape {self.shape}")
        yield Flatten()
        yield Dense(channels * height * width, 128)
        yield Relu()
        yield Dense(128, self.classes)
