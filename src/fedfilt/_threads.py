"""One thread inside linear algebra: sums over devices then have the same bits on any number of cores."""

import os
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
    """NumPy, SciPy and torch, if it is there, multiply and sum in one thread. Also a decorator.

    Split among threads, a sum is added up in another order, and rounded differently.

    >>> import numpy as np
    >>> with one_thread():
    ...     float(np.ones(20_000) @ np.ones(20_000))
    20000.0
    """
    global _inside, _limit
    torch: Any = sys.modules.get("torch")
    before = torch.get_num_threads() if hasattr(torch, "get_num_threads") else 1  # of this thread
    with _lock:
        if not _inside:
            _limit = _libraries("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas")
        _inside += 1
    try:
        if before > 1:
            torch.set_num_threads(1)
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)
        with _lock:
            _inside -= 1
            if not _inside:
                _limit.restore_original_limits()


@cache
def _libraries(scipy: bool) -> ThreadpoolController:
    """What is loaded now; SciPy, which not every device needs, brings a library of its own."""
    return ThreadpoolController()


def _unlock() -> None:
    """In a forked process nobody would give the lock back."""
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_unlock)
