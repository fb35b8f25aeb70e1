"""A device decides with its newest model, says so, keeps what people correct, and survives bad files and sources."""

import errno
import json
import subprocess
import sys
import threading

import numpy as np
import pytest
from safetensors.numpy import save

from fedfilt._files import write_atomically
from fedfilt.data.own import Making, read
from fedfilt.data.windows import Scaling
from fedfilt.home import corrections as corrections_module
from fedfilt.home import decider as decider_module
from fedfilt.home import topics as on
from fedfilt.home.bus import Memory
from fedfilt.home.clock import Clock
from fedfilt.home.corrections import forget
from fedfilt.home.decider import Decider, last_will, read_model
from fedfilt.home.readings import Reading
from fedfilt.home.stream import Window
from fedfilt.home.topics import Correction, Status, Topics
from fedfilt.models import CNN1d
from fedfilt.training.kept import Kept, take
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer
from helpers import SLOW, sure, until

LABELS = ("walk", "rest", "cook")
MAKING = Making(shape=(2, 20), labels=LABELS, rate=10.0)
TRAINER = Trainer(CNN1d((2, 20), 3), Training(), (2, 20))
SCALING = Scaling(np.array([1.0, -2.0]), np.array([2.0, 0.5]))
TOPICS = Topics("villa")


def keep(folder, seed=0, round=3, scaling=SCALING, row=None):
    for name in ("state", "data"):
        (folder / name).mkdir(exist_ok=True)
    row = TRAINER.start(seed) if row is None else row
    about = {"round": str(round)} | ({"scaling": scaling.to_json()} if scaling else {})
    write_atomically(folder / "state" / "model.safetensors", save(TRAINER.layout.tensors(row), about))
    return row


