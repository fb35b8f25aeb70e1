"""What each device can read about others from the rows it receives: `fedfilt audit`. Nothing is trained or loaded.

A device knows its own update and its row; assume that it also knows the graph, the rule and all sample counts. Then its
row is one equation about the others' updates. `docs/privacy.md` explains what follows from that.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from fedfilt._types import Array, Table
from fedfilt.aggregators.gfedfilt import GFedFilt
from fedfilt.filters.tikhonov import Tikhonov
from fedfilt.graph import Graph
from fedfilt.rounds.accounting import noise_for
from fedfilt.rounds.privacy import Privacy, factored, too_few
from fedfilt.rounds.shares import error_of_mixed, error_of_reading, others, shares_of
from fedfilt.rounds.timeline import Timeline, with_newcomers
from fedfilt.rounds.types import Rule
from fedfilt.runs.config import Config, from_table, load
from fedfilt.runs.records import Records
from fedfilt.runs.rules import rule_name, rule_of, with_strength

EXACT = 1e-3  # relative error below which an update counts as read: float32 leaves about 1e-6
ROUNDING = 1e-9  # errors that differ by less are equal
MOSTLY = 0.5  # relative error below which more is read than hidden
STRENGTHS = (0.1, 1.0, 10.0, 100.0)  # values of mu to compare
CANDIDATES = 12  # links tried at a time
MENDED = 20  # most devices for which links are sought
LINKS = 3  # most links proposed for a device
MOST_DEVICES = 10_000  # a table of every two of them takes 800 MB
TARGET = 8.0  # epsilon of the proposed noise


class Found(NamedTuple):
    """What a device can read about others, in the round in which it can read most."""

    device: int
    round: int
    room: Any
    links: int
    own: float  # share of its own update in its row
    mixes: int  # other devices in its row
    others: float  # how many others hide a device: see `fedfilt.rounds.shares.others`
    nearest: int | None  # the device whose update it reads best
    error: float  # relative error of that update: 0 is exact, 1 is nothing
    reads_mixed: tuple[int, ...]  # devices whose personal models, after mixing, it reads exactly
    kept_back: bool = False  # privacy.least_others: it continues with its own model
    row_epsilon: float | None = None  # privacy.noise: of a single row about that device; None without a guarantee

    @property
    def verdict(self) -> str:
        """exact (an update), mostly (more than half of one), mixed (a personal model), sum, or nothing."""
        if self.kept_back or self.nearest is None:
            return "nothing"
        if self.error < EXACT:
            return "exact"
        if self.error < MOSTLY:
            return "mostly"
        return "mixed" if self.reads_mixed else "sum"

    @property
    def exposed(self) -> bool:
        """Whether it reads an update or model of a single device."""
        return self.verdict in ("exact", "mostly", "mixed")


class Stage(NamedTuple):
    """The devices present, their links and their weights, from a round on."""

    round: int
    graph: Graph  # of all devices
    present: Array  # (K,)
    weights: Array  # (K,)


@dataclass(frozen=True, eq=False)
class Audit:
    """What an experiment or a run reveals to its devices."""

    name: str  # of the rule
    rule: Rule
    privacy: Privacy
    rounds: int
    stages: Sequence[Stage]
    together: tuple[int, ...] = ()  # devices that share what they know

    def found(self) -> list[Found]:
        """What each device reads in the round in which it reads most; colluding devices share what they know."""
        best: dict[int, Found] = {}
        for stage in self.stages:
            for one in self._in(stage):
                before = best.get(one.device)
                if before is None or (one.kept_back, one.error) < (before.kept_back, before.error - ROUNDING):
                    best[one.device] = one
        return [best[device] for device in sorted(best)]

    def _in(self, stage: Stage, only: int | None = None) -> Iterator[Found]:
        shares = self.shares(stage)
        kept = too_few(shares, self.privacy.least_others)
        hidden = others(shares)
        shares = np.where(kept[:, None], np.eye(len(shares)), shares)
        counts = np.diff(stage.graph.adjacency.indptr)
        noise = self._noise(shares)
        for device in np.flatnonzero(stage.present).tolist() if only is None else [only]:
            group = self.together if device in self.together else (device,)
            error, mixed = error_of_reading(shares, group), error_of_mixed(shares, group)
            error[list(group)] = np.inf
            of_others = np.abs(np.delete(shares[device], device))
            best = int(np.flatnonzero(error <= error.min() + ROUNDING)[0])  # the first of equals, on any CPU
            nearest = best if len(error) > len(group) and error.min() < 1 - ROUNDING else None
            row = None if noise is None or nearest is None else float(noise[device] / abs(shares[device, nearest]))
            yield Found(
                device,
                stage.round,
                None if stage.graph.rooms is None else stage.graph.rooms[device].item(),
                int(counts[device]),
                float(shares[device, device]),
                int((of_others > EXACT * of_others.max(initial=0)).sum()) if of_others.any() else 0,
                float(hidden[device]),
                nearest,
                float(error[nearest]) if nearest is not None else 1.0,
                tuple(j for j in range(len(shares)) if j not in group and _reads(mixed[j], shares, device, j)),
                bool(kept[device]),
                None if row is None else _finite(self.privacy.spent(row, 1)),
            )

    def shares(self, stage: Stage) -> Array:
        """(K, K) what the rows of a stage are made of; a device that is away keeps its own model."""
        there = stage.present
        shares = np.eye(len(there))
        among = stage.graph if there.all() else stage.graph.subgraph(there)
        shares[np.ix_(there, there)] = shares_of(self.rule, among, stage.weights[there])
        return shares

    def _noise(self, shares: Array) -> Array | None:
        """(K,) standard deviation of the noise in every row, in units of the longest update."""
        if not self.privacy.noisy:
            return None
        spread, sensitivity = factored(np.ascontiguousarray(shares).tobytes(), len(shares))
        return self.privacy.multiplier(self.rounds) * sensitivity * np.linalg.norm(spread, axis=1)

    # --- remedies -----------------------------------------------------------------------------------------------

    def by_strength(self) -> dict[str, int]:
        """The number of exposed devices at other strengths of the filter; {} if the rule has no filter."""
        if not isinstance(self.rule, GFedFilt) or not hasattr(self.rule.filter, "mu"):
            return {}
        rules = {f"mu={mu:g}": replace(self.rule, filter=with_strength(self.rule.filter, mu)) for mu in STRENGTHS}
        return {name: sum(one.exposed for one in replace(self, rule=rule).found()) for name, rule in rules.items()}

    def links(self) -> tuple[list[tuple[int, int]], int]:
        """(links to add so that fewest devices are exposed, how many remain exposed), in the last stage."""
        stage, added = self.stages[-1], list[tuple[int, int]]()
        last = replace(self, stages=[stage], together=())
        for device in [one.device for one in last.found() if one.exposed][:MENDED]:
            now = last._of(device)
            for _ in range(LINKS):
                tried = {end: last._linked(device, end) for end in _near(last.stages[0], device) if now.exposed}
                found = {end: one._of(device) for end, one in tried.items()}
                end = max(found, key=lambda end: _rank(found[end]), default=-1)
                if end < 0 or _rank(found[end]) <= _rank(now):
                    break
                last, now = tried[end], found[end]
                added.append((device, end))
        return added, sum(one.exposed for one in last.found())

    def _of(self, device: int) -> Found:
        return next(self._in(self.stages[0], device))

    def _linked(self, device: int, end: int) -> "Audit":
        stage = self.stages[0]
        adjacency = stage.graph.adjacency
        weight = float(np.median(adjacency.data)) if adjacency.nnz else 1.0
        new = csr_array(([weight, weight], ([device, end], [end, device])), shape=adjacency.shape)
        return replace(self, stages=[stage._replace(graph=replace(stage.graph, adjacency=adjacency + new))])

    def least_others(self) -> tuple[int, int]:
        """(the smallest privacy.least_others with which nobody is exposed, the number of rows it withholds)."""
        found = self.found()
        least = max([2, *(int(one.others) + 1 for one in found if one.exposed)])
        return least, sum(0 < one.others < least for one in found)

    @property
    def sums_neighbours(self) -> bool:
        """Whether a device that knows only its own links can read the sum of its neighbours' models."""
        return isinstance(self.rule, GFedFilt) and isinstance(self.rule.filter, Tikhonov)

    def noise(self) -> float:
        """The noise multiplier with which all rounds stay within `TARGET`."""
        return noise_for(TARGET, self.rounds, self.privacy.delta)

    def epsilon(self) -> float | None:
        """The epsilon that privacy.noise guarantees for all rows of all rounds; None without a guarantee."""
        return _finite(self.privacy.spent(self.privacy.multiplier(self.rounds), self.rounds))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _reads(error: float, shares: Array, device: int, other: int) -> bool:
    """Whether a device reads another's personal model; a model that all share by design is not personal."""
    return error < EXACT and bool(np.abs(shares[device] - shares[other]).max() > EXACT)


