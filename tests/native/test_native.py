"""The native core computes what torch and SciPy define, at every level of the CPU, and says so where it cannot."""

import ast
import logging
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import fedfilt
from fedfilt import Graph, mixing, native
from fedfilt.data.samples import FederatedData
from fedfilt.engines.local import Local
from fedfilt.filters import Floor, Tikhonov
from fedfilt.rounds.types import State
from fedfilt.system.orders import Job, Plan
from fedfilt.training._torch import describe, glorot, layout_of, row_of
from fedfilt.training.network import Unknown, flops, network_of
from fedfilt.training.sgd import Diverged, Training
from fedfilt.training.trainer import Trainer
from helpers import ROOT, SLOW

# Without optimisation all accesses stay, and compiling takes a quarter of the time
WATCHED = ["-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SANITIZED = os.environ.get("FEDFILT_SANITIZED", "")  # the library, in the tests that sanitizers watch
assert not SANITIZED or getattr(native._library(), "_name", native._library()) == SANITIZED

each_level = pytest.mark.parametrize("level", native.available())


def network(shape, convolutions, dense, bias=True, early_pool=False):
    """Convolutions are (outputs, kernel, stride, padding, pool); 1-D where the shape is (channels, length)."""
    convolve, pooling = (nn.Conv2d, nn.MaxPool2d) if len(shape) == 3 else (nn.Conv1d, nn.MaxPool1d)
    layers: list[nn.Module] = []
    channels = shape[0]
    for outputs, kernel, stride, padding, pool in convolutions:
        layers.append(convolve(channels, outputs, kernel, stride, padding, bias=bias))
        after: list[nn.Module] = [nn.ReLU()] if pool == 1 else [nn.ReLU(), pooling(pool)]
        layers += after[::-1] if early_pool else after
        channels = outputs
    layers.append(nn.Flatten())
    size = nn.Sequential(*layers)(torch.zeros(2, *shape)).shape[1]
    for i, outputs in enumerate(dense):
        layers += [*[nn.ReLU()] * (i > 0), nn.Linear(size, outputs, bias=bias)]
        size = outputs
    module = nn.Sequential(*layers)
    glorot(module, 7)
    return module


LARGE = {
    "paper": ((1, 28, 28), [(32, 3, 2, 1, 2), (64, 3, 2, 1, 2)], [128, 10]),
    "leaf": ((1, 28, 28), [(32, 5, 1, 2, 2), (64, 5, 1, 2, 2)], [64, 62]),
    "colour, three blocks": ((3, 32, 32), [(16, 3, 1, 1, 2), (32, 3, 1, 1, 2), (64, 3, 1, 1, 2)], [64, 10]),
    "odd channels, no border": ((1, 28, 28), [(20, 5, 1, 0, 2), (50, 5, 1, 0, 2)], [100, 7]),
    "one block, one dense": ((1, 28, 28), [(8, 3, 1, 1, 2)], [10]),
    "sensors": ((9, 128), [(64, 5, 1, 2, 2), (48, 5, 1, 0, 2), (16, 3, 2, 1, 2)], [100, 6]),
}
SMALL = {  # these also run under sanitizers, which take many times as long
    "small paper": ((1, 14, 14), [(32, 3, 2, 1, 2), (64, 3, 2, 1, 2)], [40, 10]),
    "small leaf": ((1, 9, 9), [(32, 5, 1, 2, 2), (70, 5, 1, 2, 2)], [33, 12]),
    "small, three blocks": ((3, 10, 10), [(5, 3, 1, 1, 2), (20, 3, 1, 1, 2), (34, 3, 1, 1, 2)], [8, 4]),
    "no pool": ((2, 12, 12), [(24, 3, 2, 1, 1), (40, 3, 1, 0, 1)], [33, 5]),
    "pool of three": ((1, 20, 17), [(6, 3, 1, 1, 3), (5, 2, 1, 0, 2)], [9, 4]),
    "oblong": ((2, 9, 21), [(7, (3, 5), (1, 2), (1, 0), (1, 2)), (9, (2, 1), 1, 0, 1)], [8, 3]),
    "small sensors": ((9, 31), [(64, 5, 1, 2, 2), (48, 5, 1, 0, 2), (16, 3, 2, 1, 2)], [20, 6]),
    "sensors, no pool": ((3, 40), [(10, 7, 3, 3, 1)], [12, 8, 5]),
    "mlp": ((61,), [], [48, 3]),
    "deep mlp": ((1, 8, 8), [], [40, 17, 4]),
    "more weights than the cache holds": ((9,), [], [301, 224, 3]),
    "more pixels than fit at once": ((1, 16, 18), [(60, 1, 1, 0, 1), (8, 1, 1, 0, 1)], [3]),
    "logistic": ((60,), [], [10]),
    "two classes": ((1, 6, 6), [(1, 1, 1, 0, 1)], [2]),
}
NETWORKS = SMALL if SANITIZED else LARGE | SMALL


def some_samples(shape, classes, count, dark=False, seed=0):
    """`dark`: bytes, most of them zero, so that most windows of a pool are ties."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    if dark:
        lit = rng.random((count, *shape)) < 0.1
        return (rng.integers(1, 256, (count, *shape)) * lit).astype(np.uint8), labels
    return rng.standard_normal((count, *shape)).astype(np.float32), labels


def trained(module, training, x, y, level, epochs=1, samples=None, **guides):
    """(row, loss, counts, test loss) by the native core, or by torch for the level None."""
    trainer = Trainer(module, training, x.shape[1:])
    if level is None:
        trainer.network = None
    else:
        assert trainer.network is not None
        trainer.level = level
    row, own = trainer.given(0), np.arange(len(y))[::-1]
    where = {"seed": 3, "round": 1, "device": 2, "epochs": epochs, "samples": samples or len(y)}
    loss = trainer.train(row, x, y, own, **where, **guides)
    classes = list(module.parameters())[-1].shape[0]
    return row, loss, *trainer.test(row, x, y, own, classes)


def check_equal(module, training, x, y, level, **how):
    ours, torchs = (trained(module, training, x, y, which, **how) for which in (level, None))
    assert np.abs(ours[0] - torchs[0]).max() < 1e-5
    assert ours[1] == pytest.approx(torchs[1], rel=1e-4, abs=1e-6)
    assert np.array_equal(ours[2], torchs[2])
    assert ours[3] == pytest.approx(torchs[3], rel=1e-4, abs=1e-5)
    start = row_of(module)
    moved = not np.array_equal(torchs[0], start)  # a black picture and no bias leave everything as it was
    assert moved == (not np.array_equal(ours[0], start))
    return moved


@each_level
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dark", [False, True], ids=["noise", "dark"])
def test_a_round_equals_torch(name, level, dark):
    shape, convolutions, dense = NETWORKS[name]
    x, y = some_samples(shape, dense[-1], 21 if SANITIZED else 45, dark)
    assert check_equal(
        network(shape, convolutions, dense), Training(0.05, 8 if SANITIZED else 16), x, y, level, epochs=2
    )


def some_guides(size, around=True, drift=True, share=0.5, seed=0):
    """A row to be pulled towards, a drift, and columns that are trained: the last `share`, or half of all at random."""
    rng = np.random.default_rng(seed)
    rows = (0.1 * rng.standard_normal((2, size))).astype(np.float32)
    found = {"around": rows[0]} if around else {}
    found |= {"drift": rows[1]} if drift else {}
    if share is None:
        return found
    return found | {"trained": np.arange(size) >= (1 - share) * size if share else rng.random(size) < 0.5}


@each_level
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("share", [0, 0.05, 0.9, None], ids=["any", "last", "most", "all"])
def test_guided_steps_are_those_of_torch(name, level, share):
    shape, convolutions, dense = NETWORKS[name]
    x, y = some_samples(shape, dense[-1], 13, dark=share == 0)
    module = network(shape, convolutions, dense)
    guides = some_guides(len(row_of(module)), share=share)
    for terms in ({}, {"momentum": 0.9, "weight_decay": 0.1, "proximal": 0.5}):
        assert check_equal(module, Training(0.03, 5, **terms), x, y, level, **guides)


@each_level
@pytest.mark.parametrize("loss", ["mse", "bce"])
@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("name", ["small paper", "small sensors", "deep mlp", "logistic"])
def test_a_loss_of_numbers_equals_torch(name, outputs, loss, level):
    """Trained, tested and asked: torch.optim.SGD on mse_loss or binary_cross_entropy_with_logits."""
    shape, convolutions, dense = NETWORKS[name]
    x, _ = some_samples(shape, 2, 13)
    targets = np.random.default_rng(1).random((len(x), outputs)).astype(np.float32)
    module = network(shape, convolutions, [*dense[:-1], outputs])
    net, row = network_of(describe(module), shape, loss), row_of(module)
    samples = native.samples_of(net, x, targets[:, 0] if outputs == 1 else targets, np.arange(len(x))[::-1])
    order = np.random.default_rng(2).permuted(np.tile(np.arange(len(x)), (2, 1)), axis=1)
    steps = native.Steps(order.ctypes.data, 2, 5, 0.05, 0.9)
    status, found = native.train(net, row, samples, steps, level)
    compute = {"mse": functional.mse_loss, "bce": functional.binary_cross_entropy_with_logits}[loss]
    optimiser, losses = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9), []
    numbers, wanted = torch.from_numpy(x[::-1].copy()), torch.from_numpy(targets[::-1].copy())
    for draw in order:
        losses.clear()
        for batch in np.split(draw, [5, 10]):
            optimiser.zero_grad()
            value = compute(module(numbers[batch]), wanted[batch])
            value.backward()
            optimiser.step()
            losses.append(len(batch) * value.item())
    assert status == native.FINE
    assert found == pytest.approx(sum(losses) / len(x), rel=1e-4)
    np.testing.assert_allclose(row, row_of(module), rtol=1e-5, atol=1e-5)
    counts, total = native.test(net, row, samples, level)
    with torch.no_grad():
        said = module(numbers)
        assert total == pytest.approx(len(x) * compute(said, wanted).item(), rel=1e-4)
        said = said.sigmoid() if loss == "bce" else said
    assert not counts.any()
    asked = native.predict(net, row, native.samples_of(net, x, None, np.arange(len(x))[::-1]), level)
    np.testing.assert_allclose(asked, said.numpy(), rtol=1e-5, atol=1e-5)


@each_level
@pytest.mark.parametrize("loss", ["mse", "bce"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_are_not_trained(value, loss, level):
    module = network((6,), [], [4, 2])
    net, row = network_of(describe(module), (6,), loss), row_of(module)
    row[layout_of(module).columns(["head"])] = value
    x, order = np.ones((3, 6), np.float32), np.arange(3)
    samples = native.samples_of(net, x, np.full((3, 2), 0.5), order)
    assert native.train(net, row, samples, native.Steps(order.ctypes.data, 1, 3, 0.1), level)[0] == native.DIVERGED


def test_targets_that_do_not_fit_their_loss_are_refused():
    describing, x, rows = describe(network((6,), [], [4, 2])), np.ones((3, 6), np.float32), np.arange(3)
    for loss, targets, words in [
        ("mse", np.zeros((3, 1)), r"targets must be 2 numbers per sample, got shape \(3, 1\)"),
        ("mse", np.zeros(3), r"targets must be 2 numbers per sample, got shape \(3,\)"),
        ("mse", np.full((3, 2), np.inf), "targets must be finite, got inf"),
        ("bce", np.full((3, 2), 1.5), "targets must be finite and from 0 to 1, got 1.5"),
    ]:
        with pytest.raises(ValueError, match=words):
            native.samples_of(network_of(describing, (6,), loss), x, targets, rows)
    with pytest.raises(Unknown, match="the loss mae"):
        network_of(describing, (6,), "mae")


@each_level
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dark", [False, True], ids=["noise", "dark"])
def test_probabilities_equal_torch(name, level, dark):
    shape, convolutions, dense = NETWORKS[name]
    x, _ = some_samples(shape, dense[-1], 9 if SANITIZED else 131, dark)
    trainer = Trainer(network(shape, convolutions, dense), Training(), shape)
    trainer.level = level
    row = trainer.given(0)
    ours = trainer.predict(row, x)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(ours[:1], trainer.predict(row, x[:1]), "a sample alone, and among others")
    np.testing.assert_array_equal(ours, trainer.predict(row, np.asfortranarray(x).astype(x.dtype if dark else float)))
    assert trainer.predict(row, x[:0]).shape == (0, dense[-1])
    large = 3 * row  # logits up to 100: float32 rounds them by more than 1e-6, in torch as here
    sure = trainer.predict(large, x)
    trainer.network = None
    np.testing.assert_allclose(ours, trainer.predict(row, x), rtol=0, atol=1e-6)
    np.testing.assert_allclose(sure, trainer.predict(large, x), rtol=0, atol=1e-4)


@each_level
def test_a_model_that_is_not_finite_has_no_probabilities(level):
    trainer = Trainer(network((6,), [], [4, 3]), Training(), (6,))
    trainer.level = level
    row, x = trainer.given(0), np.ones((2, 6), np.float32)
    row[-1] = np.nan
    assert np.isnan(trainer.predict(row, x)).all()
    row[-1] = 1e30
    np.testing.assert_array_equal(trainer.predict(row, x), [[0, 0, 1]] * 2)
    with pytest.raises(ValueError, match="6 numbers each"):
        trainer.predict(row, x[:, :5])


@each_level
@pytest.mark.parametrize("count", range(1, 14))
def test_every_size_of_a_tile_equals_torch(level, count):
    """Tiles have up to 8 rows and 4 registers, gradients up to 12 registers; what is larger is cut into pieces."""
    width = {"avx2": 8, "avx512": 16}.get(level, 4)
    convolutions = [(count * width, 1, 1, 0, 1), (2 * count, 1, 1, 0, 1)]
    x, y = some_samples((1, 2, 3), width, 2 * count)
    for bias, momentum in ((True, 0.0), (False, 0.9)):
        module = network((1, 2, 3), convolutions, [2 * width, width], bias=bias)
        assert check_equal(module, Training(0.05, count, momentum), x, y, level)


@pytest.mark.parametrize("name", NETWORKS)
def test_flops_are_those_that_torch_counts(name):
    shape, convolutions, dense = NETWORKS[name]
    module = network(shape, convolutions, dense)
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(module(torch.zeros(2, *shape)), torch.zeros(2, dtype=torch.long)).backward()
    assert flops(describe(module), shape) == counter.get_total_flops() // 2


@each_level
@settings(max_examples=30 if SANITIZED else 60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_network_of_the_family_equals_torch(level, data):
    draw = data.draw
    flat = draw(st.booleans())
    side = st.integers(5, 20)
    shape = (draw(st.integers(1, 5)), draw(side)) if flat else (draw(st.integers(1, 4)), draw(side), draw(side))
    convolutions, sides = [], list(shape[1:])
    for _ in range(draw(st.integers(0, 3))):
        block = (
            draw(st.integers(1, 40)),
            *(tuple(draw(st.integers(low, high)) for _ in sides) for low, high in ((1, 4), (1, 3), (0, 2), (1, 3))),
        )
        after = [((n + 2 * p - k) // s + 1) // q for n, k, s, p, q in zip(sides, *block[1:], strict=True)]
        if min(after) < 1:
            break
        if flat:
            block = (block[0], *(one[0] for one in block[1:]))
        convolutions.append(block)
        sides = after
    dense = draw(st.lists(st.integers(2, 40), min_size=1, max_size=3))
    options = {"bias": draw(st.booleans()), "early_pool": draw(st.booleans())}
    module = network(shape, convolutions, dense, **options)
    count = draw(st.integers(1, 30))
    training = Training(
        0.03,
        draw(st.integers(1, 33)),
        momentum=draw(st.sampled_from([0.0, 0.9])),
        weight_decay=draw(st.sampled_from([0.0, 0.1])),
        proximal=draw(st.sampled_from([0.0, 0.5])),
    )
    x, y = some_samples(shape, dense[-1], count, draw(st.booleans()), draw(st.integers(0, 1000)))
    samples = draw(st.integers(1, count))
    share = draw(st.sampled_from([None, None, 0, 0.1, 0.5, 0.9]))
    guides = some_guides(len(row_of(module)), draw(st.booleans()), draw(st.booleans()), share)
    check_equal(module, training, x, y, level, samples=samples, **guides)


@each_level
def test_the_engine_gives_the_same_bits_for_any_number_of_threads(level, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, level)
    shape, convolutions, dense = NETWORKS["paper"]
    module = network(shape, convolutions, dense)
    sets = [some_samples(shape, 10, 20 + 7 * i, dark=True, seed=i) for i in range(6)]
    data = FederatedData.from_arrays(sets)
    found: list[Any] = []
    for workers in (1, 2, 5):
        with Local(data, module, Training(), seed=1, workers=workers) as engine:
            row = row_of(module)
            jobs = [Job(1, i, row, Plan(2, density=0.5)) for i in range(6)]
            came = engine.train(jobs, math.inf)
            replies = [(r.update.copy(), r.loss, r.residual.copy()) for r in came if r.residual is not None]
            assert len(replies) == 6
            tests = engine.test(State(1, np.stack([row + update for update, _, _ in replies])))
            found.append((replies, tests))
    for replies, tests in found[1:]:
        for a, b in zip(replies, found[0][0], strict=True):
            assert np.array_equal(a[0], b[0])
            assert a[1] == b[1]
            assert np.array_equal(a[2], b[2])
        assert np.array_equal(tests.global_test, found[0][1].global_test)
        assert np.array_equal(tests.global_loss, found[0][1].global_loss)


@each_level
@pytest.mark.parametrize("what", ["rate", "picture", "weights"])
def test_what_is_not_finite_ends_the_job_by_name(level, what):
    shape, convolutions, dense = NETWORKS["small paper"]
    module = network(shape, convolutions, dense)
    x, y = some_samples(shape, 10, 20)
    if what == "picture":
        x[7, 0, 3, 3] = np.nan
    elif what == "weights":
        with torch.no_grad():
            module[3].weight[0, 0, 0, 0] = math.inf
    with pytest.raises(Diverged, match="device 2 diverged in round 1"):
        trained(module, Training(1e30 if what == "rate" else 0.01, 8), x, y, level)


class _Own(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + 1


def _shared():
    layer = nn.Linear(9, 9)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)


def _hooked():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 9))
    module[1].register_forward_hook(lambda *_: None)
    return module


def _tied():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 9))
    module[3].weight = module[1].weight
    return module


def _own_forward():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 9))
    module[1].forward = lambda x: x * 2
    return module


def _hooked_backward():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 9))
    module[1].register_full_backward_pre_hook(lambda *_: None)
    return module


class _Called(nn.Sequential):
    def __call__(self, x):
        return super().__call__(x) * 2


class _Unused(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.more = nn.Parameter(torch.ones(3))


def _frozen():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 9))
    module[1].weight.requires_grad = False
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 9)),
        nn.Sequential(nn.Flatten(), nn.Linear(9, 9), nn.Dropout(0.5), nn.Linear(9, 9)),
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(9), nn.Linear(9, 9)),
        nn.Sequential(nn.Flatten(), nn.Linear(9, 9), nn.ReLU()),
        nn.Sequential(nn.Flatten(0), nn.Linear(9, 9)),
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 9)),
        nn.Sequential(nn.Conv2d(1, 2, 2, dilation=2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 9)),
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2, stride=1), nn.Flatten(), nn.Linear(2, 9)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten(), nn.Linear(18, 9)),
        nn.Sequential(nn.Flatten(), *[nn.Linear(9, 9), nn.ReLU()] * 3, nn.Linear(9, 9)),
        _Own(nn.Flatten(), nn.Linear(9, 9)),
        _Called(nn.Flatten(), nn.Linear(9, 9)),
        _Unused(nn.Flatten(), nn.Linear(9, 9)),
        nn.Sequential(nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 9)),
        nn.Sequential(nn.Flatten(), nn.Linear(8, 9)),
        nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2**24, 9)),
        _shared(),
        _tied(),
        _own_forward(),
        _hooked(),
        _hooked_backward(),
        _frozen(),
    ],
)
def test_other_modules_are_left_to_torch(module):
    with pytest.raises(Unknown):
        network_of(describe(module), (1, 3, 3))


@pytest.mark.skipif(not native.available(), reason="the native core is not built")
def test_falling_back_to_torch_is_said_once(caplog):
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.SELU(), nn.Linear(4, 3))
    data = FederatedData.from_arrays([some_samples((1, 3, 3), 3, 12)])
    with caplog.at_level(logging.WARNING, "fedfilt"):
        for _ in range(3):
            with Local(data, module, Training(), workers=1) as engine:
                row = row_of(module)
                [reply] = engine.train([Job(1, 0, row, Plan(1))], math.inf)
                assert np.isfinite(reply.loss)
    assert [record.message for record in caplog.records] == [
        "torch trains this model, because the native core does not support it: SELU"
    ]


def test_the_level_can_be_forced_and_a_wrong_one_is_an_error(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "off")
    assert native.chosen() == (None, "FEDFILT_NATIVE=off")
    for level in native.available():
        monkeypatch.setenv(native.VARIABLE, level.upper())
        assert native.chosen().level == level
    monkeypatch.setenv(native.VARIABLE, "avx22")
    with pytest.raises(ValueError, match="did you mean 'avx2'"):
        native.chosen()
    monkeypatch.setattr(native, "available", lambda: ("baseline",))
    monkeypatch.setenv(native.VARIABLE, "avx512")
    with pytest.raises(ValueError, match="cannot run here; this CPU has baseline"):
        native.chosen()


@each_level
def test_nothing_outside_the_arrays_is_touched(level):
    module = network(*NETWORKS["mlp"])
    x, y = some_samples((61,), 3, 10)
    for labels, rows, numbers in [
        (y + 1, np.arange(10), x),
        (y - 3, np.arange(10), x),
        (y, np.arange(1, 11), x),
        (y, np.arange(10), x[:, :60]),
        (y, np.arange(10), x.astype(np.float64)),
    ]:
        net = network_of(describe(module), (61,))
        with pytest.raises(ValueError, match="must be"):
            native.samples_of(net, numbers, labels, rows)
    trainer = Trainer(module, Training(), (61,))
    with pytest.raises(ValueError, match="row must be"):
        trainer.test(np.zeros(3, np.float32), x, y, np.arange(10), 3)
    with pytest.raises(ValueError, match="classes must be the 3 outputs"):
        trainer.test(trainer.given(0), x, y, np.arange(10), 5)
    bad = FederatedData("mine", x, y + 5, 3, (np.arange(10),), None, np.arange(10))
    with pytest.raises(ValueError, match="labels must be from 0 to 2"):
        Local(bad, module, Training(), workers=1)


def test_a_picture_too_large_for_the_core_is_left_to_torch():
    module = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4_000_000, 2))
    with pytest.raises(Unknown, match="too large"):
        network_of(describe(module), (1, 2000, 2000))


def test_a_device_that_diverges_says_so_and_leaves_nothing_running():
    """It diverges while others still train: when all replies are there, nobody writes into the rows any more."""
    shape, convolutions, dense = NETWORKS["paper"]
    module = network(shape, convolutions, dense)
    sets = [some_samples(shape, 10, 20, seed=0), some_samples(shape, 10, 900, seed=1)]
    sets[0][0][:] = 1e30
    data = FederatedData.from_arrays(sets)
    with Local(data, module, Training(), workers=2) as engine:
        row = row_of(module)
        spoilt, fine = engine.train([Job(1, i, row, Plan(3)) for i in range(2)], math.inf)
        assert (spoilt.diverged, fine.diverged, fine.absent) == (True, False, "")
        assert spoilt.absent.startswith("device 0 diverged in round 1: ")
        [reply] = engine.train([Job(1, 1, row, Plan(1))], math.inf)
        before = reply.update.copy()
        time.sleep(0.5)
        assert np.array_equal(before, reply.update)


def test_without_the_library_torch_and_scipy_do_the_work(monkeypatch):
    monkeypatch.delenv(native.VARIABLE, raising=False)
    monkeypatch.setattr(native, "_library", lambda: "not built")
    assert native.chosen() == (None, "not built")
    module = network(*NETWORKS["mlp"])
    assert Trainer(module, Training(), (61,)).network is None


# ------------------------------------------------------------------------------------------------- mixing


def large_graph(count=600, parts=1, seed=0):
    rng = np.random.default_rng(seed)
    edges, start = [], 0
    for part in range(parts):
        size = count // parts if part < parts - 1 else count - start
        piece = Graph.nearest(rng.random((size, 2)), 5).adjacency.tocoo()
        edges += [(start + a, start + b, w) for a, b, w in zip(piece.row, piece.col, piece.data, strict=True) if a < b]
        start += size
    return Graph.from_edges(count, [edge[:2] for edge in edges], [edge[2] for edge in edges])


@each_level
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("response", [Tikhonov(0.3), Tikhonov(1e6), Floor(10.0, 0.3)], ids=str)
def test_filtering_equals_a_dense_solve(level, parts, response, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, level)
    monkeypatch.setattr(mixing, "DENSE_LIMIT", 100)  # otherwise only a large graph is solved
    graph = large_graph(120 if SANITIZED else 600, parts)
    rng = np.random.default_rng(1)
    weights = rng.integers(1, 100, graph.count).astype(float)
    weights[::7] = 0
    signal = rng.standard_normal((graph.count, 301))
    exact = fedfilt.mixing_matrix(graph, response, weights) @ signal
    calls, solve = [], native.solve

    def solve_and_count(*how):
        calls.append(how)
        return solve(*how)

    monkeypatch.setattr(native, "solve", solve_and_count)
    mixing._prepare.cache_clear()
    for dtype, tolerance in ((np.float32, 2e-6), (np.float64, 1e-12)):
        given = signal.astype(dtype)
        found = fedfilt.mix(graph, response, given, weights)
        assert np.abs(found - exact).max() < tolerance * np.abs(exact).max() * 5
        backwards = fedfilt.mix(graph, response, np.asfortranarray(given)[:, ::-1], weights)
        assert np.array_equal(backwards[:, ::-1], found)
        apart = np.zeros((graph.count, 700), dtype)
        fedfilt.mix(graph, response, given, weights, out=apart[:, 10:311])
        assert np.array_equal(apart[:, 10:311], found)
        assert not apart[:, :10].any()
        assert not apart[:, 311:].any()
        fedfilt.mix(graph, response, given, weights, out=given)
        assert np.array_equal(given, found)
    mixing._prepare.cache_clear()
    assert len(calls) == 8


def test_mixing_respects_read_only_arrays_and_odd_strides():
    graph, odd = Graph.paper(), np.zeros(20, [("a", "u1"), ("v", "f4", (10,))])
    odd["v"] = np.random.default_rng(0).standard_normal((20, 10))
    plain = np.ascontiguousarray(odd["v"])
    assert np.array_equal(fedfilt.mix(graph, Tikhonov(1.0), odd["v"]), fedfilt.mix(graph, Tikhonov(1.0), plain))
    locked = np.frombuffer(bytes(plain.nbytes), np.float32).reshape(plain.shape)
    with pytest.raises(ValueError, match="out must be writeable"):
        fedfilt.mix(graph, Tikhonov(1.0), plain, out=locked)


def test_mixing_follows_a_change_of_level(monkeypatch):
    signal = np.ones((20, 3), np.float32)
    fedfilt.mix(Graph.paper(), Tikhonov(1.0), signal)
    monkeypatch.setenv(native.VARIABLE, "off")
    monkeypatch.setattr(native, "apply", None)
    assert np.allclose(fedfilt.mix(Graph.paper(), Tikhonov(1.0), signal), 1)


@each_level
@pytest.mark.parametrize("columns", [1, 7, 300, 1000])
def test_a_small_mixing_matrix_is_applied_as_numpy_does(level, columns):
    rng = np.random.default_rng(0)
    matrix, wide = rng.random((23, 23), np.float32), rng.standard_normal((23, 2000), np.float32)
    signal, out = wide[:, 5 : 5 + columns], np.zeros((23, 1100), np.float32)
    native.apply(matrix, signal, out[:, :columns], level)
    assert np.allclose(out[:, :columns], matrix @ signal, atol=1e-4)
    assert not out[:, columns:].any()
    found = out[:, :columns].copy()
    native.apply(matrix, signal, signal, level)
    assert np.array_equal(signal, found)


# ------------------------------------------------------------------------------------------------- build


def build(folder, **environment):
    """Build the core in a copy of the package; its Python path."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    ran = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return folder / "src"


def test_without_a_compiler_the_build_succeeds(tmp_path):
    path = build(tmp_path, CC="no-such-compiler", CXX="no-such-compiler")
    code = "from fedfilt import native; print(native.chosen())"
    environment = {**os.environ, "PYTHONPATH": str(path), native.VARIABLE: ""}
    out = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, cwd=tmp_path)
    assert "level=None" in out
    assert "no working C++ compiler" in out
    (path / "fedfilt" / "native" / "core.so").write_bytes(b"not a library")
    out = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, cwd=tmp_path)
    assert "level=None" in out
    assert "cannot be loaded" in out


