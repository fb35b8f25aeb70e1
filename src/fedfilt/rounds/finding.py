"""A graph that is found again during a run, from what devices have learnt by then.

It compares the differences of trained models from their mean. The updates of a single round would not do: once
neighbours have been mixed, each pulls back from the others, and neighbours look like opposites. The price is that links
reinforce themselves, because mixed models become alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.play import play_round
from fedfilt.rounds.types import Experiment, Record, Script, State, Updates

LINKS = "graph.links"  # (K, K) weights of the links found last, in `State.memory`


@dataclass(frozen=True, eq=False)
class Finding:
    """Plays rounds; every `every`-th one finds the graph again from the models trained in it, and then mixes them.

    A device without an update in that round keeps its links. What was found is in `State.memory`.
    """

    every: int
    found: Callable[[Array], Graph]  # of (K, B) trained models; zeros: none
    size: int  # columns of a row that are the model
    within: Script | None = None

    def play_round(self, state: State, experiment: Experiment) -> tuple[State, Record]:
        """One round."""
        links = state.memory.get(LINKS)
        graph = experiment.graph if links is None else replace(experiment.graph, adjacency=sp.csr_array(links))
        due = (state.round + 1) % self.every == 0
        rule: Any = _Found(experiment.aggregator, self) if due else experiment.aggregator
        today = replace(experiment, graph=graph, aggregator=rule)
        after, record = (play_round if self.within is None else self.within.play_round)(state, today)
        found = rule.graph if due else None
        if found is not None:
            links = found.adjacency.toarray()
        if links is not None:
            after = after._replace(memory={**after.memory, LINKS: links})
        return after, record._replace(graph=found)

    def again(self, models: Array, updates: Updates, graph: Graph) -> Graph:
        """The graph found from trained models; devices without one keep their links."""
        there = (updates.weights > 0) & updates.rows.any(axis=1)
        rows = np.where(there[:, None], (models + updates.rows)[:, : self.size], 0)
        new, old = self.found(rows).adjacency.toarray(), graph.adjacency.toarray()
        return replace(graph, adjacency=sp.csr_array(np.where(np.outer(there, there), new, old)))


class _Found:
    """A rule that mixes over the graph it finds; `graph` is that graph once the rule has been called."""

    def __init__(self, rule: Any, finding: Finding) -> None:
        self.rule, self.finding = rule, finding
        self.graph: Graph | None = None

    def __getattr__(self, name: str) -> Any:  # whether it remembers, and how it interpolates
        return getattr(self.rule, name)

    def __call__(self, models: Array, updates: Updates, graph: Graph, *remembered: Any) -> Any:
        self.graph = self.finding.again(models, updates, graph)
        return self.rule(models, updates, self.graph, *remembered)
