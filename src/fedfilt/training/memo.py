"""What training made of rows in this round: where runs go side by side, what they have in common is trained once."""

import hashlib
from typing import Any

import numpy as np

from fedfilt._types import Array
from fedfilt.training.trainer import Trainer


class Memo:
    """Trains through a trainer, and remembers for the length of a round what came of it.

    Two calls are the same if all arguments are, bit for bit: row, samples, what draws their order, guides.
    It is for runs that differ in their clients and rules alone: seed, samples and settings are the same.
    """

    def __init__(self) -> None:
        self._round, self._known = 0, dict[Any, tuple[Array, float]]()

    def train(
        self, trainer: Trainer, row: Array, x: Array, y: Array, own: Array, *, round: int, moments: Any, **how: Any
    ) -> float:
        """As `Trainer.train`; what an optimizer keeps between rounds is not remembered here."""
        if moments is not None:
            return trainer.train(row, x, y, own, round=round, moments=moments, **how)
        if round != self._round:
            self._round, self._known = round, {}
        known, arguments = self._known, {"row": row, "own": own, **how}
        key = tuple(_digest(one) if isinstance(one, np.ndarray) else one for one in arguments.values())
        if (found := known.get(key)) is None:
            loss = trainer.train(row, x, y, own, round=round, **how)
            known[key] = row.copy(), loss
            return loss
        row[:], loss = found
        return loss


def _digest(array: Array) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()
