"""The IDX format of MNIST."""

import gzip
import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfilt._types import Array
from fedfilt.data.samples import Samples

BLOCK = 1 << 20  # bytes read at a time


def read_idx(path: Path) -> Array:
    """The array in an IDX file, with or without gzip."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return parse_idx(file, str(path))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def read_mnist(name: str, paths: Sequence[Path]) -> Samples:
    """Pictures from the four files of MNIST: training inputs and labels, then test inputs and labels; 10 labels."""
    train_x, train_y, test_x, test_y = map(read_idx, paths)
    test = np.arange(len(train_y) + len(test_y)) >= len(train_y)
    y = np.concatenate([train_y, test_y]).astype(np.int64)
    return Samples(name, np.concatenate([train_x, test_x])[:, None], y, 10, test)


def parse_idx(file: Any, name: str, into: Array | None = None, turned: bool = False) -> Array:
    """An array in the IDX format of MNIST; sizes are checked before memory is taken.

    `into` is an array of the same shape and type to fill instead, block by block, so that no second array is needed;
    with `turned`, rows and columns of each picture are exchanged.
    """
    kinds: dict[int, Any] = {0x08: np.uint8, 0x09: np.int8, 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
    head = file.read(4)
    if len(head) != 4 or head[:2] != b"\0\0" or head[2] not in kinds or not 1 <= head[3] <= 4:
        raise ValueError(f"{name} is not an IDX file")
    shape = np.frombuffer(file.read(4 * head[3]), ">u4").astype(np.int64)
    kind = np.dtype(kinds[head[2]])
    size = int(np.prod(shape)) * kind.itemsize if len(shape) == head[3] else -1
    if not 0 <= size <= 1 << 30:
        raise ValueError(f"{name} claims an unlikely shape {shape.tolist()}")
    if into is not None:
        return _filled(file, name, into, turned, tuple(shape.tolist()), kind)
    body = io.BytesIO()
    while block := file.read(min(BLOCK, size + 1 - body.tell())):  # no more memory than there are bytes
        body.write(block)
    if body.tell() != size:
        raise ValueError(f"{name} must hold {size} bytes after its header, got {body.tell()}")
    return np.frombuffer(body.getvalue(), kind).reshape(shape)


def _filled(file: Any, name: str, into: Array, turned: bool, shape: tuple[int, ...], kind: Any) -> Array:
    """`into`, with what follows the header of an IDX file."""
    if into.shape != shape or into.dtype != kind:
        raise ValueError(f"{name} must hold {into.dtype} of shape {into.shape}, got {kind} of {shape}")
    each = int(np.prod(shape[1:])) * kind.itemsize
    some = max(1, BLOCK // max(each, 1))
    for start in range(0, len(into), some):
        rows = into[start : start + some]
        block = file.read(len(rows) * each)
        if len(block) != len(rows) * each:
            raise ValueError(f"{name} must hold {len(into) * each} bytes after its header, got fewer")
        read = np.frombuffer(block, kind).reshape(rows.shape)
        rows[:] = read.swapaxes(-1, -2) if turned else read
    if file.read(1):
        raise ValueError(f"{name} must hold {len(into) * each} bytes after its header, got more")
    return into
