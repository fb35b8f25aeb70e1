"""A described model is one model: the native core, NumPy and torch start, train, test and lay it out alike."""

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fedfilt import _parts, native
from fedfilt.models import MLP, CNN1d, Logistic, Motifs, PaperCNN
from fedfilt.training import _numpy, _torch, trainer
from fedfilt.training._torch import describe, glorot, layout_of, row_of, torch_module
from fedfilt.training.description import Convolution, Dense, Description, Flatten, Layer, Pool, Relu, described
from fedfilt.training.network import Unknown, flops, network_of, output_size
from fedfilt.training.sgd import Diverged, Training
from fedfilt.training.trainer import Trainer

MODELS: list[Any] = [
    Logistic((5,), 3),
    Logistic((2, 3, 5), 4),
    MLP((7,), 4, hidden=9),
    MLP((1, 6, 5), 3, hidden=33),
    CNN1d((3, 18), 4),
    CNN1d((1, 5), 2, kernel=3),
    CNN1d((2, 7), 3, kernel=4),
    Motifs((6, 20), 3, filters=10),
    Motifs((2, 11), 4, filters=17, kernel=4),
    Motifs((9, 23), 3, filters=8, latent=3),
    PaperCNN((1, 11, 11), 3),
    PaperCNN((3, 13, 28), 5),
]
each_model = pytest.mark.parametrize("model", MODELS, ids=str)
ALL_TERMS = {"momentum": 0.9, "weight_decay": 0.1, "proximal": 0.5, "decay": 0.9}
WHERE = {"seed": 3, "round": 2, "device": 1, "epochs": 2}
BACKENDS = ["numpy", "torch", *["native"] * (native.chosen().level is not None)]


def test_every_model_is_here():
    assert {type(model) for model in MODELS} == {_parts.find("models", name) for name in _parts.names("models")}


