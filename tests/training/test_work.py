"""The one job of a device, on which every engine relies: train, cut the update down, keep the rest."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedfilt.clients.plain import Plain
from fedfilt.sparsifiers import TopK
from fedfilt.system.orders import Job, Plan
from fedfilt.system.wire import unpack, wire_size
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer
from fedfilt.training.work import Desk, Own, examine, work
from helpers import a_net, some_data

DATA, NET = some_data(), a_net()
SEED, ROUND, DEVICE = 3, 4, 2


@pytest.fixture
def desk():
    return Desk(Trainer(NET, Training(0.1, 8), DATA.x.shape[1:]), TopK(), SEED, DATA.classes, Plain())


@pytest.fixture
def model(desk):
    return desk.trainer.given(SEED)


def own(device=DEVICE):
    return Own(DATA.x, DATA.y, DATA.train[device])


def test_the_whole_update_is_what_training_changed(desk, model):
    job = Job(ROUND, DEVICE, model, Plan(epochs=2, data_fraction=0.5))
    before = model.copy()
    done = work(job, own(), desk)
    np.testing.assert_array_equal(job.model, before)
    trained = model.copy()
    where = {"seed": SEED, "round": ROUND, "device": DEVICE, "epochs": 2, "samples": 16}  # half of 33, rounded down
    loss = desk.trainer.train(trained, *own(), **where)
    np.testing.assert_array_equal(unpack(done.content, len(model)), trained - model)
    assert (done.samples, done.loss, done.residual) == (16, loss, None)
    assert (trained != model).any()


def test_memory_that_is_given_is_used_and_changes_nothing(desk, model):
    job, row = Job(ROUND, DEVICE, model, Plan(epochs=1)), np.full(len(model), 7, np.float32)
    with_row, without = work(job, own(), desk, row), work(job, own(), desk)
    assert with_row.content == without.content
    np.testing.assert_array_equal(row, unpack(without.content, len(model)))


def test_what_is_not_sent_stays_on_the_device(desk, model):
    owed = np.random.default_rng(0).standard_normal(len(model)).astype(np.float32)
    plan = Plan(epochs=1, density=0.2)
    whole = unpack(work(Job(ROUND, DEVICE, model, plan._replace(density=1.0)), own(), desk).content, len(model))
    done = work(Job(ROUND, DEVICE, model, plan, owed), own(), desk)
    assert len(done.content) <= 0.2 * wire_size(len(model), len(model))
    np.testing.assert_allclose(unpack(done.content, len(model)) + done.residual, whole + owed, atol=1e-6)


@pytest.mark.parametrize("plan", [Plan(epochs=1, data_fraction=0.01), Plan(epochs=0)])
def test_without_samples_nothing_is_trained(desk, model, plan):
    done = work(Job(ROUND, DEVICE, model, plan), own(), desk)
    assert done.samples == 0
    assert math.isnan(done.loss)
    assert not unpack(done.content, len(model)).any()


def test_a_job_depends_on_its_round_and_device(desk, model):
    job = Job(ROUND, DEVICE, model, Plan(epochs=1))
    content = work(job, own(), desk).content
    assert work(job, own(), desk).content == content
    assert work(job._replace(round=ROUND + 1), own(), desk).content != content
    assert work(job._replace(device=DEVICE + 1), own(), desk).content != content


def test_a_test_counts_every_sample_and_gives_the_mean_loss(desk, model):
    found = examine(model, Own(DATA.x, DATA.y, DATA.global_test), desk)
    x, y = torch.from_numpy(DATA.x[DATA.global_test]), torch.from_numpy(DATA.y[DATA.global_test])
    with torch.no_grad():
        said = NET(x)
    assert found.sums.sum() == 50
    assert np.trace(found.sums) == (said.argmax(dim=1) == y).sum()
    assert found.loss == pytest.approx(float(functional.cross_entropy(said, y)), rel=1e-4)
    nothing = examine(model, Own(DATA.x, DATA.y, np.array([], np.int64)), desk)
    assert nothing.sums.sum() == 0
    assert math.isnan(nothing.loss)
