"""What guides the steps of one call: a proximal row, a drift, a mask of trained columns. Alike in every backend."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedfilt import native
from fedfilt._draws import generator
from fedfilt.models import MLP, CNN1d, Logistic, PaperCNN
from fedfilt.training import _torch
from fedfilt.training._torch import layout_of, row_of, torch_module
from fedfilt.training.description import described
from fedfilt.training.rows import Layout
from fedfilt.training.sgd import Diverged, Training
from fedfilt.training.trainer import Trainer
from helpers import Odd

MODELS: list[Any] = [
    Logistic((5,), 3),
    MLP((1, 6, 5), 3, hidden=33),
    CNN1d((3, 18), 4),
    PaperCNN((1, 11, 11), 3),
    PaperCNN((3, 13, 14), 5),
]
BACKENDS = ["numpy", "torch", *native.available()]
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_model = pytest.mark.parametrize("model", MODELS, ids=str)
WHERE = {"seed": 3, "round": 2, "device": 1}
RATE, BATCH, COUNT = 0.05, 8, 19


def some_samples(model, seed=0, dark=False):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((COUNT, *model.shape)).astype(np.float32)
    if dark:
        x = (rng.integers(1, 256, x.shape) * (rng.random(x.shape) < 0.2)).astype(np.uint8)
    return x, rng.integers(0, model.classes, COUNT)


def noise(size, seed, scale=0.1):
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def start_of(model):
    return described(model).start(5)


def trained_by(backend, model, training, x, y, epochs=2, row=None, **how):
    """(row, loss) by a backend: numpy, torch or a level of the native core."""
    trainer = Trainer(model, training, x.shape[1:])
    trainer.level = backend
    if backend in ("numpy", "torch"):
        trainer.network = None
    row = start_of(model) if row is None else row
    with pytest.MonkeyPatch.context() as patch:
        if backend == "numpy":
            patch.setattr(_torch, "installed", lambda: False)
        assert trainer.backend == (backend if backend in ("numpy", "torch") else "native")
        loss = trainer.train(row, x, y, np.arange(len(y)), **WHERE, epochs=epochs, samples=len(y), **how)
    return row, loss


def by_an_optimiser(model, training, x, y, epochs, around, drift, trained):
    """The definition: torch.optim.SGD on cross-entropy + proximal / 2 · ‖w - around‖² + drift · w."""
    layout = layout_of(torch_module(model))
    module = torch_module(model, start_of(model))
    slots = {slot.name: slot for slot in layout.slots}

    def tensor(row, name):
        return torch.from_numpy(np.array(layout.view(row, slots[name]), order="C"))

    parameters = dict(module.named_parameters())
    start = {name: p.detach().clone() for name, p in parameters.items()}
    towards = start if around is None else {name: tensor(around, name) for name in parameters}
    rate = training.rate(WHERE["round"])
    # Only what is trained decays, so decay is part of the loss here, as torch's own would reach every column
    optimiser = torch.optim.SGD(module.parameters(), lr=rate, momentum=training.momentum)
    given = torch.from_numpy(x).float() / (255 if x.dtype == np.uint8 else 1)
    targets = torch.from_numpy(y)
    for epoch in range(epochs):
        order = generator(WHERE["seed"], WHERE["round"] - 1, WHERE["device"], epoch).permutation(len(y))
        for first in range(0, len(y), training.batch_size):
            batch = order[first : first + training.batch_size]
            loss = functional.cross_entropy(module(given[batch]), targets[batch])
            for name, p in parameters.items():
                loss = loss + training.weight_decay / 2 * (p**2).sum()
                loss = loss + training.proximal / 2 * ((p - towards[name]) ** 2).sum()
                if drift is not None:
                    loss = loss + (tensor(drift, name) * p).sum()
            optimiser.zero_grad()
            loss.backward()
            for name, p in parameters.items():
                if trained is not None:
                    p.grad *= tensor(trained, name)
            optimiser.step()
    return row_of(module)


def check_close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


# --- against torch ------------------------------------------------------------------------------------------------


@pytest.mark.slow(6)
@given(st.sampled_from(MODELS), st.data())
def test_every_backend_takes_the_steps_of_an_optimiser(model, data):
    draw, size = data.draw, described(model).layout.size
    seed, layout = draw(st.integers(0, 1000)), described(model).layout
    x, y = some_samples(model, seed, draw(st.booleans()))
    training = Training(
        draw(st.sampled_from([0.01, RATE])),
        draw(st.integers(3, 20)),
        momentum=draw(st.sampled_from([0.0, 0.9])),
        decay=0.9,
        weight_decay=draw(st.sampled_from([0.0, 0.1])),
        proximal=draw(st.sampled_from([0.0, 0.5])),
    )
    names = sorted({slot.name for slot in layout.slots} | {slot.name.split(".")[0] for slot in layout.slots} | {"head"})
    masks = {
        "none": None,
        "layers": layout.columns(draw(st.sets(st.sampled_from(names)))),
        "columns": np.random.default_rng(seed).random(size) < draw(st.sampled_from([0.02, 0.5])),
    }
    guides = {
        "around": draw(st.sampled_from([None, noise(size, seed + 1)])),
        "drift": draw(st.sampled_from([None, noise(size, seed + 2)])),
        "trained": masks[draw(st.sampled_from(sorted(masks)))],
    }
    wanted = by_an_optimiser(model, training, x, y, 2, **guides)
    for backend in BACKENDS:
        found, _ = trained_by(backend, model, training, x, y, **guides)
        check_close(found, wanted)
        if guides["trained"] is not None:
            fixed = ~guides["trained"]
            np.testing.assert_array_equal(found[fixed].view(np.int32), start_of(model)[fixed].view(np.int32))


@each_model
@each_backend
def test_columns_that_are_not_trained_keep_every_bit(model, backend):
    """Also -0.0 and the tiniest numbers, whatever pulls at them; the others move."""
    layout, (x, y) = described(model).layout, some_samples(model)
    training = Training(RATE, BATCH, 0.9, weight_decay=0.1, proximal=0.5)
    guides = {"around": noise(layout.size, 1), "drift": noise(layout.size, 2)}
    for trained in (layout.columns(["head"]), ~layout.columns(["head"]), np.arange(layout.size) % 2 == 0):
        row = start_of(model)
        row[::5], row[1::5] = -0.0, np.float32(1e-45)
        before = row.copy()
        trained_by(backend, model, training, x, y, row=row, trained=trained, **guides)
        np.testing.assert_array_equal(row[~trained].view(np.int32), before[~trained].view(np.int32))
        assert (row[trained] != before[trained]).all()


@each_backend
def test_gradients_of_columns_that_are_not_trained_may_overflow(backend):
    """A drift that would throw a column out of bounds does nothing where it is not trained."""
    model = MLP((1, 6, 5), 3, hidden=8)
    x, y = some_samples(model)
    trained = described(model).layout.columns(["head"])
    drift = np.where(trained, np.float32(0.01), np.float32(3e38))
    found, _ = trained_by(backend, model, Training(1e3, BATCH, 0.9), x, y, trained=trained, drift=drift)
    wanted, _ = trained_by(backend, model, Training(1e3, BATCH, 0.9), x, y, trained=trained, drift=drift * trained)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(Diverged):
        trained_by(backend, model, Training(1e3, BATCH, 0.9), x, y, drift=drift)


# --- what changes nothing -----------------------------------------------------------------------------------------


@each_backend
@pytest.mark.parametrize("terms", [{}, {"momentum": 0.9, "weight_decay": 0.1, "proximal": 0.5}], ids=["plain", "all"])
@pytest.mark.parametrize("model", [MLP((1, 6, 5), 3, hidden=33), PaperCNN((1, 11, 11), 3)], ids=str)
def test_what_guides_nowhere_leaves_every_bit(model, terms, backend):
    (x, y), training, size = some_samples(model), Training(RATE, BATCH, **terms), len(start_of(model))
    wanted, loss = trained_by(backend, model, training, x, y)
    same: list[dict[str, Any]] = [
        {"around": start_of(model)},
        {"drift": np.zeros(size, np.float32)},
        {"trained": np.ones(size, bool)},
        {"learning_rate": training.learning_rate, "proximal": training.proximal},
        {"proximal": training.proximal, "around": start_of(model), "drift": -np.zeros(size, np.float32)},
    ]
    for how in same:
        found, other = trained_by(backend, model, training, x, y, **how)
        np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32), str(how))
        assert other == loss


@each_backend
def test_the_row_that_is_trained_may_be_its_own_guide(backend):
    """What is meant is the row as it was."""
    model, training = CNN1d((3, 18), 4), Training(RATE, BATCH, proximal=0.5)
    x, y = some_samples(model)
    row = start_of(model)
    found, _ = trained_by(backend, model, training, x, y, row=row, around=row, drift=row)
    wanted, _ = trained_by(backend, model, training, x, y, drift=start_of(model))
    np.testing.assert_array_equal(found, wanted)


@each_backend
def test_a_row_that_cannot_be_written_can_guide(backend):
    model = Logistic((5,), 3)
    (x, y), around = some_samples(model), noise(18, 1)
    wanted, _ = trained_by(backend, model, Training(RATE, BATCH), x, y, proximal=1.0, around=around)
    around.flags.writeable = False
    found, _ = trained_by(backend, model, Training(RATE, BATCH), x, y, proximal=1.0, around=around)
    np.testing.assert_array_equal(found, wanted)
    spread = np.repeat(around, 2)[::2]
    found, _ = trained_by(backend, model, Training(RATE, BATCH), x, y, proximal=1.0, around=spread)
    np.testing.assert_array_equal(found, wanted)


@each_backend
def test_a_call_can_have_its_own_rate_and_proximal_term(backend):
    model = MLP((1, 6, 5), 3, hidden=8)
    x, y = some_samples(model)
    for how in ({"learning_rate": 0.01}, {"proximal": 0.7}, {"learning_rate": 0.2, "proximal": 0.0}):
        asked, _ = trained_by(backend, model, Training(RATE, BATCH, 0.5, 0.8, 0.1, 0.3), x, y, **how)
        settings = {"learning_rate": RATE, "proximal": 0.3} | how
        wanted, _ = trained_by(
            backend, model, Training(batch_size=BATCH, momentum=0.5, decay=0.8, weight_decay=0.1, **settings), x, y
        )
        np.testing.assert_array_equal(asked, wanted)
    with pytest.raises(Diverged, match=r"lower training\.learning_rate \(1e\+30\)"):
        trained_by(backend, model, Training(RATE, BATCH), x, y, learning_rate=1e30)


@each_backend
def test_where_nothing_is_trained_only_the_loss_is_found(backend):
    model = PaperCNN((1, 11, 11), 3)
    x, y = some_samples(model)
    nothing = np.zeros(len(start_of(model)), bool)
    row, loss = trained_by(backend, model, Training(RATE, BATCH, 0.9, 1.0, 0.1), x, y, trained=nothing)
    np.testing.assert_array_equal(row, start_of(model))
    trainer = Trainer(model, Training(), model.shape)
    assert loss == pytest.approx(trainer.test(row, x, y, np.arange(len(y)), 3)[1] / len(y), rel=1e-5)
    assert math.isnan(trained_by(backend, model, Training(), x, y, epochs=0, trained=nothing)[1])


# --- what methods are made of -------------------------------------------------------------------------------------


@each_model
@each_backend
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_drift_that_cancels_the_gradient_holds_the_model_still(model, backend, momentum):
    """SCAFFOLD's control variates at an optimum of the average: full batches, so the gradient is the same each step."""
    (x, y), start = some_samples(model), start_of(model)
    training = Training(RATE, COUNT, momentum)
    one, _ = trained_by(backend, model, training, x, y, epochs=1)
    gradient = (start - one) / np.float32(training.rate(2))
    assert np.abs(gradient).max() > 0.01
    still, _ = trained_by(backend, model, training, x, y, epochs=4, drift=-gradient)
    moved, _ = trained_by(backend, model, training, x, y, epochs=4)
    assert np.abs(still - start).max() < 1e-5
    assert np.abs(moved - start).max() > 1e-3


