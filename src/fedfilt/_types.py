"""Types that all of fedfilt shares."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Response: TypeAlias = Callable[[Array], Array]  # frequencies -> gain at each of them
Table: TypeAlias = dict[str, Any]  # of a TOML or JSON file


class Sparsifier(Protocol):
    """Reduces an update to a share of its bytes."""

    def full_bytes(self, size: int) -> int:
        """Bytes of a whole update of `size` values."""
        ...

    def __call__(self, update: Array, residual: Array | None, density: float) -> tuple[bytes, Array | None]:
        """(bytes to send, see `fedfilt.system.wire`; what stays on the device)."""
        ...
