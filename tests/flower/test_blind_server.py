"""A deployment whose edge server cannot look: where the group key is, and that nothing but the key opens a row."""

import json
import os
import shutil
import signal
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

pytest.importorskip("flwr")

from deployments import Devices, below, deployed, expected, metrics, own_experiment, record, written
from fedfilt._draws import Key, generator
from fedfilt.clients.plain import Plain
from fedfilt.engines.flower import device, messages
from fedfilt.engines.flower.simulation import running_grid
from fedfilt.engines.local import Local
from fedfilt.flower.device import Device
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table, load
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.system import blind
from fedfilt.system.orders import Job, Plan
from fedfilt.training.work import Desk
from helpers import ROOM, SLOW, call, contents, until

CHANGES = {"scheduler": {"name": "everything", "epochs": 2}, "privacy": {"blind": True}}
SPARSE = {"name": "everything", "epochs": 2, "density": 0.1}
KEYS = (bytes(range(32)),)


def hidden(folder, **changes):
    return own_experiment(folder, **(CHANGES | changes))


# --- the group key --------------------------------------------------------------------------------------------------


def test_only_devices_have_the_group_key_and_only_their_owners_can_read_it(tmp_path):
    building = written(tmp_path, experiment=hidden(tmp_path / "homes"))
    files = sorted(building.rglob("group.key"))
    assert [path.parent.name for path in files] == [f"device-{n:03d}" for n in range(4)]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    (key,) = {path.read_text() for path in files}
    (secret,) = blind.read_keys(key)
    assert all(key.strip().encode() not in content for content in contents(building / "server").values())
    assert all(secret not in content for content in contents(building / "server").values())
    other = written(tmp_path / "again", experiment=hidden(tmp_path / "homes"))
    assert (other / "devices" / "device-000" / "group.key").read_text() != key


def test_an_open_deployment_has_none(tmp_path):
    assert not list(written(tmp_path, experiment=own_experiment(tmp_path / "homes")).rglob("group.key"))


def test_a_device_without_its_group_key_does_not_start(tmp_path):
    building = written(tmp_path, experiment=hidden(tmp_path / "homes"))
    folder = building / "devices" / "device-000"
    (folder / "group.key").write_text("lost")
    with pytest.raises(ValueError, match="group key must be 64 hexadecimal digits"):
        Device.read(folder)
    (folder / "group.key").unlink()
    with pytest.raises(ValueError, match=r"group\.key"):
        Device.read(folder)


def test_a_new_device_needs_the_group_key_of_another(tmp_path):
    building = written(tmp_path, experiment=hidden(tmp_path / "homes"))
    words = "deploy", "add", "lamp", "--links", "device-000", "--building", building
    assert "copy the file group.key from another device's folder" in " ".join(call(*words).stderr.split())
    assert not (building / "devices" / "lamp").exists()
    key = building / "devices" / "device-001" / "group.key"
    for more in (words, ("deploy", "replace", "device-002", "--building", building)):
        done = call(*more, "--group-key", key)
        assert done.returncode == 0, done.stderr
    for name in ("lamp", "device-002"):
        assert (building / "devices" / name / "group.key").read_text() == key.read_text()
    plain = written(tmp_path / "plain", experiment=own_experiment(tmp_path / "homes"))
    done = call("deploy", "replace", "device-002", "--building", plain, "--group-key", key)
    assert "this one has no group key" in " ".join(done.stderr.split())


# --- a device -------------------------------------------------------------------------------------------------------


@pytest.fixture
def lamp(tmp_path):
    """A device of a blind deployment."""
    return Device.read(written(tmp_path, experiment=hidden(tmp_path / "homes")) / "devices" / "device-000")


@pytest.fixture
def sparing(tmp_path):
    """A device of a blind deployment in which a tenth is sent."""
    experiment = hidden(tmp_path / "homes", scheduler=SPARSE)
    return Device.read(written(tmp_path, experiment=experiment) / "devices" / "device-000")


def first_model(lamp):
    """The first model, as the edge server makes it."""
    desk = lamp.desk
    row = desk.trainer.start(int(generator(desk.seed, Key.START).integers(2**62)))
    assert lamp.group.first == blind.hashes(row, lamp.group.cut)
    return row


