"""Results in a few words and as tables: `repr` of values that hold arrays, and data frames."""

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

WIDTH, LINES = 110, 5  # of a repr
LONGEST = 60  # characters of one value in it
FEW = 3  # most entries of a sequence to show


def brief(value: Any) -> str:
    """The `__repr__` of a dataclass or NamedTuple that holds arrays: at most five lines.

    >>> from fedfilt.rounds.types import Updates
    >>> import numpy as np
    >>> Updates(np.zeros((20, 4810), np.float32), np.ones(20))
    Updates(rows=float32 (20, 4810), weights=float64 (20,))
    """
    names = [field.name for field in fields(value)] if is_dataclass(value) else value._fields
    return lines_of(f"{type(value).__name__}({', '.join(f'{name}={said(getattr(value, name))}' for name in names)})")


def lines_of(*parts: str) -> str:
    """Words in at most five lines: every part starts a line, and long parts wrap."""
    wrapped = [line for part in parts for line in textwrap.wrap(part, WIDTH, subsequent_indent="  ")]
    return "\n".join(wrapped if len(wrapped) <= LINES else [*wrapped[: LINES - 1], "  ..."])


def said(value: Any) -> str:
    """A value in a few words: the type and shape of an array, the number of entries in a long list.

    >>> import numpy as np
    >>> said(np.zeros((2, 3))), said([1.5, 2.5]), said(list(range(20)))
    ('float64 (2, 3)', '[1.5, 2.5]', '20 int')
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} {value.shape}" if value.shape else f"{value}"
    if inspect.isroutine(value):
        return str(getattr(value, "__qualname__", value))
    if isinstance(value, Mapping):
        return f"{len(value)} entries" if value else "{}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and not hasattr(value, "_fields"):
        held = {type(one).__name__ for one in value}
        if len(value) > FEW or any(hasattr(one, "shape") for one in value):
            return f"{len(value)} {held.pop() if len(held) == 1 else 'values'}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."


def frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Columns as a pandas DataFrame, or a polars one if only that is installed."""
    found = next((name for name in ("pandas", "polars") if find_spec(name)), None)
    if found is None:
        raise ImportError("a history needs pandas or polars; install one: pip install 'fedfilt[pandas]'")
    return import_module(found).DataFrame(dict(columns))
