"""One interface to train, test and query a model: the native core if possible, else torch, else NumPy."""

import copy
import inspect
import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from fedfilt import _parts, native
from fedfilt._types import Array
from fedfilt.data import FederatedData
from fedfilt.data.samples import shaped
from fedfilt.training import _numpy, _torch
from fedfilt.training.description import Dense, Description, Relu, described
from fedfilt.training.encoders import Encoded, Encoder
from fedfilt.training.goal import NO_LABEL, Goal, check_targets, class_axis, outputs_of
from fedfilt.training.network import Unknown, fits, flops, network_of
from fedfilt.training.sgd import DIVERGED, Diverged, Guides, Settings, Training, diverged, orders

PART = 2000  # samples that torch tests at a time: the tests of 1,000 devices would fill the memory
Known = Mapping[int, dict[bytes, Array]]  # of several rows, by place, what some answer to samples
NOTHING: Known = MappingProxyType({})
UNLABELLED = 20_000  # the first epoch of what is trained without labels, so that its draws are not those of the round


class Trainer:
    """Trains and tests rows of a model: a part from fedfilt.models, a `Description`, or any torch module.

    >>> from fedfilt.training.description import Dense, Flatten
    >>> trainer = Trainer(Description((Flatten(), Dense(4, 2))), Training(), shape=(1, 2, 2))
    >>> row, x, y = trainer.start(0), np.eye(4, dtype=np.float32).reshape(4, 1, 2, 2), np.array([0, 1, 0, 1])
    >>> loss = trainer.train(row, x, y, np.arange(4), seed=0, round=1, device=0, epochs=1, samples=4)
    >>> counts, loss = trainer.test(row, x, y, np.arange(4), classes=2)
    >>> counts.sum()
    np.int64(4)
    """

    def __init__(self, model: Any, training: Training, shape: tuple[int, ...], targets: Array | None = None) -> None:
        """`shape` is that of an input; `targets` are some of those that it learns, if they are known."""
        self.training, self.shape = training, tuple(shape)
        self._settings = Settings(training)
        self._fitting: dict[int, bool] = {}  # batches that the core has room for
        self.goal = Goal.of(training.loss, training.metric, targets)
        if training.own_loss:
            _parts.function("training.loss", training.loss)  # one that is not there is named at once
        self.tokens = () if targets is None or self.goal.kind != "labels" else targets.shape[1:]
        self.encoder: Encoder | None = model.encoder if isinstance(model, Encoded) else None
        self._integers: bool | None = None  # whether the module takes them; None: not tried yet
        self.description: Description | None = None
        self.network: native.Network | None = None
        self._given: Any = None  # a torch module as it was given, which nothing trains
        self._module: Any = None
        self.level: str | None = native.chosen().level
        if hasattr(model, "layers") and not hasattr(model, "forward"):
            self.description = described(model)
            self.layout = self.description.layout
        else:
            self._given = copy.deepcopy(model)
            self.layout = _torch.layout_of(model)
        try:
            if self.description is None:
                self.description = _torch.describe(model)
            if training.optimizer != "sgd":
                raise Unknown(f"the optimizer {training.optimizer}")
            if training.keeps:
                raise Unknown("momentum that is kept between rounds")
            # also where it will not train: it says what fits
            network = network_of(self.description, self.shape, training.loss_name)
            self.network = network if self.level is not None else None
        except Unknown as reason:
            if self._given is not None:
                self.description = None
            if training.own_loss and not _torch.installed():
                raise ValueError("your own training.loss needs torch: pip install 'fedfilt[torch]'") from None
            if self.level is not None:
                other = {"torch": "torch", "numpy": "NumPy"}[self._other]
                _say_once(f"{other} trains this model, because the native core does not support it: {reason}")

    def start(self, seed: int) -> Array:
        """A first row: Glorot-uniform weights from the seed; a torch module's other layers keep their own start."""
        if self._given is None:
            assert self.description is not None
            return self.description.start(seed)
        module = copy.deepcopy(self._given)
        _torch.glorot(module, seed)
        return _torch.row_of(module)

    def given(self, seed: int) -> Array:
        """A first row: the weights that a torch module has already; else as `start`."""
        return self.start(seed) if self._given is None else _torch.row_of(self._given)

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
            self._module = _torch.torch_module(self.description) if self._given is None else copy.deepcopy(self._given)
        return self._module

    def numbers(self, x: Array) -> Array:
        """Inputs as this model takes them: pixels and several inputs as they are, integers if it can, else float32."""
        x = x if self.encoder is None else shaped(x, self.shape)
        if x.dtype.names is not None or x.dtype == np.uint8:
            return x
        if x.dtype.kind in "iu" and self.description is None and len(x):
            if self._integers is None:
                self._integers = _torch.takes_integers(self.module, x)
            if self._integers:
                return x.astype(np.int64, copy=False)
        return x.astype(np.float32, copy=False)

    def outputs(self, x: Array) -> int:
        """How many numbers the model gives for a sample: labels that it tells apart; inputs must fit it."""
        x = self.numbers(x)
        if self.description is not None:
            if x.dtype.names is not None:
                raise ValueError(f"model takes only one input, got several: {', '.join(x.dtype.names)}")
            if self.tokens:
                raise ValueError(f"model must return a number per label for each of {self.tokens[0]} tokens: use torch")
            try:
                _numpy.predict(self.description, np.zeros(self.layout.size, np.float32), x[:1])
            except ValueError as error:
                raise ValueError(f"model does not fit inputs of shape {self.shape}: {error}") from None
            return self.description.outputs
        try:
            shape = _torch.outputs(self.module, x)
        except IndexError as error:
            raise ValueError(f"model does not accept inputs from {x.min()} to {x.max()}: {error}") from None
        if self.goal.kind != "labels":
            return math.prod(shape[1:])
        return shape[class_axis(shape, self.tokens)]

    def flops(self, x: Array, y: Array) -> int:
        """Floating-point operations of training on one sample: multiplications and additions, forward and backward."""
        if self.description is not None:
            return flops(self.description, self.shape)
        return _torch.flops(self.module, self.numbers(x), y, self.training)

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
        first: int = 0,
        learning_rate: float | None = None,
        proximal: float | None = None,
        around: Array | None = None,
        drift: Array | None = None,
        trained: Array | None = None,
        moments: dict[str, Array] | None = None,
    ) -> float:
        """Train a row in place on `samples` of the samples own of x and y; the mean loss of the last epoch.

        `first` counts the epochs of this round in earlier calls, because every epoch has its own order.

        `learning_rate` and `proximal` replace those of the settings. The others are (B,) arrays: the proximal term
        pulls towards `around` (float32; None: the row at the start), `drift` (float32) is added to the gradient of
        every step, and only columns where `trained` (bool) is True change.
        `moments` is the optimizer's memory, arrays by name: it continues from these and updates them. With None or {},
        it starts afresh.
        """
        training, x = self._settings(learning_rate, proximal), self.numbers(x)
        guides = Guides.checked(self.layout.size, around, drift, trained)
        batch, where = min(training.batch_size, samples), (seed, round, device, epochs, samples, first)
        if self.network is not None and epochs and samples and self._fits(batch):
            return self._train_natively(row, x, y, own, training, where, guides)
        if self._other == "numpy":
            assert self.description is not None
            return _numpy.train(self.description, row, x[own], y[own], training, where, guides, moments)
        with _torch.one_thread():
            return _torch.train(self.module, self.layout, row, x[own], y[own], training, where, guides, moments)

    def _fits(self, batch: int) -> bool:
        if batch not in self._fitting:
            assert self.network is not None
            self._fitting[batch] = fits(self.network, batch)
        return self._fitting[batch]

    def pretrain(self, row: Array, x: Array, *, seed: int, round: int, device: int) -> None:
        """Train the encoder in a row, in place and without labels: to give inputs back through a decoder.

        The decoder of a convolution gives every patch back from the latent numbers of its place. It starts from the
        seed, as an encoder does, and is forgotten.
        """
        assert self.encoder is not None
        assert self.description is not None
        encoder, (weight, bias) = self.description.weighted[0], self.layout.slots[:2]
        patches = _numpy.patches(encoder, self.numbers(x))
        places, width = patches.shape
        both = Description((Dense(width, encoder.outputs), Relu(), Dense(encoder.outputs, width)))
        training = replace(
            self.training,
            learning_rate=self.encoder.learning_rate,
            loss="mse",
            metric="",
            decay=1.0,
            weight_decay=0.0,
            proximal=0.0,
            optimizer_state="round",
        )
        trainer = Trainer(both, training, (width,), patches[:1])
        pair, own = trainer.start(seed), trainer.layout.slots[:2]
        pair[own[0].start : own[0].stop] = self.layout.view(row, weight).reshape(-1)
        pair[own[1].start : own[1].stop] = row[bias.start : bias.stop]
        try:
            trainer.train(
                pair,
                patches,
                patches,
                np.arange(places),
                seed=seed,
                round=round,
                device=device,
                epochs=self.encoder.epochs,
                samples=places,
                first=UNLABELLED,
            )
        except Diverged:
            raise Diverged(
                f"device {device} {DIVERGED} {round}, in training its encoder without labels; lower "
                f"encoder.learning_rate ({self.encoder.learning_rate:g}), or look for NaN in its samples"
            ) from None
        self.layout.view(row, weight)[...] = pair[own[0].start : own[0].stop].reshape(weight.shape)
        row[bias.start : bias.stop] = pair[own[1].start : own[1].stop]

    def _train_natively(
        self,
        row: Array,
        x: Array,
        y: Array,
        own: Array,
        training: Training,
        where: tuple[int, int, int, int, int, int],
        guides: Guides,
    ) -> float:
        assert self.network is not None
        assert self.level is not None
        seed, round, device, epochs, samples, first = where
        chosen, order = orders(seed, round, device, len(own), samples, epochs, first)
        given = native.samples_of(self.network, x, y, own[chosen])
        numbers = training.rate(round), training.momentum, training.weight_decay, training.proximal
        rows = [None if guide is None else guide.astype(np.float32, copy=False) for guide in guides]
        places = [None if guide is None else guide.ctypes.data for guide in rows]
        steps = native.Steps(order.ctypes.data, epochs, min(training.batch_size, samples), *numbers, *places)
        status, loss = native.train(self.network, row, given, steps, self.level)
        if status == native.DIVERGED:
            raise diverged(device, round, training)
        return loss

    def test(
        self, row: Array, x: Array, y: Array, rows: Array, classes: int, known: Known = NOTHING
    ) -> tuple[Array, float]:
        """(sums of a test, sum of the losses) on the samples `rows` of x and y: see `fedfilt.training.goal`.

        Of labels, the sums are the (classes, classes) counts: true label, guess. `classes` is the number of outputs.
        Of (n, B) rows, the average of their answers is tested: see `predict`. What those in `known` answer is looked up
        there, by the samples, and added if it is new: they are the same in the tests of all devices.
        """
        x, row = self.numbers(x), _one(row)
        if self.goal.kind != "labels" or self.goal.own is not None or row.ndim == 2:
            return self._sums(row, x, y, rows, classes, known)
        if self.network is not None:
            assert self.level is not None
            counts, loss = native.test(self.network, row, native.samples_of(self.network, x, y, rows), self.level)
            if counts.shape != (classes, classes):
                raise ValueError(f"classes must be the {len(counts)} outputs of the model, got {classes}")
            return counts, loss
        if self._other == "numpy":
            assert self.description is not None
            return _numpy.test(self.description, row, x[rows], y[rows], self.training)
        total, loss = np.zeros((classes, classes), np.int64), 0.0
        with _torch.one_thread():
            for start in range(0, len(rows), PART):
                part = rows[start : start + PART]
                given = row, x[part], y[part]
                counts, more = _torch.confusion(self.module, self.layout, *given, classes, self.training)
                total, loss = total + counts, loss + more
        return total, loss

    def loss(self, row: Array, x: Array, y: Array, rows: Array) -> float:
        """The mean loss of a row on the samples `rows` of x and y; NaN without any."""
        known, total = self.numbers(x), 0.0
        for start in range(0, len(rows), PART):
            part = rows[start : start + PART]
            total += self._raw(row, known, part, y[part])[1]
        return total / len(rows) if len(rows) else math.nan

    def _sums(self, row: Array, x: Array, y: Array, rows: Array, classes: int, known: Known) -> tuple[Array, float]:
        """What a test adds up, from the outputs of every sample."""
        total, loss = self.goal.nothing(classes), 0.0
        for start in range(0, len(rows), PART):
            part = rows[start : start + PART]
            outputs, more = self._raw(row, x, part, y[part], known)
            total, loss = total + self.goal.sums(y[part], self._said(outputs), classes), loss + more
        return total, loss

    def _raw(self, row: Array, x: Array, rows: Array, y: Array | None, known: Known = NOTHING) -> tuple[Array, float]:
        """(what the last layer gives, sum of the losses if there are targets) of the samples `rows` of x.

        Of several rows, what a model would give whose answer is the average of theirs.
        """
        if row.ndim == 2:
            outputs = self._averaged([self._answer(one, x, rows, known.get(place)) for place, one in enumerate(row)])
            if y is None or not len(rows):
                return outputs, 0.0
            if self.training.own_loss or self.tokens:
                with _torch.one_thread():
                    return outputs, _torch.whole_loss(outputs, y, self.training)
            return outputs, float(_numpy.loss_of(self.training, outputs, y)[0].sum())
        if self.description is None or (self.network is None and self._other == "torch"):
            with _torch.one_thread():
                return _torch.raw(self.module, self.layout, row, x[rows], y, self.training)
        if self.network is not None:
            assert self.level is not None
            plain = native.Network.from_buffer_copy(self.network)
            plain.loss = native.LOSSES.index("mse")  # which leaves numbers as they are
            outputs = native.predict(plain, row, native.samples_of(plain, x, None, rows), self.level)
        else:
            outputs = _numpy.outputs(self.description, row, x[rows])
        return outputs, 0.0 if y is None else float(_numpy.loss_of(self.training, outputs, y)[0].sum())

    def _answer(self, row: Array, x: Array, rows: Array, known: dict[bytes, Array] | None) -> Array:
        """What the last layer gives of one of several rows."""
        found = None if known is None else known.get(rows.tobytes())
        if found is None:
            found, _ = self._raw(row, x, rows, None)
            if known is not None:
                known[rows.tobytes()] = found
        return found

    def _said(self, outputs: Array) -> Array:
        """Outputs of the last layer as probabilities, or as the numbers that they are."""
        if self.goal.kind == "labels":
            last = np.moveaxis(outputs, class_axis(outputs.shape, self.tokens), -1)
            return _numpy.softmax(last.reshape(-1, last.shape[-1])).reshape(last.shape)
        flat = outputs.reshape(len(outputs), -1) if len(outputs) else outputs
        return _numpy.sigmoid(flat) if self.goal.kind == "choices" else flat

    def _averaged(self, several: list[Array]) -> Array:
        """Outputs of the last layer whose probabilities, or numbers, are the mean of those of several models."""
        if self.goal.kind == "numbers":
            return np.asarray(np.mean(several, axis=0))
        tiny = np.finfo(np.float32).tiny
        if self.goal.kind == "choices":
            yes = np.mean([_numpy.sigmoid(outputs) for outputs in several], axis=0)
            return np.asarray(np.log(np.maximum(yes, tiny)) - np.log(np.maximum(1 - yes, tiny)))
        axis = class_axis(several[0].shape, self.tokens)
        mean = np.mean([self._said(outputs) for outputs in several], axis=0)
        return np.moveaxis(np.log(np.maximum(mean, tiny)), -1, axis)

    def predict(self, row: Array, x: Array) -> Array:
        """(n, outputs) the answers of a row's model for inputs: probabilities of labels or choices, or numbers.

        Of (n, B) rows, the mean of what they say.
        """
        if (row := _one(row)).ndim == 2:
            return np.asarray(np.mean([self.predict(one, x) for one in row], axis=0))
        known = self.numbers(x)
        if self.goal.kind != "labels":
            return self._said(self._raw(row, known, np.arange(len(x)), None)[0])
        if self.network is not None:
            assert self.level is not None
            given = native.samples_of(self.network, known, None, np.arange(len(x)))
            return native.predict(self.network, row, given, self.level)
        if self._other == "numpy":
            assert self.description is not None
            return _numpy.predict(self.description, row, known)
        with _torch.one_thread():
            return _torch.predict(self.module, self.layout, row, known, self.tokens)