@each_backend
def test_one_step_goes_by_the_drift_and_the_pull(backend):
    """w₁ = w₀ - rate · (∂loss + proximal · (w₀ - around) + drift)."""
    model, training = PaperCNN((1, 11, 11), 3), Training(RATE, COUNT)
    (x, y), start = some_samples(model), start_of(model)
    around, drift = noise(len(start), 1), noise(len(start), 2)
    one, _ = trained_by(backend, model, training, x, y, epochs=1)
    other, _ = trained_by(backend, model, training, x, y, epochs=1, proximal=2.0, around=around, drift=drift)
    check_close(other, one - RATE * (2.0 * (start - around) + drift))


@each_backend
def test_a_strong_proximal_term_leads_to_its_row(backend):
    """Ditto: how far the personal model is from the one it is tied to falls as 1 / weight."""
    model = MLP((1, 6, 5), 3, hidden=8)
    (x, y), around = some_samples(model), noise(len(start_of(model)), 1)
    apart = [
        np.abs(
            trained_by(backend, model, Training(0.002, COUNT), x, y, 60, proximal=weight, around=around)[0] - around
        ).max()
        for weight in (0.0, 100.0, 400.0)
    ]
    assert apart[0] > 10 * apart[1]
    assert apart[1] / apart[2] == pytest.approx(4, rel=0.2)


