"""Train personal models on your own data with one call."""

import copy
import inspect
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfilt import _parts
from fedfilt._brief import lines_of, said
from fedfilt._checks import check_count
from fedfilt._progress import progress_bar
from fedfilt._types import Array, Table
from fedfilt.aggregators.gfedfilt import GFedFilt
from fedfilt.clients.plain import Plain
from fedfilt.data.deal import hold_out
from fedfilt.data.samples import FederatedData, inputs_of
from fedfilt.graph import Graph
from fedfilt.populations.paper import Paper
from fedfilt.rounds.guard import Guard
from fedfilt.rounds.participation import Participation
from fedfilt.rounds.play import play
from fedfilt.rounds.privacy import Privacy
from fedfilt.rounds.remembering import remembers
from fedfilt.rounds.scores import summary
from fedfilt.rounds.timeline import Event
from fedfilt.rounds.types import Evaluation, Record, State
from fedfilt.runs.build import Run
from fedfilt.runs.config import Config
from fedfilt.runs.history import frame_of, rows_of
from fedfilt.runs.lines import TESTS, line_of
from fedfilt.runs.play import keep, tell
from fedfilt.runs.records import Records
from fedfilt.runs.tables import EngineTable
from fedfilt.schedulers.everything import Everything
from fedfilt.sparsifiers.top_k import TopK
from fedfilt.training import _torch
from fedfilt.training.client import Client
from fedfilt.training.encoders import Encoder
from fedfilt.training.sgd import DIVERGED, Diverged, Training
from fedfilt.training.trainer import Trainer

if TYPE_CHECKING:
    from torch import nn

HOLDOUT = 0.2  # share of each device's samples held out to test it if no test is given
FAR = Guard().cap  # a parameter beyond ± so much has diverged
LOST = -float(np.log(np.finfo(np.float32).tiny))  # so has a cross-entropy at which the probability is zero in float32

log = logging.getLogger("fedfilt")


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """Personal models, one row per device, and how training went.

    >>> from fedfilt.models import Logistic
    >>> fitted = fit([(np.eye(4, dtype=np.float32), [0, 1, 0, 1])] * 2, Logistic((4,), 2), [(0, 1)], rounds=3)
    >>> fitted.rows.shape, sorted(fitted.accuracy), len(fitted.records)
    ((2, 10), ['global', 'local'], 3)
    """

    rows: Array  # (K, B), or (K, n, B) if the answers of several models are averaged
    records: list[Record]
    run: Run
    state: State  # after the last round
    tested: str  # on what, in words; "" if on nothing

    @property
    def data(self) -> FederatedData:
        """What each device was trained and tested on."""
        return self.run.data

    @property
    def trainer(self) -> Trainer:
        """The trainer, which trains and tests models given as rows, and asks them for answers."""
        return self.run.trainer

    def model(self, device: int) -> "nn.Module":
        """A device's own model as a torch module, ready for use."""
        check_count("device", device, low=0, high=len(self.rows) - 1)
        if self.rows.ndim == 3:
            many = self.rows.shape[1]
            raise ValueError(f"device {device} averages the answers of {many} models: use predict() or rows instead")
        trainer = self.run.trainers[device]
        module = copy.deepcopy(trainer.module)
        module.load_state_dict(_torch.state_dict(trainer.layout, self.rows[device]))
        return module.eval()

    def predict(self, device: int, inputs: Any) -> Array:
        """(n, outputs) the answers of a device's own model: probabilities of labels or choices, or numbers."""
        check_count("device", device, low=0, high=len(self.rows) - 1)
        several = self.data.x.dtype.names is not None
        return self.run.trainers[device].predict(
            self.rows[device], inputs_of(inputs) if several else np.asarray(inputs)
        )

    @property
    def score(self) -> dict[str, Any]:
        """The last test: the score of every device on its own ("local") and on everybody's ("global") test.

        The score is accuracy, or whatever fits the loss: `fitted.trainer.goal.metric` says which, and whether less is
        better. Devices are never tested on their training samples; `tested` says what they are tested on.
        """
        if not self.tested:
            raise ValueError("there is no score: nothing was held out (holdout=0) and no test was given")
        tests = next(record.mixed for record in reversed(self.records) if record.mixed is not None)
        found = summary(tests, self.data, self.trainer.goal)
        return {name: np.array(part["devices"], float) for name, part in found.items()}

    @property
    def accuracy(self) -> dict[str, Any]:
        """`score`, if that is the accuracy."""
        if (metric := self.trainer.goal.metric.key) != "accuracy":
            raise ValueError(f"these models are judged by {metric}, not by accuracy: use score")
        return self.score

    def history(self, devices: bool = False) -> Any:
        """The rounds as a data frame; see `fedfilt.Records.history`."""
        return frame_of(rows_of(self._lines, devices))

    def plot(self, test: str = "local", against: str = "rounds") -> Any:
        """Mean accuracy over devices as a Plotly figure; see `fedfilt.Records.plot`."""
        with tempfile.TemporaryDirectory() as place:
            tell(Path(place), self._lines, self._table)
            return Records(place, "fit").plot(test, against)

    def save(self, folder: str | Path) -> Records:
        """Write a run folder for `fedfilt report` and `fedfilt dashboard`, and return its records.

        It holds the models, the graph, the metrics and the settings, but not your samples, so it cannot be run again.
        """
        keep(self.run, Path(folder), self.state, self.rows, self._lines, self._table)
        return Records(folder)

    @property
    def _model(self) -> Any:
        """The model as it was passed in."""
        return self.run.model[0].model if isinstance(self.run.model, tuple) else self.run.model

    @cached_property
    def _lines(self) -> list[Table]:
        """The lines of metrics.jsonl."""
        lines: list[Table] = []
        for record in self.records:
            lines.append(line_of(self.run, record, lines[-1] if lines else None))
        return lines

    @property
    def _table(self) -> Table:
        """The content of config.toml, as far as it can describe the given data, graph, model and rule."""
        run, table = self.run, self.run.config.table()
        rule, model = run.config.aggregator, self._model
        table["data"] = {
            "name": "arrays",
            "hash": run.data.hash[:16],
            "shape": list(run.trainer.shape),
            "classes": run.data.classes,
            "tested": self.tested or "on nothing",
        }
        table["graph"] = {"name": "given", "hash": run.graph.hash[:16]}
        options = {field.name: getattr(model, field.name) for field in fields(model)} if is_dataclass(model) else {}
        told = {key: value for key, value in options.items() if key not in ("shape", "classes")}
        table["model"] = {"name": _parts.name_of(model, "models"), **told}
        if inspect.isroutine(rule):
            table["aggregator"] = {"name": f"{rule.__module__}:{getattr(rule, '__qualname__', rule)}"}
        for key, value in table["training"].items():
            if callable(value):
                table["training"][key] = f"{value.__module__}:{getattr(value, '__qualname__', value)}"
        del table["samples"]  # how a data set would be dealt
        return table

    def __repr__(self) -> str:
        config = self.run.config
        last = self._lines[-1].get("mixed", {}) if self.tested else {}
        scores = [
            f"{last[test]['mean']:.4g} on the {test} test (worst device {last[test]['worst']:.4g})"
            for test in TESTS
            if test in last
        ]
        return lines_of(
            f"Fitted: {len(self.rows)} devices, {len(self.records)} rounds of {said(config.client)}, "
            f"{said(config.aggregator)}",
            f"  {type(self._model).__name__} of {self.rows.shape[-1]} parameters, trained by {self.trainer.backend}",
            f"  mean over devices: {', '.join(scores)}" if scores else "  not tested: nothing was held out",
            *([f"  tested on {self.tested}"] if self.tested else []),
        )


