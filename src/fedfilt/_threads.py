"""One thread inside linear algebra: sums over devices then have the same bits on any number of cores."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController

_lock, _inside = Lock(), 0
_limit: Any = None  # what the outermost `with` has set, and takes back


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy and SciPy multiply and sum in one thread, also as a decorator.

    Split among threads, a sum is added up in another order, and rounded differently.

    >>> import numpy as np
    >>> with one_thread():
    ...     float(np.ones(20_000) @ np.ones(20_000))
    20000.0
    """
    global _inside, _limit
    with _lock:
        if not _inside:
            _limit = _libraries("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _limit.restore_original_limits()


@cache
def _libraries(scipy: bool) -> ThreadpoolController:
    """What is loaded now; SciPy, which not every device needs, brings a library of its own."""
    return ThreadpoolController()