def some(count, start=1e6, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((count, 2, 20)).astype(np.float32)
    return [Window(start + i, start + i + 1.9, x) for i, x in enumerate(values)]


class Home:
    """A device with a model, and all that it says."""

    def __init__(self, folder, **more):
        self.bus, self.said, self.statuses = Memory(), [], []
        self.bus.subscribe(TOPICS.decision("+"), lambda topic, content: self.said.append((topic, content)))
        self.bus.subscribe(TOPICS.status("+"), lambda topic, content: self.statuses.append(on.status(content)))
        self.member = self.bus.member(last_will(TOPICS, "watch"))
        clock = Clock(1.0001, 1e6)
        self.decider = Decider(folder, MAKING, TRAINER, self.member, TOPICS, "watch", "hall", clock, **more)

    def correct(self, label, begin, end, device="watch"):
        content = json.dumps({"label": label, "begin": begin, "end": end}).encode()
        self.bus.publish(TOPICS.correction(device), content)


def test_a_decision_is_what_the_model_says_of_a_scaled_window(tmp_path):
    row = keep(tmp_path)
    home = Home(tmp_path)
    windows = some(5)
    for window in windows:
        home.decider.decide(window)
    wanted = TRAINER.predict(row, SCALING.apply(np.array([window.values for window in windows])))
    for (topic, content), window, probabilities in zip(home.said, windows, wanted, strict=True):
        assert topic == "fedfilt/villa/devices/watch/decision"
        decision = on.decision(content, 3)
        assert (decision.at, decision.round) == (window.end, 3)
        np.testing.assert_allclose(decision.probabilities, probabilities, atol=1e-6)
    assert home.statuses == [Status(True, "hall", 3)]
    home.decider.tell("kitchen")
    assert home.statuses[1:] == [Status(True, "kitchen", 3)]
    home.member.close()
    assert home.statuses[2:] == [Status(False)]


def test_a_device_with_two_models_decides_with_the_mean_of_their_probabilities(tmp_path):
    """As two_level keeps them: its personal and the shared model."""
    rows = np.stack([TRAINER.start(seed) for seed in (0, 1)])
    for name in ("state", "data"):
        (tmp_path / name).mkdir()
    take(tmp_path / "state", Kept(rows, 7, SCALING.to_json()), TRAINER.layout)
    home, window = Home(tmp_path), some(1)[0]
    found = home.decider.decide(window)
    single = [TRAINER.predict(row, SCALING.apply(window.values[None]))[0] for row in rows]
    assert abs(single[0] - single[1]).max() > 0.01
    np.testing.assert_allclose(found, (single[0] + single[1]) / 2, atol=1e-6)
    assert on.decision(home.said[0][1], 3).round == 7


def test_a_status_is_said_again_after_a_last_will_and_after_a_while(tmp_path, monkeypatch):
    keep(tmp_path)
    home, here = Home(tmp_path), Status(True, "hall", 3)
    home.bus.publish(*last_will(TOPICS, "watch"), retain=True)  # the broker had lost it for a while
    assert set(home.statuses[-2:]) == {Status(False), here}
    late: list[Status] = []
    home.bus.subscribe(TOPICS.status("watch"), lambda topic, content: late.append(on.status(content)))
    assert late == [here], "it is what is retained"
    home.decider.look()
    assert late == [here]
    monkeypatch.setattr(decider_module, "TELL", 0.0)
    home.decider.look()
    assert late == [here, here]
    stop = threading.Event()
    stop.set()
    home.decider.live(stop)
    home.bus.publish(*last_will(TOPICS, "watch"), retain=True)
    assert late == [here, here, Status(False)], "its life is over"


def test_a_model_without_scaling_takes_windows_as_they_are(tmp_path):
    row, window = keep(tmp_path, scaling=None), some(1)[0]
    found = Home(tmp_path).decider.decide(window)
    np.testing.assert_array_equal(found, TRAINER.predict(row, window.values[None])[0])


def test_the_newest_model_counts_and_a_bad_one_does_not(tmp_path, caplog):
    home = Home(tmp_path)
    path, window = tmp_path / "state" / "model.safetensors", some(1)[0]
    assert home.decider.decide(window) is None
    assert home.decider.decide(window) is None
    assert home.statuses == [Status(True, "hall", 0)]
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"watch cannot use its model: {path}: No such file or directory: ")
    keep(tmp_path, round=1)
    first = home.decider.decide(window)
    row = keep(tmp_path, seed=1, round=2)
    second = home.decider.decide(window)
    assert not np.array_equal(first, second)
    assert [status.round for status in home.statuses] == [0, 1, 2]
    whole = path.read_bytes()
    nan = row.copy()
    nan[5] = np.nan
    for bad in (
        lambda: path.write_bytes(whole[:-20]),
        lambda: path.write_bytes(b""),
        lambda: path.unlink(),
        lambda: keep(tmp_path, row=nan),
        lambda: keep(tmp_path, scaling=Scaling(np.zeros(3), np.ones(3))),
        lambda: path.write_bytes(save({"a": np.zeros(3, np.float32)})),
    ):
        caplog.clear()
        bad()
        for _ in range(3):
            np.testing.assert_array_equal(home.decider.decide(window), second)
        assert len(caplog.records) == 1, "it is said once"
        assert "it continues with that of round 2" in caplog.text
    assert len(home.statuses) == 3


def test_shapes_of_a_model_are_checked(tmp_path):
    tensors = TRAINER.layout.tensors(TRAINER.start(0))
    name = next(iter(tensors))
    (tmp_path / "a").write_bytes(save({**tensors, name: tensors[name][:1]}))
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        read_model(tmp_path / "a", TRAINER)


def test_accuracy_is_that_on_its_own_validation_windows(tmp_path):
    (tmp_path / "data").mkdir()
    x = np.random.default_rng(0).standard_normal((90, 2, 20)).astype(np.float32)
    np.savez(tmp_path / "data" / "a.npz", x=x, y=np.arange(90) % 3)
    row, held = keep(tmp_path), read(tmp_path, MAKING)
    right = TRAINER.predict(row, held.validation_x).argmax(axis=1) == held.validation_y
    assert len(right) == 9
    assert Home(tmp_path).statuses == [Status(True, "hall", 3, pytest.approx(right.mean()))]
    (tmp_path / "data" / "a.npz").write_bytes(b"no")
    assert Home(tmp_path).statuses == [Status(True, "hall", 3)]


# --- corrections --------------------------------------------------------------------------------------------------


def test_a_correction_keeps_the_windows_of_that_time(tmp_path, caplog):
    keep(tmp_path)
    home = Home(tmp_path)
    windows = some(30)
    for window in windows:
        home.decider.decide(window)
    home.correct("rest", 1e6 + 4.5, 1e6 + 10)
    home.correct("cook", 1e6 + 20, 1e6 + 24, device="lamp")
    kept = home.decider.corrections.read()
    assert kept.time[:, 0].tolist() == [1e6 + 5 + i for i in range(4)]
    np.testing.assert_array_equal(kept.x, [window.values for window in windows[5:9]])
    assert set(kept.y) == {"rest"}
    assert not caplog.records
    home.correct("rest", 5.0, 6.0)
    assert "has no windows from the time corrected to rest" in caplog.text


