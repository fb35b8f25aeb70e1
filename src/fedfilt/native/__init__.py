"""The optional C++ core: training, testing, deciding and filtering, close to the limit of the CPU.

torch and SciPy define the results, and compute them wherever the core cannot. FEDFILT_NATIVE = off, baseline, avx2,
avx512 or neon forces a level; by default the best level of the CPU is used.
"""

import ctypes
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfilt._checks import check_choice
from fedfilt._types import Array

LEVELS = ("baseline", "avx2", "avx512", "neon")  # as core.cpp numbers them; of those of a CPU, the last is the best
VARIABLE = "FEDFILT_NATIVE"
LOSSES = ("cross_entropy", "mse", "bce")  # as kernels.h numbers them; all but the first are of numbers, not of labels
FINE, DIVERGED, NO_MEMORY = range(3)

Int, Address, Double = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


class Convolution(ctypes.Structure):
    """See kernels.h, of which these structures are the mirror."""

    _fields_ = (
        ("outputs", Int),
        ("kernel", Int * 2),
        ("stride", Int * 2),
        ("padding", Int * 2),
        ("pool", Int * 2),
        ("weight", Int),
        ("step", Int * 4),
        ("bias", Int),
    )


class Dense(ctypes.Structure):
    _fields_ = (("outputs", Int), ("weight", Int), ("bias", Int))


class Network(ctypes.Structure):
    _fields_ = (
        ("channels", Int),
        ("height", Int),
        ("width", Int),
        ("parameters", Int),
        ("convolutions", Int),
        ("denses", Int),
        ("convolution", Convolution * 3),
        ("dense", Dense * 3),
        ("loss", Int),
    )

    @property
    def outputs(self) -> int:
        """Labels that it tells apart."""
        return int(self.dense[self.denses - 1].outputs)


class Samples(ctypes.Structure):
    _fields_ = (
        ("x", Address),
        ("bytes", Int),
        ("labels", Address),
        ("rows", Address),
        ("count", Int),
        ("targets", Address),
    )


class Steps(ctypes.Structure):
    _fields_ = (
        ("order", Address),
        ("epochs", Int),
        ("batch", Int),
        ("rate", Double),
        ("momentum", Double),
        ("weight_decay", Double),
        ("proximal", Double),
        ("around", Address),
        ("drift", Address),
        ("trained", Address),
    )


class Factor(ctypes.Structure):
    _fields_ = (
        ("count", Int),
        ("components", Int),
        ("lower_start", Address),
        ("lower_place", Address),
        ("upper_start", Address),
        ("upper_place", Address),
        ("lower", Address),
        ("upper", Address),
        ("diagonal", Address),
        ("device", Address),
        ("component", Address),
        ("scale", Address),
        ("sense", Address),
        ("pull", Address),
        ("lowest", Address),
        ("constant", Double),
        ("share", Double),
    )


class Choice(NamedTuple):
    """Which level does the work, and why; `level` is None if torch and SciPy do it."""

    level: str | None
    why: str


@cache
def _library() -> ctypes.CDLL | str:
    """The library, or the reason why there is none."""
    path = Path(__file__).with_name("core.so")
    if not path.exists():
        return "not built (no working C++ compiler when fedfilt was installed)"
    try:
        library = ctypes.CDLL(str(path))
        library.fedfilt_sources.restype = ctypes.c_char_p
        built = library.fedfilt_sources().decode()
    except (OSError, AttributeError) as error:
        return f"cannot be loaded: {error}"
    if sources() not in ("", built):
        return "built from other sources than these; install fedfilt again"
    return library


