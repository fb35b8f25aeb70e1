from torch import nn


class PaperCNN(nn.Sequential):
    """The paper's network: two blocks of 3 x 3 convolution with stride 2, ReLU and pooling, then 128 neurons.

    >>> sum(p.numel() for p in PaperCNN((1, 28, 28), 10).parameters())
    53002
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        channels, height, width = shape
        for _ in range(2):  # convolution and pooling each halve the picture, the first rounding up
            height, width = ((side + 1) // 2 // 2 for side in (height, width))
        if height < 1 or width < 1:
            raise ValueError(f"paper_cnn needs pictures of at least 11 x 11 pixels, got shape {shape}")
        super().__init__(
            nn.Conv2d(channels, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * height * width, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