def sealed_row(lamp, row, of):
    """A sealed row that comes to `row`: as another device sent it in round `of`, mixed with nothing."""
    cut = lamp.group.cut
    everything = cut.sent(of, 1.0)
    held = blind.sealed(blind.masked(row, lamp.group, everything, "run", of, 1), cut, everything, of, 1)
    for place in cut.places:
        held[place] = blind.mixed_sealed(np.array([[2**24]]), held[None, place])[0]
    return held


def order(lamp, row=None, round=1, plan=None, sealed=None, accepted=0, of=1, test=False, run="run"):
    """An order to train, or to test: the first model, or `row` as sent in round `of`, or a sealed row."""
    cut = lamp.group.cut
    if sealed is None:
        sealed = np.zeros(cut.sealed_width, np.uint64) if row is None else sealed_row(lamp, row, of)
    sealing = blind.Sealing(cut, first_model(lamp))
    if test:
        return messages.test_order(run, round, 0, sealed, lamp.about, sealing)
    job = Job(round, 0, sealed, plan or Plan(1), accepted=accepted)
    return messages.train_order(run, job, lamp.about, sealing)


def sent(lamp, content):
    return device.train_reply(content, lamp.workplace()).config_records[messages.RECORD]["update"]


def examined(lamp, content):
    return device.test_reply(content, lamp.workplace())


def refused(lamp, content, work=sent):
    """Whether a device refuses an order; then the server is told one sentence, and nothing changes."""
    before = contents(lamp.folder / "state")
    try:
        work(lamp, content)
    except messages.BadMessage as error:
        said = device.said_of(error)
    else:
        return False
    assert said == device.REFUSED
    assert contents(lamp.folder / "state") == before
    return True


def test_a_device_that_was_killed_or_has_lost_its_disk_sends_the_same_bytes_for_the_same_row(lamp):
    for content in (order(lamp), order(lamp, np.ones(lamp.group.cut.size, np.float32), round=2)):
        first = sent(lamp, content)
        assert sent(Device.read(lamp.folder), content) == first
        shutil.rmtree(lamp.folder / "state")
        assert sent(Device.read(lamp.folder), content) == first


def test_the_same_round_with_another_row_is_under_another_mask(lamp):
    """A server that asks twice, once after changing the model: what it gets twice has no mask in common."""
    size = lamp.desk.trainer.layout.size
    both = [sent(lamp, order(lamp, np.full(size, value, np.float32), of=of)) for of, value in ((1, 0.0), (2, 0.25))]
    values = [np.frombuffer(content, "<u8", size, blind.SALT) for content in both]
    difference = (values[0] - values[1]).view(np.int64)
    assert abs(difference).min() > 2**36  # of two rows it would be small


def test_a_row_that_was_changed_is_refused(lamp, caplog):
    """The row of round 1, handed out as if it were of round 2; changed by the least there is; under another key."""
    size, cut = lamp.desk.trainer.layout.size, lamp.group.cut
    row = blind.sealed(sent(lamp, order(lamp)), cut, (0,), round=1, device=0)
    mixed = blind.mixed_sealed(np.array([[2**24]]), row[None])[0]
    assert len(sent(lamp, order(lamp, round=2, sealed=mixed))) == cut.whole_bytes == 16 + 8 * (size + 4)
    for place in (0, size + blind.CHECKS + blind.MOST):  # its first value, and the round of its mask
        replayed = mixed.copy()
        replayed[place] += 1
        assert refused(lamp, order(lamp, round=3, sealed=replayed))
        assert "the mixed row does not open" in caplog.records[-1].message
    other = replace(lamp, group=lamp.group._replace(keys=(bytes(32), *lamp.group.keys[1:])))
    shutil.rmtree(lamp.folder / "state")
    assert refused(other, order(lamp, round=2, sealed=mixed))
    assert "a group key that this device does not have" in caplog.records[-1].message
    with pytest.raises(messages.BadMessage, match="this device has no group key"):
        sent(replace(lamp, group=None), order(lamp, round=2, sealed=mixed))


# --- rows that come again -------------------------------------------------------------------------------------------


