"""Encoders of unlike inputs: their shapes, their place in a row, and what they learn without labels."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import FederatedData, native
from fedfilt.models import MLP, CNN1d, Motifs, PaperCNN
from fedfilt.training import _numpy
from fedfilt.training._torch import torch_module
from fedfilt.training.description import Convolution, Dense, described
from fedfilt.training.encoders import Encoded, Encoder, behind
from fedfilt.training.network import output_size
from fedfilt.training.sgd import Training, orders
from fedfilt.training.trainer import UNLABELLED, Trainer, trainers_of

SHAPES = [(3, 31), (6, 62), (9, 62)]
ENCODER = Encoder(latent=(4, 15), epochs=3)


@given(st.integers(2, 200), st.integers(1, 200), st.integers(1, 12))
def test_a_convolution_has_the_latent_length_or_is_refused(long, short, kernel):
    encoder = Encoder(latent=(4, short), kernel=min(kernel, long))
    if short > long:
        with pytest.raises(ValueError, match=r"encoder\.latent = \[4, \d+\] does not fit inputs of shape \(3, "):
            list(encoder.layers((3, long)))
        return
    try:
        [layer, _] = encoder.layers((3, long))
    except ValueError:
        assert kernel > long - short  # a kernel that is too large for so many places
        return
    assert isinstance(layer, Convolution)
    assert output_size(layer, (long,)) == (short,)
    assert layer.kernel[0] >= max(encoder.kernel, layer.stride[0])  # no row is left out
    assert 2 * layer.padding[0] <= layer.kernel[0]  # no place sees only zeros


def test_pictures_and_plain_features_have_encoders_too():
    [layer, _] = Encoder(latent=(8, 14, 14), kernel=3).layers((1, 28, 28))
    assert isinstance(layer, Convolution)
    assert output_size(layer, (28, 28)) == (14, 14)
    _, dense, _ = Encoder(latent=(5,)).layers((3, 10))
    assert dense == Dense(30, 5, name="encoder")
    for encoder, model, shapes in (
        (Encoder(latent=(8, 14, 14), kernel=3), PaperCNN((8, 14, 14), 4), [(1, 28, 28), (3, 32, 32)]),
        (Encoder(latent=(5,)), MLP((5,), 4, hidden=6), [(7,), (3, 10)]),
        (Encoder(latent=(6, 20)), CNN1d((6, 20), 4), [(2, 50), (3, 40)]),
    ):
        for one in behind(encoder, model, shapes):
            x = np.random.default_rng(0).standard_normal((3, *one.shape)).astype(np.float32)
            trainer = Trainer(one, Training(), one.shape)
            assert trainer.network is not None or not native.chosen().level  # the core knows it
            row = trainer.start(0)
            truth = torch_module(one, row)(torch.from_numpy(x)).softmax(1).detach().numpy()
            np.testing.assert_allclose(trainer.predict(row, x), truth, atol=1e-5)
            np.testing.assert_allclose(_numpy.predict(described(one), row, x), truth, atol=1e-5)


def test_rows_have_one_width_the_same_start_behind_every_encoder_and_zeros_that_stay():
    models = behind(ENCODER, Motifs((4, 15), 3, filters=8), SHAPES)
    trainers = [Trainer(one, Training(momentum=0.9), one.shape) for one in models]
    rows = [trainer.start(5) for trainer in trainers]
    room = models[0].room
    assert room == 4 * 9 * 9 + 4
    assert {trainer.layout.size for trainer in trainers} == {room + 4 * 8 * 5 + 8 + 8 * 3 + 3}
    common = described(Motifs((4, 15), 3, filters=8)).start(5)
    rng = np.random.default_rng(0)
    for trainer, row, (channels, length) in zip(trainers, rows, SHAPES, strict=True):
        np.testing.assert_array_equal(row[room:], common)
        own = trainer.layout.columns(["encoder"])
        needed = 4 * channels * trainer.layout.slots[0].shape[2] + 4
        assert own.sum() == needed
        assert own[:needed].all()
        x = rng.standard_normal((12, channels, length)).astype(np.float32)
        trainer.pretrain(row, x, seed=0, round=1, device=0)
        trainer.train(row, x, np.arange(12) % 3, np.arange(12), seed=0, round=1, device=0, epochs=2, samples=12)
        assert not row[needed:room].any()
        assert (row[room:] != common).any()


@pytest.mark.parametrize("shape", [(3, 31), (2, 9, 9), (7,)])
@pytest.mark.parametrize("backend", ["native", "torch", "numpy"])
def test_without_labels_it_learns_what_a_plain_encoder_and_decoder_in_torch_learn(monkeypatch, backend, shape):
    latent, model = {
        1: ((4,), MLP((4,), 3)),
        2: ((4, 15), Motifs((4, 15), 3, filters=8)),
        3: ((4, 3, 3), MLP((4, 3, 3), 3)),
    }[len(shape)]
    if backend != "native":
        monkeypatch.setenv("FEDFILT_NATIVE", "off")
    if backend == "numpy":
        monkeypatch.setattr("fedfilt.training._torch.installed", lambda: False)
    try:
        one = Encoded(model, Encoder(latent=latent, kernel=3, epochs=3), shape)
        trainer = Trainer(one, Training(batch_size=8, momentum=0.5, weight_decay=0.1), shape)
        if trainer.backend != backend:
            pytest.skip("there is no native core")
        x = np.random.default_rng(1).standard_normal((10, *shape)).astype(np.float32)
        before = trainer.start(2)
        row = before.copy()
        trainer.pretrain(row, x, seed=4, round=2, device=3)
    finally:
        monkeypatch.undo()
    encoder = torch_module(one, before)
    first = encoder.encoder
    if len(shape) == 1:
        patches = torch.from_numpy(x)
    else:
        sides = len(shape) - 1
        flat = torch.from_numpy(x if sides == 2 else x[:, :, None])
        wide: list[Any] = [(1, *v) if sides == 1 else v for v in (first.kernel_size, first.stride)]  # type: ignore[misc]
        padding = (0, *first.padding) if sides == 1 else first.padding  # type: ignore[misc]
        patches = torch.nn.functional.unfold(flat, wide[0], padding=padding, stride=wide[1])
        patches = patches.transpose(1, 2).reshape(-1, patches.shape[1])
    count, width = patches.shape
    pair = torch.nn.Sequential(torch.nn.Linear(width, 4), torch.nn.ReLU(), torch.nn.Linear(4, width))
    start = torch.from_numpy(described_start(width, seed=4))
    with torch.no_grad():
        pair[0].weight.copy_(first.weight.reshape(4, -1))
        pair[0].bias.copy_(first.bias)
        pair[2].weight.copy_(start.reshape(width, 4))
        pair[2].bias.zero_()
    descent = torch.optim.SGD(pair.parameters(), lr=0.05, momentum=0.5)
    for order in orders(4, 2, 3, count, count, 3, UNLABELLED)[1]:
        for at in range(0, count, 8):
            batch = patches[torch.from_numpy(order[at : at + 8])]
            descent.zero_grad()
            ((pair(batch) - batch) ** 2).mean().backward()
            descent.step()
    after = torch_module(one, row)
    torch.testing.assert_close(after.encoder.weight.reshape(4, -1), pair[0].weight, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after.encoder.bias, pair[0].bias, atol=1e-5, rtol=1e-4)
    others = ~trainer.layout.columns(["encoder"])
    np.testing.assert_array_equal(row[others], before[others])


def described_start(width, seed):
    """Weights of the decoder, as Glorot's of an encoder and a decoder in turn."""
    numbers = torch.Generator().manual_seed(seed)
    reach = math.sqrt(6 / (4 + width))
    first, second = (torch.empty(4 * width).uniform_(-reach, reach, generator=numbers) for _ in range(2))
    assert first.shape == second.shape
    return second.numpy()


