"""Files of a run folder: whole or not at all, held by one process at a time."""

import contextlib
import fcntl
import subprocess
import sys
import threading
from typing import Any

import pytest

from fedfilt._files import LOCK, Busy, in_use, locked, write_atomically
from helpers import started, until

HOLD = """
import sys
from pathlib import Path
from fedfilt._files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_another_process(folder):
    """A process that holds a folder until its input ends, or it does."""
    words = [sys.executable, "-c", HOLD, str(folder)]
    with started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        with holder.stdin, holder.stdout:
            assert holder.stdout.readline() == "held\n"
            yield holder


def test_a_folder_that_another_process_holds_is_in_use(tmp_path):
    assert not in_use(tmp_path / "nothing")
    assert not in_use(tmp_path)
    with held_by_another_process(tmp_path) as holder:
        assert in_use(tmp_path)
        assert in_use(tmp_path)  # a look does not take it away
        with pytest.raises(Busy, match=f"is in use by process {holder.pid}; wait for it"), locked(tmp_path):
            pass
        holder.stdin.close()
        assert holder.wait() == 0
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert in_use(tmp_path)
    assert not in_use(tmp_path)


def test_a_lock_goes_with_a_process_that_is_killed(tmp_path):
    with held_by_another_process(tmp_path) as holder:
        holder.kill()
        holder.wait()
    assert (tmp_path / "lock").read_text() == str(holder.pid)
    assert not in_use(tmp_path)
    with locked(tmp_path):
        pass


def test_to_look_never_gets_in_the_way_of_a_run_that_begins(tmp_path):
    seen, done = set(), threading.Event()

    def look():
        while not done.is_set():
            seen.add(in_use(tmp_path))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(300):
            with locked(tmp_path):  # would be refused if a look took the lock, even for a moment
                pass
        with locked(tmp_path):
            until(lambda: True in seen, "a look at the lock")
        until(lambda: False in seen, "a look at no lock")
    finally:
        done.set()
        watcher.join()


def test_a_file_that_cannot_be_written_is_left_as_it_was(tmp_path):
    path = tmp_path / "x.json"
    write_atomically(path, b"first")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    nothing: Any = None
    with pytest.raises(TypeError):
        write_atomically(path, nothing)
    assert path.read_bytes() == b"second"
    assert [found.name for found in tmp_path.iterdir()] == ["x.json"]


def test_a_run_of_an_earlier_version_is_respected(tmp_path):
    """Versions before took another kind of lock."""
    with (tmp_path / LOCK).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(Busy), locked(tmp_path):
            pass
    with locked(tmp_path):
        assert in_use(tmp_path)
