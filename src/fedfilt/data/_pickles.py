"""Read arrays from foreign pickles without running anything: nothing that a pickle names is ever imported.

Every class or function that a pickle may name is replaced by our own stand-in; any other name is refused.
"""

import io
import pickle
import struct
from collections.abc import Callable, Mapping
from typing import IO, Any, ClassVar, cast

import numpy as np

from fedfilt._types import Array

KINDS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


class _Stand:
    """What a pickle gets for a name; it can only be called."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a pickle may not change what it names")


class Frame:
    """The stand-in for an object of an allowed class: its arguments and state, as plain data."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Kind:
    """The stand-in for a numpy dtype."""

    def __init__(self, code: Any = "", *flags: Any) -> None:
        if code not in (*KINDS, "O8"):
            raise pickle.UnpicklingError(f"arrays of type {code!r} are not read")
        self.code, self.order = code, "<"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]
        if self.order not in ("<", ">", "|", "=") or any(state[2:5]):
            raise pickle.UnpicklingError("arrays with fields are not read")


class _Array:
    """The stand-in for a numpy array."""

    def __init__(self, *arguments: Any) -> None:
        self.value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _Kind) or not all(isinstance(side, int) and 0 <= side < 1 << 31 for side in shape):
            raise pickle.UnpicklingError("not a plain array")
        if kind.code == "O8":
            self.value = list(content)
            return
        order = "<" if kind.order == "|" else kind.order
        flat = np.frombuffer(content, np.dtype(order + kind.code))
        self.value = flat.reshape(shape, order="F" if fortran else "C")


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("only text as latin1 bytes is read")
    return text.encode("latin1")


ARRAYS: Mapping[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": _Array,
    "numpy._core.multiarray _reconstruct": _Array,
    "numpy ndarray": _Array,
    "numpy dtype": _Kind,
    "_codecs encode": _encode,
    "__builtin__ bytes": lambda: b"",
}


class _Unpickler(pickle._Unpickler):
    """Python's unpickler written in Python: the one in C allocates memory for any size that a pickle claims.

    Sets are not read, and keys are texts and numbers: nested tuples can take for ever to hash.
    """

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        code: read
        for code, read in pickle._Unpickler.dispatch.items()
        if bytes([code]) not in (pickle.EMPTY_SET, pickle.FROZENSET, pickle.ADDITEMS, pickle.BYTEARRAY8)
    }

    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: IO[bytes], more: tuple[str, ...]) -> None:
        super().__init__(file)
        self._allowed = {**ARRAYS, **dict.fromkeys(more, Frame)}

    def find_class(self, module: str, name: str) -> Any:
        make = self._allowed.get(f"{module} {name}")
        if make is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}; only arrays of numbers are read")
        return _Stand(make)

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append(_items(items))  # a new list since then

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1].update(_items([key, value]))

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self.stack[-1].update(_items(items))

    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


def _items(flat: list[Any]) -> dict[Any, Any]:
    """The dict from alternating keys and values."""
    keys = flat[::2]
    if not all(isinstance(key, str | bytes | int | float | None) for key in keys):
        raise pickle.UnpicklingError("keys must be texts or numbers")
    return dict(zip(keys, flat[1::2], strict=True))


def read_arrays(file: IO[bytes], name: str, more: tuple[str, ...] = ()) -> Any:
    """The dicts, lists, texts, numbers and arrays of a pickle; `more` are classes ("module name") taken as `Frame`.

    >>> import pickle
    >>> read_arrays(io.BytesIO(pickle.dumps({"x": np.arange(3)}, protocol=2)), "a pickle")
    {'x': array([0, 1, 2])}
    >>> read_arrays(io.BytesIO(pickle.dumps(print)), "a pickle")
    Traceback (most recent call last):
    ValueError: a pickle is refused: it names builtins.print; only arrays of numbers are read
    """
    try:
        return _plain(_Unpickler(file, more).load(), {})
    except (pickle.UnpicklingError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError(f"{name} is refused: {error or 'it is too deep or too large'}") from error
    except (EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"{name} is damaged: {error or type(error).__name__}") from error


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """The value without stand-ins; repeated objects are converted once, or a small pickle could take for ever."""
    if id(value) not in done:
        done[id(value)] = _made(value, done)
    return done[id(value)]


def _made(value: Any, done: dict[int, Any]) -> Any:
    if isinstance(value, _Array):
        return value.value if isinstance(value.value, np.ndarray) else _plain(value.value, done)
    if isinstance(value, dict):
        return {_plain(key, done): _plain(inner, done) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(inner, done) for inner in value)
    if isinstance(value, Frame):
        value.arguments, value.state = _plain(value.arguments, done), _plain(value.state, done)
    elif not isinstance(value, str | bytes | int | float | bool | _Stand | None):
        raise pickle.UnpicklingError(f"it holds {type(value).__name__}; only arrays of numbers are read")
    return value


def read_npy_dict(content: bytes, name: str) -> dict[str, Any]:
    """The dict that numpy.save wrote to a .npy file, read like `read_arrays` does."""
    file = io.BytesIO(content)
    if file.read(8) != b"\x93NUMPY\x01\x00":
        raise ValueError(f"{name} is damaged: not a .npy file of version 1")
    file.read(int.from_bytes(file.read(2), "little"))
    found = read_arrays(file, name)
    found = found[0] if isinstance(found, list) and len(found) == 1 else found  # an array of one object
    if not isinstance(found, dict):
        raise ValueError(f"{name} is damaged: it must hold a dict, got {type(found).__name__}")
    return cast(dict[str, Any], found)


def frame_columns(frame: Any, names: tuple[str, ...], name: str) -> Array:
    """Columns (rows, len(names)) of a pandas data frame read as a `Frame`."""
    try:
        axes, blocks = (frame.state["_data"].state[3]["0.14.1"][key] for key in ("axes", "blocks"))
        held = axes[0].arguments[1]["data"]
        columns = {}
        for block in blocks:
            for row, place in enumerate(range(*block["mgr_locs"].arguments)):
                columns[held[place]] = block["values"][row]
        return np.stack([columns[key] for key in names], axis=1)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name} is damaged: it is no table with the columns {', '.join(names)}") from error