def test_pre_training_that_diverges_names_its_own_rate():
    one = Encoded(Motifs((4, 15), 3), Encoder(latent=(4, 15), learning_rate=1e6), (3, 31))
    trainer = Trainer(one, Training(), (3, 31))
    with pytest.raises(ArithmeticError, match=r"device 7 diverged in round 2.*lower encoder\.learning_rate \(1e\+06\)"):
        trainer.pretrain(trainer.start(0), np.ones((4, 3, 31), np.float32) * 1e9, seed=0, round=2, device=7)


def test_what_cannot_be_is_refused_with_its_name():
    for wrong, message in (
        ({"latent": (0, 3)}, r"encoder\.latent must be"),
        ({"kernel": 0}, r"encoder\.kernel"),
        ({"epochs": -1}, r"encoder\.epochs"),
        ({"learning_rate": 0}, r"encoder\.learning_rate"),
    ):
        with pytest.raises(ValueError, match=message):
            Encoder(**wrong)
    with pytest.raises(
        ValueError, match=r"encoder\.latent must be one number, or 2 for inputs of shape \(3, 31\), got"
    ):
        list(Encoder(latent=(4, 5, 5)).layers((3, 31)))
    with pytest.raises(ValueError, match=r"a model that lists its layers, .* got Linear"):
        behind(ENCODER, torch.nn.Linear(2, 2), SHAPES)
    data = FederatedData.from_arrays([(np.zeros((3, *shape)), [0, 1, 2]) for shape in SHAPES])
    with pytest.raises(
        ValueError, match=r"different shapes, \(3, 31\) of device 0, \(6, 62\) of device 1.*: give each kind"
    ):
        trainers_of(data, Motifs((4, 15), 3), Training())
