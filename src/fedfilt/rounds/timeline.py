"""Devices come, go and move between rounds: the graph, its factorisation, the plans and the records follow.

The (K, B) models have rows for all devices that ever take part. A device that is away is not in the graph and has no
plan; its model is kept. Everything follows from the script and the round number, so a resumed run has the same bits.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedfilt._checks import check_choice, check_count, check_number
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.play import play_round
from fedfilt.rounds.remembering import DEVICES, Remembered, asked, checked, remembers
from fedfilt.rounds.types import (
    Experiment,
    Happening,
    Record,
    Rule,
    Scheduler,
    State,
    Tests,
    Updates,
    interpolating,
)
from fedfilt.system.hardware import Hardware
from fedfilt.system.orders import Plan, Schedule

START = ("neighbours", "mean", "own")
Ids = int | tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """An entry of [[events]]: what happens before a round (counted from 1) to one or several devices.

    A device whose first event is `join` is absent before. It starts from what the rule gives a device without an
    update, the filter's interpolation of its "neighbours"; or from the "mean" of all; or from its "own" row: what it
    had when it left, or the first model. `links` [a, b] or [a, b, weight] replace all links of the devices that join
    or move; a join without them uses the links of the experiment's graph. A device that joins may be new to the graph,
    with the next free number; then its links are required. `offline` devices do not train, and miss the rounds before
    `until` (0: all the rest); the server keeps mixing their rows, so they are up to date when they return. `room` is
    their room from now on.

    >>> Event(round=50, join=3, links=((3, 1), (3, 2, 0.5))).join
    (3,)
    """

    round: int  # before this round, counted from 1
    join: Ids = ()  # devices that come
    leave: Ids = ()  # devices that go for good
    move: Ids = ()  # devices that change their links or room
    offline: Ids = ()  # devices that do not train; their rows are mixed all the same
    until: int = 0  # offline before this round; 0: to the end
    # [a, b] or [a, b, weight]: all links of devices that join or move
    links: tuple[tuple[float, ...], ...] | None = None
    # the model of a device that joins: of its "neighbours", the "mean", or its "own" of before
    start: str = "neighbours"
    room: int | str | None = None  # where they are from now on

    def __post_init__(self) -> None:
        check_count("events.round", self.round)
        check_choice("events.start", self.start, START)
        for name in ("join", "leave", "move", "offline"):
            value = getattr(self, name)
            ids = (value,) if isinstance(value, int) else tuple(value)
            for device in ids:
                check_count(f"events.{name}", device, low=0)
            object.__setattr__(self, name, ids)
        if not self.devices:
            raise ValueError(
                f"the event of round {self.round} must name a device that joins, leaves, moves or is offline"
            )
        if len(set(self.devices)) != len(self.devices):
            raise ValueError(f"the event of round {self.round} must name each device once, got {list(self.devices)}")
        if self.links is not None:
            if not (self.join or self.move):
                raise ValueError(f"events.links of round {self.round} need a device that joins or moves")
            object.__setattr__(self, "links", tuple(tuple(map(float, link)) for link in self.links))
        if self.move and self.links is None and self.room is None:
            raise ValueError(f"a move needs new links (or a room), got none in round {self.round}")
        if self.until and (not self.offline or self.until <= self.round):
            raise ValueError(f"events.until must be a round after {self.round} for offline devices, got {self.until}")

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices it names."""
        return (*self.join, *self.leave, *self.move, *self.offline)  # type: ignore[misc]


class Moment(NamedTuple):
    """The situation from a round on."""

    round: int  # the first to which this applies
    graph: Graph  # of all K devices; those that are away have no links
    among: Graph  # of the devices present
    present: Array  # (K,) True for devices present
    online: Array  # (K,) True for devices that are present and reachable
    joined: dict[int, str]  # devices that start now, and what they start from
    happened: tuple[Happening, ...]  # before that round


