from torch import nn


class CNN1d(nn.Sequential):
    """For windows of sensor signals (channels, time): two blocks of 1-D convolution, ReLU and pooling, then 64 neurons.

    >>> sum(p.numel() for p in CNN1d((6, 128), 7).parameters())
    72199
    """

    def __init__(self, shape: tuple[int, ...], classes: int, kernel: int = 5) -> None:
        channels, length = shape
        if length < 4:
            raise ValueError(f"cnn1d needs windows of at least 4 samples, got shape {shape}")
        super().__init__(
            nn.Conv1d(channels, 32, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(32, 32, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(32 * (length // 4), 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )
