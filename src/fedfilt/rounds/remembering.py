"""Rules that remember: what a rule keeps from round to round, and what it may hand out."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.types import Rule, State, Updates

NOTHING: Mapping[str, Array] = MappingProxyType({})
PREFIX = "rule."  # begins the names of what rules keep in `State.memory`
DEVICES, EVERYONE = PREFIX + "devices.", PREFIX + "everyone."


class Remembered(NamedTuple):
    """What a rule keeps from round to round, by name.

    A rule that keeps something has a method `start(models) -> Remembered`, and is called with what it kept:
    `rule(models, updates, graph, remembered) -> (models, remembered)`. A device that joins starts from the mean of the
    others.

    >>> Remembered(everyone={"rounds": np.zeros(())}).everyone["rounds"]
    array(0.)
    """

    devices: Mapping[str, Array] = NOTHING  # (K, ...) of each device
    everyone: Mapping[str, Array] = NOTHING  # of all together

    def among(self, there: Array) -> "Remembered":
        """What is kept of some devices and of all together."""
        return self._replace(devices={name: array[there] for name, array in self.devices.items()})

    def with_those(self, there: Array, some: "Remembered") -> "Remembered":
        """The same with what is now kept of some devices and of all together."""
        devices = {}
        for name, array in some.devices.items():
            whole, old = np.zeros((len(there), *array.shape[1:]), array.dtype), self.devices.get(name)
            if old is not None and old.shape == whole.shape:
                whole[~there] = old[~there]
            whole[there] = array
            devices[name] = whole
        return Remembered(devices, some.everyone)

    def named(self) -> dict[str, Array]:
        """As it is kept in `State.memory`."""
        devices = {DEVICES + name: array for name, array in self.devices.items()}
        return devices | {EVERYONE + name: array for name, array in self.everyone.items()}

    @classmethod
    def of(cls, memory: Mapping[str, Array]) -> "Remembered":
        """What a state has of it."""
        parts = ({n.removeprefix(p): a for n, a in memory.items() if n.startswith(p)} for p in (DEVICES, EVERYONE))
        return cls(*parts)


def remembers(rule: Any) -> bool:
    """Whether a rule keeps something from round to round."""
    return hasattr(rule, "start")


def is_linear(rule: Any) -> bool:
    """Whether the shares of a rule depend on weights and graph alone, not on what updates say: `linear` says if not."""
    return bool(getattr(rule, "linear", True))


def mixed(rule: Rule, state: State, updates: Updates, graph: Graph) -> tuple[Array, dict[str, Array]]:
    """(the next models by a rule, what it keeps, as named in `State.memory`); what it may not hand out is refused."""
    if not remembers(rule):
        return checked(rule, rule(state.models, updates, graph), state.models), {}
    remembering: Any = rule
    before = Remembered.of(state.memory)
    if not any(before):
        before = _checked_memory(rule, remembering.start(state.models), len(state.models))
    models, after = asked(rule, state.models, updates, graph, before)
    return models, after.named()


def told(before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, Array]:
    """What people may want to see of what a rule newly keeps: single numbers of all together, or one of each device."""
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
    """What a rule that remembers makes of a round, if it is what it must be."""
    found = rule(models, updates, graph, before)
    if not isinstance(found, tuple) or len(found) != 2:
        got = type(found).__name__
        raise ValueError(f"rule {name_of(rule)} remembers: it must return (models, Remembered(...)), got {got}")
    return checked(rule, found[0], models), _checked_memory(rule, found[1], len(models))


def check_linear(rule: Any, reasons: Mapping[str, bool]) -> None:
    """Refuse a rule that remembers, or is not linear, together with what needs a linear one: the reasons that hold."""
    why = "remembers" if remembers(rule) else "" if is_linear(rule) else "weighs updates by what they say"
    for what, asked_for in reasons.items():
        if asked_for and why:
            raise ValueError(f"the rule {name_of(rule)} {why}, which does not go together with {what}")


def _checked_memory(rule: Any, kept: Any, count: int) -> Remembered:
    """What a rule keeps, if it is finite arrays of numbers, and of each device one."""
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
            raise ValueError(f"rule {name} must keep {what} of {count} devices, got an array of shape {array.shape}")
    return kept


def checked(rule: Rule, found: Any, before: Array) -> Array:
    """What a rule gave, if every device has a finite model in it."""
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
    """The name of the rule that others are wrapped around."""
    while (inner := getattr(rule, "rule", None)) is not None and callable(inner):
        rule = inner
    return getattr(rule, "__name__", type(rule).__name__)
