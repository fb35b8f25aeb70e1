"""Runs in their folders: resumed, killed, out of space, damaged; a resumed run has the same bits as a whole one."""

import gc
import os
import random
import resource
import signal
import subprocess
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save

from fedfilt._files import in_use
from fedfilt._types import Array, Table
from fedfilt.engines.local import Local
from fedfilt.rounds.types import State
from fedfilt.runs import checkpoint
from fedfilt.runs import compare as comparing
from fedfilt.runs import play as play_module
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.folder import earlier
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from helpers import (
    ENDLESS,
    SLOW,
    SMALL,
    as_far_as,
    command,
    config_file,
    contents,
    finish,
    killed,
    later,
    process,
    started,
    until,
)


def saved(folder):
    return folder / "checkpoint" / "state.safetensors"


def rounds_saved(folder):
    if not saved(folder).exists():
        return 0
    with safe_open(saved(folder), "numpy") as file:
        return int(file.metadata()["round"])


def stopped(folder, after, **changes):
    """A run that was ended after a round."""
    for line in play_in_folder(Run(from_table({**SMALL, **changes})), folder):
        if line["round"] == after:
            break


def without_times(folder):
    return [{**line, "seconds": 0} for line in read_lines(folder)]


# --- the same bits ------------------------------------------------------------------------------------------------


def test_resume_gives_the_same_bits(tmp_path):
    whole = finish(tmp_path / "whole")
    stopped(tmp_path / "parts", after=5)  # one after a checkpoint: that round is lost and played again
    again = finish(tmp_path / "parts", resume=True)
    assert again["models_sha256"] == whole["models_sha256"]
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "parts")


def test_workers_and_checkpoints_may_change_on_resume(tmp_path, monkeypatch):
    whole = finish(tmp_path / "whole")
    stopped(tmp_path / "parts", after=3)
    assert not (tmp_path / "parts" / "result.json").exists()
    used, begin = [], Local.__init__

    def spied(engine, *arguments, **options):
        begin(engine, *arguments, **options)
        used.append(engine._workers)

    monkeypatch.setattr(Local, "__init__", spied)
    again = finish(tmp_path / "parts", resume=True, engine={"workers": 2}, checkpoint={"every": 3})
    assert used == [2]
    assert again["models_sha256"] == whole["models_sha256"]
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "parts")


POINTS = """
from dataclasses import dataclass
import numpy as np
from fedfilt.data import Samples

@dataclass(frozen=True)
class Points:
    def load(self, store):
        y = np.arange(2000) % 10
        x = np.random.default_rng(0).standard_normal((2000, 1, 8, 8)) + y[:, None, None, None] / 3
        return Samples("points", x.astype(np.float32), y, 10, np.arange(2000) >= 1600)
"""  # what is loaded without scikit-learn, as digits is: a third of the time that a process takes to begin


@pytest.mark.slow(60)
def test_killed_at_20_random_moments_and_resumed_gives_the_same_bits(tmp_path, monkeypatch):
    """A real run in its own process group, ended by SIGKILL again and again, some with two workers."""
    (tmp_path / "points_to_learn.py").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FEDFILT_TRUST_CODE", "1")
    changes = {**ENDLESS, "data": "points_to_learn:Points", "evaluation": {"every": 7}}
    path, folder, generator = config_file(tmp_path, **changes), tmp_path / "killed", random.Random(0)
    folder.mkdir()  # --resume goes on with what is there

    def stamp():
        return saved(folder).stat().st_mtime_ns if saved(folder).exists() else 0

    reached = [0]
    for kill in range(20):
        before, begins = stamp(), kill % 4 == 0  # some kills hit the start of a run, most its rounds
        words = command("run", path, f"engine.workers={2 if kill % 5 == 4 else 1}", "--out", folder, "--resume")
        killed(
            words,
            ready=partial(in_use, folder) if begins else partial(later, stamp, before),
            more=generator.uniform(0, 0.02 if begins else 0.15),
            cwd=tmp_path,
        )
        until(lambda: not in_use(folder), "the lock to go with its process")
        reached.append(rounds_saved(folder))
        assert reached[-1] >= reached[-2] + (not begins)  # no round that was saved is ever lost
    last = len(read_lines(folder)) + 2
    assert as_far_as(last, folder, **changes) == as_far_as(last, tmp_path / "whole", **changes)


