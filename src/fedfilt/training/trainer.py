"""One door to training, testing and asking a model: the native core where it can, else torch, else NumPy."""

import copy
import inspect
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fedfilt import _parts, native
from fedfilt._types import Array
from fedfilt.data import FederatedData
from fedfilt.training import _numpy, _torch
from fedfilt.training.description import Description, described
from fedfilt.training.network import Unknown, fits, flops, network_of
from fedfilt.training.sgd import Guides, Training, diverged, orders

PART = 2000  # samples that torch tests at a time: the tests of 1,000 devices would fill the memory


class Trainer:
    """Trains and tests rows of a model: a part of fedfilt/models, a `Description`, or any torch module.

    >>> from fedfilt.training.description import Dense, Flatten
    >>> trainer = Trainer(Description((Flatten(), Dense(4, 2))), Training(), shape=(1, 2, 2))
    >>> row, x, y = trainer.start(0), np.eye(4, dtype=np.float32).reshape(4, 1, 2, 2), np.array([0, 1, 0, 1])
    >>> loss = trainer.train(row, x, y, np.arange(4), seed=0, round=1, device=0, epochs=1, samples=4)
    >>> counts, loss = trainer.test(row, x, y, np.arange(4), classes=2)
    >>> counts.sum()
    np.int64(4)
    """

    def __init__(self, model: Any, training: Training, shape: tuple[int, ...]) -> None:
        self.training, self.shape = training, tuple(shape)
        self.description: Description | None = None
        self.network: native.Network | None = None
        self._module: Any = None
        self.level: str | None = native.chosen().level
        if hasattr(model, "layers") and not hasattr(model, "forward"):
            self.description = described(model)
            self.layout = self.description.layout
        else:
            self._module = copy.deepcopy(model)
            self.layout = _torch.layout_of(model)
        try:
            if self.description is None:
                self.description = _torch.describe(model)
            network = network_of(self.description, self.shape)  # also where it will not train: it says what fits
            self.network = network if self.level is not None else None
        except Unknown as reason:
            if self._module is not None:
                self.description = None
            if self.level is not None:
                other = {"torch": "torch", "numpy": "NumPy"}[self._other]
                _say_once(f"{other} trains this model, as the native core does not know it: {reason}")

    def start(self, seed: int) -> Array:
        """A first row: Glorot-uniform weights from the seed; a torch module's other layers keep their own start."""
        if self._module is None:
            assert self.description is not None
            return self.description.start(seed)
        module = copy.deepcopy(self._module)
        _torch.glorot(module, seed)
        return _torch.row_of(module)

    def given(self, seed: int) -> Array:
        """A first row: the weights that a torch module has already; else as `start`."""
        return self.start(seed) if self._module is None else _torch.row_of(self._module)

    @property
    def backend(self) -> str:
        """What trains: "native", "torch" or "numpy"."""
        return self._other if self.network is None else "native"

    @property
    def _other(self) -> str:
        """What trains where the native core does not."""
        return "torch" if self.description is None or _torch.installed() else "numpy"

    @property
    def module(self) -> Any:
        """The model as a torch module."""
        if self._module is None:
            self._module = _torch.torch_module(self.description)
        return self._module

    def outputs(self, x: Array) -> int:
        """How many labels the model tells apart; inputs that do not fit it are refused."""
        if self.description is not None:
            try:
                _numpy.predict(self.description, np.zeros(self.layout.size, np.float32), x[:1])
            except ValueError as error:
                raise ValueError(f"model does not fit inputs of shape {self.shape}: {error}") from None
            return self.description.outputs
        shape = _torch.outputs(self.module, x)
        if len(shape) != 2:
            raise ValueError(f"model must give a number per label, got shape {shape}")
        return shape[1]

    def flops(self, x: Array, y: Array) -> int:
        """Floating-point operations of training on one sample: multiplications and additions, forward and backward."""
        if self.description is not None:
            return flops(self.description, self.shape)
        return _torch.flops(self.module, x, y)

    def train(
        self,
        row: Array,
        x: Array,
        y: Array,
        own: Array,
        *,
        seed: int,
        round: int,
        device: int,
        epochs: int,
        samples: int,
        learning_rate: float | None = None,
        proximal: float | None = None,
        around: Array | None = None,
        drift: Array | None = None,
        trained: Array | None = None,
    ) -> float:
        """Train a row in place on `samples` of the samples own of x and y; the mean loss of the last epoch.

        `learning_rate` and `proximal` replace those of the settings. The others are (B,) arrays: the proximal term
        pulls towards `around` (float32; None: the row as it was given), `drift` (float32) is added to the gradient of
        every step, and only columns where `trained` (bool) holds change.
        """
        training = self.training
        if learning_rate is not None:
            training = replace(training, learning_rate=learning_rate)
        if proximal is not None:
            training = replace(training, proximal=proximal)
        guides = Guides.checked(self.layout.size, around, drift, trained)
        batch, where = min(training.batch_size, samples), (seed, round, device, epochs, samples)
        if self.network is not None and epochs and samples and fits(self.network, batch):
            return self._train_natively(row, x, y, own, training, where, guides)
        if self._other == "numpy":
            assert self.description is not None
            return _numpy.train(self.description, row, x[own], y[own], training, where, guides)
        with _torch.one_thread():
            return _torch.train(self.module, self.layout, row, x[own], y[own], training, where, guides)

    def _train_natively(
        self,
        row: Array,
        x: Array,
        y: Array,
        own: Array,
        training: Training,
        where: tuple[int, int, int, int, int],
        guides: Guides,
    ) -> float:
        assert self.network is not None
        assert self.level is not None
        seed, round, device, epochs, samples = where
        chosen, order = orders(seed, round, device, len(own), samples, epochs)
        given = native.samples_of(self.network, x, y, own[chosen])
        numbers = training.rate(round), training.momentum, training.weight_decay, training.proximal
        rows = [None if guide is None else guide.astype(np.float32, copy=False) for guide in guides]
        places = [None if guide is None else guide.ctypes.data for guide in rows]
        steps = native.Steps(order.ctypes.data, epochs, min(training.batch_size, samples), *numbers, *places)
        status, loss = native.train(self.network, row, given, steps, self.level)
        if status == native.DIVERGED:
            raise diverged(device, round, training)
        return loss

    def test(self, row: Array, x: Array, y: Array, rows: Array, classes: int) -> tuple[Array, float]:
        """((classes, classes) counts: true label, guess; sum of the losses) on the samples `rows` of x and y."""
        if self.network is not None:
            assert self.level is not None
            counts, loss = native.test(self.network, row, native.samples_of(self.network, x, y, rows), self.level)
            if counts.shape != (classes, classes):
                raise ValueError(f"classes must be the {len(counts)} outputs of the model, got {classes}")
            return counts, loss
        if self._other == "numpy":
            assert self.description is not None
            return _numpy.test(self.description, row, x[rows], y[rows])
        total, loss = np.zeros((classes, classes), np.int64), 0.0
        with _torch.one_thread():
            for start in range(0, len(rows), PART):
                part = rows[start : start + PART]
                counts, more = _torch.confusion(self.module, self.layout, row, x[part], y[part], classes)
                total, loss = total + counts, loss + more
        return total, loss

    def predict(self, row: Array, x: Array) -> Array:
        """(n, labels) what the model of a row says about inputs, as probabilities."""
        if self.network is not None:
            assert self.level is not None
            known = x if x.dtype == np.uint8 else x.astype(np.float32, copy=False)
            given = native.samples_of(self.network, known, None, np.arange(len(x)))
            return native.predict(self.network, row, given, self.level)
        if self._other == "numpy":
            assert self.description is not None
            return _numpy.predict(self.description, row, x)
        with _torch.one_thread():
            return _torch.predict(self.module, self.layout, row, x)