@each_backend
def test_body_and_head_trained_in_turn_are_two_calls(backend):
    """FedRep: the second call goes on from the first, and neither touches the other's columns."""
    model, training = PaperCNN((1, 11, 11), 3), Training(RATE, BATCH)
    layout, (x, y), row = described(model).layout, some_samples(model), start_of(model)
    head = layout.columns(["head"])
    trained_by(backend, model, training, x, y, row=row, trained=head)
    middle = row.copy()
    trained_by(backend, model, training, x, y, row=row, trained=~head)
    np.testing.assert_array_equal(middle[~head], start_of(model)[~head])
    np.testing.assert_array_equal(middle[head], row[head])
    assert (middle[head] != start_of(model)[head]).any()
    assert (middle[~head] != row[~head]).any()


# --- modules of one's own -----------------------------------------------------------------------------------------


def odd(**how):
    """(layout, row before, row after) of a module with batch norm, dropout and tied weights."""
    torch.manual_seed(0)
    module = Odd()
    trainer = Trainer(module, Training(RATE, BATCH, 0.9, weight_decay=0.1), (144,))
    assert trainer.backend == "torch"
    rng, row = np.random.default_rng(0), row_of(module)
    x, y = rng.standard_normal((COUNT, 144)).astype(np.float32), rng.integers(0, 3, COUNT)
    after = row.copy()
    trainer.train(after, x, y, np.arange(COUNT), **WHERE, epochs=2, samples=COUNT - COUNT % BATCH, **how)
    return trainer.layout, row, after