@pytest.mark.slow(10)
def test_workers_end_when_their_run_is_killed(tmp_path):
    path, folder = config_file(tmp_path, **ENDLESS), tmp_path / "run"
    off = {**os.environ, "FEDFILT_NATIVE": "off"}  # torch trains in processes, the native core in threads
    options: Table = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": off}
    with started(command("run", path, "engine.workers=2", "--out", folder), **options) as running:
        until(lambda: running.poll() is not None or saved(folder).exists(), "a checkpoint")
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        assert len(children) >= 2
        assert all(map(alive, children))
        running.kill()
        running.wait()
        until(lambda: not any(map(alive, children)), "the end of the workers")


def alive(process):
    """Whether a process runs; one that has ended but that nobody has asked about does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow(4)
def test_ctrl_c_says_how_to_go_on(tmp_path):
    path, folder = config_file(tmp_path, **ENDLESS), tmp_path / "run"
    with started(
        command("run", path, "--out", folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore Ctrl-C
    ) as running:
        until(lambda: running.poll() is not None or saved(folder).exists(), "a checkpoint")
        running.send_signal(signal.SIGINT)
        _, words = running.communicate(timeout=SLOW)
    assert running.returncode == 130
    assert f"fedfilt run {folder}/config.toml --out {folder} --resume" in words


@pytest.mark.slow(4)
def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path):
    """Writes beyond a size fail, as on a full disk; what was saved before can still be resumed."""
    changes: Table = {"rounds": 4, "checkpoint": {"every": 2}}
    whole = finish(tmp_path / "whole", **changes)
    stopped(tmp_path / "run", after=3, **changes)
    before = saved(tmp_path / "run").read_bytes()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))

    path = config_file(tmp_path, **changes)
    done = process("run", path, "--out", tmp_path / "run", "--resume", preexec_fn=limit)
    assert done.returncode == 1
    kept = (
        f"(File too large); {tmp_path / 'run'} is saved up to round 2. When there is room again, continue with --resume"
    )
    assert f"error: no room to write {saved(tmp_path / 'run')} {kept}" in done.stderr
    assert saved(tmp_path / "run").read_bytes() == before
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert finish(tmp_path / "run", resume=True, **changes)["models_sha256"] == whole["models_sha256"]


def test_a_line_cut_by_a_crash_is_dropped(tmp_path):
    whole = finish(tmp_path / "whole")
    stopped(tmp_path / "run", after=4)
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_text(log.read_text() + '{"round": 5, "sec')
    assert len(read_lines(tmp_path / "run")) == 4
    assert finish(tmp_path / "run", resume=True)["models_sha256"] == whole["models_sha256"]


# --- folders ------------------------------------------------------------------------------------------------------


def test_a_changed_config_is_not_resumed(tmp_path):
    finish(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"another config \(training\.learning_rate was 0\.1, is 0\.2\)"):
        finish(tmp_path, resume=True, training={"learning_rate": 0.2})
    with pytest.raises(ValueError, match="holds a run already"):
        finish(tmp_path)
    assert contents(tmp_path) == before


def test_other_folders_are_not_written_into(tmp_path):
    (tmp_path / "lock").write_text("my own precious file about locks")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds other files"):
        finish(tmp_path, resume=True)
    assert contents(tmp_path) == before


def test_a_run_killed_at_its_very_first_write_can_be_resumed(tmp_path):
    (tmp_path / ".config.toml.tmp").write_text("half")
    (tmp_path / "lock").write_text("4711")
    finish(tmp_path, resume=True)


def test_a_finished_run_is_left_alone(tmp_path):
    finish(tmp_path)
    before = contents(tmp_path)
    finish(tmp_path, resume=True)
    after = contents(tmp_path)
    assert after == before


def test_a_graph_that_changed_behind_the_config_is_not_resumed(tmp_path):
    edges = tmp_path / "edges.csv"
    edges.write_text("a,b\n0,1\n")
    changes: Table = {"graph": {"name": "edges", "devices": 20, "file": str(edges)}}
    finish(tmp_path / "run", **changes)
    assert comparing.finished(tmp_path / "run", from_table({**SMALL, **changes}))
    edges.write_text("a,b\n0,2\n")
    with pytest.raises(ValueError, match="was run with another graph"):
        finish(tmp_path / "run", resume=True, **changes)
    assert not comparing.finished(tmp_path / "run", from_table({**SMALL, **changes}))


def test_a_line_damaged_in_the_middle_is_named(tmp_path):
    finish(tmp_path)
    log = tmp_path / "metrics.jsonl"
    texts = log.read_text().splitlines()
    log.write_text("\n".join([texts[0], texts[1][:20], *texts[2:]]) + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged in line 2"):
        read_lines(tmp_path)


# --- checkpoints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other", "header", "round"])
def test_a_damaged_checkpoint_is_named_and_left_alone(tmp_path, damage):
    finish(tmp_path)
    path = saved(tmp_path)
    content = path.read_bytes()
    broken = {
        "cut": content[:-100],
        "flip": content[:-50] + bytes([content[-50] ^ 1]) + content[-49:],
        "empty": b"",
        "other": b"something else entirely",
        "header": b"\xff" * 8 + content[8:],
        "round": content.replace(b'"round":"6"', b'"round":"4"'),
    }[damage]
    assert broken != content
    path.write_bytes(broken)
    with pytest.raises(checkpoint.BadCheckpoint, match="damaged"):
        finish(tmp_path, resume=True)
    assert path.read_bytes() == broken


def test_a_checkpoint_of_another_config_or_shape_is_refused(tmp_path):
    path = tmp_path / "state"
    checkpoint.save_state(path, State(3, np.ones((2, 5), np.float32)), "abc")
    assert checkpoint.load_state(path, ["abc"], State(0, np.zeros((2, 5), np.float32)))[0].round == 3
    with pytest.raises(checkpoint.BadCheckpoint, match="belongs to another config"):
        checkpoint.load_state(path, ["abd"], State(0, np.zeros((2, 5), np.float32)))
    with pytest.raises(checkpoint.BadCheckpoint, match=r"shape \(2, 5\), wanted float32 of \(2, 6\)"):
        checkpoint.load_state(path, ["abc"], State(0, np.zeros((2, 6), np.float32)))
    os.truncate(path, 10**11)
    with pytest.raises(checkpoint.BadCheckpoint, match=r"cannot be read \(it has more than"):
        checkpoint.load_state(path, ["abc"], State(0, np.zeros((2, 5), np.float32)))


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_of_the_version_before_is_resumed_unless_it_is_damaged(tmp_path, monkeypatch, damaged):
    """Its checkpoints have another number, and a hash of the config that counts defaults too."""
    whole = finish(tmp_path / "whole")
    stopped(tmp_path / "run", after=4)
    path = saved(tmp_path / "run")
    tensors = load_file(path)
    monkeypatch.setattr(checkpoint, "VERSION", "1")
    checkpoint.save_state(path, State(4, tensors["models"], None, tensors["accepted"]), "0123456789abcdef")
    monkeypatch.undo()
    assert b'"version":"1"' in path.read_bytes()
    if damaged:
        content = path.read_bytes()
        path.write_bytes(content[:-50] + bytes([content[-50] ^ 1]) + content[-49:])
        with pytest.raises(checkpoint.BadCheckpoint, match="wrong sha256"):
            finish(tmp_path / "run", resume=True)
    else:
        assert finish(tmp_path / "run", resume=True)["models_sha256"] == whole["models_sha256"]


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "VERSION", "3")
    checkpoint.save_state(tmp_path / "state", State(3, np.ones((2, 5), np.float32)), "abc")
    monkeypatch.undo()
    with pytest.raises(checkpoint.BadCheckpoint, match="has format 3; this version reads 2"):
        checkpoint.load_state(tmp_path / "state", ["abc"], State(0, np.zeros((2, 5), np.float32)))


@pytest.mark.parametrize("last", ["environment.json", "partition.json", "graph.json"])
def test_a_run_killed_while_it_sets_up_its_folder_can_be_resumed(tmp_path, monkeypatch, last):
    """Whatever file was the last to be written, the folder is known as one of this run."""
    whole = finish(tmp_path / "whole")
    real_write = play_module.write_atomically

    def write_until(path, content):
        real_write(path, content)
        if path.name == last:
            raise KeyboardInterrupt

    monkeypatch.setattr(play_module, "write_atomically", write_until)
    with pytest.raises(KeyboardInterrupt):
        finish(tmp_path / "killed")
    monkeypatch.undo()
    assert finish(tmp_path / "killed", resume=True)["models_sha256"] == whole["models_sha256"]


def test_versions_before_the_last_events_are_known_by_their_hashes():
    events = [{"round": 2 + number, "offline": number, "until": 5 + number} for number in range(4)]
    config = from_table({**SMALL, "rounds": 9, "events": events})
    versions = earlier(config)
    assert [version.events for version in versions.values()] == [config.events[:n] for n in (4, 3, 2, 1, 0)]
    assert all(hash == version.hash() for hash, version in versions.items())


@pytest.mark.slow(6)
def test_a_long_run_takes_no_more_memory_with_every_round(tmp_path):
    """What a round leaves in memory is a few numbers, not a line with columns for all devices."""
    run = Run(from_table({**SMALL, "rounds": 150, "evaluation": {"every": 1000}}))
    held = {}
    for line in play_in_folder(run, tmp_path / "run"):
        if line["round"] == 50:
            tracemalloc.start()
        if line["round"] in (60, 140):
            gc.collect()
            held[line["round"]] = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert (held[140] - held[60]) / 80 < 2000  # bytes a round; with the columns of 20 devices it was 9,000


def test_zeros_at_the_end_of_earlier_models_take_no_room(tmp_path):
    """What two_level sends once leaves rows of which three quarters are zero; bits stay, that of -0 too."""
    models = np.zeros((2, 80), np.float32)
    models[:, :20] = 1
    minus, none = models.copy(), np.zeros_like(models)
    minus[1, 30] = -0.0
    memory: dict[str, Array] = {"guard.good.1": models, "guard.good.2": minus, "guard.good.3": none}
    memory["graph.links"] = np.eye(2)
    path, first = tmp_path / "state.safetensors", State(0, np.zeros((2, 80), np.float32))
    checkpoint.save_state(path, State(3, models, memory=memory), "hash")
    shapes = {name: array.shape for name, array in load_file(path).items()}
    assert [shapes[f"memory.guard.good.{number}"] for number in (1, 2, 3)] == [(2, 20), (2, 31), (2, 0)]
    assert (shapes["models"], shapes["memory.graph.links"]) == ((2, 80), (2, 2))
    found, _ = checkpoint.load_state(path, ["hash"], first)
    for name, array in memory.items():
        assert found.memory[name].tobytes() == array.tobytes()
    tensors, metadata = load_file(path), {"version": "2", "round": "3", "config": "hash"}
    for short in ('["none"]', '["graph.links", 3]', "3", "[", '["long"]'):
        odd = {**tensors, "memory.long": np.zeros((9, 0), np.float32)}
        path.write_bytes(save(odd, {**metadata, "short": short}))
        with pytest.raises(checkpoint.BadCheckpoint, match="damaged"):
            checkpoint.load_state(path, ["hash"], first)
