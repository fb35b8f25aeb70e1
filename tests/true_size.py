"""EMNIST's archive in its true format and size, made of noise; as a program, `fedfilt` that takes it for EMNIST.

    python tests/true_size.py make FOLDER       # FOLDER/gzip.zip and FOLDER/sha256
    python tests/true_size.py run FOLDER paper emnist --data-dir FOLDER ...

The real archive cannot be had everywhere. This one has the same members for digits, 240,000 + 40,000 pictures of
28 x 28 and their labels, and as many bytes in all: one member of another split is filled with noise that nobody reads.
Processes that compute runs import this file as their main module, so they take it too.
"""

import gzip
import hashlib
import io
import os
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedfilt._files import write_atomically
from fedfilt.datasets.emnist import Emnist

COUNTS = {"train": 240_000, "test": 40_000}
SIZE = Emnist.files[0].size


def make(folder: Path) -> None:
    """Write the archive and its sha256. A picture's label is where its ink is, so that there is something to learn."""
    rng = np.random.default_rng(0)
    ink = rng.integers(60, 256, (64, 10, 12), dtype=np.uint8)  # few patterns: they pack fast
    path = folder / "gzip.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for part, count in COUNTS.items():
            labels = rng.integers(0, 10, count).astype(np.uint8)
            head = b"\0\0\x08\x01" + np.array([count], ">u4").tobytes()
            name = f"gzip/emnist-digits-{part}-labels-idx1-ubyte.gz"
            archive.writestr(name, gzip.compress(head + labels.tobytes(), 1))
            packed = io.BytesIO()
            with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file:
                file.write(b"\0\0\x08\x03" + np.array([count, 28, 28], ">u4").tobytes())
                for start in range(0, count, 10_000):
                    some = labels[start : start + 10_000]
                    pictures = np.zeros((len(some), 28, 28), np.uint8)
                    for label in range(10):
                        where = np.flatnonzero(some == label)
                        top, left = divmod(label, 5)
                        which = ink[rng.integers(0, 64, len(where))]
                        pictures[where, 4 * left : 4 * left + 10, 14 * top : 14 * top + 12] = which
                    file.write(pictures.tobytes())
            archive.writestr(f"gzip/emnist-digits-{part}-images-idx3-ubyte.gz", packed.getvalue())
        name = "gzip/emnist-byclass-train-images-idx3-ubyte.gz"
        left = SIZE - archive.fp.tell() - 2048  # type: ignore[union-attr]
        with archive.open(name, "w", force_zip64=True) as member:
            noise = rng.bytes(1 << 20)
            for _ in range(left >> 20):
                member.write(noise)
    if path.stat().st_size > SIZE or path.stat().st_size < 0.99 * SIZE:
        raise ValueError(f"the archive has {path.stat().st_size} bytes, EMNIST's has {SIZE}")
    with path.open("rb") as file:
        (folder / "sha256").write_text(hashlib.file_digest(file, "sha256").hexdigest())


def take(folder: Path) -> None:
    """From now on the archive in the folder is EMNIST's."""
    Emnist.files = (replace(Emnist.files[0], sha256=(folder / "sha256").read_text(), urls=()),)


def tell(folder: Path) -> None:
    """Keep telling the most memory in kB that this process has had; it may be killed at any time."""
    while True:
        most = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]  # ru_maxrss is our parent's too
        write_atomically(folder / f"memory-{os.getpid()}", most.encode())
        time.sleep(0.1)


if len(sys.argv) > 2 and sys.argv[1] == "run":
    take(Path(sys.argv[2]))
    threading.Thread(target=tell, args=(Path(sys.argv[2]),), daemon=True).start()

if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        from fedfilt.cli import app

        app(sys.argv[3:])
