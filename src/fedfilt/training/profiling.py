"""Measure this machine: seconds to train on a sample, and the rate of its uplink to an edge server."""

import os
import socket
import time
from typing import Any

import numpy as np

from fedfilt._checks import check_count
from fedfilt.training.trainer import Trainer


def seconds_per_sample(trainer: Trainer, classes: int, seconds: float = 2.0) -> float:
    """The best of several epochs on random samples, on one thread, in batches of 32."""
    rng = np.random.default_rng(0)
    count = 64
    x, y = rng.standard_normal((count, *trainer.shape), dtype=np.float32), rng.integers(0, classes, count)
    row = trainer.start(0)
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end or not np.isfinite(best):
        start = time.perf_counter()
        trainer.train(row.copy(), x, y, np.arange(count), seed=0, round=1, device=0, epochs=1, samples=count)
        best = min(best, (time.perf_counter() - start) / count)
    return best


def bits_per_second(host: str, port: int, size: int, seconds: float = 10.0) -> float:
    """Rate at which `size` bytes reach a machine on which `listen` runs; it answers when it has them all."""
    check_count("size", size, high=1 << 30)
    with socket.create_connection((host, port), timeout=seconds) as link:
        link.settimeout(seconds)
        start = time.perf_counter()
        link.sendall(size.to_bytes(8, "big"))
        block = os.urandom(1 << 16)
        left = size
        while left:
            left -= link.send(block[:left])
        if link.recv(1) != b"k":
            raise OSError(f"{host}:{port} did not accept the bytes: is `fedfilt profile --listen` running there?")
        return 8 * size / (time.perf_counter() - start)


def listen(host: str, port: int, ready: Any = None, times: int = 1, seconds: float = 60.0) -> None:
    """Receive bytes from `times` devices, each within `seconds`, and answer once all are there; keeps nothing."""
    with socket.create_server((host, port)) as server:
        server.settimeout(seconds)
        if ready is not None:
            ready(server.getsockname()[1])
        for _ in range(times):
            link, _ = server.accept()
            with link:
                link.settimeout(seconds)
                head = b""
                while len(head) < 8 and (more := link.recv(8 - len(head))):
                    head += more
                left = int.from_bytes(head, "big")
                if len(head) < 8 or left > 1 << 30:
                    continue
                while left and (more := link.recv(min(left, 1 << 16))):
                    left -= len(more)
                if not left:
                    link.sendall(b"k")