def _rank(one: Found) -> tuple[bool, float]:
    return not one.exposed, one.error


def _near(stage: Stage, device: int) -> list[int]:
    """Candidates for a new link: first those few hops away, then in the same room, then nearest, then by number."""
    graph = stage.graph
    linked = {device, *graph.adjacency[[device]].indices.tolist()}
    second = {end for near in linked - {device} for end in graph.adjacency[[near]].indices.tolist()}

    def order(end: int) -> tuple[bool, bool, float, int]:
        elsewhere = graph.rooms is not None and graph.rooms[end] != graph.rooms[device]
        apart = (
            0.0 if graph.positions is None else float(np.linalg.norm(graph.positions[end] - graph.positions[device]))
        )
        return end not in second, elsewhere, apart, end

    there = np.flatnonzero(stage.present).tolist()
    return sorted((end for end in there if end not in linked), key=order)[:CANDIDATES]


# --- what is audited ------------------------------------------------------------------------------------------------


def audit(path: Path, overrides: Sequence[str] = (), together: Sequence[int] = ()) -> Audit:
    """Audit an experiment file, with overrides, or a run folder."""
    made = _of_run(Records(path)) if path.is_dir() else _of_experiment(load(path, overrides))
    if path.is_dir() and overrides:
        raise ValueError(f"overrides need an experiment file, but {path} is a run folder, whose config is fixed")
    count = made.stages[0].graph.count
    if count > MOST_DEVICES:
        raise ValueError(f"an audit compares every two devices, of at most {MOST_DEVICES}; {path} has {count}")
    for device in together:
        if not 0 <= device < count:
            raise ValueError(f"together must name devices from 0 to {count - 1}, got {device}")
    return replace(made, together=tuple(sorted(set(together))))


