"""Stochastic gradient descent on a device: its settings, the order of the samples, and how it can fail."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedfilt._checks import check_count, check_number, check_row
from fedfilt._draws import in_round
from fedfilt._types import Array

DIVERGED = "diverged in round"  # part of what a device says when its model is no longer finite


class Diverged(ArithmeticError):
    """A device's model is no longer finite."""


@dataclass(frozen=True)
class Training:
    """Stochastic gradient descent on a device: rate η · decay^(round - 1), batches, optional momentum within a round.

    The loss is the cross-entropy + weight_decay / 2 · ‖w‖² + proximal / 2 · ‖w - w₀‖², where w₀ is the model that the
    device was given (FedProx).
    """

    learning_rate: float = 0.02
    batch_size: int = 32
    momentum: float = 0.0
    decay: float = 1.0
    weight_decay: float = 0.0
    proximal: float = 0.0

    def __post_init__(self) -> None:
        check_number("training.learning_rate", self.learning_rate, low=0, above=True)
        check_count("training.batch_size", self.batch_size)
        check_number("training.momentum", self.momentum, low=0, high=0.9999)
        check_number("training.decay", self.decay, low=0, high=1, above=True)
        check_number("training.weight_decay", self.weight_decay, low=0)
        check_number("training.proximal", self.proximal, low=0)

    def rate(self, round: int) -> float:
        """The learning rate of a round, counted from 1."""
        return self.learning_rate * self.decay ** (round - 1)


class Guides(NamedTuple):
    """What guides the steps of one call besides the loss: a number per column of a row, None where there is nothing.

    A step follows ∂loss + weight_decay · w + proximal · (w - around) + drift, but leaves alone what is not trained.
    Columns that no gradient reaches, such as running means, heed only `trained`.
    """

    around: Array | None = None  # what the proximal term pulls towards; None: the model as it was given
    drift: Array | None = None  # added to the gradient of every step
    trained: Array | None = None  # bool; the other columns keep their bits

    @classmethod
    def checked(cls, size: int, around: Array | None, drift: Array | None, trained: Array | None) -> "Guides":
        """Copies, as the row that is trained may be among them; what changes no step is None."""
        around = None if around is None else check_row("around", around, size)
        drift = None if drift is None else check_row("drift", drift, size)
        trained = None if trained is None else check_row("trained", trained, size, np.bool_)
        moved, held = drift is not None and drift.any(), trained is not None and not trained.all()
        return cls(around, drift if moved else None, trained if held else None)


UNGUIDED = Guides()


def orders(seed: int, round: int, device: int, held: int, samples: int, epochs: int) -> tuple[Array, Array]:
    """(which of the device's samples are used, their (epochs, samples) order): drawn anew each round and epoch."""
    chosen = in_round(seed, round, device).permutation(held)[:samples] if samples < held else np.arange(held)
    draws = [in_round(seed, round, device, epoch).permutation(samples) for epoch in range(epochs)]
    return chosen, np.stack(draws) if draws else np.empty((0, samples), np.int64)


def diverged(device: int, round: int, training: Training) -> Diverged:
    """The error that names a device whose model or loss is no longer finite."""
    return Diverged(
        f"device {device} {DIVERGED} {round}: its model or loss is no longer finite; "
        f"lower training.learning_rate ({training.learning_rate:g}), or look for NaN in its samples"
    )
