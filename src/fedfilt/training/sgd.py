"""Gradient descent on a device: its settings, the order of samples, and how it can fail."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedfilt._checks import check_choice, check_count, check_number, check_row
from fedfilt._draws import in_round
from fedfilt._types import Array
from fedfilt.training.goal import LOSSES

OPTIMIZERS = ("sgd", "adam", "adamw")
DIVERGED = "diverged in round"  # part of what a device says when its model is no longer finite


class Diverged(ArithmeticError):
    """A device's model is no longer finite.

    >>> try:
    ...     raise diverged(device=3, round=7, training=Training(learning_rate=10))
    ... except Diverged as error:
    ...     print(str(error).partition(":")[0])
    device 3 diverged in round 7
    """


@dataclass(frozen=True, repr=False)
class Training:
    """Gradient descent on a device: rate η · decay^(round - 1), in batches, by SGD (optional momentum), Adam or AdamW.

    The optimizer's memory (momentum, moments) starts afresh in each round, or is kept on the device between rounds.

    A step follows the gradient of loss + weight_decay / 2 · ‖w‖² + proximal / 2 · ‖w - w₀‖², where w₀ is the model the
    device received (FedProx). The loss is cross-entropy (optionally with labels smoothed by `smoothing`), mean squared
    or absolute error, binary cross-entropy of one or several logits, or a torch function of (outputs, targets).
    `metric` is the score to show; "" is the usual one: see `fedfilt.training.goal`.

    >>> Training(loss="mse").rate(1)
    0.02
    """

    learning_rate: float = 0.02  # of round 1
    batch_size: int = 32  # samples in a step
    momentum: float = 0.0  # of SGD, within a round
    decay: float = 1.0  # the learning rate of round r is learning_rate · decay^(r - 1)
    weight_decay: float = 0.0  # pull of every step towards zero
    proximal: float = 0.0  # pull of every step towards the model that the device was given
    loss: Any = "cross_entropy"  # "cross_entropy", "smoothed", "bce", "mse", "mae", module:function, or a function
    smoothing: float = 0.1  # share of a label that the loss "smoothed" spreads over all labels
    # the score that is shown, module:function, or a function of (targets, outputs); "": the usual one of the loss
    metric: Any = ""
    optimizer: str = "sgd"  # "sgd", "adam" or "adamw"
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam and AdamW
    epsilon: float = 1e-8  # of Adam and AdamW
    optimizer_state: str = "round"  # how long the optimizer keeps its state: a "round", or "kept" between rounds

    def __post_init__(self) -> None:
        check_number("training.learning_rate", self.learning_rate, low=0, above=True)
        check_count("training.batch_size", self.batch_size)
        check_number("training.momentum", self.momentum, low=0, high=0.9999)
        check_number("training.decay", self.decay, low=0, high=1, above=True)
        check_number("training.weight_decay", self.weight_decay, low=0)
        check_number("training.proximal", self.proximal, low=0)
        check_number("training.smoothing", self.smoothing, low=0, high=1)
        if not self.own_loss:
            check_choice("training.loss", self.loss, LOSSES)
        check_choice("training.optimizer", self.optimizer, OPTIMIZERS)
        check_choice("training.optimizer_state", self.optimizer_state, ("round", "kept"))
        check_number("training.epsilon", self.epsilon, low=0, above=True)
        if len(self.betas) != 2:
            raise ValueError(f"training.betas must be two numbers, got {self.betas!r}")
        for beta in self.betas:
            check_number("training.betas", beta, low=0, high=0.999999)
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"training.momentum is for sgd; use betas for {self.optimizer}, got {self.momentum:g}")
        if not callable(self.metric) and not isinstance(self.metric, str):
            raise ValueError(f"training.metric must be a name or a function, got {self.metric!r}")

    def __repr__(self) -> str:
        """The first six, and what else is not at its default: the id of a deployed run is made of this text."""
        shown = [
            field.name for i, field in enumerate(fields(self)) if i < 6 or getattr(self, field.name) != field.default
        ]
        return f"Training({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def remembers(self) -> tuple[str, ...]:
        """What the optimizer remembers of each parameter, by name."""
        return ("mean", "square") if self.optimizer != "sgd" else ("velocity",) if self.momentum else ()

    @property
    def keeps(self) -> bool:
        """Whether a device keeps what the optimizer remembers from round to round."""
        return self.optimizer_state == "kept" and bool(self.remembers)

    @property
    def own_loss(self) -> bool:
        """Whether the loss is somebody's own function."""
        return callable(self.loss) or (isinstance(self.loss, str) and ":" in self.loss)

    @property
    def loss_name(self) -> str:
        """The loss in words."""
        return str(getattr(self.loss, "__name__", self.loss))

    def rate(self, round: int) -> float:
        """The learning rate of a round, counted from 1."""
        return self.learning_rate * self.decay ** (round - 1)