def with_newcomers(graph: Graph, events: Sequence[Event]) -> Graph:
    """The graph with an additional row, still without links, for every new device in the events.

    >>> with_newcomers(Graph.from_rooms(["hall", "hall"]), [Event(round=3, join=2, links=((2, 0),))])
    Graph(3 devices, 1 link, 2 components, 1 room)
    """
    new = {device: event for event in events for device in event.join if device >= graph.count}  # type: ignore[union-attr]
    if not new:
        return graph
    rooms = None if graph.rooms is None else graph.rooms.tolist()
    positions = None if graph.positions is None else graph.positions.tolist()
    for device in range(graph.count, max(new) + 1):
        if device not in new:
            raise ValueError(f"device {max(new)} cannot join: the next new device must have the number {device}")
        event = new[device]
        if event.links is None:
            raise ValueError(f"device {device} is new to the graph: its event of round {event.round} must have links")
        others = [int(end) for link in event.links for end in link[:2] if device in link[:2] and end < device]
        if rooms is not None:
            rooms.append(rooms[others[0] if others else 0] if event.room is None else event.room)
        if positions is not None:
            positions.append(np.mean([positions[other] for other in others] or positions, axis=0).tolist())
    adjacency = graph.adjacency.copy()
    adjacency.resize(max(new) + 1, max(new) + 1)
    return replace(graph, adjacency=adjacency, rooms=rooms, positions=positions)


def check_joins(rule: Rule, events: Sequence[Event]) -> None:
    """If some devices join with a model from their neighbours, refuse a rule that cannot provide one."""
    if any(event.join and event.start == "neighbours" for event in events):
        interpolating(rule)


class Timeline:
    """A script of events on a graph, checked completely before any round is played.

    >>> timeline = Timeline([Event(round=3, join=2)], Graph.from_edges(3, [(0, 1), (1, 2)]), rounds=5)
    >>> [timeline.at(round).present.tolist() for round in (1, 3)]
    [[True, True, False], [True, True, True]]
    """

    def __init__(self, events: Sequence[Event], graph: Graph, rounds: int) -> None:
        self.events = tuple(events)
        graph = with_newcomers(graph, self.events)
        self._moments = _replay(sorted(self.events, key=lambda event: event.round), graph, rounds)
        self._starts = [moment.round for moment in self._moments]

    @property
    def moments(self) -> tuple[Moment, ...]:
        """All situations in order."""
        return tuple(self._moments)

    def at(self, round: int) -> Moment:
        """The situation in a round, counted from 1."""
        return self._moments[bisect_right(self._starts, round) - 1]

    def begin(self, state: State, experiment: Experiment) -> State:
        """The state in which the next round starts: with first models for the devices that join before it."""
        now = self.at(state.round + 1)
        return _arrived(state, now, experiment) if now.round == state.round + 1 else state

    def play_round(self, state: State, experiment: Experiment) -> tuple[State, Record]:
        """One round among the devices that are there."""
        now = self.at(state.round + 1)
        happened = now.happened if now.round == state.round + 1 else ()
        state = self.begin(state, experiment)
        today = replace(
            experiment,
            graph=now.graph,
            scheduler=_Reachable(experiment.scheduler, now),
            aggregator=_among(experiment.aggregator, now),
        )
        after, record = play_round(state, today)
        mixed, trained = _of_present(record.mixed, now), _of_present(record.trained, now)
        away = tuple(np.flatnonzero(~now.online).tolist())
        return after, record._replace(mixed=mixed, trained=trained, events=(*happened, *record.events), away=away)


@dataclass(frozen=True, eq=False)
class _Reachable:
    """Plans for reachable devices; the others have nothing to do."""

    scheduler: Scheduler
    now: Moment

    def __call__(self, hardware: Hardware, update_bytes: int) -> Schedule:
        online, present = self.now.online, self.now.present
        schedule = self.scheduler(replace(hardware, samples=np.where(online, hardware.samples, 0)), update_bytes)
        idle = [Plan(0, 0.0, 0.0, outcome="offline" if there else "away") for there in present]
        return schedule._replace(plans=[p if on else i for p, i, on in zip(schedule.plans, idle, online, strict=True)])


@dataclass(frozen=True, eq=False)
class _Among:
    """The rule among the devices present; the others' rows are kept."""

    rule: Rule
    now: Moment

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        there = self.now.present
        result = models.copy()
        mixed = self.rule(models[there], _of_those(updates, there), self.now.among)
        result[there] = checked(self.rule, mixed, models[there])
        return result


