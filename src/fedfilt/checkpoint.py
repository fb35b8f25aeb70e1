"""Save and resume the state of a run: always a whole, checked file, never a half-written one."""

import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedfilt.checks import Array
from fedfilt.rounds import State

VERSION = "1"


class BadCheckpoint(ValueError):
    """A checkpoint that is damaged or does not belong here."""


class Busy(ValueError):
    """A run folder that another process is using."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by new content, or leave it as it was: temporary file, fsync, rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save_state(path: Path, state: State, config_hash: str) -> None:
    """Write a state with the hash of its config and of its bytes."""
    metadata = {
        "version": VERSION,
        "round": str(state.round),
        "config": config_hash,
    }
    metadata["sha256"] = _state_hash(state, metadata)
    tensors = {"models": state.models}
    if state.residuals is not None:
        tensors["residuals"] = state.residuals
    if state.accepted is not None:
        tensors["accepted"] = state.accepted
    write_atomically(path, save(tensors, metadata))


def load_state(path: Path, config_hash: str, shape: tuple[int, int]) -> State:
    """Read a state back; anything wrong with it is named."""
    try:
        content = path.read_bytes()
        metadata = _metadata(content)
        tensors = load(content)
        state = State(int(metadata["round"]), tensors["models"], tensors.get("residuals"), tensors.get("accepted"))
    except (SafetensorError, KeyError, ValueError, struct.error) as error:
        raise BadCheckpoint(f"{path} is damaged ({error}); delete it to start the run again") from error
    if metadata.get("version") != VERSION:
        raise BadCheckpoint(f"{path} is of format {metadata.get('version')}, this version reads {VERSION}")
    if metadata.get("config") != config_hash:
        raise BadCheckpoint(f"{path} belongs to another config ({metadata.get('config')}, now {config_hash})")
    if _state_hash(state, metadata) != metadata.get("sha256"):
        raise BadCheckpoint(f"{path} is damaged (wrong sha256); delete it to start the run again")
    for array in (state.models, state.residuals):
        if array is not None and (array.shape != shape or array.dtype != np.float32):
            raise BadCheckpoint(f"{path} holds {array.dtype} models of shape {array.shape}, wanted float32 of {shape}")
    if state.accepted is not None and (state.accepted.shape != shape[:1] or state.accepted.dtype != np.int64):
        raise BadCheckpoint(f"{path} must say of {shape[0]} devices what was accepted, got {state.accepted.shape}")
    return state


def _state_hash(state: State, metadata: Mapping[str, str]) -> str:
    """sha256 of all that a checkpoint says."""
    head = "|".join(metadata.get(key, "") for key in ("version", "round", "config"))
    rows = [models_hash(array) for array in state[1:] if array is not None]
    return hashlib.sha256("|".join([head, *rows]).encode()).hexdigest()


def _metadata(content: bytes) -> dict[str, Any]:
    """The metadata in the header of a safetensors file."""
    (size,) = struct.unpack("<Q", content[:8])
    if size > len(content) - 8:
        raise ValueError("cut short")
    header = json.loads(content[8 : 8 + size])
    return dict(header.get("__metadata__", {}))


def models_hash(models: Array) -> str:
    """sha256 of all models: equal exactly when the bits are."""
    return hashlib.sha256(np.ascontiguousarray(models).data).hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process; the lock goes with the process, however it ends."""
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise Busy(f"{folder} is in use by process {holder}; wait for it or choose another --out") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