def shape_of(description, shape):
    """What comes out of layers before the first dense one."""
    for layer in description:
        if isinstance(layer, Convolution):
            shape = (layer.outputs, *output_size(layer, shape[1:]))
        elif isinstance(layer, Pool):
            shape = (shape[0], *(n // q for n, q in zip(shape[1:], layer.size, strict=True)))
    return shape


@st.composite
def descriptions(draw):
    """(description, shape of a sample): any of the family that the native core knows."""
    shape = (draw(st.integers(1, 3)), *draw(st.lists(st.integers(5, 13), min_size=1, max_size=2)))
    sides = len(shape) - 1

    def numbers(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * sides))

    layers: list[Layer] = []
    channels = shape[0]
    for _ in range(draw(st.integers(0, 3))):
        outputs = draw(st.integers(1, 18))
        layers.append(
            Convolution(channels, outputs, numbers(1, 4), numbers(1, 3), numbers(0, 2), bias=draw(st.booleans()))
        )
        layers += draw(st.permutations([Relu(), Pool(numbers(1, 3))])) if draw(st.booleans()) else [Relu()]
        channels = outputs
        assume(min(shape_of(layers, shape)) >= 1)
    inputs = math.prod(shape_of(layers, shape))
    layers.append(Flatten())
    for i, outputs in enumerate(draw(st.lists(st.integers(2, 35), min_size=1, max_size=3))):
        layers += [*[Relu()] * (i > 0), Dense(inputs, outputs, bias=draw(st.booleans()))]
        inputs = outputs
    return Description(tuple(layers)), shape


def some_samples(shape, classes, count=19, seed=0, dark=False):
    """`dark`: bytes, most of them zero, so that many windows of a pool are ties."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, *shape)).astype(np.float32)
    if dark:
        x = (rng.integers(1, 256, x.shape) * (rng.random(x.shape) < 0.2)).astype(np.uint8)
    return x, rng.integers(0, classes, count)


def door_to(backend, model, training, shape):
    """(train, test) of a backend, both as the trainer has them."""
    door, description = Trainer(model, training, shape), described(model)
    if backend != "numpy":
        door.network = door.network if backend == "native" else None
        assert door.backend == backend
        return door.train, door.test

    def train(row, x, y, own, **where):
        return _numpy.train(description, row, x[own], y[own], training, (*where.values(), 0))

    return train, lambda row, x, y, own, classes: _numpy.test(description, row, x[own], y[own])


def trained(backend, model, training, x, y, samples=None):
    """(row, loss, a function that tests the row) by a backend."""
    train, test = door_to(backend, model, training, x.shape[1:])
    row = described(model).start(5)
    loss = train(row, x, y, np.arange(len(y)), **WHERE, samples=len(y) if samples is None else samples)
    return row, loss, lambda own: test(row, x, y, own, described(model).outputs)


def check_backends_agree(model, training, x, y, samples=None):
    wanted, *others = (trained(backend, model, training, x, y, samples) for backend in BACKENDS[::-1])
    said = _numpy.predict(described(model), wanted[0], x)
    first, second = np.sort(said, axis=1)[:, :-3:-1].T
    clear = np.flatnonzero(first > second + 1e-5)  # a tie may go either way
    counts, test_loss = wanted[2](clear)
    for row, loss, test in others:
        np.testing.assert_allclose(row, wanted[0], rtol=0, atol=1e-5)
        assert loss == pytest.approx(wanted[1], rel=1e-5, abs=1e-5)
        np.testing.assert_array_equal(test(clear)[0], counts)
        assert test(clear)[1] == pytest.approx(test_loss, rel=1e-5, abs=1e-5 * len(y))
    module = torch_module(model)
    np.testing.assert_allclose(said, _torch.predict(module, layout_of(module), wanted[0], x), rtol=0, atol=1e-6)
    assert (said.dtype, said.shape) == (np.float32, (len(y), described(model).outputs))
    return len(clear)


# --- training -----------------------------------------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("dark", [False, True], ids=["noise", "dark"])
def test_native_numpy_and_torch_train_the_same_model(model, dark):
    x, y = some_samples(model.shape, model.classes, dark=dark)
    assert check_backends_agree(model, Training(0.05, 8, **ALL_TERMS), x, y) == len(y)


@given(descriptions(), st.data())
def test_native_numpy_and_torch_train_any_description(drawn, data):
    description, shape = drawn
    count = data.draw(st.integers(1, 20))
    x, y = some_samples(shape, description.outputs, count, data.draw(st.integers(0, 1000)), data.draw(st.booleans()))
    terms = {
        name: data.draw(st.sampled_from([value, 1.0 if name == "decay" else 0.0])) for name, value in ALL_TERMS.items()
    }
    training = Training(0.03, data.draw(st.integers(1, 12)), **terms)
    check_backends_agree(description, training, x, y, data.draw(st.integers(1, count)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["rate", "sample", "weights"])
@pytest.mark.parametrize("model", [MLP((1, 6, 5), 3, hidden=8), CNN1d((3, 18), 4)], ids=str)
def test_divergence_is_named_by_every_backend(backend, model, what):
    x, y = some_samples(model.shape, model.classes)
    row = described(model).start(0)
    if what == "sample":
        x[7].flat[0] = np.nan
    elif what == "weights":
        row[3] = np.inf
    train, _ = door_to(backend, model, Training(1e30 if what == "rate" else 0.01, 8), model.shape)
    with pytest.raises(Diverged, match=r"device 1 diverged in round 2: .*lower training\.learning_rate"):
        train(row, x, y, np.arange(len(y)), **WHERE, samples=len(y))


def test_numpy_tests_a_model_that_is_out_of_bounds_without_a_word():
    description, (x, y) = described(MLP((5,), 3)), some_samples((5,), 3)
    row = description.start(0) * np.float32(1e30)
    counts, loss = _numpy.test(description, row, x, y)  # a warning would be an error here
    assert counts.sum() == len(y)
    assert not math.isfinite(loss)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", [Logistic((2, 4, 3), 3), CNN1d((2, 9), 3), PaperCNN((1, 11, 12), 3)], ids=str)
def test_bytes_are_scaled_to_0_to_1(backend, model):
    pixels, y = some_samples(model.shape, 3, dark=True)
    assert pixels.dtype == np.uint8
    training = Training(0.1, 8, 0.9)
    raw, scaled = (trained(backend, model, training, x, y) for x in (pixels, pixels.astype(np.float32) / 255))
    np.testing.assert_allclose(raw[0], scaled[0], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(raw[2](np.arange(len(y)))[0], scaled[2](np.arange(len(y)))[0])
    said = _numpy.predict(described(model), raw[0], pixels)
    np.testing.assert_allclose(
        said, _numpy.predict(described(model), raw[0], pixels.astype(np.float32) / 255), atol=1e-6
    )


@pytest.mark.parametrize(("epochs", "samples"), [(0, 19), (2, 0), (0, 0)])
def test_numpy_without_epochs_or_samples_trains_nothing(epochs, samples):
    description, (x, y) = described(Logistic((5,), 3)), some_samples((5,), 3)
    row, before = description.start(0), description.start(0)
    assert math.isnan(_numpy.train(description, row, x, y, Training(), (0, 1, 0, epochs, samples, 0)))
    np.testing.assert_array_equal(row, before)
    assert _numpy.predict(description, row, x[:0]).shape == (0, 3)
    assert _numpy.test(description, row, x[:0], y[:0])[0].sum() == 0


# --- starts, layouts, modules -------------------------------------------------------------------------------------


@each_model
def test_a_start_has_the_bits_of_torchs_generator(model):
    module = torch_module(model)
    for seed in (0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**61 + 12345, 2**62 - 1):
        glorot(module, seed)
        assert described(model).start(seed).tobytes() == row_of(module).tobytes()


@given(descriptions(), st.integers(0, 2**62))
def test_a_start_of_any_description_has_the_bits_of_torchs_generator(drawn, seed):
    description, _ = drawn
    module = torch_module(description)
    glorot(module, seed)
    assert description.start(seed).tobytes() == row_of(module).tobytes()


def check_same_layout(model):
    description, module = described(model), torch_module(model)
    assert describe(module) == description
    ours, torchs = description.layout, layout_of(module)
    assert (ours.slots, ours.size, ours.trained) == (torchs.slots, torchs.size, torchs.trained)
    row = np.arange(ours.size, dtype=np.float32)
    full = torch_module(model, row)
    np.testing.assert_array_equal(row_of(full), row)
    for found in (ours.tensors(row), torchs.tensors(row)):
        assert list(found) == list(full.state_dict())
        for name, values in full.state_dict().items():
            assert found[name].flags.c_contiguous
            np.testing.assert_array_equal(found[name], values.numpy())
            assert found[name].shape == tuple(values.shape)
    np.testing.assert_array_equal(ours.row({slot.name: ours.view(row, slot) for slot in ours.slots}), row)


@each_model
def test_a_module_of_a_model_has_its_description_and_its_layout(model):
    check_same_layout(model)
    assert described(model).outputs == model.classes


@given(descriptions())
def test_a_module_of_any_description_has_its_layout(drawn):
    check_same_layout(drawn[0])


def test_a_lone_layer_is_described_too():
    module = nn.Linear(4, 3)
    assert describe(module) == Description((Dense(4, 3),))
    door = Trainer(module, Training(), (4,))
    assert [slot.name for slot in door.layout.slots] == ["weight", "bias"]
    assert (door.network is not None) == (native.chosen().level is not None)
    np.testing.assert_array_equal(door.given(0), row_of(module))


@each_model
def test_what_a_model_says_of_inputs_that_do_not_fit(model):
    with pytest.raises(ValueError, match="model does not fit inputs of shape"):
        Trainer(model, Training(), (*model.shape[:-1], 99)).outputs(np.zeros((2, *model.shape[:-1], 99), np.float32))


# --- outside the family of the native core ------------------------------------------------------------------------

DEEP = Description((Flatten(), Dense(6, 5), Relu(), Dense(5, 5), Relu(), Dense(5, 4), Relu(), Dense(4, 3)))


def test_a_description_that_the_native_core_does_not_know_trains_all_the_same(caplog, monkeypatch):
    x, y = some_samples((2, 3), 3)
    with pytest.raises(Unknown):
        network_of(DEEP, (2, 3))
    monkeypatch.setattr(trainer, "_say_once", trainer._say_once.__wrapped__)
    found, said = [], []
    for installed in (True, False):
        monkeypatch.setattr(_torch, "installed", lambda there=installed: there)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedfilt"):
            door = Trainer(DEEP, Training(0.1, 8, **ALL_TERMS), (2, 3))
        said += [record.message.partition(" trains this model")[0] for record in caplog.records]
        row, own = door.start(1), np.arange(len(y))
        loss = door.train(row, x, y, own, **WHERE, samples=len(y))
        found.append((door.backend, row, loss, *door.test(row, x, y, own, 3), door.predict(row, x)))
    assert [one[0] for one in found] == ["torch", "numpy"]
    assert said == (["torch", "NumPy"] if native.chosen().level else [])
    for ours, torchs in zip(found[1][1:], found[0][1:], strict=True):
        np.testing.assert_allclose(ours, torchs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "shape"),
    [pytest.param(DEEP, (2, 3), id="deep"), *(pytest.param(model, model.shape, id=str(model)) for model in MODELS)],
)
def test_flops_are_those_that_torch_counts(model, shape):
    x, y = some_samples(shape, 2, 2)
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(torch_module(model)(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    assert flops(described(model), shape) == counter.get_total_flops() // 2
    assert Trainer(model, Training(), shape).flops(x, y) == counter.get_total_flops() // 2


def test_a_batch_too_large_for_the_native_core_needs_no_torch(monkeypatch):
    model, (x, y) = MLP((5,), 3), some_samples((5,), 3)
    wanted = trained("numpy", model, Training(0.1, 8), x, y)
    monkeypatch.setattr(_torch, "installed", lambda: False)
    monkeypatch.setattr(trainer, "fits", lambda *_: False)
    door, row = Trainer(model, Training(0.1, 8), (5,)), described(model).start(5)
    assert door.train(row, x, y, np.arange(len(y)), **WHERE, samples=len(y)) == wanted[1]
    np.testing.assert_array_equal(row, wanted[0])


def test_a_dense_layer_needs_flat_samples_in_every_backend():
    description = Description((Dense(6, 3),))
    with pytest.raises(Unknown, match="a dense layer on samples of shape"):
        network_of(description, (2, 3))
    with pytest.raises(ValueError, match=r"model does not fit inputs of shape .*Flatten"):
        Trainer(description, Training(), (2, 3)).outputs(np.zeros((1, 2, 3), np.float32))
