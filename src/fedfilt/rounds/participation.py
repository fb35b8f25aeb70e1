"""Which devices take part in a round: a share of those present, drawn from the seed and the round.

Devices that are not drawn do nothing in that round: no job, no message, no simulated seconds or joules.
"""

import csv
import hashlib
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfilt._checks import check_choice, check_count, check_number
from fedfilt._draws import RoundKey, in_round
from fedfilt._reading import csv_text
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.play import play_round
from fedfilt.rounds.remembering import Remembered, remembers
from fedfilt.rounds.timeline import Timeline
from fedfilt.rounds.types import Experiment, Record, Rule, Scheduler, Script, State, Updates, interpolating
from fedfilt.system.hardware import Hardware
from fedfilt.system.orders import Plan, Schedule

WEIGHTS, ABSENT = ("equal", "samples"), ("mixed", "kept")
HEADERS = (["device", "round"], ["device", "from", "until"])
NOT_DRAWN, UNAVAILABLE = UNASKED = ("not_drawn", "unavailable")  # outcomes of their plans
NEVER = 2**53  # a round that no run reaches


@dataclass(frozen=True)
class Participation:
    """The table [participation]: how many devices take part in a round, and which ones.

    The number is a `fraction` of those that can, rounded to the nearest number, and at least `minimum`. A device can
    take part if it has samples, is online, and is available in the `trace`. If fewer than `minimum` can, no device
    trains in that round. `weights` "equal" gives every device the same chance, "samples" weighs by number of samples.
    `trace` is a CSV file with the header device,round or device,from,until; a device is available from the round `from`
    to the one before `until` (empty: to the end). `absent` is what devices that were not drawn get: "mixed", what the
    rule gives a device without an update; or "kept", their old model.

    >>> Participation(fraction=0.5).drawn(seed=0, round=1, samples=np.full(6, 45), able=np.ones(6, bool))
    array([ True,  True,  True, False, False, False])
    """

    fraction: float = 1.0  # share of the devices that can take part, rounded to the nearest number
    minimum: int = 1  # take at least this many; a round in which fewer can take part passes without training
    weights: str = "equal"  # "equal" chances, or by the number of "samples", which must be known here
    # CSV file of who is there when: device,round or device,from,until; until is the round before which it ends
    trace: str = ""
    # what devices that were not drawn get: "mixed" by the rule, or "kept": the model that they had
    absent: str = "mixed"

    def __post_init__(self) -> None:
        check_number("participation.fraction", self.fraction, low=0, high=1, above=True)
        check_count("participation.minimum", self.minimum)
        check_choice("participation.weights", self.weights, WEIGHTS)
        check_choice("participation.absent", self.absent, ABSENT)

    def drawn(self, seed: int, round: int, samples: Array, able: Array) -> Array:
        """(K,) True for the devices that take part in a round, out of those that are `able` and have samples.

        Every device waits for a time drawn from Exp(weight), and the first ones take part: equivalent to drawing one
        after the other by weight. A device that cannot take part does not change the others' times.
        """
        able = able & (samples > 0)
        number = int(able.sum())
        wanted = max(self.minimum, math.floor(self.fraction * number + 0.5)) if number >= self.minimum else 0
        waits = in_round(seed, round, RoundKey.PARTICIPATION).standard_exponential(len(able))
        if self.weights == "samples":
            waits /= np.maximum(samples, 1)
        taken = np.zeros(len(able), bool)
        taken[np.argsort(np.where(able, waits, np.inf), kind="stable")[:wanted]] = True
        return taken

    def script(self, timeline: Timeline | None, count: int) -> Script | None:
        """Rounds among devices drawn from `count`, with the events of a timeline or without any."""
        if self.minimum > count:
            raise ValueError(
                f"participation.minimum must be at most the number of devices, {count}, got {self.minimum}"
            )
        if self.fraction == 1 and self.minimum == 1 and not self.trace:
            return timeline
        return Drawing(self, read_trace(Path(self.trace), count) if self.trace else None, timeline)


@dataclass(frozen=True, eq=False)
class Trace:
    """When devices are available: each of `devices` from a round on, until the round before `ends`."""

    count: int
    devices: Array
    starts: Array
    ends: Array
    hash: str  # sha256

    def available(self, round: int) -> Array:
        """(K,) True for devices that are available in a round."""
        found = np.zeros(self.count, bool)
        found[self.devices[(self.starts <= round) & (round < self.ends)]] = True
        return found


