"""Mixing by a server that cannot look: rows in fixed point, masks that only the devices can draw, whole weights.

A device sends g + r modulo 2^64: its row in fixed point plus a mask from a key that all devices share and the server
never has. Mixing is linear, so the server mixes masked rows, sum_j w_ij (g_j + r_j), with weights that are whole
numbers. Device i draws the masks r_j of those whose rows are in it and takes sum_j w_ij r_j off; what is left is its
mixed row, exact in fixed point.

No overflow: a row is held to |g| <= 2^10, in fixed point |q| <= 2^10 * 2^24 = 2^34. Weights are multiples of 2^-24,
and their magnitudes may sum to 16 in a row, sum_j |w_ij| <= 16 * 2^24 = 2^28. So |sum_j w_ij q_j| <= 2^62 < 2^63: the
sum is the same modulo 2^64 and in whole numbers.

No mask for two rows: the key of a mask is drawn with a salt, and the salt from the row itself (as in RFC 5297). The
same row gives the same masked bytes again, and another row another mask: after a kill, a lost disk, a restored backup,
or an order that the server repeats. So a device need not remember which masks it has used, and cannot forget it.

No other row: with its values a device masks four sums of them, with secret factors. They are mixed like values, so the
device that opens a mixed row sees whether it is the mixture that it is said to be. A row of another round, run or
device, and one that was changed, is refused, whatever is in it: so the server learns nothing by trying.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedfilt._types import Array

FRACTION_BITS = 24  # of a value
WEIGHT_BITS = 24  # of a weight: those of a row sum to 2^24
CAP = 2.0**10  # magnitude of a value, at most
SPREAD = 16  # to which the magnitudes of a row's weights may sum
LEAP = 2.0  # length of an update, at most, as a multiple of that of the model it began with
MOST = 512  # devices
SALT = 16  # bytes: 4 that name the group key, 12 from the row
KEY = 32  # bytes of a group key
CHECKS = 4  # sums by which a row is checked
NOTE = np.dtype([("device", "<u4"), ("round", "<u4"), ("weight", "<i8"), ("salt", f"V{SALT}")])


class Mask(NamedTuple):
    """A mask that is in a masked row, so many times."""

    device: int
    round: int
    weight: int
    salt: bytes


# --- fixed point --------------------------------------------------------------------------------------------------


def whole(rows: Array) -> Array:
    """Rows in fixed point: int64 multiples of 2^-24, held to the cap.

    >>> whole(np.array([0.5, -1e30], np.float32)).tolist() == [2**23, -(2**34)]
    True
    """
    if not np.isfinite(rows).all():
        raise ValueError("a row must be finite, got NaN or infinity")
    return np.rint(np.clip(rows.astype(np.float64), -CAP, CAP) * 2**FRACTION_BITS).astype(np.int64)


def whole_weights(matrix: Array) -> Array:
    """(K, K) weights as multiples of 2^-24, so that a row that sums to 1 sums to exactly 2^24; rows of zeros stay.

    >>> whole_weights(np.array([[1 / 3, 2 / 3]])).tolist(), 2**24
    ([[5592405, 11184811]], 16777216)
    """
    weights = np.rint(matrix * 2**WEIGHT_BITS).astype(np.int64)
    largest, rows = abs(matrix).argmax(axis=1), np.arange(len(matrix))
    weights[rows, largest] += np.where(matrix.any(axis=1), 2**WEIGHT_BITS, 0) - weights.sum(axis=1)
    if (most := abs(weights).sum(axis=1).max(initial=0)) > SPREAD * 2**WEIGHT_BITS:
        raise ValueError(
            f"the magnitudes of a device's weights must sum to at most {SPREAD}, got {most / 2**WEIGHT_BITS:.3g}"
        )
    return weights


def mixed(weights: Array, rows: Array) -> Array:
    """Whole rows, masked or not, mixed modulo 2^64; uint64."""
    return weights.astype(np.uint64) @ rows.astype(np.uint64)


def floats(rows: Array) -> Array:
    """Mixed rows as float32."""
    return (rows.view(np.int64) / 2.0 ** (FRACTION_BITS + WEIGHT_BITS)).astype(np.float32)


def bounded(update: Array, model: Array) -> Array:
    """An update that is no longer than the model it began with, times `LEAP`: what a blind server cannot see to.

    >>> bounded(np.array([300.0, 400.0], np.float32), model=np.array([3.0, 4.0], np.float32)).tolist()
    [6.0, 8.0]
    """
    length, most = (float(np.linalg.norm(row.astype(np.float64))) for row in (update, model))
    most = LEAP * max(1.0, most)
    return update if length <= most else update * np.float32(most / length)


# --- masks, which only devices can draw ---------------------------------------------------------------------------


def masked(row: Array, keys: Sequence[bytes], run: str, round: int, device: int) -> bytes:
    """What a device sends: a salt, and its row in fixed point and its checks under the mask of that salt.

    The first key draws the mask, the last one the factors of the checks; see `read_keys`.
    """
    values, head = whole(row).view(np.uint64), f"{run}|{round}|{device}|".encode()
    seal = hmac.new(_derived(keys[0], b"", b"salt"), head + values.tobytes(), hashlib.sha256).digest()
    salt = key_name(keys[0]) + seal[: SALT - 4]
    values = np.concatenate([values, _checks(values, keys, run)])
    values += _drawn(Mask(device, round, 1, salt), keys, run, len(values))
    return salt + values.astype("<u8").tobytes()


def unmasked(values: Array, masks: Sequence[Mask], keys: Sequence[bytes], run: str) -> Array:
    """The mixed row (B,) in masked values; ValueError if it is not the mixture that the masks say."""
    weights = [mask.weight for mask in masks]
    values = values.copy()
    for mask in masks:
        values -= np.array(mask.weight, np.int64).astype(np.uint64) * _drawn(mask, keys, run, len(values))
    row, checks = values[:-CHECKS], values[-CHECKS:]
    found = row.view(np.int64)
    most = sum(map(abs, weights)) * int(CAP) * 2**FRACTION_BITS
    if (
        sum(weights) != 2**WEIGHT_BITS
        or most > 2**62
        or found.max(initial=0) > most
        or found.min(initial=0) < -most
        or (_checks(row, keys, run) != checks).any()
    ):
        raise ValueError("the mixed row does not open: it is of another run, round or device than it says, or changed")
    return floats(row)


def key_name(key: bytes) -> bytes:
    """Four bytes that name a group key, and say nothing about it."""
    return _derived(key, b"", b"name")[:4]


def read_keys(text: str) -> list[bytes]:
    """The group keys of a file: one a line, the newest first, which masks; all open; the last one, which stays, checks.

    ValueError if there are none.
    """
    try:
        keys = [bytes.fromhex(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        keys = []
    if not keys or any(len(key) != KEY for key in keys):
        raise ValueError(f"a group key must be {2 * KEY} hexadecimal digits, one key a line")
    return keys


def _drawn(mask: Mask, keys: Sequence[bytes], run: str, size: int) -> Array:
    """(size,) uint64 of a mask, from a key that is this mask's alone."""
    named = [key for key in keys if key_name(key) == mask.salt[:4]]
    if not named:
        raise ValueError("the row is masked with a group key that this device does not have")
    return _stream(_derived(named[0], mask.salt, f"mask|{run}|{mask.round}|{mask.device}".encode()), size)


