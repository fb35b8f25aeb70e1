"""What all benchmarks share: a heading with versions and CPU, interleaved timing, and the list of expectations."""

import math
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from fedfilt import native


def heading(*packages):
    """Versions, CPU and native level of this run."""
    print("\n".join(where(*packages).values()), end="\n\n")


def where(*packages):
    """The same for a result file."""
    names = ["fedfilt", "numpy", "torch", *packages]
    return {
        "versions": ", ".join([f"{name} {version(name)}" for name in names] + [f"Python {platform.python_version()}"]),
        "machine": f"{processor()}, {os.cpu_count()} cores, native core {native.chosen().level or 'off'}",
    }


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def peak_memory():
    """The most bytes of memory that this process has had, since it began or since the mark was reset."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("VmHWM"))) * 1024


def interleaved(variants, repetitions):
    """The best time of each variant in seconds; all take turns, after one turn to warm up."""
    best = dict.fromkeys(variants, math.inf)
    for repetition in range(repetitions + 1):
        for name, work in variants.items():
            start = time.perf_counter()
            work()
            if repetition:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def sgemm(flops):
    """Work of so many floating-point operations by the faster of NumPy's and torch's matrix product, 512 x 512."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 512, 512), dtype=np.float32)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    ways = [lambda: a @ b, lambda: x @ y]
    best = interleaved({way: way for way in ways}, 10)
    product, share = min(best, key=best.get), flops / (2 * 512**3)

    def work():
        for _ in range(max(1, round(share))):
            product()

    return work, max(1, round(share)) / share


def conclude(checks):
    """Print whether each (text, found, at least) holds; the exit code says whether all do."""
    print()
    for text, found, least in checks:
        print(f"{'holds ' if found >= least else 'FAILS '} {text}: {found:.3g} (at least {least:.3g})")
    sys.exit(not all(found >= least for _, found, least in checks))