@pytest.mark.skipif(not native.available(), reason="the native core is not built")
def test_a_library_of_other_sources_is_not_used(monkeypatch):
    monkeypatch.delenv(native.VARIABLE, raising=False)
    monkeypatch.setattr(native, "sources", lambda: "other")
    monkeypatch.setattr(native, "_library", native._library.__wrapped__)
    assert native.chosen() == (None, "built from other sources than these; install fedfilt again")


def compile_cpp(*words):
    return subprocess.run(["g++", *map(str, words)], capture_output=True, text=True, timeout=SLOW)


def has_sanitizers(folder):
    source = folder / "one.cpp"
    source.write_text("int main() { return 0; }\n")
    return bool(shutil.which("g++")) and compile_cpp(*WATCHED, source, "-o", folder / "one").returncode == 0


def sanitized(folder):
    """A copy of the package whose core has all levels, watched by sanitizers; its Python path and the library.

    A level that this CPU lacks is built with the registers of that level, but without its instructions.
    """
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    home = folder / "src" / "fedfilt" / "native"
    setup = ast.parse((ROOT / "setup.py").read_text())
    [levels] = [
        ast.literal_eval(n.value) for n in setup.body if isinstance(n, ast.Assign) and "LEVELS" in ast.unparse(n)
    ]
    lacking = {"avx2": ["-D__AVX2__"], "avx512": ["-D__AVX512F__"]}
    flags = {level: own if level in native.available() else lacking.get(level, own) for level, own in levels.items()}
    everywhere = [
        *WATCHED,
        "-std=c++17",
        "-fno-math-errno",
        "-Wno-psabi",
        "-fPIC",
        "-c",
        "-DFEDFILT_X86=1",
        "-DFEDFILT_ARM=1",
    ]
    core = [f'-DFEDFILT_SOURCES="{native.sources()}"', "-D__builtin_cpu_init()=0", "-D__builtin_cpu_supports(x)=1"]
    parts = {"core": [*core, home / "core.cpp"]}
    parts |= {level: [*own, f"-DLEVEL={level}", home / "kernels.cpp"] for level, own in flags.items()}
    objects = [folder / f"{name}.o" for name in parts]
    for target, words in zip(objects, parts.values(), strict=True):
        done = compile_cpp(*everywhere, *words, "-o", target)
        assert done.returncode == 0, done.stderr
    library = home / "core.so"
    done = compile_cpp(*WATCHED, "-shared", *objects, "-o", library)
    assert done.returncode == 0, done.stderr
    return folder / "src", library


@pytest.mark.slow(25)
def test_the_kernels_pass_under_sanitizers(tmp_path):
    """Address and undefined-behaviour sanitizers watch the same tests at every level, with smaller numbers."""
    if not has_sanitizers(tmp_path):
        pytest.skip("the compiler has no sanitizers")  # "where the compiler has them": others still test the kernels
    path, library = sanitized(tmp_path)
    environment = {
        **os.environ,
        "PYTHONPATH": str(path),
        "LD_PRELOAD": compile_cpp("-print-file-name=libasan.so").stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "FEDFILT_SANITIZED": str(library),
    }
    environment.pop(native.VARIABLE, None)
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-c", "pyproject.toml", "--capture=sys", "--rootdir"]
    tests = "equals_torch or not_finite or dense_solve or as_numpy_does"
    command = [sys.executable, "-m", "pytest", "-vv", *options, str(ROOT), str(Path(__file__).resolve()), "-k", tests]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SLOW)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    for level in native.LEVELS:
        assert f"test_a_round_equals_torch[dark-small paper-{level}] PASSED" in ran.stdout