def test_the_mask_holds_for_running_means_too():
    layout, before, free = odd()
    norm = layout.columns(["norm"])
    assert norm.sum() == 4 * 16
    assert (free[norm] != before[norm]).all()
    _, _, after = odd(trained=~norm)
    np.testing.assert_array_equal(after[norm].view(np.int32), before[norm].view(np.int32))
    assert (after[layout.columns(["last"])] != before[layout.columns(["last"])]).all()
    _, _, only = odd(trained=norm)
    np.testing.assert_array_equal(only[~norm].view(np.int32), before[~norm].view(np.int32))
    assert (only[norm] != before[norm]).all()


def test_drift_and_pull_do_not_reach_running_means():
    layout, before, free = odd()
    means = layout.columns(["norm.running_mean", "norm.running_var", "seen"])
    assert means.sum() == 2 * 16 + 3
    huge = np.where(means, np.float32(100), np.float32(0))
    _, _, after = odd(drift=huge, proximal=1.0, around=before + huge)
    _, _, wanted = odd(proximal=1.0)
    np.testing.assert_array_equal(after, wanted)
    assert not np.array_equal(free, wanted)


def test_frozen_parameters_stay_whatever_pulls():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3))
    module[1].weight.requires_grad = False
    trainer = Trainer(module, Training(RATE, BATCH, 0.9, weight_decay=0.1, proximal=0.5), (9,))
    before = trainer.given(0)
    row, frozen = before.copy(), trainer.layout.columns(["1.weight"])
    x, y = np.ones((COUNT, 9), np.float32), np.arange(COUNT) % 3
    guides = {"around": noise(len(row), 1), "drift": noise(len(row), 2)}
    trainer.train(row, x, y, np.arange(COUNT), **WHERE, epochs=1, samples=COUNT, **guides)
    np.testing.assert_array_equal(row[frozen], before[frozen])
    assert (row[~frozen] != before[~frozen]).all()


# --- what is refused ----------------------------------------------------------------------------------------------

