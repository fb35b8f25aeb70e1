"""Losses, targets and scores other than those of labels: every backend against torch, every score against sklearn."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from torch import nn
from torch.nn import functional

import fedfilt
import tasks
from fedfilt import Graph, native
from fedfilt._draws import generator
from fedfilt.data import FederatedData
from fedfilt.models import MLP, CNN1d, Logistic
from fedfilt.rounds.scores import summary
from fedfilt.training import _torch
from fedfilt.training import trainer as _trainer
from fedfilt.training._torch import row_of, torch_module
from fedfilt.training.description import described
from fedfilt.training.goal import BINS, METRICS, WIDTH, Goal, Metric, all_scores, class_axis
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer

RATE, BATCH, COUNT, EPOCHS = 0.05, 8, 21, 2
WHERE = {"seed": 3, "round": 1, "device": 2}
BACKENDS = ["numpy", "torch", *native.available()]
LOSSES: dict[str, Any] = {
    "cross_entropy": functional.cross_entropy,
    "smoothed": lambda z, y: functional.cross_entropy(z, y, label_smoothing=0.2),
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "bce": functional.binary_cross_entropy_with_logits,
}
MODELS: list[Any] = [Logistic((5,), 1), MLP((5,), 3, hidden=9), CNN1d((3, 18), 2)]
PAIR = Graph.from_edges(2, [(0, 1)])


def samples_for(loss, model, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((COUNT, *model.shape)).astype(np.float32)
    if loss in ("cross_entropy", "smoothed"):
        return x, rng.integers(0, model.classes, COUNT)
    if loss == "bce":
        return x, rng.random((COUNT, model.classes)) < 0.4
    return x, rng.standard_normal((COUNT, model.classes)).astype(np.float32)


def by_torch(model, row, x, y, loss, optimizer=torch.optim.SGD, epochs=EPOCHS):
    """Plain PyTorch, with batches in the order that is drawn: (row, sum of the losses, outputs)."""
    module = torch_module(model, row)
    steps = optimizer(module.parameters(), RATE)
    given, wanted = torch.from_numpy(x), torch.from_numpy(y)
    wanted = wanted if loss in ("cross_entropy", "smoothed") else wanted.float()
    for epoch in range(epochs):
        order = generator(WHERE["seed"], WHERE["round"] - 1, WHERE["device"], epoch).permutation(len(y))
        for first in range(0, len(y), BATCH):
            batch = order[first : first + BATCH]
            steps.zero_grad()
            LOSSES[loss](module(given[batch]), wanted[batch]).backward()
            steps.step()
    with torch.no_grad():
        outputs = module(given)
        return row_of(module), float(LOSSES[loss](outputs, wanted)) * len(y), outputs.numpy()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_backend_descends_like_torch(loss, model, backend, monkeypatch):
    if loss not in native.LOSSES and backend in native.LEVELS:
        pytest.skip("not known to the native core")
    x, y = samples_for(loss, model)
    start = described(model).start(5)
    wanted, loss_sum, outputs = by_torch(model, start, x, y, loss)
    if backend == "numpy":
        monkeypatch.setattr(_torch, "installed", lambda: False)
    monkeypatch.setenv(native.VARIABLE, backend if backend in native.LEVELS else "off")
    trainer = Trainer(model, Training(RATE, BATCH, loss=loss, smoothing=0.2), model.shape, y)
    assert trainer.backend == (backend if backend in ("numpy", "torch") else "native")
    row, rows = start.copy(), np.arange(COUNT)
    trainer.train(row, x, y, rows, **WHERE, epochs=EPOCHS, samples=COUNT)
    np.testing.assert_allclose(row, wanted, rtol=1e-5, atol=1e-5)
    sums, found = trainer.test(wanted, x, y, rows, model.classes)
    assert found == pytest.approx(loss_sum, rel=1e-5)
    probabilities = 1 / (1 + np.exp(-outputs))
    said = {"bce": probabilities, "mse": outputs, "mae": outputs}.get(
        loss, torch.from_numpy(outputs).softmax(1).numpy()
    )
    np.testing.assert_allclose(trainer.predict(wanted, x), said, atol=1e-5)
    parts = [trainer.test(wanted, x, y, part, model.classes)[0] for part in (rows[:4], rows[4:4], rows[4:])]
    np.testing.assert_allclose(sum(parts), sums)  # they add up


def by_torch_in_rounds(model, row, x, y, optimizer):
    """Plain PyTorch: an epoch of each of two rounds with one optimizer."""
    module, given, wanted = torch_module(model, row), torch.from_numpy(x), torch.from_numpy(y)
    steps = optimizer(module.parameters(), RATE)
    for round in range(2):
        order = generator(3, round, 2, 0).permutation(COUNT)
        for first in range(0, COUNT, BATCH):
            batch = order[first : first + BATCH]
            steps.zero_grad()
            functional.cross_entropy(module(given[batch]), wanted[batch]).backward()
            steps.step()
    return row_of(module)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p, rate: torch.optim.SGD(p, rate, momentum=0.9, weight_decay=0.1),
    "adam": lambda p, rate: torch.optim.Adam(p, rate, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    "adamw": lambda p, rate: torch.optim.AdamW(p, rate, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_are_those_of_torch(optimizer, backend, monkeypatch):
    model = MLP((5,), 3, hidden=9)
    x, y = samples_for("cross_entropy", model)
    start, rows = described(model).start(5), np.arange(COUNT)
    whole, _, _ = by_torch(model, start, x, y, "cross_entropy", OPTIMIZERS[optimizer], epochs=4)
    twice = by_torch_in_rounds(model, start, x, y, OPTIMIZERS[optimizer])
    if backend == "numpy":
        monkeypatch.setattr(_torch, "installed", lambda: False)
    options: Any = {"momentum": 0.9} if optimizer == "sgd" else {"betas": (0.8, 0.99), "epsilon": 1e-6}
    training = Training(RATE, BATCH, weight_decay=0.1, optimizer=optimizer, optimizer_state="kept", **options)
    trainer = Trainer(model, training, model.shape)
    assert trainer.backend == backend
    row = start.copy()
    trainer.train(row, x, y, rows, **WHERE, epochs=4, samples=COUNT)
    np.testing.assert_allclose(row, whole, rtol=1e-5, atol=1e-5)
    moments: dict[str, Any] = {}
    row = start.copy()
    for round in (1, 2):  # what it remembers is handed on
        trainer.train(row, x, y, rows, seed=3, round=round, device=2, epochs=1, samples=COUNT, moments=moments)
    np.testing.assert_allclose(row, twice, rtol=1e-5, atol=1e-5)
    assert {name: len(values) for name, values in moments.items()} == {
        **{name: len(row) for name in training.remembers},
        "steps": 1,
    }
    wrong = {**moments, "steps": np.zeros(3)}
    with pytest.raises(ValueError, match="moments must be"):
        trainer.train(row, x, y, rows, **WHERE, epochs=1, samples=COUNT, moments=wrong)


def test_what_the_native_core_does_not_know_is_said(caplog):
    if not native.available():
        pytest.skip("no native core")
    for options, why in ({"optimizer": "adam"}, "the optimizer adam"), ({"loss": "mae"}, "the loss mae"):
        caplog.clear()
        _trainer._say_once.cache_clear()
        assert Trainer(Logistic((5,), 1), Training(**options), (5,)).backend == "torch"
        assert f"torch trains this model, because the native core does not support it: {why}" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adma"}, "training.optimizer 'adma'; did you mean 'adam'"),
        ({"optimizer": "adam", "momentum": 0.9}, "training.momentum is for sgd; use betas for adam"),
        ({"optimizer_state": "ever"}, "training.optimizer_state"),
        ({"betas": (0.9, 1.0)}, "training.betas"),
        ({"smoothing": 2.0}, "training.smoothing"),
        ({"metric": 3}, "training.metric must be a name or a function"),
        ({"loss": 3}, "unknown training.loss 3"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Training(**options)


# --- scores against scikit-learn ----------------------------------------------------------------------------------


@given(st.integers(2, 60), st.integers(1, 4), st.integers(0, 10_000))
def test_scores_of_numbers_are_those_of_sklearn(count, outputs, seed):
    rng = np.random.default_rng(seed)
    y, said = rng.normal(5, 2, (2, count, outputs))
    found = all_scores(Goal("numbers"), Goal("numbers").sums(y, said, outputs))
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(y, said))
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, said))
    assert found["r2"] == pytest.approx(metrics.r2_score(y, said), rel=1e-6, abs=1e-6)


@given(st.integers(2, 60), st.integers(1, 4), st.integers(0, 10_000))
def test_scores_of_choices_are_those_of_sklearn(count, outputs, seed):
    rng = np.random.default_rng(seed)
    y, logits = rng.random((count, outputs)) < 0.5, rng.normal(0, 3, (count, outputs))
    y[0], y[1] = False, True
    said = 1 / (1 + np.exp(-logits))
    found = all_scores(Goal("choices"), Goal("choices").sums(y, said, outputs))
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y.ravel(), said.ravel() >= 0.5))
    f1 = [metrics.f1_score(y[:, k], said[:, k] >= 0.5, zero_division=0) for k in range(outputs)]
    assert found["f1"] == pytest.approx(np.mean(f1))
    binned = np.floor(logits / WIDTH)  # answers an eighth of a logit apart are told apart, others are equal
    areas = [metrics.roc_auc_score(y[:, k], binned[:, k]) for k in range(outputs)]
    assert found["auroc"] == pytest.approx(np.mean(areas))


def test_fine_answers_have_the_exact_area():
    y, logits = np.arange(40) % 3 == 0, np.random.default_rng(0).permutation(40) * 2 * WIDTH
    sums = Goal("choices").sums(y, 1 / (1 + np.exp(5 - logits[:, None])), 1)
    assert all_scores(Goal("choices"), sums)["auroc"] == pytest.approx(metrics.roc_auc_score(y, logits))


def test_scores_of_nothing_are_not_numbers():
    for kind in ("labels", "choices", "numbers"):
        assert all(math.isnan(score) for score in all_scores(Goal(kind), Goal(kind).nothing(2)).values())
    assert Goal("choices").nothing(3).shape == (3, 2, BINS)


# --- from fit -----------------------------------------------------------------------------------------------------


def two_devices(target):
    """(inputs, targets) of two devices."""
    x = np.random.default_rng(1).standard_normal((2, 60, 4)).astype(np.float32)
    return [(one, target(one)) for one in x]


def test_fit_regresses():
    train = two_devices(lambda x: x @ np.float32([1, -2, 0, 3]) + 1)
    fitted = fedfilt.fit(train, Logistic((4,), 1), PAIR, loss="mse", learning_rate=0.1, rounds=15)
    assert fitted.trainer.goal.metric == METRICS["rmse"]
    assert fitted.score["local"].max() < 0.01
    np.testing.assert_allclose(fitted.predict(1, train[1][0])[:, 0], train[1][1], atol=0.05)
    with pytest.raises(ValueError, match="judged by rmse"):
        _ = fitted.accuracy


def test_fit_says_yes_or_no_with_one_logit():
    train = two_devices(lambda x: (x[:, 0] > 0).astype(int))
    fitted = fedfilt.fit(train, Logistic((4,), 1), PAIR, local_test=train, loss="bce", learning_rate=0.5)
    assert fitted.accuracy["local"].min() > 0.9
    answer = fitted.predict(0, train[0][0])
    assert answer.shape == (60, 1)
    right = ((answer[:, 0] >= 0.5) == train[0][1]).mean()
    assert fitted.accuracy["local"][0] == pytest.approx(right)


def test_fit_adapts():
    train = two_devices(lambda x: x @ np.float32([1, -2, 0, 3]))
    fitted = fedfilt.fit(train, Logistic((4,), 1), PAIR, loss="mse", optimizer="adam", learning_rate=0.1, rounds=20)
    assert fitted.trainer.backend == "torch"
    assert fitted.score["global"].max() < 0.2


@pytest.mark.parametrize("kind", [bool, int, float])
def test_fit_gives_many_labels(kind):
    train = two_devices(lambda x: (x[:, :3] > 0).astype(kind))
    fitted = fedfilt.fit(train, Logistic((4,), 3), PAIR, loss="bce", metric="auroc", learning_rate=0.5)
    x, y = train[1]
    area = metrics.roc_auc_score(y, fitted.predict(1, x), average="macro")
    assert fitted.score["local"][1] == pytest.approx(area, abs=0.01)
    assert area > 0.9


def halves(kind):
    """(inputs, targets) of two devices."""
    x, y, _ = tasks.made(kind)
    return [(x[:200], y[:200]), (x[200:], y[200:])]


def test_fit_embeds():
    train = halves("words")
    fitted = fedfilt.fit(train, tasks.Bag(), PAIR, optimizer="adam", learning_rate=0.05, rounds=6)
    assert fitted.accuracy["local"].min() > 0.95
    assert fitted.data.x.dtype == np.int64
    assert (fitted.predict(0, train[0][0]).argmax(axis=1) == train[0][1]).mean() == fitted.accuracy["local"][0]
    too_large = [(x + tasks.WORDS * (np.arange(200) == 150)[:, None], y) for x, y in train]  # in one sample of many
    with pytest.raises(ValueError, match="model does not accept inputs from"):
        fedfilt.fit(too_large, tasks.Bag(), PAIR)


def test_integers_are_floats_where_a_module_wants_floats():
    train = [(x % 7, y) for x, y in halves("words")]
    floats = [(x.astype(float), y) for x, y in train]
    for model in Logistic((5,), 2), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)):
        rows = [fedfilt.fit(given, model, PAIR, rounds=2).rows for given in (train, floats)]
        assert rows[0].tobytes() == rows[1].tobytes()


@pytest.mark.parametrize("turned", [False, True])
def test_fit_labels_every_token(turned):
    train = halves("sequence")
    for _, y in train:
        y[:, 0] = -100  # without a label
    options = {"optimizer": "adam", "learning_rate": 0.1, "rounds": 4}
    fitted = fedfilt.fit(train, tasks.Tagger(turned=turned), PAIR, **options)
    said = fitted.predict(1, train[1][0])
    assert said.shape == (200, tasks.TOKENS, 3)
    assert said.sum(axis=2) == pytest.approx(1)
    right = (said.argmax(axis=2) == train[1][1])[:, 1:].mean()
    assert fitted.accuracy["local"][1] == pytest.approx(right)
    assert right > 0.95
    with pytest.raises(ValueError, match="for each of 5 tokens"):
        fedfilt.fit(train, tasks.Bag(3), PAIR)
    with pytest.raises(ValueError, match="for each of 5 tokens"):
        fedfilt.fit(train, Logistic((5,), 3), PAIR)


def test_where_both_sides_fit_tokens_come_first():
    assert class_axis((2, 4, 4), (4,)) == 2
    with pytest.raises(ValueError, match="number per label, got shape"):
        class_axis((2, 4, 4), ())


@pytest.mark.parametrize("kind", ["tuple", "dict"])
@pytest.mark.parametrize("model", [tasks.Two, tasks.AsOne])
def test_fit_takes_two_inputs(kind, model):
    pairs: list[Any] = [((x["0"], x["1"]), y) for x, y in halves("two")]
    if kind == "dict":
        pairs = [({"numbers": a, "words": b}, y) for (a, b), y in pairs]
    torch.manual_seed(0)
    fitted = fedfilt.fit(pairs, model(), PAIR, local_test=pairs, optimizer="adam", learning_rate=0.03, rounds=6)
    assert fitted.accuracy["local"].min() > 0.9
    said = fitted.predict(0, pairs[0][0])
    assert (said.argmax(axis=1) == pairs[0][1]).mean() == pytest.approx(fitted.accuracy["local"][0])


@pytest.mark.slow(10)
def test_two_inputs_in_two_processes():
    pairs = [((x["0"], x["1"]), y) for x, y in halves("two")]
    model = tasks.Two()
    rows = [fedfilt.fit(pairs, model, PAIR, rounds=1, epochs=1, workers=workers).rows for workers in (1, 2)]
    assert rows[0].tobytes() == rows[1].tobytes()


class Words(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples one by one, of two inputs."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, at):
        numbers, words = self.inputs[at]
        return (torch.from_numpy(numbers.copy()), torch.from_numpy(words.copy())), int(self.targets[at])


def test_fit_reads_data_sets():
    train = two_devices(lambda x: (x[:, 0] > 0).astype(int))
    sets = [torch.utils.data.TensorDataset(*map(torch.from_numpy, part)) for part in train]
    rows = [fedfilt.fit(given, Logistic((4,), 2), PAIR, rounds=2).rows for given in (train, sets)]
    assert rows[0].tobytes() == rows[1].tobytes()
    pairs = [((x["0"], x["1"]), y) for x, y in halves("two")]
    data = FederatedData.from_arrays([Words(x, y) for x, y in halves("two")])
    assert data.x.tobytes() == FederatedData.from_arrays(pairs).x.tobytes()
    with pytest.raises(ValueError, match=r"train\[0\] must be a pair or a Dataset of pairs"):
        FederatedData.from_arrays([torch.zeros(4)])


def test_fit_with_a_loss_and_a_metric_of_ones_own():
    train = two_devices(lambda x: x @ np.float32([1, -2, 0, 3]))
    options = {"loss": tasks.huber, "metric": tasks.far_off, "learning_rate": 0.3, "rounds": 15}
    fitted = fedfilt.fit(train, Logistic((4,), 1), PAIR, **options)
    assert fitted.trainer.goal.metric == Metric("far_off", "far off", lower=True, form=".4g")
    x, y = train[0]
    assert fitted.score["local"][0] == pytest.approx(tasks.far_off(y, fitted.predict(0, x)).mean(), abs=1e-6)
    found = summary(fitted.records[-1].mixed, fitted.data, fitted.trainer.goal)["local"]
    assert set(found["scores"]) == {"rmse", "mae", "r2", "far_off"}
    assert found["worst"] == max(found["devices"])
    labels = two_devices(lambda x: (x[:, 0] > 0).astype(int))
    own = fedfilt.fit(
        labels, Logistic((4,), 2), PAIR, local_test=labels, metric=lambda y, said: said[np.arange(len(y)), y]
    )
    assert own.trainer.goal.metric.key == "own_metric"
    assert np.array(summary(own.records[-1].mixed, own.data, own.trainer.goal)["local"]["confusion"]).sum() == 120
    for wrong, message in ((lambda y, said: 1.0), "one per sample"), ((lambda y: y), "function of two arguments"):
        with pytest.raises(ValueError, match=message):
            fedfilt.fit(labels, Logistic((4,), 2), PAIR, metric=wrong, rounds=1)


# --- a last batch of one ------------------------------------------------------------------------------------------


class Normed(nn.Module):
    """Batch norm over pictures, of which a single one has a variance, and over single numbers, which have none."""

    def __init__(self):
        super().__init__()
        self.convolution, self.many = nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2)
        self.middle, self.one, self.last = nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.one(self.middle(self.many(self.convolution(x[:, None])).flatten(1))))


def test_a_last_batch_of_one_sample():
    torch.manual_seed(1)
    module, rng = Normed(), np.random.default_rng(0)
    x, y = rng.standard_normal((9, 4)).astype(np.float32), rng.integers(0, 2, 9)
    trainer = Trainer(module, Training(RATE, BATCH), (4,))
    row = trainer.given(0)
    trainer.train(row, x, y, np.arange(9), **WHERE, epochs=2, samples=9)
    steps = torch.optim.SGD(module.parameters(), RATE)
    for epoch in range(2):
        order = generator(3, 0, 2, epoch).permutation(9)
        for batch in order[:8], order[8:]:
            module.train()
            module.one.train(len(batch) > 1)  # the rule: of one number it takes what it knows
            steps.zero_grad()
            functional.cross_entropy(module(torch.from_numpy(x[batch])), torch.from_numpy(y[batch])).backward()
            steps.step()
    np.testing.assert_allclose(row, row_of(module), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "outputs", "options", "message"),
    [
        (lambda x: x[:, 0], 2, {}, "cross_entropy needs integer labels, got targets of float32"),
        (lambda x: np.arange(60) % 3, 1, {"loss": "bce"}, "bce needs targets of 0 and 1, got 0 to 2"),
        (lambda x: x[:, :3], 2, {"loss": "mse"}, "must return 3 numbers for a sample, one for each target, got 2"),
        (lambda x: x[:, 0], 1, {"loss": "mse", "metric": "accuracy"}, "training.metric for the loss mse 'accuracy'"),
        (lambda x: x[:, 0], 1, {"loss": "msr"}, "training.loss 'msr'; did you mean 'mse'"),
    ],
)
def test_impossible_pairs_are_refused(target, outputs, options, message):
    with pytest.raises(ValueError, match=message):
        fedfilt.fit(two_devices(target), Logistic((4,), outputs), PAIR, **options)