def test_a_row_of_an_earlier_round_is_refused_also_after_a_kill(lamp):
    """Round 50 with the honest row of round 1; devices that missed rounds take newer rows."""
    one, two, three = (np.full(lamp.group.cut.size, value, np.float32) for value in (0.1, 0.2, 0.3))
    sent(lamp, order(lamp, one, round=2, of=1))
    sent(lamp, order(lamp, two, round=41, of=40))
    again = Device.read(lamp.folder)
    for some in (lamp, again):
        assert refused(some, order(lamp, one, round=50, of=1))
        assert refused(some, order(lamp, one, round=50, of=1, test=True), examined)
        assert refused(some, order(lamp, three, round=41, of=40))  # another one of the same round
        assert refused(some, order(lamp, round=50))  # the first model
        assert refused(some, order(lamp, round=50, test=True), examined)
    assert not refused(again, order(lamp, two, round=41, of=40))  # the same job again
    assert not refused(again, order(lamp, two, round=42, of=40))  # its row stayed as it was
    assert not refused(again, order(lamp, three, round=50, of=49))


def test_a_row_that_the_server_made_is_refused(lamp):
    """Whenever it comes; the first model itself is taken, as often as asked, up to the first mixture."""
    row = np.full(lamp.group.cut.size, 0.1, np.float32)
    order_of_its_own = blind.Sealing(lamp.group.cut, row)
    nothing = np.zeros(lamp.group.cut.sealed_width, np.uint64)
    own = messages.train_order("run", Job(1, 0, nothing, Plan(1)), lamp.about, order_of_its_own)
    plain = messages.train_order("run", Job(1, 0, row, Plan(1)), lamp.about)
    assert refused(lamp, own)
    with pytest.raises(messages.BadMessage, match="masked must be bytes"):
        sent(lamp, plain)
    for _ in range(2):
        assert not refused(lamp, order(lamp))
    assert not (lamp.folder / "state" / device.OPENED).exists()
    assert refused(lamp, own)
    assert not refused(lamp, order(lamp, row, round=2))
    assert refused(lamp, own)


def test_a_server_that_crashed_after_a_test_may_mix_its_round_again(lamp):
    """What was tested may be lost with the server; what was trained from is in its checkpoint."""
    one, two, other = (np.full(lamp.group.cut.size, value, np.float32) for value in (0.1, 0.2, 0.3))
    assert not refused(lamp, order(lamp, one, round=2, of=1))
    assert not refused(lamp, order(lamp, two, round=2, of=2, test=True), examined)
    lamp = Device.read(lamp.folder)
    assert not refused(lamp, order(lamp, one, round=2, of=1))  # the same job
    assert not refused(lamp, order(lamp, other, round=2, of=2, test=True), examined)  # fewer took part this time
    assert not refused(lamp, order(lamp, other, round=3, of=2))
    assert refused(lamp, order(lamp, two, round=3, of=2))
    assert refused(lamp, order(lamp, one, round=3, of=1))


def test_pieces_are_older_and_newer_on_their_own(sparing):
    """At a tenth, two pieces are newer in each round, and the others as they were."""
    cut = sparing.group.cut
    rows = [sealed_row(sparing, np.full(cut.size, of / 10, np.float32), of) for of in (1, 2, 3)]
    state = np.zeros(cut.sealed_width, np.uint64)
    for row, pieces in zip(rows, ((0, 1), (1, 2), (2, 3)), strict=True):
        before = state.copy()
        for piece in pieces:
            state[cut.places[piece]] = row[cut.places[piece]]
        assert not refused(sparing, order(sparing, sealed=state))
        assert not refused(sparing, order(sparing, sealed=state))
        assert refused(sparing, order(sparing, sealed=before))
    for piece, older in ((0, np.uint64(0)), (1, rows[0]), (2, rows[1])):
        mixture = state.copy()
        mixture[cut.places[4]] = rows[2][cut.places[4]]  # one that is newer does not help
        mixture[cut.places[piece]] = older if older.ndim == 0 else older[cut.places[piece]]
        assert refused(sparing, order(sparing, sealed=mixture))