def _one(row: Array) -> Array:
    """Several rows that are all the same are one."""
    return row[0] if row.ndim == 2 and (row == row[0]).all() else row


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


def trainers_of(data: FederatedData, model: Any, training: Training) -> list[Trainer]:
    """The trainer of a model; of a model behind encoders, one with the largest encoder, then those of all devices."""
    targets = data.examples[1]
    if not isinstance(model, tuple):
        if data.shapes is not None:
            first = {shape: data.shapes.index(shape) for shape in dict.fromkeys(data.shapes)}
            shapes = ", ".join(f"{shape} of device {device}" for shape, device in first.items())
            raise ValueError(
                f"devices have inputs of different shapes, {shapes}: give each kind an encoder, such as "
                "encoder.latent = [16, 31], or bring all inputs to one shape"
            )
        return [Trainer(model, training, data.x.shape[1:], targets)]
    made = {one: Trainer(one, training, one.shape, targets) for one in dict.fromkeys(model)}
    largest = max(made.values(), key=lambda trainer: trainer.layout.slots[1].stop)
    return [largest, *(made[one] for one in model)]


def outputs_for(training: Training, data: FederatedData) -> int:
    """How many numbers a model must give for a sample: one for each label, choice or number."""
    return outputs_of(Goal.of(training.loss, training.metric, data.examples[1]).kind, data.y, data.classes)