BAD = {
    "around, too short": (
        {"around": np.zeros(17, np.float32)},
        r"around must be .* float32 with shape \(18,\), got fl",
    ),
    "around of doubles": ({"around": np.zeros(18)}, r"around must be a NumPy array of float32 .*got float64"),
    "a list": ({"around": [0.0] * 18}, "around must be a NumPy array of float32 .*got list"),
    "around NaN": ({"around": np.full(18, np.nan, np.float32)}, "around must be finite, got NaN or infinity"),
    "drift, two rows": ({"drift": np.zeros((2, 18), np.float32)}, r"drift must be .*got float32 of shape \(2, 18\)"),
    "drift infinite": ({"drift": np.full(18, np.inf, np.float32)}, "drift must be finite, got NaN or infinity"),
    "a mask of numbers": ({"trained": np.ones(18, np.float32)}, "trained must be a NumPy array of bool .*got float32"),
    "a short mask": ({"trained": np.ones(3, bool)}, r"trained must be .*shape \(18,\), got bool of shape \(3,\)"),
    "proximal": ({"proximal": -1.0}, "proximal must be a finite number >= 0, got -1.0"),
    "rate": ({"learning_rate": 0.0}, "learning_rate must be a finite number > 0, got 0.0"),
}


@each_backend
@pytest.mark.parametrize("what", BAD)
def test_guides_that_do_not_fit_are_refused_before_anything_is_trained(backend, what):
    model = Logistic((5,), 3)
    (x, y), row = some_samples(model), start_of(model)
    how, words = BAD[what]
    with pytest.raises(ValueError, match=words):
        trained_by(backend, model, Training(), x, y, row=row, **how)
    np.testing.assert_array_equal(row, start_of(model))


# --- columns by layer ---------------------------------------------------------------------------------------------


def test_columns_are_named_by_layer():
    layout = described(PaperCNN((1, 28, 28), 10)).layout
    tensors = {slot.name: slot.stop - slot.start for slot in layout.slots}
    last = layout.slots[-1].name.split(".")[0]
    head = layout.columns(["head"])
    assert (head.dtype, head.shape) == (np.dtype(bool), (53_002,))
    np.testing.assert_array_equal(head, np.arange(53_002) >= 53_002 - 128 * 10 - 10)
    np.testing.assert_array_equal(layout.columns([last]), head)
    for name, size in tensors.items():
        assert layout.columns([name]).sum() == size
        assert layout.columns([name.split(".")[0]]).sum() >= size
    assert layout.columns(tensors).all()
    assert not layout.columns([]).any()
    np.testing.assert_array_equal(layout.columns(["0", "head", "0"]), layout.columns(["0"]) | head)


def test_columns_of_modules_have_the_names_of_the_state_dict():
    layout = layout_of(Odd())
    np.testing.assert_array_equal(layout.columns(["tied"]), layout.columns(["first"]))
    np.testing.assert_array_equal(layout.columns(["tied.weight"]), layout.columns(["first.weight"]))
    np.testing.assert_array_equal(layout.columns(["head"]), layout.columns(["last"]))
    assert layout.columns(["norm"]).sum() == 4 * 16
    nested = nn.Sequential()
    nested.add_module("body", nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)))
    nested.add_module("head", nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))
    layout = layout_of(nested)
    assert layout.columns(["body"]).sum() == 15 + 12
    assert layout.columns(["body.2"]).sum() == 12
    assert layout.columns(["head"]).sum() == 12 + 8, "its own name goes before ours"
    np.testing.assert_array_equal(~layout.columns(["body"]), layout.columns(["head"]))
    assert layout_of(nn.Linear(4, 3)).columns(["head"]).all()
    normed = layout_of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    np.testing.assert_array_equal(normed.columns(["head"]), normed.columns(["0"]))


def test_a_name_that_is_none_is_answered_with_the_nearest():
    layout = Layout.of({"encoder.0.weight": (2, 3), "encoder.0.bias": (2,), "classifier.weight": (4, 2)})
    with pytest.raises(ValueError, match=r"unknown layer 'clasifier'; did you mean 'classifier'\? \(allowed: classif"):
        layout.columns(["clasifier"])
    with pytest.raises(ValueError, match="unknown layer 'haed'; did you mean 'head'"):
        layout.columns(["encoder", "haed"])
    with pytest.raises(ValueError, match=r"names must be a list of layers such as \['head'\], got 'head'"):
        layout.columns("head")
