"""The native core computes what NumPy does, at every level of the CPU. Needs no torch: emulated CPUs run it too."""

import os
import platform

import numpy as np
import pytest

import fedfilt
from fedfilt import Graph, mixing, native
from fedfilt.filters import Tikhonov
from fedfilt.models import MLP, CNN1d, Logistic, PaperCNN
from fedfilt.training import _numpy
from fedfilt.training.description import Convolution, Dense, Description, Flatten, Pool, Relu, described
from fedfilt.training.sgd import Guides, Training
from fedfilt.training.trainer import Trainer

each_level = pytest.mark.parametrize("level", native.available())
CLASSES = 5
BLOCKS = Description(
    (
        Convolution(2, 21, (3, 3), (1, 1), (1, 1)),
        Relu(),
        Pool((2, 2)),
        Convolution(21, 50, (3, 3), (1, 1), (1, 1)),
        Relu(),
        Flatten(),
        Dense(50 * 30, 37),
        Relu(),
        Dense(37, CLASSES),
    )
)
MODELS = {
    "paper": ((1, 14, 14), PaperCNN((1, 14, 14), CLASSES)),
    "1-D": ((3, 40), CNN1d((3, 40), CLASSES)),
    "mlp": ((61,), MLP((61,), CLASSES, hidden=33)),
    "logistic": ((60,), Logistic((60,), CLASSES)),
    "odd channels": ((2, 10, 12), BLOCKS),
}


def test_every_64_bit_arm_cpu_has_neon():
    if platform.machine() == "aarch64" and native.available():
        assert native.available() == ("baseline", "neon")
        assert os.environ.get(native.VARIABLE) or native.chosen() == ("neon", "the best of this CPU")
    else:
        assert "neon" not in native.available()


@each_level
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dark", [False, True], ids=["noise", "dark"])
@pytest.mark.parametrize("batch", [1, 16, 33], ids="batch{}".format)
def test_a_round_equals_numpy(name, level, dark, batch):
    shape, model = MODELS[name]
    rng = np.random.default_rng(batch)
    x = rng.standard_normal((40, *shape)).astype(np.float32)
    if dark:
        x = ((x > 1) * rng.integers(1, 256, x.shape)).astype(np.uint8)
    y = rng.integers(0, CLASSES, len(x))
    more = {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.2} if dark else {}
    trainer = Trainer(model, Training(0.03, batch, **more), shape)
    trainer.level = level
    ours, numpys, own = trainer.start(0), trainer.start(0), np.arange(len(y))
    loss = trainer.train(ours, x, y, own, seed=3, round=1, device=2, epochs=2, samples=35)
    assert trainer.backend == "native"
    description = described(model)
    assert loss == pytest.approx(
        _numpy.train(description, numpys, x, y, trainer.training, (3, 1, 2, 2, 35, 0)), rel=1e-4
    )
    assert np.abs(ours - numpys).max() < 1e-5
    assert np.abs(ours - trainer.start(0)).max() > 1e-3
    counts, total = trainer.test(numpys, x, y, own, CLASSES)
    counts_of_numpy, total_of_numpy = _numpy.test(description, numpys, x, y)
    assert np.array_equal(counts, counts_of_numpy)
    assert total == pytest.approx(total_of_numpy, rel=1e-5)
    assert np.abs(trainer.predict(numpys, x) - _numpy.predict(description, numpys, x)).max() < 1e-6


@each_level
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("share", [0.03, 0.5, 1.0])
def test_a_guided_round_equals_numpy(name, level, share):
    shape, model = MODELS[name]
    description, rng = described(model), np.random.default_rng(0)
    x, y = rng.standard_normal((20, *shape)).astype(np.float32), rng.integers(0, CLASSES, 20)
    trainer = Trainer(model, Training(0.03, 7, 0.9, weight_decay=0.1, proximal=0.5), shape)
    trainer.level = level
    ours, numpys, size = trainer.start(0), trainer.start(0), trainer.layout.size
    around, drift = (0.1 * rng.standard_normal((2, size))).astype(np.float32)
    fixed = np.arange(size) < (1 - share) * size
    fixed[rng.random(size) < 0.1] = True
    guides = {"around": around, "drift": drift, "trained": ~fixed}
    trainer.train(ours, x, y, np.arange(20), seed=3, round=1, device=2, epochs=2, samples=20, **guides)
    assert trainer.backend == "native"
    _numpy.train(description, numpys, x, y, trainer.training, (3, 1, 2, 2, 20, 0), Guides(**guides))
    assert np.abs(ours - numpys).max() < 1e-5
    assert np.array_equal(ours[fixed].view(np.int32), trainer.start(0)[fixed].view(np.int32))
    assert (ours[~fixed] != trainer.start(0)[~fixed]).all()


@each_level
@pytest.mark.parametrize("limit", [50, 5000], ids=["factor", "matrix"])
def test_mixing_equals_a_dense_matrix(level, limit, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, level)
    monkeypatch.setattr(mixing, "DENSE_LIMIT", limit)
    mixing._prepare.cache_clear()
    rng = np.random.default_rng(0)
    graph, signal = Graph.nearest(rng.random((150, 2)), 5), rng.standard_normal((150, 83))
    weights = rng.integers(1, 100, graph.count).astype(float)
    exact = fedfilt.mixing_matrix(graph, Tikhonov(2.0), weights) @ signal
    for dtype, error in ((np.float32, 1e-5), (np.float64, 1e-11)):
        assert np.abs(fedfilt.mix(graph, Tikhonov(2.0), signal.astype(dtype), weights) - exact).max() < error
    mixing._prepare.cache_clear()