def _of_experiment(config: Config) -> Audit:
    if config.graph.learned:
        raise ValueError("this graph is learned from first updates: run the experiment, then audit its folder")
    graph = with_newcomers(config.graph.graph(config.seed), config.events)
    timeline = Timeline(config.events, graph, config.rounds)
    stages = [Stage(m.round, m.graph, m.present, np.ones(graph.count)) for m in timeline.moments]
    return Audit(rule_name(config.table()), config.aggregator, config.privacy, config.rounds, stages)


def _of_run(run: Records) -> Audit:
    graph = run.graph
    if graph is None:
        raise ValueError(f"{run.folder} must hold a run with a known graph")
    stages: dict[Any, Stage] = {}
    for number in [line["round"] for line in run.rounds] or [1]:
        now, held = run.moment(number), run.weights(number if run.rounds else None)
        weights = np.ones(graph.count) if held is None or len(held) != graph.count else held
        if now is not None and weights[now.present].any():  # if some did not take part, fewer hide each other
            stages.setdefault((now.round, (weights > 0).tobytes()), Stage(number, now.graph, now.present, weights))
    if not stages:
        raise ValueError(f"{run.folder} has no round in which a device took part")
    return Audit(run.rule, rule_of(run.config), _privacy(run.config), max(run.planned, 1), list(stages.values()))


def _privacy(table: Table) -> Privacy:
    given = table.get("privacy", {})
    return from_table({"privacy": given}).privacy if isinstance(given, dict) else Privacy()