def test_a_device_stays_with_its_run_until_it_has_another_key(lamp):
    row = np.full(lamp.group.cut.size, 0.1, np.float32)
    assert not refused(lamp, order(lamp, row, round=2))
    assert refused(lamp, order(lamp, run="another"))
    renewed = replace(lamp, group=lamp.group._replace(keys=(bytes(32), *lamp.group.keys)))
    assert refused(renewed, order(lamp, run="another"))  # the key that checks is the same
    rewritten = replace(lamp, group=lamp.group._replace(keys=(bytes(32),)))
    assert not refused(rewritten, order(lamp, run="another"))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"key": "%s", "run": "run", "pieces": [[1]]}', b"\xff"])
def test_a_device_that_cannot_read_what_it_had_takes_no_row(lamp, content, caplog):
    assert not refused(lamp, order(lamp, np.zeros(lamp.group.cut.size, np.float32), round=2))
    path = lamp.folder / "state" / device.OPENED
    path.write_bytes(content.replace(b"%s", blind.key_name(lamp.group.keys[-1]).hex().encode()))
    assert refused(lamp, order(lamp, np.ones(lamp.group.cut.size, np.float32), round=3, of=2))
    assert "opened.json cannot be used" in caplog.records[-1].message


def test_a_device_of_a_rule_that_averages_takes_averages_only(lamp, tmp_path):
    assert lamp.group.spread == 1
    row, cut = np.full(lamp.group.cut.size, 0.1, np.float32), lamp.group.cut
    both = [blind.masked(sign * row, lamp.group, (0,), "run", 1, number) for number, sign in ((1, 1), (2, -1))]
    rows = np.stack([blind.sealed(content, cut, (0,), 1, number) for number, content in enumerate(both, start=1)])
    for share, too_large in ((1.5, True), (0.5, False)):
        weights = np.array([[int(share * 2**24), int((1 - share) * 2**24)]])
        mixture = blind.mixed_sealed(weights, rows)[0]
        assert refused(lamp, order(lamp, round=2, sealed=mixture)) == too_large
    ideal = hidden(tmp_path / "others", aggregator={"name": "gfedfilt", "filter": "ideal"})
    other = Device.read(written(tmp_path / "ideal", experiment=ideal) / "devices" / "device-000")
    assert other.group.spread == blind.SPREAD


def trained(device, content, round, density):
    """{column: value} of what a device sent, for those who have the key."""
    cut = device.group.cut
    pieces = cut.sent(round, density)
    row = blind.sealed(content, cut, pieces, round, 0)
    found = {}
    for piece in pieces:
        values, masks = blind.opened(blind.mixed_sealed(np.array([[2**24]]), row[None, cut.places[piece]])[0])
        values = blind.unmasked(values, masks, piece, device.group.keys, "run")
        found |= dict(zip(cut.columns[piece].tolist(), values.tolist(), strict=True))
    return found


def test_a_device_that_sends_a_tenth_keeps_the_rest_and_sends_it_when_its_turn_has_come(sparing):
    """Round 1 counted: what its other pieces learnt comes with round 2. It did not: then it comes not twice."""
    cut, tenth = sparing.group.cut, Plan(1, 1.0, 0.1)
    row = np.random.default_rng(0).normal(size=cut.size).astype(np.float32)  # that every round begins with

    def answer(round, plan=tenth, accepted=0):
        return sent(sparing, order(sparing, row, round, plan, accepted=accepted))

    assert cut.count == 20
    first = answer(1)
    assert len(first) == cut.bytes_of(cut.sent(1, 0.1)) < 0.11 * cut.whole_bytes
    alone = trained(sparing, answer(2), 2, 0.1)  # forgets round 1
    assert answer(1) == first
    both = trained(sparing, answer(2, accepted=1), 2, 0.1)
    whole = trained(sparing, answer(1, Plan(1)), 1, 1.0)
    owing = [column for column in both if column not in trained(sparing, first, 1, 0.1)]
    learnt = np.array([whole[column] - row[column] for column in owing])  # in round 1
    assert learnt.any()
    np.testing.assert_allclose([both[c] for c in owing], [alone[c] for c in owing] + learnt, atol=1e-6)


