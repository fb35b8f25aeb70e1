"""Mixing by a blind server: rows in fixed point, masks that only the devices can draw, integer weights.

A device sends g + r modulo 2^64: its row in fixed point plus a mask from a key that all devices share and the server
never has. Mixing is linear, so the server mixes masked rows, sum_j w_ij (g_j + r_j), with integer weights. Device i
draws the masks r_j of all rows in its mixture and subtracts sum_j w_ij r_j; what remains is its mixed row, exact in
fixed point.

No overflow: rows are limited to |g| <= 2^10, in fixed point |q| <= 2^10 * 2^24 = 2^34. Weights are multiples of 2^-24,
and their magnitudes in a row sum to at most 16, sum_j |w_ij| <= 16 * 2^24 = 2^28. So |sum_j w_ij q_j| <= 2^62 < 2^63:
the sum modulo 2^64 equals the sum in integers.

No mask is used for two rows: the key of a mask is derived with a salt, and the salt from the row itself (as in RFC
5297). The same row gives the same masked bytes again, and a different row gets a different mask, even after a kill, a
lost disk, a restored backup, or a job that the server repeats. A device need not remember which masks it has used.

No row can be replaced. With the values q_c of a piece, a device sends their sum t = sum_c f_c q_c modulo 2^128, under a
mask m of 128 bits. The factors f_c are uniform in 0 .. 2^64 - 1, from a key of the run, the round and the piece. The
server mixes t + m as it mixes values. The device that opens a mixture, and finds the values v_c in it, takes the masks
off and compares what remains with sum_c f_c v_c. (Sums modulo 2^64 would be weak: to a change of 2^62, only the last
two bits of a factor matter.)

* Claim: what opens to other values than the claimed mixture s_c = sum_j w_ij q_jc, in one or more places, is accepted
  with a probability of at most 2^-64. Of n attempts, whatever they are, one is accepted with at most n 2^-64.
* Proof: both v_c and s_c are limited to 2^62, so d_c = v_c - s_c is below 2^64 in magnitude. The piece is accepted if
  sum_c f_c d_c = e modulo 2^128, where e is what the server has changed of the sum. As q and t are under masks that are
  used once, nothing that the server has depends on the factors, and so neither do e and d. Let d_c = 2^a b, with b odd
  and a <= 63, be one that is not 0. Given all other factors, f_c is then determined modulo 2^(128 - a), which is at
  least 2^65: of its 2^64 values at most one fits. A refusal says nothing but that, and what is not a forgery is always
  accepted; so up to the first success, attempts are a fixed list, each with one chance in 2^64. A mask that no device
  has used is as good as uniform, also times its weight, up to 28 bits: what is claimed to contain it is accepted with a
  probability of at most 2^-100.
* So a row from another run, round, device or piece, or one that was changed, is refused, whatever it contains, and the
  server learns nothing by trying. All of this holds as far as HKDF, HMAC and ChaCha20 do.
* For the server to mix it modulo 2^64, t + m travels as four limbs of 32 bits. A mixture of limbs is at most 2^60 in
  magnitude. The device puts the mixed limbs together, modulo 2^128.

No row comes again. Of every piece, a device remembers the newest that it has trained from. It takes no older one, no
other one of the same round, and the first model only before any other, known by its hash (`taken_in`).

No position leaks information: to send less, a row is cut into pieces. The columns of a piece are drawn from the seed,
and the round number determines which pieces are sent. Every piece is masked, checked, mixed and opened separately, so
all of the above holds for each. What a device does not send stays as it is: others do not get it, and it does not
change. To mix it, the server would have to weigh a mixture again, in units of 2^-24 times 2^-48; to round that in
between, it would have to read it.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedfilt._draws import Key, generator
from fedfilt._types import Array

FRACTION_BITS = 24  # of a value
WEIGHT_BITS = 24  # of a weight: those of a row sum to 2^24
CAP = 2.0**10  # magnitude of a value, at most
SPREAD = 16  # to which the magnitudes of a row's weights may sum
LEAP = 2.0  # length of an update, at most, as a multiple of that of the model it began with
MOST = 512  # devices
SALT = 16  # bytes: 4 that name the group key, 12 from the row
KEY = 32  # bytes of a group key
CHECKS = 4  # limbs of the sum by which a piece is checked
LIMB = 32  # bits of a limb
BLOCK = 1 << 20  # products of two 16-bit numbers that float64 adds up without rounding, with a bit to spare
PIECES = 20  # into which rows are cut where less than all is sent; at most 32, the bits of a note
GOLDEN = 0x9E3779B97F4A7C15  # the golden ratio, without its whole part, in 2^64ths
NOTE = np.dtype([("device", "<u4"), ("round", "<u4"), ("weight", "<i8"), ("salt", f"V{SALT}"), ("pieces", "<u4")])


class Mask(NamedTuple):
    """A mask in a masked piece, with its multiplicity."""

    device: int
    round: int
    weight: int
    salt: bytes


@dataclass(frozen=True)
class Cut:
    """Rows of `size` values in `count` pieces, even but for one value, whose columns are drawn from the seed.

    In a round all devices begin with the same piece and send as many as their densities allow, one after the other in a
    circle: of two devices, one sends all that the other does. Each round begins further on, by the golden ratio of the
    circle. So, whatever the density, no piece waits for much longer than if it had its turn in a fixed cycle.

    >>> cut = Cut(seed=0, size=7, count=3)
    >>> [columns.tolist() for columns in cut.columns], cut.sent(1, density=0.7), cut.sent(2, density=0.4)
    ([[2, 3, 5], [0, 1], [4, 6]], (1, 2), (0,))
    """

    seed: int
    size: int
    count: int = 1

    @cached_property
    def columns(self) -> list[Array]:
        """The columns of every piece, rising; with one piece, all of them."""
        if self.count == 1:
            return [np.arange(self.size)]
        drawn = generator(self.seed, Key.PIECES).permutation(self.size)
        return [np.sort(part) for part in np.array_split(drawn, self.count)]

    def sent(self, round: int, density: float) -> tuple[int, ...]:
        """The pieces that a device of that density sends in a round; at least one."""
        begin = round * GOLDEN % 2**64 * self.count >> 64
        most = max(1, int(density * self.count + 1e-9))
        return tuple(sorted((begin + i) % self.count for i in range(most)))

    def bytes_of(self, sent: Sequence[int]) -> int:
        """Bytes of those pieces, masked."""
        return SALT + 8 * sum(len(self.columns[piece]) + CHECKS for piece in sent)

    @property
    def whole_bytes(self) -> int:
        """An upper bound on the bytes of a whole row, so that any share of the pieces fits into that share of it."""
        return self.count * (SALT + 8 * (-(-self.size // self.count) + CHECKS))

    @cached_property
    def places(self) -> list[slice]:
        """Where every piece lies in a sealed row."""
        ends = np.cumsum([0] + [len(columns) + CHECKS + 4 * MOST for columns in self.columns]).tolist()
        return [slice(*both) for both in pairwise(ends)]

    @property
    def sealed_width(self) -> int:
        """Numbers of a sealed row."""
        return int(self.places[-1].stop)


class Sealing(NamedTuple):
    """What the server must know about rows it cannot read: how they are cut, and the public first model."""

    cut: Cut
    first: Array  # (B,)


class Group(NamedTuple):
    """What a device needs to hide and open rows: keys that all devices have but the server does not, and the cut."""

    keys: tuple[bytes, ...]  # see `read_keys`
    cut: Cut
    first: tuple[str, ...] = ()  # hashes of the pieces of the first model, see `hashes`; no other piece comes unmasked
    spread: int = SPREAD  # to which the magnitudes of a row's weights may sum: 1 with a rule that only averages


class Newest(NamedTuple):
    """Of a piece, the newest that a device has trained from; as it is: the first model."""

    round: int = 0  # of the masks in it
    hash: str = ""


def hashes(row: Array, cut: Cut) -> tuple[str, ...]:
    """The sha256 of every piece of a row."""
    return tuple(_hash(row[columns]) for columns in cut.columns)


def _hash(values: Array) -> str:
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()


# --- fixed point --------------------------------------------------------------------------------------------------


def whole(rows: Array) -> Array:
    """Rows in fixed point: int64 multiples of 2^-24, limited to the cap.

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
    """Integer rows, masked or not, mixed modulo 2^64; uint64."""
    return weights.astype(np.uint64) @ rows.astype(np.uint64)