def labels_of(trainer: Trainer, data: FederatedData) -> int:
    """How many labels a model tells apart, or numbers it gives for a sample; the data must fit it."""
    kind, loss = trainer.goal.kind, trainer.training.loss
    check_targets(kind, loss, data.y)
    found, wanted = trainer.outputs(_largest(data)), outputs_of(kind, data.y, data.classes)
    if kind != "labels":
        if found != wanted:
            raise ValueError(f"model must return {wanted} numbers for a sample, one for each target, got {found}")
        return found
    if found < wanted:
        raise ValueError(f"model must return {data.classes} numbers, one per label, got {found}")
    known = data.y if data.labelled else data.y[data.y != NO_LABEL]
    if len(known) and not 0 <= known.min() <= known.max() < data.classes:
        raise ValueError(f"labels must be from 0 to {data.classes - 1}, got {known.min()} to {known.max()}")
    return found


def _largest(data: FederatedData) -> Array:
    """Inputs to try a model on; of integers the largest, for which an embedding may have no row."""
    x = data.examples[0]
    return np.full_like(x, data.x.max()) if x.dtype.kind in "iu" and x.dtype != np.uint8 and len(data.x) else x


@cache
def _say_once(text: str) -> None:
    logging.getLogger("fedfilt").warning(text)