@dataclass(frozen=True, eq=False)
class _RememberingAmong:
    """The same for a rule with memory; what it remembers about the others is kept too."""

    rule: Any
    now: Moment

    def start(self, models: Array) -> Remembered:
        found: Remembered = self.rule.start(models)
        return found

    def __call__(self, models: Array, updates: Updates, graph: Graph, before: Remembered) -> tuple[Array, Remembered]:
        there = self.now.present
        result = models.copy()
        among = models[there], _of_those(updates, there), self.now.among, before.among(there)
        result[there], after = asked(self.rule, *among)
        return result, before.with_those(there, after)


def _among(rule: Rule, now: Moment) -> Rule:
    """The rule among the devices present."""
    made: Any = _RememberingAmong if remembers(rule) else _Among
    return made(rule, now)


def _of_those(updates: Updates, there: Array) -> Updates:
    return Updates(updates.rows[there], updates.weights[there])


def _arrived(state: State, now: Moment, experiment: Experiment) -> State:
    """The state with the first models of the devices that join."""
    if not now.joined:
        return state
    models, there = state.models.copy(), now.present
    held = experiment.hardware.samples.astype(float).copy()
    held[list(now.joined)] = 0  # they have no updates
    nothing = Updates(np.zeros_like(models[there]), held[there])
    before = state.models[there]
    for start in ("neighbours", "mean"):
        chosen = [device for device, kind in now.joined.items() if kind == start]
        if chosen:
            rule = interpolating(experiment.aggregator) if start == "neighbours" else None
            mixed = models.copy()
            mixed[there] = nothing.averaged(before) if rule is None else rule(before, nothing, now.among)
            models[chosen] = mixed[chosen]
            if experiment.model_size:  # the rest is a device's own, and it has none yet
                models[chosen, experiment.model_size :] = 0
    residuals = None if state.residuals is None else state.residuals.copy()
    if residuals is not None:
        residuals[list(now.joined)] = 0
    accepted = None if state.accepted is None else state.accepted.copy()
    if accepted is not None:
        accepted[list(now.joined)] = 0  # so it also forgets what it stores itself
    memory = dict(state.memory)
    for name, kept in memory.items():
        if name.startswith(DEVICES):  # the others' average, so that a shared model stays shared
            before = there & ~np.isin(np.arange(len(there)), list(now.joined))
            memory[name] = kept.copy()
            memory[name][list(now.joined)] = kept[before].mean(axis=0) if before.any() else 0
        elif kept.shape == models.shape:  # models of earlier rounds: a device that joins has none
            memory[name] = kept.copy()
            memory[name][list(now.joined)] = models[list(now.joined)]
    clients = {device: kept for device, kept in state.clients.items() if device not in now.joined}
    return State(state.round, models, residuals, accepted, memory, clients)


def _of_present(tests: Tests | None, now: Moment) -> Tests | None:
    """Tests of the devices present: the others do not count."""
    if tests is None:
        return None

    def only(values: Array | None, nothing: float) -> Array | None:
        if values is None:
            return None
        there = now.present.reshape(-1, *[1] * (values.ndim - 1))
        return np.where(there, values, np.asarray(nothing, values.dtype))

    of = {name: only(values, math.nan if "loss" in name else 0) for name, values in tests._asdict().items()}
    return Tests(**of)  # type: ignore[arg-type]


def _replay(events: Sequence[Event], graph: Graph, rounds: int) -> list[Moment]:
    """All situations of a script; impossible events are reported."""
    _check(events, graph, rounds)
    first: dict[int, str] = {}
    for event in events:
        for device in event.devices:
            first.setdefault(device, "join" if device in event.join else "")  # type: ignore[operator]
    present = np.array([first.get(device) != "join" for device in range(graph.count)])
    if not present.any():
        raise ValueError("events leave no device to start with: all devices join later")
    links = graph.adjacency.tolil()
    rooms = None if graph.rooms is None else graph.rooms.tolist()
    back = np.zeros(graph.count, np.int64)  # first round in which an offline device is reachable again
    moments = [_moment(1, graph, links, rooms, present, back, {}, ())]
    boundaries = sorted({e.round for e in events} | {e.until for e in events if e.until})
    for round in boundaries:
        joined: dict[int, str] = {}
        happened = [Happening(round, int(d), "online") for d in np.flatnonzero(present & (back == round))]
        for event in (event for event in events if event.round == round):
            happened += _apply(event, links, rooms, present, back, joined, rounds)
        if not present.any():
            raise ValueError(f"events leave no device in round {round}")
        moments.append(_moment(round, graph, links, rooms, present, back, joined, tuple(happened)))
    return moments[1:] if moments[1:] and moments[1].round == 1 else moments


