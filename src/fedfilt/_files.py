"""Files of a run folder: whole or not at all, one process at a time, and a way to ask a run to stop.

Standard library only: the supervisor of a small device imports this.
"""

import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

LOCK = "lock"  # held by the process that plays a run; it contains that process's number
STOP = "stop"  # a file of this name in a run folder asks the run to end after its round
# Where the system has locks that belong to an open file, one can be looked at without taking it
OWNED_BY_FILE = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
FLOCK = struct.Struct("hhqqi4x")  # the kernel's struct flock
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a file cannot grow: the disk, a quota or a limit is full


class Busy(ValueError):
    """A run folder that another process is using."""


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` at the end, or leaves it as it was: temporary, fsync, rename.

    The folder may be somebody else's: a link in the place of the file is replaced, never followed, anything but a file
    or a link is left alone, and what lies in the place of the temporary file is removed.
    """
    with suppress(FileNotFoundError):
        if not (stat.S_ISREG(kind := path.lstat().st_mode) or stat.S_ISLNK(kind)):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # a write does not say where
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file by new content, or leave it as it was; see `replacing`."""
    with replacing(path, mode) as file:
        file.write(content)


@contextmanager
def regular(path: Path, links: bool = True, mode: str = "rb") -> Iterator[IO[bytes]]:
    """A regular file, open for reading; OSError for anything else: a pipe would keep its reader waiting for ever."""
    more = os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)

    def opener(name: str, flags: int) -> int:
        try:
            return os.open(name, flags | more, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP and not links:
                error.strerror = "it is a link"
            raise

    with open(path, mode, opener=opener) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        yield file


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process; the lock goes with the process, however it ends."""
    with regular(folder / LOCK, links=False, mode="a+b") as file:
        if not _take(file):
            file.seek(0)
            holder = file.read(20).decode(errors="replace").strip() or "another process"
            raise Busy(f"{folder} is in use by process {holder}; wait for it or choose another --out")
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        yield


def in_use(folder: Path) -> bool:
    """Whether a process holds a run folder. On Linux looking takes no lock, so it is never in the way of a run."""
    try:
        with regular(folder / LOCK, links=False) as file:
            if OWNED_BY_FILE:
                found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
                return bool(FLOCK.unpack(found)[0] != fcntl.F_UNLCK)
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _take(file: IO[bytes]) -> bool:
    """Lock a file if nobody has, in both ways: earlier versions know only the second."""
    try:
        if OWNED_BY_FILE:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True