def sources() -> str:
    """Fingerprint of the sources beside this file, where they are there; see setup.py."""
    home = Path(__file__).parent
    files = sorted([*home.glob("*.cpp"), *home.glob("*.h")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() if files else ""


def available() -> tuple[str, ...]:
    """The levels that this machine can run."""
    library = _library()
    if isinstance(library, str):
        return ()
    return tuple(level for number, level in enumerate(LEVELS) if library.fedfilt_has(number))


def chosen() -> Choice:
    """The level in use: the best of this CPU, or what FEDFILT_NATIVE says."""
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    if wanted and check_choice(VARIABLE, wanted, ["off", *LEVELS]) == "off":
        return Choice(None, f"{VARIABLE}=off")
    levels, library = available(), _library()
    if isinstance(library, str):
        return Choice(None, library)
    if wanted and wanted not in levels:
        raise ValueError(f"{VARIABLE}={wanted} cannot run here; this CPU has {', '.join(levels)}")
    return Choice(wanted, f"{VARIABLE}={wanted}") if wanted else Choice(levels[-1], "the best of this CPU")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train(network: Network, row: Array, samples: Samples, steps: Steps, level: str) -> tuple[int, float]:
    """Train a row in place: (status, mean loss of the last epoch)."""
    loss = Double(np.nan)
    status = _call("train", level, network, _checked(row, network), samples, steps, ctypes.byref(loss))
    return status, loss.value


def test(network: Network, row: Array, samples: Samples, level: str) -> tuple[Array, float]:
    """((outputs, outputs) counts: true label, guess, zeros where there are no labels; sum of the losses)."""
    counts, loss = np.zeros((network.outputs, network.outputs), np.int64), Double(0)
    _call("test", level, network, _checked(row, network), samples, _at(counts), ctypes.byref(loss))
    return counts, loss.value


def predict(network: Network, row: Array, samples: Samples, level: str) -> Array:
    """(samples, outputs) probabilities, or numbers for the loss mse; the samples' labels are ignored."""
    out = np.empty((samples.count, network.outputs), np.float32)
    _call("predict", level, network, _checked(row, network), samples, _at(out))
    return out


def _checked(row: Array, network: Network) -> ctypes.c_void_p:
    if row.dtype != np.float32 or row.shape != (network.parameters,) or not row.flags.c_contiguous:
        raise ValueError(f"row must be {network.parameters} float32 side by side, got {row.dtype} of {row.shape}")
    return _at(row)


def apply(matrix: Array, signal: Array, out: Array, level: str) -> None:
    """out = matrix @ signal, all float32; the rows of both must be contiguous, and `out` may be the signal."""
    _call("apply", level, _at(matrix), Int(len(matrix)), *_rows(signal), *_rows(out), Int(signal.shape[1]))


def solve(factor: Factor, precision: Any, signal: Array, out: Array, level: str) -> None:
    """Filter all columns of a signal; the rows of both must be contiguous, and `out` may be the signal."""
    name = {
        ("float32", "float32"): "solve",
        ("float64", "float32"): "solve_in_double",
        ("float64", "float64"): "solve_double",
    }[np.dtype(precision).name, signal.dtype.name]
    _call(name, level, factor, *_rows(signal), *_rows(out), Int(signal.shape[1]))


def _rows(array: Array) -> tuple[Any, Any]:
    """(where the first row is, how far it is to the next)."""
    return _at(array), Int(array.strides[0] // array.itemsize)


def _call(name: str, level: str, *arguments: Any) -> int:
    passed = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else a for a in arguments]
    library = _library()
    assert not isinstance(library, str)
    status: int = library[f"fedfilt_{name}"](ctypes.c_int(LEVELS.index(level)), *passed)
    if status == NO_MEMORY:
        raise MemoryError("no memory for the native core")
    return status


def _at(array: Array) -> ctypes.c_void_p:
    return Address(array.ctypes.data)


def samples_of(network: Network, x: Array, labels: Array | None, rows: Array) -> Samples:
    """The samples `rows` of x (uint8 or float32) and their labels, checked: the core itself checks nothing.

    A loss of numbers has targets instead of labels, a number for each output. To predict, None will do.
    """
    size = network.channels * network.height * network.width
    if x.dtype not in (np.uint8, np.float32) or x[:1].size not in (0, size):
        raise ValueError(f"samples must be uint8 or float32 with {size} numbers each, got {x.dtype} of {x.shape}")
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(x):
        raise ValueError(f"rows must be from 0 to {len(x) - 1}, got {rows.min()} to {rows.max()}")
    kept = [np.ascontiguousarray(x), np.ascontiguousarray(rows, np.int64)]
    samples = Samples(kept[0].ctypes.data, x.itemsize, None, kept[1].ctypes.data, len(rows))
    if labels is not None:
        kept.append(_targets(network, labels[rows]) if network.loss else _labels(network, labels[rows]))
        setattr(samples, "targets" if network.loss else "labels", kept[-1].ctypes.data)
    samples.kept = kept  # as long as the samples point into them
    return samples


def _labels(network: Network, meant: Array) -> Array:
    if len(meant) and not 0 <= meant.min() <= meant.max() < network.outputs:
        raise ValueError(f"labels must be from 0 to {network.outputs - 1}, got {meant.min()} to {meant.max()}")
    return np.ascontiguousarray(meant, np.int64)


def _targets(network: Network, meant: Array) -> Array:
    if meant.shape not in ((len(meant), network.outputs), (len(meant),) * (network.outputs == 1)):
        raise ValueError(f"targets must be {network.outputs} numbers per sample, got shape {meant.shape}")
    low, high = (0, 1) if LOSSES[network.loss] == "bce" else (-np.inf, np.inf)
    if not (np.isfinite(meant) & (meant >= low) & (meant <= high)).all():
        raise ValueError(
            f"targets must be finite{' and from 0 to 1' * (high == 1)}, got {meant.min()} to {meant.max()}"
        )
    return np.ascontiguousarray(meant, np.float32)
