"""Save and resume the state of a run. A checkpoint is always a complete, checked file."""

import hashlib
import json
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedfilt._files import write_atomically
from fedfilt._reading import read
from fedfilt._types import Array
from fedfilt.rounds.remembering import DEVICES, PREFIX
from fedfilt.rounds.types import State

VERSION = "2"
MEMORY = "memory."  # prefix of entries in `State.memory`
CLIENT = "client."  # prefix of entries in `State.clients`: client.DEVICE.NAME
MOST, MOST_MODELS = 1 << 30, 100  # bytes of a checkpoint: so many, and so many times those of all models
OLDER = "1"  # the same, but its config hash included defaults: `check_same` compares the configs


class BadCheckpoint(ValueError):
    """A checkpoint that is damaged or does not belong here."""


def save_state(path: Path, state: State, config_hash: str) -> None:
    """Write a state with the hash of its config and of its bytes."""
    metadata = {
        "version": VERSION,
        "round": str(state.round),
        "config": config_hash,
    }
    metadata["sha256"] = _state_hash(state, metadata)
    memory = {name: _shortened(array, state.models) for name, array in state.memory.items()}
    if short := sorted(name for name, array in memory.items() if array.shape != state.memory[name].shape):
        metadata["short"] = json.dumps(short)
    tensors = {"models": state.models}
    if state.residuals is not None:
        tensors["residuals"] = state.residuals
    if state.accepted is not None:
        tensors["accepted"] = state.accepted
    tensors |= {MEMORY + name: array for name, array in memory.items()} | _of_clients(state)
    write_atomically(path, save(tensors, metadata))


def round_of(path: Path) -> int:
    """The round of a checkpoint; 0 if there is no readable one."""
    try:
        return int(_metadata(path.read_bytes())["round"])
    except (OSError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error):
        return 0


def load_state(path: Path, config_hashes: Collection[str], first: State) -> tuple[State, str]:
    """(the state, the hash of its config, which must be one of those given); errors say what is wrong.

    New devices, which the state does not know yet, get their rows from the `first` state.
    """
    try:
        content = read(path, MOST + MOST_MODELS * first.models.nbytes)
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read ({error.strerror})") from error
    try:
        metadata = _metadata(content)
        tensors = load(content)
        memory = {name.removeprefix(MEMORY): array for name, array in tensors.items() if name.startswith(MEMORY)}
        for name in json.loads(metadata.get("short", "[]")):
            memory[name] = _lengthened(memory[name], tensors["models"])
        given = tensors["models"], tensors.get("residuals"), tensors.get("accepted"), memory
        state = State(int(metadata["round"]), *given, _clients(tensors))
    except (SafetensorError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error) as error:
        raise BadCheckpoint(f"{path} is damaged ({error}); delete it to start the run again") from error
    if metadata.get("version") not in (VERSION, OLDER):
        raise BadCheckpoint(f"{path} has format {metadata.get('version')}; this version reads {VERSION}")
    if metadata["version"] == VERSION and metadata.get("config") not in config_hashes:
        now = ", ".join(config_hashes)
        raise BadCheckpoint(f"{path} belongs to another config ({metadata.get('config')}, now {now})")
    if _state_hash(state, metadata) != metadata.get("sha256"):
        raise BadCheckpoint(f"{path} is damaged (wrong sha256); delete it to start the run again")
    (count, size), kind, rows = first.models.shape, first.models.dtype, len(state.models)
    for array in (state.models, state.residuals):
        if array is not None and (array.dtype != kind or array.shape != (rows, size) or rows > count):
            wanted = first.models.shape
            raise BadCheckpoint(f"{path} holds {array.dtype} models of shape {array.shape}, wanted {kind} of {wanted}")
    if state.accepted is not None and (state.accepted.shape != (rows,) or state.accepted.dtype != np.int64):
        raise BadCheckpoint(f"{path} must hold what was accepted from {rows} devices, got {state.accepted.shape}")
    for name, array in state.memory.items():
        if name.startswith(PREFIX):
            fits = not name.startswith(DEVICES) or array.shape[:1] == (rows,)
        else:
            fits = array.shape in ((), (rows,), (rows, size), (rows, rows))
        if not fits:
            raise BadCheckpoint(f"{path} must hold {name} for {rows} devices, got shape {array.shape}")
    if any(not 0 <= device < rows for device in state.clients):
        raise BadCheckpoint(f"{path} must hold the clients' data of {rows} devices, got {sorted(state.clients)}")
    return _with_new_rows(state, first), metadata.get("config", "")