def test_windows_that_are_cut_after_the_correction_are_kept_too(tmp_path, caplog):
    (tmp_path / "own.toml").write_text("[decide]\nper_label = 3")
    keep(tmp_path)
    home, windows = Home(tmp_path), some(20)
    for window in windows[:4]:
        home.decider.decide(window)
    home.correct("rest", 1e6 + 1.5, 1e6 + 7)  # windows 2 and 3, and two more that are still to come
    home.correct("cook", 1e6 + 4.5, 1e6 + 12)  # 3 and 4 lie across its begin; 5 to 10 are inside
    assert "has no windows from the time corrected to cook" in caplog.text
    for window in windows[4:]:
        home.decider.decide(window)
    kept = home.decider.corrections.read()
    found = dict(zip((kept.time[:, 0] - 1e6).tolist(), kept.y.tolist(), strict=True))
    assert found == {2: "rest", 8: "cook", 9: "cook", 10: "cook"}
    np.testing.assert_array_equal(kept.x, [windows[int(begin)].values for begin in found])


def test_the_newest_word_counts_also_if_it_was_said_before(tmp_path):
    keep(tmp_path)
    home, done = Home(tmp_path), []
    home.bus.subscribe(TOPICS.kept("watch"), lambda _, content: done.append(content))
    for window in some(4):
        home.decider.decide(window)
    for label in ("rest", "cook", "cook", "rest"):
        home.correct(label, 1e6, 1e6 + 10)
        assert set(home.decider.corrections.read().y) == {label}
    home.decider.decide(some(5)[-1])  # one that is cut later
    assert home.decider.corrections.read().y.tolist() == ["rest"] * 5
    assert len(done) == 4, "one that comes twice is confirmed twice"


def test_windows_of_a_clock_that_was_set_back_are_of_another_time(tmp_path):
    keep(tmp_path)
    home = Home(tmp_path)
    home.decider.decide(some(1)[0])
    home.correct("rest", 1e6, 1e6 + 10)
    for window in some(8, start=1e6 - 5):
        home.decider.decide(window)
    assert len(home.decider.corrections.read().y) == 1


def test_corrections_that_are_refused(tmp_path, caplog):
    keep(tmp_path)
    home, done = Home(tmp_path), []
    home.bus.subscribe(TOPICS.kept("watch"), lambda _, content: done.append(content))
    home.decider.decide(some(1)[0])
    for _ in range(10):
        home.correct("dance", 0, 2e6)
        home.correct("rest", 2e6, 0)
    home.bus.publish(TOPICS.correction("watch"), b"\x00")
    assert len(done) == 21, "and others can follow"
    assert not list((tmp_path / "data").iterdir())
    assert len(caplog.records) == 1
    assert "a correction was refused: label must be one of walk, rest, cook" in caplog.text


def test_a_full_disk_is_one_line(tmp_path, caplog, monkeypatch):
    keep(tmp_path)
    home = Home(tmp_path)
    home.decider.decide(some(1)[0])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    kept: list[bytes] = []
    home.bus.subscribe(TOPICS.kept("watch"), lambda _, content: kept.append(content))
    monkeypatch.setattr(corrections_module, "write_atomically", full)
    for _ in range(3):
        home.correct("rest", 0, 2e6)
    assert not kept
    assert [record.getMessage() for record in caplog.records] == [
        "watch: cannot write to disk: No space left on device"
    ]
    monkeypatch.undo()
    home.correct("rest", 0, 2e6)  # it is said until it is kept
    assert len(kept) == len(home.decider.corrections.read().y) == 1
    assert home.decider.decide(some(1)[0]) is not None


