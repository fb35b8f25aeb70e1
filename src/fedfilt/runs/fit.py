"""Train personal models on your own data in one call."""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfilt._checks import check_count
from fedfilt._types import Array
from fedfilt.aggregators.gfedfilt import GFedFilt
from fedfilt.data.samples import FederatedData
from fedfilt.engines.local import Local
from fedfilt.graph import Graph
from fedfilt.populations.paper import Paper
from fedfilt.rounds.guard import Guard
from fedfilt.rounds.play import play
from fedfilt.rounds.privacy import Privacy
from fedfilt.rounds.scores import summary
from fedfilt.rounds.timeline import Event, Timeline
from fedfilt.rounds.types import Evaluation, Experiment, Record, State, Updates
from fedfilt.schedulers.everything import Everything
from fedfilt.system.wire import wire_size
from fedfilt.training import _torch
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class Fitted:
    """Personal models, one row per device, and how training went."""

    rows: Array  # (K, B)
    records: list[Record]
    data: FederatedData
    trainer: Trainer

    def model(self, device: int) -> "nn.Module":
        """A device's own model as a torch module, ready to use."""
        check_count("device", device, low=0, high=len(self.rows) - 1)
        module = copy.deepcopy(self.trainer.module)
        module.load_state_dict(_torch.state_dict(self.trainer.layout, self.rows[device]))
        return module.eval()

    def predict(self, device: int, inputs: Any) -> Array:
        """(n, labels) what a device's own model says about inputs, as probabilities."""
        check_count("device", device, low=0, high=len(self.rows) - 1)
        return self.trainer.predict(self.rows[device], np.asarray(inputs))

    @property
    def accuracy(self) -> dict[str, Any]:
        """Last test: accuracy of every device on its own ("local") and on everybody's ("global") test."""
        tests = next(record.mixed for record in reversed(self.records) if record.mixed is not None)
        return {name: np.array(part["devices"], float) for name, part in summary(tests, self.data).items()}


def fit(
    train: Sequence[tuple[Any, Any]],
    model: Any,
    graph: Graph,
    aggregator: Callable[[Array, Updates, Graph], Array] = GFedFilt(),  # noqa: B008 (frozen)
    *,
    local_test: Sequence[tuple[Any, Any]] | None = None,
    global_test: tuple[Any, Any] | None = None,
    rounds: int = 20,
    epochs: int = 3,
    learning_rate: float = 0.02,
    batch_size: int = 32,
    momentum: float = 0.0,
    seed: int = 0,
    workers: int = 1,
    evaluate_every: int = 10,
    events: Sequence[Event] = (),
    guard: Guard | None = Guard(),  # noqa: B008 (frozen)
    privacy: Privacy = Privacy(),  # noqa: B008 (frozen)
) -> Fitted:
    """Train a personal copy of `model` for every device of `graph` on its own (inputs, labels).

    `model` is any torch module, from whose weights all devices start; or a model of `fedfilt.models`, which needs no
    torch and starts from the seed. Inputs of type uint8 are scaled to 0..1 before it sees them.
    `events` say which devices come, go or move, and when. `guard` bounds what one device does to others (None: nothing
    does); `privacy` says what a device's row may tell about others. `workers` > 1 trains in so many processes (0: one
    per core), with the same result; a script that does so needs `if __name__ == "__main__":`.

    >>> from fedfilt.models import Logistic
    >>> inputs, labels = np.eye(4, dtype=np.float32), [0, 1, 0, 1]
    >>> fitted = fit([(inputs, labels)] * 2, Logistic((4,), 2), Graph.from_edges(2, [(0, 1)]), rounds=2)
    >>> fitted.rows.shape, fitted.predict(0, inputs[:2]).shape
    ((2, 10), (2, 2))
    """
    check_count("rounds", rounds)
    _check_rule(aggregator)
    data = FederatedData.from_arrays(train, local_test, global_test)
    if data.count != graph.count:
        raise ValueError(f"graph must have one device per entry of train, {data.count}, got {graph.count}")
    settings = Training(learning_rate=learning_rate, batch_size=batch_size, momentum=momentum)
    trainer = Trainer(model, settings, data.x.shape[1:])
    state = State(0, np.tile(trainer.given(seed), (graph.count, 1)))
    records = []
    with Local(data, model, settings, seed, workers) as engine:
        evaluation = Evaluation(every=evaluate_every)
        held = np.array([len(rows) for rows in data.train])
        size = wire_size(trainer.layout.size, trainer.layout.size)
        hardware = Paper().draw(held, size, np.random.default_rng(seed))
        privacy.check(learned=False)
        script = privacy.script(Timeline(events, graph, rounds) if events else None, seed, rounds)
        plan = Everything(epochs)
        guard = privacy.guard(guard or Guard(on=False))
        rule = guard.rule(aggregator)
        experiment = Experiment(graph, rule, plan, engine, hardware, rounds, size, evaluation, seed, script, guard)
        for now, record in play(state, experiment):
            state = now
            records.append(record)
    return Fitted(state.models, records, data, trainer)


def _check_rule(rule: Any) -> None:
    """A rule is called with models, updates and graph; a name, a class or a filter is not one."""
    try:
        inspect.signature(rule).bind("models", "updates", "graph")
    except (TypeError, ValueError):
        raise ValueError(
            f"aggregator must be a rule such as GFedFilt(Tikhonov(mu=1.0)) or FedAvg(), got {rule!r}"
        ) from None