def _checks(values: Array, keys: Sequence[bytes], run: str) -> Array:
    """(CHECKS,) sums of values times factors that only devices know."""
    factors = _stream(_derived(keys[-1], b"", f"check|{run}".encode()), CHECKS * len(values))
    return mixed(factors.reshape(CHECKS, -1), values)


def _stream(key: bytes, size: int) -> Array:
    """(size,) uint64: the keystream of ChaCha20."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # comes with fedfilt[flower]

    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def _derived(key: bytes, salt: bytes, what: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt, b"fedfilt blind " + what).derive(key)


# --- what the server holds: masked values, and which masks are in them ----------------------------------------------
# A row of uint64: values and checks; then for every device how often its mask is in them, of which round it is, and its
# salt as two numbers. So it is mixed, kept and saved like any row. Without a mask it is the first model.


def sealed_width(size: int) -> int:
    """Numbers of a sealed row of so many values."""
    return size + CHECKS + 4 * MOST


def masked_bytes(size: int) -> int:
    """Bytes of a masked row that a device sends."""
    return SALT + 8 * (size + CHECKS)


def sealed(content: bytes, size: int, round: int, device: int) -> Array:
    """The row that a device sent, sealed; ValueError if it is not of that size."""
    if len(content) != masked_bytes(size):
        raise ValueError(f"a masked row must be {masked_bytes(size)} bytes long, got {len(content)}")
    row = np.zeros(sealed_width(size), np.uint64)
    row[: size + CHECKS] = np.frombuffer(content, "<u8", offset=SALT)
    row[size + CHECKS :].reshape(4, MOST)[:, device] = 1, round, *np.frombuffer(content, "<u8", 2)
    return row


def mixed_sealed(weights: Array, rows: Array) -> Array:
    """Sealed rows as they came from devices, mixed; a weight of 0 leaves a row, and its mask, out."""
    result, named = mixed(weights, rows), 3 * MOST  # rounds and salts are not summed
    result[:, -named:] = mixed(weights != 0, rows[:, -named:])
    return result


def opened(row: Array) -> tuple[Array, list[Mask]]:
    """(masked values and checks, masks in them) of a sealed row; no masks: it is the first model."""
    values, notes = np.split(row, [-4 * MOST])
    weights, rounds, *salts = notes.reshape(4, MOST)
    found = np.flatnonzero(weights)
    counts, halves = weights.view(np.int64), np.stack(salts, axis=1).astype("<u8")
    return values, [Mask(int(i), int(rounds[i]), int(counts[i]), halves[i].tobytes()) for i in found]


def masks_to_bytes(masks: Sequence[Mask]) -> bytes:
    """Masks as they travel to a device."""
    return np.array([tuple(mask) for mask in masks], NOTE).tobytes()


def masks_from_bytes(content: bytes) -> list[Mask]:
    """Masks that came; ValueError if that is no list of them."""
    if len(content) % NOTE.itemsize or len(content) > MOST * NOTE.itemsize:
        raise ValueError(f"masks must be up to {MOST} of {NOTE.itemsize} bytes, got {len(content)} bytes")
    notes = np.frombuffer(content, NOTE)
    return [
        Mask(device, round, weight, bytes(salt))
        for device, round, weight, salt in zip(*(notes[name].tolist() for name in Mask._fields), strict=True)
    ]