def _shortened(array: Array, models: Array) -> Array:
    """Models of an earlier round without the zeros at the end of all rows, if these are half of them or more.

    What travels with a model in few rounds only leaves such rows.
    """
    half = models.shape[-1] // 2
    if array.shape != models.shape or array.dtype != np.float32 or array[:, half:].view(np.uint32).any():
        return array
    used = np.flatnonzero(array.view(np.uint32).any(axis=0))
    return np.ascontiguousarray(array[:, : int(used[-1]) + 1 if len(used) else 0])


def _lengthened(array: Array, models: Array) -> Array:
    """With what `_shortened` cut off, but not larger than the models: both arrays are from a file."""
    (count, used), (rows, size) = array.shape, models.shape
    if count != rows or used > size:
        raise ValueError(f"models of an earlier round have shape {array.shape}, those of this one {models.shape}")
    return np.pad(array, ((0, 0), (0, size - used)))


def _of_clients(state: State) -> dict[str, Array]:
    """What clients keep on devices, by name in the checkpoint."""
    found = (
        (f"{CLIENT}{device}.{name}", array) for device, kept in state.clients.items() for name, array in kept.items()
    )
    return {name: np.array(array, order="C") for name, array in found}


def _clients(tensors: Mapping[str, Array]) -> dict[int, dict[str, Array]]:
    """Read what `_of_clients` wrote."""
    found: dict[int, dict[str, Array]] = {}
    for key in sorted(key for key in tensors if key.startswith(CLIENT)):
        device, _, name = key.removeprefix(CLIENT).partition(".")
        found.setdefault(int(device), {})[name] = tensors[key]
    return found


def _with_new_rows(state: State, first: State) -> State:
    """The state with rows for new devices: the first model, nothing unsent, nothing accepted."""
    new = len(first.models) - len(state.models)
    if not new:
        return state
    models = np.concatenate([state.models, first.models[-new:]])
    residuals = None if state.residuals is None else np.pad(state.residuals, ((0, new), (0, 0)))
    accepted = None if state.accepted is None else np.pad(state.accepted, (0, new))
    memory = {name: _longer(name, array, first.models[-new:]) for name, array in state.memory.items()}
    return State(state.round, models, residuals, accepted, memory, state.clients)


def _longer(name: str, array: Array, models: Array) -> Array:
    """A remembered array with rows for new devices: their first models, or zeros for anything else."""
    if not array.shape or (name.startswith(PREFIX) and not name.startswith(DEVICES)):
        return array
    if name.startswith(DEVICES):
        return np.concatenate([array, np.zeros((len(models), *array.shape[1:]), array.dtype)])
    return np.concatenate([array, models if array.shape[1:] else np.zeros(len(models), array.dtype)])


def _state_hash(state: State, metadata: Mapping[str, str]) -> str:
    """sha256 of a checkpoint's content."""
    head = "|".join(metadata.get(key, "") for key in ("version", "round", "config"))
    rows = [models_hash(array) for array in (state.models, state.residuals, state.accepted) if array is not None]
    named = {**state.memory, **_of_clients(state)}
    rows += [f"{name}:{models_hash(array)}" for name, array in sorted(named.items())]
    return hashlib.sha256("|".join([head, *rows]).encode()).hexdigest()


def _metadata(content: bytes) -> dict[str, Any]:
    """The metadata in the header of a safetensors file."""
    (size,) = struct.unpack("<Q", content[:8])
    if size > len(content) - 8:
        raise ValueError("cut short")
    header = json.loads(content[8 : 8 + size])
    return dict(header.get("__metadata__", {}))


def models_hash(models: Array) -> str:
    """sha256 of all models: equal if and only if the bits are."""
    return hashlib.sha256(np.ascontiguousarray(models).data).hexdigest()