def fit(
    train: Sequence[Any],
    model: Any,
    graph: Any,
    aggregator: Callable[..., Any] = GFedFilt(),  # noqa: B008 (frozen)
    *,
    client: Client = Plain(),  # noqa: B008 (frozen)
    encoder: Encoder | None = None,
    local_test: Sequence[tuple[Any, Any]] | None = None,
    global_test: tuple[Any, Any] | None = None,
    holdout: float = HOLDOUT,
    rounds: int = 20,
    epochs: int = 3,
    learning_rate: float = 0.02,
    batch_size: int = 32,
    momentum: float = 0.0,
    loss: Any = "cross_entropy",
    optimizer: str = "sgd",
    metric: Any = "",
    seed: int = 0,
    workers: int = 1,
    evaluate_every: int = 10,
    events: Sequence[Event] = (),
    guard: Guard | None = Guard(),  # noqa: B008 (frozen)
    privacy: Privacy = Privacy(),  # noqa: B008 (frozen)
    participation: Participation | float = 1.0,
    progress: bool | None = None,
) -> Fitted:
    """Train a personal copy of `model` for every device in `graph` on the device's own (inputs, targets).

    `model` is any torch module, and all devices start from its weights; or it is a model of `fedfilt.models`, which
    needs no torch and starts from the seed. Inputs of type uint8 are scaled to 0..1 first. `graph` is a Graph, a
    networkx graph, an adjacency matrix or a list of links (i, j); see `Graph.of`.

    Without a test, a share `holdout` of each device's samples, drawn from the seed, is kept for testing; with
    holdout=0, all samples are for training and there is no score. With a global test alone, the local test of a device
    is the part with its own labels.

    `optimizer` is sgd, adam or adamw; it starts afresh in every round.
    `loss` is cross_entropy, smoothed, mse, mae, bce, or your own torch function of (outputs, targets). `metric` is the
    score to show, if not the usual one for that loss: a name, or your own function of (targets, outputs) that returns
    a number for each sample.
    `encoder` describes the layers before the model if devices have inputs of different shapes; the model is then one
    of `fedfilt.models` and takes inputs of the shape `encoder.latent`.
    `client` is what a device does in a round, such as `Ditto()` from `fedfilt.clients`; `rows` are then the models that
    devices decide with.

    `events` list devices that come, go or move, and when. `guard` limits what one device can do to others (None: no
    limits); `privacy` limits what a device's row reveals about others. `participation` is the share of devices that
    take part in a round, or a `fedfilt.Participation`. `workers` > 1 trains in that many processes (0: one per core),
    with the same result; a script that does so needs `if __name__ == "__main__":`. By default, a `progress` bar is
    shown in a terminal or a notebook; True and False decide explicitly.

    >>> from fedfilt.models import Logistic
    >>> inputs, labels = np.eye(4, dtype=np.float32), [0, 1, 0, 1]
    >>> fitted = fit([(inputs, labels)] * 2, Logistic((4,), 2), [(0, 1)], rounds=2)
    >>> fitted.rows.shape, fitted.predict(0, inputs[:2]).shape, fitted.tested
    ((2, 10), (2, 2), "20% of each device's samples, held out: 2 of 8")
    """
    check_count("rounds", rounds)
    _check_rule(aggregator)
    if isinstance(client, type) or not callable(client):
        raise ValueError(f"client must be a client such as Ditto(), got {client!r}")
    data, tested = _split(
        FederatedData.from_arrays(train, local_test, global_test), local_test, global_test, holdout, seed
    )
    graph = Graph.of(graph, data.count)
    if data.count != graph.count:
        raise ValueError(f"graph must have {data.count} devices, one per entry of train, got {graph.count}")
    drawing = participation if isinstance(participation, Participation) else Participation(participation)
    config = Config(
        seed=seed,
        rounds=rounds,
        training=Training(
            learning_rate=learning_rate,
            batch_size=batch_size,
            momentum=momentum,
            loss=loss,
            metric=metric,
            optimizer=optimizer,
        ),
        devices=Paper(),
        scheduler=Everything(epochs),
        sparsifier=TopK(),
        aggregator=aggregator,
        client=client,
        encoder=encoder or Encoder(),
        evaluation=Evaluation(every=evaluate_every),
        engine=EngineTable(workers=workers),
        guard=guard or Guard(on=False),
        privacy=privacy,
        participation=drawing,
        events=tuple(events),
    )
    run = Run(config, data=data, graph=graph, model=model)
    state, records = run.start(), []
    log.info("tested on %s", tested or "nothing: holdout=0 and no test was given")
    with progress_bar(progress) as bar, run.experiment() as experiment:
        task = bar.add_task("fit", total=rounds)
        for now, record in play(state, experiment):
            state = now
            records.append(record)
            bar.update(task, completed=record.round, description=f"fit round {record.round}")
        rows = run.decided(state, experiment.engine)
    _check_sane(run, rows, records)
    return Fitted(rows, records, run, state, tested)