def test_pieces_are_not_where_the_update_is_large_but_where_the_seed_says(sparing):
    """Whatever the samples and the model, a device sends the same columns."""
    size, tenth = sparing.group.cut.size, Plan(1, 1.0, 0.1)
    rows = [np.random.default_rng(seed).normal(size=size).astype(np.float32) for seed in range(3)]
    found = [sent(sparing, order(sparing, row, plan=tenth, of=of)) for of, row in enumerate(rows, start=1)]
    columns = [set(trained(sparing, content, 1, 0.1)) for content in found]
    assert columns[0] == columns[1] == columns[2]
    assert len(set(found)) == 3


def test_a_reply_with_more_or_fewer_pieces_than_ordered_is_refused(sparing):
    cut = sparing.group.cut
    content = sent(sparing, order(sparing, plan=Plan(1, 1.0, 0.2)))
    blind.sealed(content, cut, cut.sent(1, 0.2), 1, 0)
    for density in (0.1, 0.3):
        with pytest.raises(ValueError, match=f"a masked row must be .* got {len(content)}"):
            blind.sealed(content, cut, cut.sent(1, density), 1, 0)


# --- a server that cannot look --------------------------------------------------------------------------------------


@pytest.fixture(params=[{"name": "everything"}, {"name": "same_deadline", "density_min": 0.1}], ids=["dense", "sparse"])
def played(tmp_path, request):
    """Plays a small experiment on simulated devices that have a group key, up to a round; gives its folder."""
    table = ROOM | {"scheduler": request.param, "evaluation": {"every": 2}, "privacy": {"blind": True}}
    config = from_table(table | {"engine": {"name": "flower", "workers": 1}, "checkpoint": {"every": 1}})

    def play_up_to(last, folder):
        run = Run(config, sealed=True)
        desk = Desk(run.trainer, config.sparsifier, config.seed, run.data.classes, Plain())

        def place(context):
            here = tmp_path / f"{folder}-device-{context.node_config['partition-id']}"
            group = blind.Group(KEYS, run.cut, blind.hashes(run._first, run.cut))
            return device.Workplace(desk, lambda number: device.dealt(run.data, number), here, group=group)

        with (
            running_grid(lambda: device.client_app(place), run.graph.count) as grid,
            run.engine(grid=grid) as engine,
        ):
            for line in play_in_folder(run, tmp_path / folder, True, engine):
                if line["round"] == last:
                    break
        return tmp_path / folder, opened(tmp_path / folder, run, KEYS)

    local = Run(config)
    with Local(local.data, local.model, config.training, config.seed, 1) as engine:
        for _ in play_in_folder(local, tmp_path / "local", engine=engine):
            pass
    return play_up_to


def opened(folder, run, keys):
    """The rows in a checkpoint of a server that cannot look, for those who have the key."""
    with safe_open(folder / "checkpoint" / "state.safetensors", "np") as file:
        sealed = file.get_tensor("models")
    name = run.engine(grid=object(), nodes=object())._run
    given = [blind.handed_out(row, blind.Sealing(run.cut, run._first)) for row in sealed]
    group = blind.Group(tuple(keys), run.cut, blind.hashes(run._first, run.cut))
    return np.stack([blind.taken_in(fields, group, name)[0] for fields in given])


@pytest.mark.slow(10)
def test_a_run_ends_without_models_and_goes_on_after_a_stop_with_the_same_bits(played, tmp_path):
    whole, rows = played(None, "whole")
    models = load_file(tmp_path / "local" / "checkpoint" / "state.safetensors")["models"]
    np.testing.assert_array_equal(rows, models)
    for line, other in zip(read_lines(whole), read_lines(tmp_path / "local"), strict=True):
        assert {**line, "seconds": 0} == {**other, "seconds": 0}  # tests and bytes too
    result = json.loads((whole / "result.json").read_text())
    assert "models_sha256" not in result
    assert not (whole / "models").exists()
    played(1, "stopped")
    stopped, _ = played(None, "stopped")
    assert json.loads((stopped / "result.json").read_text())["masked_sha256"] == result["masked_sha256"]
    pieces = needles([*rows, *in_pieces(rows)])
    assert pieces
    assert not [piece for piece in pieces for content in contents(whole).values() if piece in content]
    assert [piece for piece in pieces for content in contents(tmp_path / "local").values() if piece in content]
    done = call("report", whole)
    assert done.returncode == 0, done.stderr


