"""Data, models, a loss and a metric of tasks other than one label a sample, small enough to learn in a second."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfilt._types import Array
from fedfilt.data import Samples
from fedfilt.data.samples import joined
from fedfilt.data.store import Store

COUNT, WORDS, TOKENS = 400, 12, 5


@dataclass(frozen=True)
class Made:
    """Samples of a kind: numbers, yes_or_no, many, words (embedded), sequence (a label per token), two (inputs)."""

    kind: str = "numbers"

    def load(self, store: Store) -> Samples:
        """Always the same samples; every fifth is for testing."""
        x, y, classes = made(self.kind)
        return Samples(self.kind, x, y, classes, np.arange(COUNT) % 5 == 4)


def made(kind: str) -> tuple[Any, Any, int]:
    """(inputs, targets, labels)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((COUNT, 4)).astype(np.float32)
    words = rng.integers(0, WORDS, (COUNT, TOKENS))
    pair = joined((x, words))
    found: dict[str, tuple[Any, Any, int]] = {
        "numbers": (x, x @ np.float32([1, -2, 0, 3]), 1),
        "yes_or_no": (x, (x[:, 0] > 0).astype(np.int64), 2),
        "many": (x, x[:, :3] > 0, 1),
        "words": (words, (words[:, 0] % 2).astype(np.int64), 2),
        "sequence": (words, words % 3, 3),
        "two": (pair, (x[:, 0] + 2 * (words[:, 0] % 2) > 1).astype(np.int64), 2),
    }
    return found[kind]


class Bag(nn.Module):
    """Embedded words, in order."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.last = nn.Linear(4 * TOKENS, classes)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.embedding(words).flatten(1))


class Tagger(nn.Module):
    """A label for every word: (n, tokens, labels), or (n, labels, tokens) if it is turned."""

    def __init__(self, classes: int = 3, turned: bool = False) -> None:
        super().__init__()
        self.embedding, self.last, self.turned = nn.Embedding(WORDS, 6), nn.Linear(6, classes), turned

    def forward(self, words: Tensor) -> Tensor:
        labels = self.last(self.embedding(words))
        return labels.transpose(1, 2) if self.turned else labels


class Two(nn.Module):
    """Numbers and words, as two arguments."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.first, self.last = nn.Linear(4 * TOKENS + 4, 24), nn.Linear(24, classes)

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        return self.last(self.first(torch.cat([numbers, self.embedding(words).flatten(1)], 1)).relu())


class AsOne(Two):
    """The same, as one tuple or dict."""

    def forward(self, both: Any) -> Tensor:  # type: ignore[override]
        return super().forward(*(both if isinstance(both, tuple) else (both["numbers"], both["words"])))


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of one's own."""
    return functional.huber_loss(outputs, targets.reshape(outputs.shape))


def far_off(targets: Array, outputs: Array) -> Array:
    """A metric of one's own: how often an answer is off by more than a half."""
    return abs(outputs[:, 0] - targets) > 0.5


far_off.lower_is_better = True  # type: ignore[attr-defined]