def test_windows_in_memory_are_bounded_in_time_and_number(tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text("[decide]\nkeep_minutes = 0.5")
    keep(tmp_path)
    decider = Home(tmp_path).decider
    for window in some(200):
        decider.decide(window)
    assert len(decider._windows) == 29  # 30 s, and a window takes 1.9 s
    for window in some(10, start=5e5):  # the clock was set back
        decider.decide(window)
    assert len(decider._windows) == 10
    monkeypatch.setattr(decider_module, "MOST_BYTES", 7 * 160)
    decider = Home(tmp_path).decider
    for window in some(29):
        decider.decide(window)
    assert len(decider._windows) == 7


def test_old_corrections_go_by_themselves_but_not_when_the_clock_jumps(tmp_path):
    (tmp_path / "own.toml").write_text("[decide]\ndays = 5")
    keep(tmp_path)
    decider = Home(tmp_path).decider
    decider.corrections.add(Correction("rest", 0, 2e6), some(1, start=1.0))
    for hours in (0.5, 1000, 1000.5, 0.6):  # set ahead, and right again
        decider.clock = Clock(1.0001, 1e6 + 3600 * hours)
        decider.look()
        assert len(decider.corrections.read().y) == 1
    decider.clock = Clock(1.0001, 1e6 + 3600 * 1.7)
    decider.look()  # 11 days are over
    assert not (tmp_path / "data" / "corrections.npz").exists()


def test_what_is_forgotten_is_gone_from_memory_too(tmp_path):
    keep(tmp_path)
    home = Home(tmp_path)
    windows = some(30)
    for window in windows:
        home.decider.decide(window)
    assert (tmp_path / "state" / "seen.json").exists()
    forget(tmp_path, since=1e6 + 10)
    home.correct("rest", 0, 2e6)
    assert home.decider.corrections.read().time[:, 1].max() <= 1e6 + 10
    assert sure(home.decider.seen).windows == 30
    assert forget(tmp_path).windows == 9
    assert not (tmp_path / "state" / "seen.json").exists()
    home.correct("rest", 0, 2e6)
    assert not (tmp_path / "data" / "corrections.npz").exists()
    assert home.decider.seen is None
    home.decider.decide(windows[0])
    home.correct("rest", 0, 2e6)
    assert len(home.decider.corrections.read().y) == 1, "what came later is remembered"


# --- scaling without labels ---------------------------------------------------------------------------------------


def test_a_device_without_labels_scales_by_what_it_has_seen(tmp_path):
    row = keep(tmp_path, scaling=Scaling.of(np.empty((0, 2, 20))))
    decider = Home(tmp_path).decider
    windows = [one._replace(values=one.values * 50 + 900) for one in some(40)]
    for window in windows:
        found = decider.decide(window)
    x = np.array([window.values for window in windows], float)
    np.testing.assert_allclose(found, TRAINER.predict(row, Scaling.of(x).apply(x[-1:]))[0], atol=1e-5)
    again = Home(tmp_path).decider
    assert 20 <= sure(again.seen).windows <= 40
    held = read(tmp_path, MAKING)  # its next model is kept with this
    np.testing.assert_allclose(sure(held.scaling).mean, x[: sure(again.seen).windows].mean(axis=(0, 2)))
    np.testing.assert_allclose(sure(held.scaling).spread, x[: sure(again.seen).windows].std(axis=(0, 2)), rtol=1e-6)
    np.savez(tmp_path / "data" / "a.npz", x=x, y=np.arange(40) % 3, part=np.zeros(40, int))
    np.testing.assert_allclose(sure(read(tmp_path, MAKING).scaling).mean, x.mean(axis=(0, 2)), rtol=1e-6)


@pytest.mark.parametrize("text", ["", "{}", '{"windows": 1, "mean": [0], "square": [1]}', '{"windows": 0}', "\x00"])
def test_what_was_seen_is_not_used_if_it_is_damaged(tmp_path, text, caplog):
    keep(tmp_path)
    (tmp_path / "state" / "seen.json").write_text(text)
    assert sure(read(tmp_path, MAKING).scaling).unknown
    assert "it is ignored" in caplog.text
    home = Home(tmp_path)
    assert home.decider.seen is None
    for window in some(10):
        home.decider.decide(window)
    assert sure(Home(tmp_path).decider.seen).windows == 10


# --- living -------------------------------------------------------------------------------------------------------


def test_it_lives_on_the_source_in_own_toml(tmp_path):
    keep(tmp_path)
    rng = np.random.default_rng(0)
    values = rng.standard_normal((100, 2))
    np.savez(tmp_path / "day.npz", time=np.arange(100) / 10, values=values)
    (tmp_path / "own.toml").write_text('[source]\nname = "replay"\nfile = "day.npz"\n[decide]\nhop = 20')
    home = Home(tmp_path)
    home.decider.clock = Clock(1000.0, 1e6)
    home.decider.live(threading.Event())
    cut = values.reshape(5, 20, 2).transpose(0, 2, 1).astype(np.float32)
    assert home.decider.model is not None
    wanted = TRAINER.predict(home.decider.model.row, SCALING.apply(cut))
    found = [on.decision(content, 3).probabilities for _, content in home.said]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_new_model_is_taken_up_and_the_battery_told_without_readings(tmp_path, monkeypatch):
    keep(tmp_path)
    home, stop, left = Home(tmp_path), threading.Event(), [0.9]
    monkeypatch.setattr(decider_module, "LOOK", 0.01)
    monkeypatch.setattr(decider_module, "battery", lambda: left[0])
    watching = threading.Thread(target=home.decider.watch, args=(stop,), daemon=True)
    watching.start()
    keep(tmp_path, seed=1, round=4)
    until(lambda: home.statuses[-1] == Status(True, "hall", 4, None, 0.9), "the new model")
    left[0] = 0.8
    until(lambda: home.statuses[-1] == Status(True, "hall", 4, None, 0.8), "the battery")
    stop.set()
    watching.join(SLOW)
    home.member.close()
    assert home.statuses[-1] == Status(False)


def test_decisions_and_corrections_at_once(tmp_path):
    """The bus may hold its own lock while it hands a correction over."""
    keep(tmp_path)
    home = Home(tmp_path)

    def correct():
        for number in range(60):
            home.correct(LABELS[number % 3], 1e6, 1e6 + 40)
            keep(tmp_path, round=number)

    other = threading.Thread(target=correct, daemon=True)
    other.start()
    while other.is_alive():
        for window in some(40):
            home.decider.decide(window)
            home.decider.tell(f"room{len(home.said) % 5}")
    assert {home.decider.corrections.read().y[0]} <= set(LABELS)


class Moody:
    """A source that fails, then gives what it has."""

    def __init__(self):
        self.tries = 0

    def readings(self, making, bus, clock, stop):
        self.tries += 1
        if self.tries < 3:
            raise RuntimeError("the wire is loose")
        yield from (Reading(1e6 + i / 10, np.zeros(2)) for i in range(20))
        stop.wait()


def test_a_source_that_fails_is_tried_again(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(decider_module, "AGAIN", 0.01)
    keep(tmp_path)
    home, stop, source = Home(tmp_path), threading.Event(), Moody()
    living = threading.Thread(target=home.decider.live, args=(stop, source), daemon=True)
    living.start()
    until(lambda: home.said, "a decision")
    stop.set()
    living.join(SLOW)
    assert not living.is_alive()
    assert [record.getMessage() for record in caplog.records] == [
        "watch: the source failed: the wire is loose; trying again in 0.01 s",
        "watch: the source failed: the wire is loose; trying again in 0.02 s",
    ]


def test_a_source_that_is_wrong_is_named(tmp_path, caplog):
    keep(tmp_path)
    (tmp_path / "own.toml").write_text('[source]\nname = "replay"\nflie = "day.npz"')
    home, stop = Home(tmp_path), threading.Event()
    living = threading.Thread(target=home.decider.live, args=(stop,), daemon=True)
    living.start()
    until(lambda: caplog.records, "a line")
    stop.set()
    living.join(SLOW)
    assert not living.is_alive()
    assert "unknown key of [source] 'flie'; did you mean 'file'?" in caplog.text


@pytest.mark.slow(2)
def test_deciding_needs_neither_torch_nor_scipy(tmp_path):
    keep(tmp_path)
    code = f"""
import sys
import numpy as np
from pathlib import Path
from fedfilt.data.own import Making
from fedfilt.home.bus import Memory
from fedfilt.home.decider import Decider
from fedfilt.home.stream import Window
from fedfilt.home.topics import Topics
from fedfilt.models import CNN1d
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer
making, trainer = Making((2, 20), ("a", "b", "c")), Trainer(CNN1d((2, 20), 3), Training(), (2, 20))
decider = Decider(Path({str(tmp_path)!r}), making, trainer, Memory(), Topics("villa"), "watch")
assert decider.decide(Window(0.0, 1.9, np.zeros((2, 20), np.float32))) is not None
print({{"torch", "scipy", "flwr"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