def _check(events: Sequence[Event], graph: Graph, rounds: int) -> None:
    for event in events:
        if event.round > rounds:
            raise ValueError(f"an event of round {event.round} is after the last round, {rounds}")
        for device in event.devices:
            check_count(f"device of the event of round {event.round}", device, low=0, high=graph.count - 1)
        for link in event.links or ():
            ends = link[:2]
            if (
                len(link) not in (2, 3)
                or any(e != int(e) or not 0 <= e < graph.count for e in ends)
                or len({*ends}) < 2
            ):
                raise ValueError(
                    f"events.links must be [a, b] or [a, b, weight] with two devices from 0 to {graph.count - 1}, "
                    f"got {list(link)} in round {event.round}"
                )
            if not {*ends} & {*event.join, *event.move}:  # type: ignore[misc]
                raise ValueError(
                    f"events.links of round {event.round}: neither {ends[0]:g} nor {ends[1]:g} joins or moves"
                )
            check_number("events.links weight", link[2] if len(link) == 3 else 1.0, low=0)


def _apply(
    event: Event, links: Any, rooms: list[Any] | None, present: Array, back: Array, joined: dict[int, str], last: int
) -> list[Happening]:
    """Apply an event to the links, rooms and masks, in place; returns what happened."""
    happened: list[Happening] = []

    def note(device: int, what: str, **details: Any) -> None:
        happened.append(Happening(event.round, device, what, details))

    when = f"in round {event.round}"
    for device in event.join:  # type: ignore[union-attr]
        if present[device]:
            raise ValueError(f"device {device} cannot join {when}: it is already there")
        present[device], joined[device] = True, event.start
        note(device, "join", start=event.start)
    for name in ("leave", "move", "offline"):
        for device in getattr(event, name):
            if not present[device]:
                raise ValueError(
                    f"device {device} cannot {name.replace('offline', 'be offline')} {when}: it is not there"
                )
    for device in event.leave:  # type: ignore[union-attr]
        present[device], back[device] = False, 0
        joined.pop(device, None)  # it had joined before the same round
        note(device, "leave")
    for device in event.offline:  # type: ignore[union-attr]
        back[device] = event.until or last + 1
        note(device, "offline", **({"until": event.until} if event.until else {}))
    changed = [*event.join, *event.move]  # type: ignore[misc]
    if event.links is not None:
        links[changed, :] = 0
        links[:, changed] = 0
        for a, b, *weight in event.links:
            links[int(a), int(b)] = links[int(b), int(a)] = weight[0] if weight else 1.0
    for device in changed:
        if event.room is not None:
            if rooms is None:
                raise ValueError(f"events.room {when} needs a graph with rooms")
            if not isinstance(event.room, type(rooms[0])):
                raise ValueError(
                    f"events.room {when} must be named like others, such as {rooms[0]!r}, got {event.room!r}"
                )
            rooms[device] = event.room
    for device in event.move:  # type: ignore[union-attr]
        others = np.flatnonzero(links[[device]].toarray()[0] * present).tolist()
        note(device, "move", links=others, **({} if event.room is None else {"room": event.room}))
    return happened


def _moment(
    round: int,
    graph: Graph,
    links: Any,
    rooms: list[Any] | None,
    present: Array,
    back: Array,
    joined: dict[int, str],
    happened: tuple[Happening, ...],
) -> Moment:
    mask = sp.diags_array(present.astype(float))
    there = (mask @ links.tocsr() @ mask).tocsr()
    there.eliminate_zeros()
    now = replace(graph, adjacency=there, rooms=rooms)
    among = now if present.all() else now.subgraph(present.copy())
    online = present & (back <= round)
    return Moment(round, now, among, present.copy(), online, dict(joined), happened)