def floats(rows: Array) -> Array:
    """Mixed rows as float32."""
    return (rows.view(np.int64) / 2.0 ** (FRACTION_BITS + WEIGHT_BITS)).astype(np.float32)


def bounded(update: Array, model: Array) -> Array:
    """An update, no longer than `LEAP` times the model it started from: a limit that a blind server cannot enforce.

    >>> bounded(np.array([300.0, 400.0], np.float32), model=np.array([3.0, 4.0], np.float32)).tolist()
    [6.0, 8.0]
    """
    length, most = (float(np.linalg.norm(row.astype(np.float64))) for row in (update, model))
    most = LEAP * max(1.0, most)
    return update if length <= most else update * np.float32(most / length)


def taken(
    update: Array, left: Array | None, model: Array, cut: Cut, sent: Sequence[int], keep: bool = True
) -> tuple[Array, Array | None]:
    """What a device sends of its update and of what was `left`: bounded, and NaN where nothing is sent; what is left.

    >>> taken(np.float32([1, 2, 4]), None, np.zeros(3), Cut(seed=0, size=3, count=3), sent=[1])
    (array([nan, nan,  2.], dtype=float32), array([1., 2., 0.], dtype=float32))
    """
    total = update if left is None else update + left
    columns = np.concatenate([cut.columns[piece] for piece in sent])
    found, rest = np.zeros_like(total), total.copy()
    found[columns], rest[columns] = total[columns], 0
    found = bounded(found, model)
    if len(columns) == len(total):
        return found, None
    unsent = np.ones(len(total), bool)
    unsent[columns] = False
    return np.where(unsent, np.float32(np.nan), found), rest if keep else None


