"""Three kinds of devices with unlike channels and rates: trained, resumed, voted, over Flower, split, and bad input."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fedfilt
from fedfilt.data.windows import Recording, windows
from fedfilt.models import Motifs
from fedfilt.rounds.play import play
from fedfilt.rounds.rooms import Rooms
from fedfilt.runs.build import Run
from fedfilt.runs.checkpoint import models_hash
from fedfilt.runs.config import from_table
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.split import split
from fedfilt.training._torch import torch_module
from fedfilt.training.encoders import Encoder
from helpers import ENCODED, SENSORS, encoded_homes, encoded_run


def played(run, rounds=None):
    """The state after so many rounds, and the record of the last."""
    with run.experiment() as experiment:
        shown = itertools.islice(play(run.start(), experiment), rounds)
        *_, (state, record) = shown
        return state, record, run.decided(state, experiment.engine)


def test_kinds_have_their_own_shapes_and_the_same_moments():
    data = encoded_run().data
    assert data.shapes == ((3, 10), (6, 20), (9, 20)) * 2
    assert data.x.shape[1:] == (180,)
    assert data.x[data.train[0], 30:].any() == np.False_  # a watch has 30 numbers
    seen = [
        set(data.moments[np.concatenate([data.train[d], data.local_test[d], data.validation[d]])]) for d in (0, 1, 2)
    ]
    assert seen[0] == seen[1] == seen[2]
    assert (np.diff([rows[0] for rows in data.train]) > 0).all()  # samples are in the order of devices
    own = [set(data.everybodys(device)) for device in range(6)]
    assert own[0] == own[3] != own[1]
    assert set.union(*own) == set(data.global_test)


def test_only_what_comes_after_the_encoder_is_shared_across_kinds():
    run = encoded_run(aggregator="fedavg")
    state, record, _ = played(run)
    encoder = run.layout.columns(["encoder"])
    kinds = state.models.reshape(2, 3, -1)
    assert (kinds[0] == kinds[1]).all()  # FedAvg: one model for a kind
    assert (kinds[0, :, ~encoder] == kinds[0, :1, ~encoder]).all()
    assert len({row.tobytes() for row in kinds[0][:, encoder]}) == 3
    assert record.mixed is not None
    found = [int(sums.sum()) for sums in record.mixed.global_test]
    assert found == [len(run.data.everybodys(device)) for device in range(6)]
    alone, _, _ = played(encoded_run(aggregator="fedavg", kinds={"mix": "alone"}))
    assert (alone.models[0] == alone.models[3]).all()
    assert (alone.models[0, ~encoder] != alone.models[1, ~encoder]).any()


def test_labels_have_no_part_in_training_an_encoder_and_it_happens_once():
    """A learning rate of next to nothing: what moves is moved without labels, and in the first round only."""
    still = {"training": {"learning_rate": 1e-30, "batch_size": 8}, "aggregator": "local"}
    run = encoded_run(**still)
    start, (once, _, _), (late, _, _) = run.start().models, played(run, 1), played(run)
    encoder = run.layout.columns(["encoder"])
    assert (once.models[:, encoder] != start[:, encoder]).any(axis=1).all()
    np.testing.assert_allclose(once.models[:, ~encoder], start[:, ~encoder], atol=1e-20)
    np.testing.assert_allclose(late.models, once.models, atol=1e-20)
    other = encoded_run(**still)
    other.data.y[:] = (other.data.y + 1) % 3
    np.testing.assert_allclose(played(other, 1)[0].models, once.models, atol=1e-20)
    plain, _, _ = played(encoded_run(**still, encoder={**ENCODED["encoder"], "epochs": 0}), 1)
    np.testing.assert_allclose(plain.models, start, atol=1e-20)


def test_an_encoder_that_a_client_keeps_never_travels():
    run = encoded_run(client={"name": "fedper", "keep": ["encoder"]})
    state, _, decided = played(run)
    encoder = run.layout.columns(["encoder"])
    np.testing.assert_allclose(state.models[:, encoder], run.start().models[:, encoder], atol=1e-6)  # mixed, equal
    assert [len(state.clients[device]["kept"]) for device in range(3)] == [
        int(trainer.layout.columns(["encoder"]).sum()) for trainer in run.trainers[:3]
    ]
    assert (decided[:, encoder] != state.models[:, encoder]).any(axis=1).all()


def test_killed_and_resumed_it_has_the_same_bits_and_everyones_model_is_a_torch_module(tmp_path):
    table = encoded_homes(tmp_path / "homes")
    table["data"]["scale"] = False
    for _ in play_in_folder(Run(from_table(table)), tmp_path / "whole"):
        pass
    for line in play_in_folder(Run(from_table(table)), tmp_path / "cut"):
        if line["round"] == 3:  # after the checkpoint of round 2
            break
    run = Run(from_table(table))
    for _ in play_in_folder(run, tmp_path / "cut", resume=True):
        pass
    for name in ("models/device-000.safetensors", "models/device-004.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    row = played(run)[2][4]
    tensors = load_file(tmp_path / "cut" / "models" / "device-004.safetensors")
    module = torch_module(run.model[4])
    module.load_state_dict({name: torch.from_numpy(values) for name, values in tensors.items()})
    x = np.random.default_rng(0).standard_normal((3, 6, 20)).astype(np.float32)
    said = module(torch.from_numpy(x)).softmax(1).detach().numpy()
    np.testing.assert_allclose(run.trainers[4].predict(row, x), said, atol=1e-5)


@pytest.mark.slow(13)
def test_workers_and_flower_give_the_same_bits(tmp_path):
    pytest.importorskip("flwr")
    truth = models_hash(played(encoded_run())[0].models)
    assert models_hash(played(encoded_run(engine={"workers": 2}))[0].models) == truth
    flower = encoded_run(engine={"name": "flower", "workers": 1})
    flower.simulated = tmp_path
    state, record, _ = played(flower)
    assert models_hash(state.models) == truth
    local = played(encoded_run())[1]
    np.testing.assert_array_equal(record.mixed.global_test, local.mixed.global_test)


def test_a_room_votes_across_kinds():
    run = encoded_run(rounds=12)
    _, _, models = played(run)
    rooms = Rooms(models, run.trainers, run.data, run.graph.rooms)
    data = run.data
    for room, (devices, said, labels) in enumerate(rooms.rooms):
        assert devices.tolist() == [3 * room, 3 * room + 1, 3 * room + 2]
        for device, words in zip(devices, said, strict=True):
            rows = data.local_test[device]
            shape = data.shapes[device]
            x = data.x[rows][:, : np.prod(shape)].reshape(-1, *shape)
            order = np.argsort(data.moments[rows])
            np.testing.assert_allclose(words, run.trainers[device].predict(models[device], x)[order], atol=1e-6)
        assert len(labels) == said.shape[1]
    assert rooms.accuracy("mean").mean() > 0.6
    assert rooms.accuracy("weighted", missing=1).shape == (2,)


def test_an_experiment_can_be_split_into_folders_and_a_learned_graph_compares_what_all_have(tmp_path, monkeypatch):
    made = encoded_run()
    monkeypatch.setattr("fedfilt.runs.split.dealt", lambda *given: made.data)
    path = split(made.config, tmp_path / "homes")
    again = Run(fedfilt.load(path))
    assert again.data.shapes == made.data.shapes
    np.testing.assert_array_equal(played(again)[0].models, played(made)[0].models)
    with pytest.raises(ValueError, match="--recordings needs devices with the same channels and rate"):
        split(made.config, tmp_path / "other", recordings=True)
    learned = encoded_run(graph={"name": "homes", "rooms": 2, "devices": 6, "between": "updates", "k": 1})
    updates = learned.first_updates(None)
    assert updates.shape == (6, learned.layout.size - learned.model[0].room)


def test_fit_takes_inputs_of_unlike_shapes():
    rng = np.random.default_rng(0)
    train = [(rng.standard_normal((12, *shape)), np.arange(12) % 2) for shape in ((3, 10), (6, 20), (3, 10))]
    encoder = Encoder(latent=(4, 10), kernel=3, epochs=2)
    fitted = fedfilt.fit(train, Motifs((4, 10), 2, filters=8), [(0, 1), (1, 2)], encoder=encoder, rounds=2)
    assert fitted.data.kinds == ("3x10", "6x20", "3x10")
    for device, (x, _) in enumerate(train):
        said = fitted.predict(device, x)
        truth = fitted.model(device)(torch.from_numpy(x).float()).softmax(1).detach().numpy()
        np.testing.assert_allclose(said, truth, atol=1e-5)
    with pytest.raises(ValueError, match=r"give each kind an encoder"):
        fedfilt.fit(train, Motifs((4, 10), 2), [(0, 1), (1, 2)])
    with pytest.raises(ValueError, match=r"does not fit inputs of shape \(3, 10\)"):
        fedfilt.fit(train, Motifs((4, 12), 2), [(0, 1), (1, 2)], encoder=replace(encoder, latent=(4, 12)))
    with pytest.raises(ValueError, match="model does not fit"):
        fedfilt.fit(train, Motifs((5, 10), 2), [(0, 1), (1, 2)], encoder=encoder)


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"different shapes, \(3, 10\) of device 0, .*encoder\.latent = \[16, 31\]"):
        encoded_run(encoder={}, model={"name": "mlp"})
    with pytest.raises(ValueError, match=r"encoder\.latent = \[4, 15\] does not fit inputs of shape \(3, 10\)"):
        encoded_run(encoder={"latent": [4, 15]})
    with pytest.raises(ValueError, match=r'kinds\.mix must be "trunk" or "alone" if kinds have their own encoders'):
        encoded_run(kinds={"mix": "all"})
    data = encoded_run().data
    without = tuple(rows[:0] if kind == "phone" else rows for kind, rows in zip(data.kinds, data.train, strict=True))
    with pytest.raises(
        ValueError, match="every kind of device needs samples to train its encoder on, got none of phone"
    ):
        Run(from_table({**ENCODED, "partition": "wearers"}), data=replace(data, train=without))
    table = encoded_homes(tmp_path / "homes")
    own = table["data"]
    for wrong, message in (
        ({"kinds": []}, r"data\.sensors needs data\.kinds"),
        ({"kinds": ["watch"] * 5 + ["clock"]}, r"unknown data\.kinds 'clock'"),
        ({"shape": [3, 10]}, r"belong in data\.sensors"),
        ({"sensors": own["sensors"] + own["sensors"][:1]}, r"must have different kinds"),
        ({"sensors": [{"kind": "watch"}]}, r"data\.sensors needs a kind and a shape"),
    ):
        with pytest.raises(ValueError, match=message):
            Run(from_table({**table, "data": {**own, **wrong}}))
    signal = np.zeros((40, 2))
    with pytest.raises(ValueError, match=r"25 samples per second, others 50.*encoder\.latent"):
        windows("made", [Recording(0, 0, 0, signal), Recording(1, 0, 0, signal, 25.0)], 10, 10)
    with pytest.raises(ValueError, match=r"2 channels like others.*encoder\.latent"):
        windows("made", [Recording(0, 0, 0, signal), Recording(1, 0, 0, signal[:, :1])], 10, 10)
    with pytest.raises(ValueError, match="kinds must be one per device, got 1 and device 1"):
        windows("made", [Recording(0, 0, 0, signal), Recording(1, 0, 0, signal)], 10, 10, kinds=("a",))
    assert set(SENSORS) == {"watch", "phone", "unit"}
