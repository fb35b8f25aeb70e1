from torch import nn


class Motifs(nn.Sequential):
    """For windows (channels, time): a 1-D CNN that asks which short motions occurred, wherever in the window.

    `filters` convolutions of `kernel` samples, ReLU, the maximum over the whole window, then one linear layer. With
    `latent` channels > 0 an encoder of that size comes first: a convolution, ReLU and pooling by 4.

    >>> sum(p.numel() for p in Motifs((6, 100), 7).parameters())
    4871
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, filters: int = 128, kernel: int = 5, latent: int = 0
    ) -> None:
        channels, length = shape
        first = [nn.Conv1d(channels, latent, 9, padding=4), nn.ReLU(), nn.MaxPool1d(4)] if latent else []
        channels, length = (latent, length // 4) if latent else (channels, length)
        if length < 1:
            raise ValueError(f"motifs with an encoder needs windows of at least 4 samples, got shape {shape}")
        super().__init__(
            *first,
            nn.Conv1d(channels, filters, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.MaxPool1d(length),
            nn.Flatten(),
            nn.Linear(filters, classes),
        )
