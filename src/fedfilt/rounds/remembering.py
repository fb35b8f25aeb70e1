"""Rules with memory: what a rule keeps from round to round, and what it may return."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Rule, State, Updates

NOTHING: Mapping[str, Array] = MappingProxyType({})
PREFIX = "rule."  # of the names that rules use in `State.memory`
DEVICES, EVERYONE = PREFIX + "devices.", PREFIX + "everyone."


class Remembered(NamedTuple):
    """What a rule keeps from round to round, by name.

    Such a rule has a method `start(models) -> Remembered`, and is called with its memory:
    `rule(models, updates, graph, remembered) -> (models, remembered)`. For a device that joins, the mean of the others
    is used.

    >>> Remembered(everyone={"rounds": np.zeros(())}).everyone["rounds"]
    array(0.)
    """

    devices: Mapping[str, Array] = NOTHING  # (K, ...) per device
    everyone: Mapping[str, Array] = NOTHING  # shared by all

    def among(self, there: Array) -> "Remembered":
        """The part for some devices, with what is shared by all."""
        return self._replace(devices={name: array[there] for name, array in self.devices.items()})

    def with_those(self, there: Array, some: "Remembered") -> "Remembered":
        """The same with new values for some devices, and for what is shared by all."""
        devices = {}
        for name, array in some.devices.items():
            whole, old = np.zeros((len(there), *array.shape[1:]), array.dtype), self.devices.get(name)
            if old is not None and old.shape == whole.shape:
                whole[~there] = old[~there]
            whole[there] = array
            devices[name] = whole
        return Remembered(devices, some.everyone)

    def named(self) -> dict[str, Array]:
        """Its entries for `State.memory`."""
        devices = {DEVICES + name: array for name, array in self.devices.items()}
        return devices | {EVERYONE + name: array for name, array in self.everyone.items()}

    @classmethod
    def of(cls, memory: Mapping[str, Array]) -> "Remembered":
        """Read it from a state's memory."""
        parts = ({n.removeprefix(p): a for n, a in memory.items() if n.startswith(p)} for p in (DEVICES, EVERYONE))
        return cls(*parts)


def remembers(rule: Any) -> bool:
    """Whether a rule has memory."""
    return hasattr(rule, "start")


def is_linear(rule: Any) -> bool:
    """Whether a rule's shares depend only on weights and graph, not on the updates; see its attribute `linear`."""
    return bool(getattr(rule, "linear", True))


def mixed(rule: Rule, state: State, updates: Updates, graph: Graph) -> tuple[Array, dict[str, Array]]:
    """(the rule's next models, its memory as named in `State.memory`); invalid results are refused."""
    if not remembers(rule):
        return checked(rule, rule(state.models, updates, graph), state.models), {}
    remembering: Any = rule
    before = Remembered.of(state.memory)
    if not any(before):
        before = _checked_memory(rule, remembering.start(state.models), len(state.models))
    models, after = asked(rule, state.models, updates, graph, before)
    return models, after.named()


def told(before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, Array]:
    """The changed parts of a rule's memory that people may want to see: single numbers, or one per device."""
    shapes = {DEVICES: 1, EVERYONE: 0}
    return {
        name.removeprefix(start): array
        for start, dimensions in shapes.items()
        for name, array in after.items()
        if name.startswith(start)
        and array.ndim == dimensions
        and not np.array_equal(before.get(name, 0 * array), array)
    }


def asked(rule: Any, models: Array, updates: Updates, graph: Graph, before: Remembered) -> tuple[Array, Remembered]:
    """Call a rule with memory and check what it returns."""
    found = rule(models, updates, graph, before)
    if not isinstance(found, tuple) or len(found) != 2:
        got = type(found).__name__
        raise ValueError(f"rule {name_of(rule)} remembers: it must return (models, Remembered(...)), got {got}")
    return checked(rule, found[0], models), _checked_memory(rule, found[1], len(models))


def check_linear(rule: Any, reasons: Mapping[str, bool]) -> None:
    """Refuse a rule that has memory or is not linear if any of these reasons, which need a linear rule, holds."""
    why = "has memory" if remembers(rule) else "" if is_linear(rule) else "weighs updates by their content"
    for what, asked_for in reasons.items():
        if asked_for and why:
            raise ValueError(f"the rule {name_of(rule)} {why}, which cannot be combined with {what}")


def _checked_memory(rule: Any, kept: Any, count: int) -> Remembered:
    """A rule's memory, if it consists of finite arrays of numbers, with one entry per device where needed."""
    name = name_of(rule)
    if not isinstance(kept, Remembered):
        raise ValueError(f"rule {name} must keep Remembered(devices, everyone), got {type(kept).__name__}")
    for what, array in (*kept.devices.items(), *kept.everyone.items()):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(f"rule {name} must keep arrays of numbers, got {what} as {got}")
        if not np.isfinite(array).all():
            raise ValueError(f"rule {name} must keep finite numbers, got NaN or infinity in {what}")
    for what, array in kept.devices.items():
        if array.shape[:1] != (count,):
            raise ValueError(f"rule {name} must keep {what} for {count} devices, got an array of shape {array.shape}")
    return kept


def checked(rule: Rule, found: Any, before: Array) -> Array:
    """A rule's result, if it has a finite model for every device."""
    wanted = f"rule {name_of(rule)} must return {before.dtype} models of shape {before.shape}"
    if not isinstance(found, np.ndarray):
        raise ValueError(f"{wanted}, got {type(found).__name__}")
    if found.shape != before.shape or found.dtype != before.dtype:
        raise ValueError(f"{wanted}, got {found.dtype} of {found.shape}")
    if found.size and not np.isfinite([found.min(), found.max()]).all():
        device = int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
        raise ValueError(f"rule {name_of(rule)} must return finite models, got NaN or infinity for device {device}")
    return found


def name_of(rule: Any) -> str:
    """The name of the innermost rule, which others wrap."""
    while (inner := getattr(rule, "rule", None)) is not None and callable(inner):
        rule = inner
    return getattr(rule, "__name__", type(rule).__name__)