def _split(
    data: FederatedData, local_test: Any, global_test: Any, holdout: float, seed: int
) -> tuple[FederatedData, str]:
    """(the data with tests that no device is trained on, a description of these tests)."""
    if local_test is not None:
        return data, "the tests that were given"
    if global_test is not None:
        return replace(data, local_test=None), "the global test that was given; local: the device's own labels in it"
    held = hold_out(data, holdout, seed)
    count, whole = len(held.global_test), sum(map(len, data.train))
    return held, f"{holdout:.0%} of each device's samples, held out: {count} of {whole}" if count else ""


def _check_sane(run: Run, rows: Array, records: Sequence[Record]) -> None:
    """Refuse to return models that have diverged, even if they are still finite.

    If steps are far too long, losses jump between zero and thousands: their mean over the second half shows it.
    """
    largest = np.abs(rows).reshape(len(rows), -1).max(axis=1)
    losses = np.stack([record.losses for record in records[len(records) // 2 :]])
    rounds = np.isfinite(losses).sum(axis=0)
    loss = np.where(rounds > 0, np.nansum(losses, axis=0) / np.maximum(rounds, 1), 0.0)
    lost = loss > (LOST if run.config.training.loss in ("cross_entropy", "smoothed") else np.inf)
    if largest.max() <= FAR and 2 * lost.sum() <= (rounds > 0).sum():
        return
    device = int(loss.argmax()) if lost.any() else int(largest.argmax())
    raise Diverged(
        f"device {device} {DIVERGED} {len(records)}: its parameters reach {largest[device]:.3g}, its training loss is "
        f"{loss[device]:.3g}; lower learning_rate ({run.config.training.learning_rate:g}), or check the scale of its "
        "samples"
    )


def _check_rule(rule: Any) -> None:
    """Refuse what is not a rule, which takes models, updates and graph: a name, a class or a filter."""
    given = ("models", "updates", "graph", *(("state",) if remembers(rule) else ()))
    try:
        if isinstance(rule, type):
            raise TypeError
        inspect.signature(rule).bind(*given)
    except (TypeError, ValueError):
        raise ValueError(
            f"aggregator must be a rule such as GFedFilt(Tikhonov(mu=1.0)) or FedAvg(), got {rule!r}"
        ) from None
