from dataclasses import dataclass

import numpy as np

from fedfilt._types import Array
from fedfilt.system.wire import pack, unpack, values_within, wire_size


@dataclass(frozen=True)
class TopK:
    """Sends the values of largest magnitude that fit into a share of the dense update's bytes; ties: lower index first.

    With error feedback, what was not sent stays on the device and is added to its next update. `half` sends float16.

    >>> content, left = TopK()(np.array([3.0, -5.0, 1.0] + [0.0] * 97, np.float32), None, density=0.07)
    >>> unpack(content, 100)[:3].tolist(), left[:3].tolist()
    ([0.0, -5.0, 0.0], [3.0, 0.0, 1.0])
    """

    error_feedback: bool = True  # what was not sent is added to the next update
    half: bool = False  # send float16

    def full_bytes(self, size: int) -> int:
        """Bytes of a whole update of `size` values."""
        return wire_size(size, size, self.half)

    def __call__(self, update: Array, residual: Array | None, density: float) -> tuple[bytes, Array | None]:
        """(bytes to send, what stays behind); `density` 1 sends everything."""
        total = update if residual is None else update + residual
        count = values_within(len(total), density * self.full_bytes(len(total)), self.half)
        if count == len(total):
            content = pack(total, half=self.half)
        else:
            content = pack(total, np.sort(_largest(total, count)), self.half)
        if not self.error_feedback:
            return content, None
        if count == len(total) and not self.half:
            return content, None  # nothing is left
        return content, total - unpack(content, len(total))


def _largest(values: Array, count: int) -> Array:
    """Indices of the `count` largest magnitudes; among equals the lower indices."""
    size = abs(values)
    threshold = np.partition(size, len(size) - count)[len(size) - count]
    above = np.flatnonzero(size > threshold)
    equal = np.flatnonzero(size == threshold)
    return np.concatenate([above, equal[: count - len(above)]])