# --- a deployment ---------------------------------------------------------------------------------------------------


def needles(rows):
    """Pieces of rows, as float32 and in fixed point before and after mixing, that must be nowhere on the server."""
    found = set()
    for row in rows:
        for start in range(0, len(row) - 8, max(8, len(row) // 8)):
            piece = row[start : start + 8]
            if np.count_nonzero(piece) == 8:
                whole = blind.whole(piece)
                found |= {piece.tobytes(), whole.tobytes(), (whole << blind.WEIGHT_BITS).tobytes()}
    return found


def in_pieces(rows):
    """The same, as a server holds rows that are cut into 20 pieces."""
    columns = np.concatenate(blind.Cut(0, len(rows[0]), 20).columns)
    return [row[columns] for row in rows]


@pytest.mark.slow(110)
def test_the_server_has_no_row_and_devices_come_to_the_bits_of_the_local_engine(tmp_path, kept):
    """With kill -9 of the server app and of a device, which is absent for a while, and a device that joins later.

    In every round three tenths are sent, so that rows are made of pieces from many rounds.
    """
    some = SPARSE | {"density": 0.3}
    building, server = deployed(tmp_path, kept, experiment=hidden(tmp_path / "homes", rounds=100_000, scheduler=some))
    devices = Devices(building, kept).start_all()
    until(lambda: len(metrics(building)) > 1, "two rounds")
    os.kill(below(server.pid, "flwr-serverapp")[0], signal.SIGKILL)
    devices.kill("device-003")
    devices.start("device-003")
    until(lambda: any("3" in line.get("absent", {}) for line in metrics(building)), "a round without device 3")
    until(lambda: "3" not in metrics(building)[-1].get("absent", {}), "a round with it again")
    key = building / "devices" / "device-001" / "group.key"
    done = call("deploy", "add", "lamp", "--links", "device-000", "--building", building, "--group-key", key)
    assert done.returncode == 0, done.stderr
    record(building / "devices" / "lamp", seed=4)
    devices.start("lamp")
    until(lambda: len(metrics(building)[-1]["time"]["devices"]["samples"]) == 5, "the lamp is on the graph")
    until(lambda: metrics(building)[-1]["time"]["devices"]["samples"][4] > 0, "it takes part")
    all_there = until(lambda: not (line := metrics(building)[-1]).get("absent") and line["round"], "all take part")
    until(lambda: len(metrics(building)) > all_there, "the checkpoint of that round")
    server.terminate()
    assert server.wait(SLOW) == 0

    run = building / "server" / "run"
    with safe_open(run / "checkpoint" / "state.safetensors", "np") as file:
        played = int(file.metadata()["round"])
    config = load(run / "config.toml")
    keys = blind.read_keys(key.read_text())
    server_run = Run(replace(config, data=replace(config.data, folders="")), sealed=True)
    rows = opened(run, server_run, keys)
    np.testing.assert_array_equal(rows, expected(building, played))

    own = [load_file(path) for path in sorted(building.glob("devices/*/state/model.safetensors"))]
    mine = [np.concatenate([tensor.ravel() for tensor in tensors.values()]) for tensors in own]
    public = [server_run._first]  # pieces of it that nobody has sent yet are handed out in the open
    wanted = needles([*rows, *mine, *in_pieces(rows), *in_pieces(mine)]) - needles([*public, *in_pieces(public)])
    assert len(wanted) > 50
    assert any(needle in content for needle in wanted for content in contents(building / "devices").values())
    for path, content in contents(building / "server").items():
        assert not [needle for needle in wanted if needle in content], path
        assert keys[0] not in content
        assert keys[0].hex().encode() not in content
        assert device.REFUSED.encode() not in content, path  # whoever was killed
    assert not (run / "models").exists()
    tested = [line["mixed"] for line in metrics(building)]
    assert all("global" not in test for test in tested)
    assert tested[-1]["local"]["mean"] > 0.5  # what devices say about their own tests
    assert tomllib.loads((building / "devices" / "lamp" / "device.toml").read_text())["experiment"]["privacy"]["blind"]
