"""The wire format: an update as bytes, dense or sparse, and its exact size.

Sixteen bytes of header, then the positions of the values (as a bitmap or as 32-bit numbers, whichever is shorter;
nothing if all values are sent), then the values as float32 or float16.
"""

import math
import struct

import numpy as np

from fedfilt._types import Array

HEADER = struct.Struct("<4sBBHII")  # magic, places (0 all, 1 numbers, 2 bitmap), bytes a value, unused, size, values
MAGIC = b"fflt"


def wire_size(size: int, count: int, half: bool = False) -> int:
    """Bytes of an update of `size` values of which `count` are sent."""
    places = 0 if count == size else min(4 * count, -(-size // 8))
    return HEADER.size + places + count * (2 if half else 4)


def values_within(size: int, budget: float, half: bool = False) -> int:
    """The most values that fit in `budget` bytes; at least one.

    >>> values_within(53002, wire_size(53002, 53002)), values_within(53002, 0.1 * wire_size(53002, 53002))
    (53002, 3640)
    """
    if wire_size(size, size, half) <= budget:
        return size
    value = 2 if half else 4
    by_number = (budget - HEADER.size) / (4 + value)
    by_bitmap = (budget - HEADER.size - -(-size // 8)) / value
    return int(np.clip(max(by_number, by_bitmap), 1, max(size - 1, 1)))


def pack(update: Array, places: Array | None = None, half: bool = False) -> bytes:
    """The bytes of an update: all of it, or the values at `places` (sorted)."""
    size = len(update)
    kind = np.float16 if half else np.float32
    chosen = update if places is None else update[places]
    how, where = 0, b""
    if places is not None and len(places) < size:
        if 4 * len(places) <= -(-size // 8):
            how, where = 1, places.astype("<u4").tobytes()
        else:
            bits = np.zeros(size, dtype=bool)
            bits[places] = True
            how, where = 2, np.packbits(bits, bitorder="little").tobytes()
    with np.errstate(over="ignore"):
        values = chosen.astype(kind)
    return HEADER.pack(MAGIC, how, kind().itemsize, 0, size, len(chosen)) + where + values.tobytes()


def unpack(content: bytes, size: int, least: int = 0) -> Array:
    """The (size,) float32 update from bytes; any fault raises a ValueError before memory is allocated.

    With `least`, it may have fewer values: `least` and whole arrays of the row; the others are 0.
    """
    if len(content) < HEADER.size:
        raise ValueError(f"update must have a header of {HEADER.size} bytes, got {len(content)}")
    magic, how, item, unused, claimed, count = HEADER.unpack_from(content)
    if magic != MAGIC or how > 2 or item not in (2, 4) or unused:
        raise ValueError("update must start with the header of a fedfilt update")
    fits = claimed == size or (0 < least <= claimed < size and claimed % math.gcd(least, size) == 0)
    if not fits or count > claimed or (how == 0 and count != claimed):
        raise ValueError(f"update must have {size} values, got {count} of {claimed}")
    if claimed < size:
        return np.concatenate([unpack(content, claimed), np.zeros(size - claimed, np.float32)])
    where = {0: 0, 1: 4 * count, 2: -(-size // 8)}[how]
    if len(content) != HEADER.size + where + item * count:
        raise ValueError(f"update must be {HEADER.size + where + item * count} bytes long, got {len(content)}")
    values = np.frombuffer(content, np.float16 if item == 2 else np.float32, count, HEADER.size + where)
    if not np.isfinite(values).all():
        raise ValueError("update must be finite, got NaN or infinity")
    if how == 0:
        return values.astype(np.float32)
    if how == 1:
        places = np.frombuffer(content, "<u4", count, HEADER.size).astype(np.int64)
        if count and (places[-1] >= size or (np.diff(places) <= 0).any()):
            raise ValueError(f"update must name rising places below {size}, each once")
    else:
        packed = np.frombuffer(content, np.uint8, where, HEADER.size)
        bits = np.unpackbits(packed, bitorder="little")
        places = np.flatnonzero(bits)
        if len(places) != count or (count and places[-1] >= size):
            raise ValueError(f"update must name {count} places below {size}, got {len(places)}")
    update = np.zeros(size, np.float32)
    update[places] = values
    return update