class Guides(NamedTuple):
    """What guides the steps of one call besides the loss: one number per column of a row; None has no effect.

    A step follows ∂loss + weight_decay · w + proximal · (w - around) + drift, but leaves untrained columns alone. Of
    these, only `trained` affects columns without a gradient, such as running means.
    """

    around: Array | None = None  # what the proximal term pulls towards; None: the received model
    drift: Array | None = None  # added to the gradient of every step
    trained: Array | None = None  # bool; the other columns keep their bits

    @classmethod
    def checked(cls, size: int, around: Array | None, drift: Array | None, trained: Array | None) -> "Guides":
        """Copies, because the row being trained may be among them; what has no effect becomes None."""
        around = None if around is None else check_row("around", around, size)
        drift = None if drift is None else check_row("drift", drift, size)
        trained = None if trained is None else check_row("trained", trained, size, np.bool_)
        moved, held = drift is not None and drift.any(), trained is not None and not trained.all()
        return cls(around, drift if moved else None, trained if held else None)


UNGUIDED = Guides()


def recalled(training: Training, size: int, moments: Mapping[str, Array] | None) -> dict[str, Array]:
    """The optimizer's memory for `size` parameters, with its number of steps: as it was left, or still empty.

    >>> recalled(Training(optimizer="adam"), 2, None)["steps"]
    array([0])
    """
    found = {name: np.zeros(size, np.float32) for name in training.remembers} | {"steps": np.zeros(1, np.int64)}
    for name, values in (moments or {}).items():
        if name not in found or (values.dtype, values.shape) != (found[name].dtype, found[name].shape):
            raise ValueError(f"moments must be {', '.join(found)} of {size} parameters, got {name} of {values.shape}")
        found[name][:] = values
    return found


def orders(
    seed: int, round: int, device: int, held: int, samples: int, epochs: int, first: int = 0
) -> tuple[Array, Array]:
    """(which of the device's samples are used, their (epochs, samples) order), drawn again in each round and epoch.

    `first` counts the epochs that came before in this round.
    """
    chosen = in_round(seed, round, device).permutation(held)[:samples] if samples < held else np.arange(held)
    draws = [_order(seed, round, device, epoch, samples) for epoch in range(first, first + epochs)]
    return chosen, np.stack(draws) if draws else np.empty((0, samples), np.int64)


@lru_cache(maxsize=8)  # clients that go step by step ask for the same again and again
def _order(seed: int, round: int, device: int, epoch: int, samples: int) -> Array:
    order: Array = in_round(seed, round, device, epoch).permutation(samples)
    order.flags.writeable = False
    return order


class Settings:
    """The settings of a trainer, and the same with another rate or pull: made once for calls one after the other."""

    def __init__(self, training: Training) -> None:
        self._usual = training
        self._last: tuple[float | None, float | None, Training] = None, None, training

    def __call__(self, learning_rate: float | None, proximal: float | None) -> Training:
        """The settings with these instead of the usual ones, where they are given."""
        if learning_rate is None and proximal is None:
            return self._usual
        rate, pull, made = self._last
        if (rate, pull) != (learning_rate, proximal):
            usual = self._usual
            rate = usual.learning_rate if learning_rate is None else learning_rate
            pull = usual.proximal if proximal is None else proximal
            made = replace(usual, learning_rate=rate, proximal=pull)
            self._last = learning_rate, proximal, made
        return made


def diverged(device: int, round: int, training: Training) -> Diverged:
    """The error that names a device whose model or loss is no longer finite."""
    return Diverged(
        f"device {device} {DIVERGED} {round}: its model or loss is no longer finite; "
        f"lower training.learning_rate ({training.learning_rate:g}), or look for NaN in its samples"
    )