def read_trace(path: Path, count: int) -> Trace:
    """The trace in a CSV file: device,round with a line per round, or device,from,until."""
    columns = array("q"), array("q"), array("q")
    with csv_text(path) as file:
        lines = csv.reader(file)
        header = [name.strip() for name in next(lines, [])]
        if header not in HEADERS:
            raise ValueError(f"{path}: header must be device,round or device,from,until, got {','.join(header)!r}")
        for cells in lines:
            if cells:
                entry = _entry(cells, len(header), count, f"{path} line {lines.line_num}")
                for column, number in zip(columns, entry, strict=True):
                    column.append(number)
    devices, starts, ends = (np.array(column, np.int64) for column in columns)
    digest = hashlib.sha256()
    for numbers in (devices, starts, ends):
        digest.update(numbers.tobytes())
    return Trace(count, devices, starts, ends, digest.hexdigest())


def _entry(cells: Sequence[str], width: int, count: int, where: str) -> tuple[int, int, int]:
    """(device, first round, round after the last) of a line."""
    try:
        numbers = [int(cell) if cell.strip() or place < 2 else NEVER for place, cell in enumerate(cells)]
        if len(numbers) != width:
            raise ValueError
    except ValueError:
        words = ",".join(cells)[:80]
        raise ValueError(f"{where}: must be {width} whole numbers, got {words!r}") from None
    device, first, *rest = numbers
    check_count(f"{where}: device", device, low=0, high=count - 1)
    check_count(f"{where}: round", first, high=NEVER - 1)
    return device, first, check_count(f"{where}: until", rest[0], low=first + 1, high=NEVER) if rest else first + 1


@dataclass(frozen=True, eq=False)
class Drawing:
    """Plays rounds among drawn devices. The draw depends only on the seed, the round and the script."""

    participation: Participation
    trace: Trace | None = None
    timeline: Timeline | None = None

    def play_round(self, state: State, experiment: Experiment) -> tuple[State, Record]:
        """One round."""
        samples = experiment.hardware.samples
        taken, scheduler = self.asked(experiment.scheduler, experiment.seed, state.round + 1, samples)
        today = replace(experiment, scheduler=scheduler)
        if self.participation.absent == "kept":
            waiting = ~taken & (samples > 0)
            if self.timeline is not None:  # its rule sees the devices present
                waiting = waiting[self.timeline.at(state.round + 1).present]
            today = replace(today, aggregator=_keeping(experiment.aggregator, waiting))
        after, record = (play_round if self.timeline is None else self.timeline.play_round)(state, today)
        return after, record._replace(drawn=tuple(np.flatnonzero(taken).tolist()))

    def asked(self, scheduler: Scheduler, seed: int, round: int, samples: Array) -> tuple[Array, Scheduler]:
        """((K,) True for devices that take part in a round, a scheduler that plans for them alone)."""
        available = np.ones(len(samples), bool) if self.trace is None else self.trace.available(round)
        online = available if self.timeline is None else available & self.timeline.at(round).online
        taken = self.participation.drawn(seed, round, samples, online)
        return taken, _Asked(scheduler, taken, available)


@dataclass(frozen=True, eq=False)
class _Asked:
    """Plans for drawn devices; the others have nothing to do."""

    scheduler: Scheduler
    taken: Array
    available: Array

    def __call__(self, hardware: Hardware, update_bytes: int) -> Schedule:
        idle = {there: Plan(0, 0.0, 0.0, outcome=NOT_DRAWN if there else UNAVAILABLE) for there in (True, False)}
        plans = [idle[there] for there in self.available.tolist()]
        if not self.taken.any():
            return Schedule(plans)
        schedule = self.scheduler(replace(hardware, samples=np.where(self.taken, hardware.samples, 0)), update_bytes)
        for device in np.flatnonzero(self.taken | (hardware.samples == 0)).tolist():
            plans[device] = schedule.plans[device]
        return schedule._replace(plans=plans)


@dataclass(frozen=True, eq=False)
class _Kept:
    """A rule with which devices that were not drawn keep their rows."""

    rule: Rule
    waiting: Array  # (K,) True for devices that could have been drawn

    def interpolating(self) -> Rule:
        return interpolating(self.rule)  # for devices that join, whichever were drawn

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        return _with_rows(self.rule(models, updates, graph), models, self.waiting)


@dataclass(frozen=True, eq=False)
class _RememberingKept:
    """The same for a rule with memory; what it remembers about those devices stays too."""

    rule: Any
    waiting: Array

    def interpolating(self) -> Rule:
        return interpolating(self.rule)

    def start(self, models: Array) -> Remembered:
        found: Remembered = self.rule.start(models)
        return found

    def __call__(self, models: Array, updates: Updates, graph: Graph, before: Remembered) -> tuple[Array, Remembered]:
        result, after = self.rule(models, updates, graph, before)
        return _with_rows(result, models, self.waiting), before.with_those(~self.waiting, after.among(~self.waiting))


def _keeping(rule: Rule, waiting: Array) -> Rule:
    """The rule with which devices that wait keep their rows."""
    made: Any = _RememberingKept if remembers(rule) else _Kept
    return made(rule, waiting)


def _with_rows(result: Array, models: Array, waiting: Array) -> Array:
    result[waiting] = models[waiting]
    return result