def model_named(name: str, options: Mapping[str, Any], shape: tuple[int, ...], classes: int, seed: int = 0) -> Any:
    """A model for such samples: a part of fedfilt/models, or a torch module made with the seed (module:Class)."""
    kind = _parts.find("models", name)
    known: dict[str, Any] = {"shape": shape, "classes": classes}
    accepted = inspect.signature(kind).parameters
    try:
        # A part of fedfilt/models draws nothing; anything else may be torch's, even if a function makes it
        plain = isinstance(kind, type) and hasattr(kind, "layers") and not _torch.is_module(kind)
        with nullcontext() if plain or not _torch.installed() else _torch.seeded(seed):
            model = kind(**{key: value for key, value in known.items() if key in accepted}, **options)
        if plain:
            described(model)
        return model
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"model {name} does not fit inputs of shape {shape}: {error}") from error


def labels_of(trainer: Trainer, data: FederatedData) -> int:
    """How many labels a model tells apart; the data must not have more."""
    found = trainer.outputs(data.examples[0])
    if found < data.classes:
        raise ValueError(f"model must give {data.classes} numbers, one per label, got {found}")
    if len(data.y) and not 0 <= data.y.min() <= data.y.max() < data.classes:
        raise ValueError(f"labels must be from 0 to {data.classes - 1}, got {data.y.min()} to {data.y.max()}")
    return found


@cache
def _say_once(text: str) -> None:
    logging.getLogger("fedfilt").warning(text)