# --- masks, which only devices can draw ---------------------------------------------------------------------------


def masked(row: Array, group: Group, sent: Sequence[int], run: str, round: int, device: int) -> bytes:
    """What a device sends: a salt, and pieces of its row in fixed point, with their checks, under masks of that salt.

    The first key draws the masks, the last one the factors of the checks; see `read_keys`.
    """
    keys, cut = group.keys, group.cut
    values = [whole(row[cut.columns[piece]]) for piece in sent]
    head = f"{run}|{round}|{device}|{cut.count}|{list(sent)}|".encode()
    seal = hmac.new(_derived(keys[0], b"", b"salt"), head + np.concatenate(values).tobytes(), hashlib.sha256).digest()
    mask = Mask(device, round, 1, key_name(keys[0]) + seal[: SALT - 4])
    content = [mask.salt]
    for piece, part in zip(sent, values, strict=True):
        drawn, check_mask = _drawn(mask, piece, keys, run, len(part))
        check = check_mask + _product(_factors(keys, run, round, piece, len(part)), part)
        limbs = [check >> LIMB * i & 2**LIMB - 1 for i in range(CHECKS)]
        content += [(part.view(np.uint64) + drawn).astype("<u8").tobytes(), np.array(limbs, "<u8").tobytes()]
    return b"".join(content)


def unmasked(
    values: Array, masks: Sequence[Mask], piece: int, keys: Sequence[bytes], run: str, spread: int = SPREAD
) -> Array:
    """The mixed piece in masked values, as floats; ValueError if it is not the mixture that the masks claim."""
    weights, round = [mask.weight for mask in masks], masks[0].round
    total = sum(map(abs, weights))
    if sum(weights) != 2**WEIGHT_BITS or total > spread * 2**WEIGHT_BITS or any(mask.round != round for mask in masks):
        raise ValueError("a mixture must be of one round, with weights that sum to 1 and are within bounds")
    row, limbs = values[:-CHECKS].copy(), values[-CHECKS:].view(np.int64).tolist()
    check = sum(limb << LIMB * i for i, limb in enumerate(limbs))
    for mask in masks:
        drawn, check_mask = _drawn(mask, piece, keys, run, len(row))
        row -= np.array(mask.weight, np.int64).astype(np.uint64) * drawn
        check -= mask.weight * check_mask
    found, most = row.view(np.int64), total * int(CAP) * 2**FRACTION_BITS
    off = check - _product(_factors(keys, run, round, piece, len(row)), found)
    beyond = (found > most) | (found < -most)  # looked at whatever is off: a refusal takes as long for any reason
    if beyond.any() | (off % 2 ** (LIMB * CHECKS) != 0):
        raise ValueError("the mixed row does not open: it was changed, or is from another run, round or device")
    return floats(row)


def key_name(key: bytes) -> bytes:
    """Four bytes that identify a group key but reveal nothing about it."""
    return _derived(key, b"", b"name")[:4]


def read_keys(text: str) -> list[bytes]:
    """Group keys from a file, one per line: the first and newest masks, all open, and the last one always checks.

    ValueError if there are none.
    """
    try:
        keys = [bytes.fromhex(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        keys = []
    if not keys or any(len(key) != KEY for key in keys):
        raise ValueError(f"a group key must be {2 * KEY} hexadecimal digits, one key per line")
    return keys


def _drawn(mask: Mask, piece: int, keys: Sequence[bytes], run: str, size: int) -> tuple[Array, int]:
    """((size,) uint64 of a mask, 128 bits for the check), from a key that is this mask's and this piece's alone."""
    named = [key for key in keys if key_name(key) == mask.salt[:4]]
    if not named:
        raise ValueError("the row is masked with a group key that this device does not have")
    key = _derived(named[0], mask.salt, f"mask|{run}|{mask.round}|{mask.device}|{piece}".encode())
    stream = _stream(key, size + 2)
    return stream[:size], int(stream[-1]) << 64 | int(stream[-2])


def _factors(keys: Sequence[bytes], run: str, round: int, piece: int, size: int) -> Array:
    """(size,) uint64 factors of a check, which only devices know."""
    return _stream(_derived(keys[-1], b"", f"check|{run}|{round}|{piece}".encode()), size)


def _product(factors: Array, values: Array) -> int:
    """The sum of factors (uint64) times values (int64), exactly: by quarters, with whole numbers in float64."""
    total = 0
    for start in range(0, len(values), BLOCK):
        sums = _quarters(factors[start : start + BLOCK]) @ _quarters(values[start : start + BLOCK]).T
        total += sum(int(number) << 16 * (i + j) for (i, j), number in np.ndenumerate(sums))
    return total


def _quarters(numbers: Array) -> Array:
    """(4, n) numbers by 16 bits, lowest first; the last quarter has the sign."""
    found = np.empty((4, len(numbers)))
    for i, shift in enumerate((0, 16, 32)):
        found[i] = numbers >> shift & 0xFFFF
    found[3] = numbers >> 48
    return found


def _stream(key: bytes, size: int) -> Array:
    """(size,) uint64: the keystream of ChaCha20."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # comes with fedfilt[flower]

    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def _derived(key: bytes, salt: bytes, what: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt, b"fedfilt blind " + what).derive(key)


# --- what the server holds: masked pieces, and which masks are in them -----------------------------------------------
# A row of uint64, piece after piece: values and checks; then for every device how often its mask is in them, of which
# round it is, and its salt as two numbers. So it is mixed, kept and saved like any row. A piece without a mask is that
# of the first model, or was not sent.


def sealed(content: bytes, cut: Cut, sent: Sequence[int], round: int, device: int) -> Array:
    """The pieces that a device sent, as a sealed row; ValueError if they are not of that size."""
    if len(content) != cut.bytes_of(sent):
        raise ValueError(f"a masked row must be {cut.bytes_of(sent)} bytes long, got {len(content)}")
    row, start = np.zeros(cut.sealed_width, np.uint64), SALT
    for piece in sent:
        values, notes = _split(row[cut.places[piece]])
        values[:] = np.frombuffer(content, "<u8", len(values), start)
        notes.reshape(4, MOST)[:, device] = 1, round, *np.frombuffer(content, "<u8", 2)
        start += values.nbytes
    return row


def brought(rows: Array) -> Array:
    """(K,) True where a sealed piece is one that a device sent."""
    return np.asarray(rows[:, -4 * MOST : -3 * MOST].any(axis=1))


def mixed_sealed(weights: Array, rows: Array) -> Array:
    """Sealed pieces as they came from devices, mixed; a weight of 0 leaves a piece, and its mask, out."""
    result, named = mixed(weights, rows), 3 * MOST  # rounds and salts are not summed
    result[:, -named:] = mixed(weights != 0, rows[:, -named:])
    return result


def opened(piece: Array) -> tuple[Array, list[Mask]]:
    """(masked values and checks, masks in them) of a sealed piece; no masks: it is that of the first model."""
    values, notes = _split(piece)
    weights, rounds, *salts = notes.reshape(4, MOST)
    found = np.flatnonzero(weights)
    counts, halves = weights.view(np.int64), np.stack(salts, axis=1).astype("<u8")
    return values, [Mask(int(i), int(rounds[i]), int(counts[i]), halves[i].tobytes()) for i in found]


def _split(piece: Array) -> tuple[Array, Array]:
    """Values and notes of a sealed piece, as views."""
    return piece[: -4 * MOST], piece[-4 * MOST :]


# --- a row on its way to its device -------------------------------------------------------------------------------


def handed_out(row: Array, sealing: Sealing) -> dict[str, bytes]:
    """The fields of a message that hand a sealed row out: `row` has pieces of the first model, `masked` the others.

    `masks` says of every mask in which pieces it is, as bits.
    """
    cut, first = sealing
    public, found, notes = [], [], dict[Mask, int]()
    for piece, place in enumerate(cut.places):
        values, masks = opened(row[place])
        if masks:
            found.append(values.astype("<u8").tobytes())
        else:
            public.append(first[cut.columns[piece]].astype("<f4").tobytes())
        for mask in masks:
            notes[mask] = notes.get(mask, 0) | 1 << piece
    masks_in = np.array([(*mask, pieces) for mask, pieces in notes.items()], NOTE)
    return {"row": b"".join(public), "masked": b"".join(found), "masks": masks_in.tobytes()}


def taken_in(
    fields: dict[str, bytes], group: Group, run: str, before: Sequence[Newest] = ()
) -> tuple[Array, tuple[Newest, ...]]:
    """((B,) the row that was handed out so, without its masks; of which rounds it is), if it may come now.

    `before` is what the device has trained from last. ValueError if a piece is older, or another one of the same round,
    or not what it says it is.
    """
    cut = group.cut
    masks = _masks(fields["masks"], cut.count)
    wanted = [8 * (len(columns) + CHECKS) * bool(m) for columns, m in zip(cut.columns, masks, strict=True)]
    public = [4 * len(columns) * (not m) for columns, m in zip(cut.columns, masks, strict=True)]
    for name, sizes in (("masked", wanted), ("row", public)):
        if len(fields[name]) != sum(sizes):
            raise ValueError(f"{name} must be {sum(sizes)} bytes long for these masks, got {len(fields[name])}")
    row, newest = np.empty(cut.size, np.float32), list[Newest]()
    starts = np.cumsum([0, *wanted]), np.cumsum([0, *public])
    for piece, (columns, inside) in enumerate(zip(cut.columns, masks, strict=True)):
        if inside:
            values = np.frombuffer(fields["masked"], "<u8", len(columns) + CHECKS, starts[0][piece]).astype(np.uint64)
            row[columns] = unmasked(values, inside, piece, group.keys, run, group.spread)
            newest.append(Newest(inside[0].round, _hash(row[columns])))
        else:
            row[columns] = np.frombuffer(fields["row"], "<f4", len(columns), starts[1][piece])
            newest.append(Newest())
            if _hash(row[columns]) not in group.first[piece : piece + 1]:
                raise ValueError("a piece without masks must be that of the first model")
    for now, last in zip(newest, before or [Newest()] * cut.count, strict=True):
        if now != last and now.round <= last.round:
            raise ValueError(f"a piece is of round {now.round}, after one of round {last.round}")
    return row, tuple(newest)


def _masks(content: bytes, count: int) -> list[list[Mask]]:
    """The masks in every piece; ValueError if that is no list of them."""
    most = MOST * count
    if len(content) % NOTE.itemsize or len(content) > most * NOTE.itemsize:
        raise ValueError(f"masks must be up to {most} of {NOTE.itemsize} bytes, got {len(content)} bytes")
    notes, found = np.frombuffer(content, NOTE), list[list[Mask]]([] for _ in range(count))
    for device, round, weight, salt, pieces in notes.tolist():
        if not 0 < pieces < 1 << count:
            raise ValueError(f"masks must be of pieces 0 to {count - 1}, got the bits {pieces:b}")
        for piece in range(count):
            if pieces >> piece & 1:
                found[piece].append(Mask(device, round, weight, bytes(salt)))
    if any(len(masks) > MOST for masks in found):
        raise ValueError(f"a piece must have at most {MOST} masks")
    return found
