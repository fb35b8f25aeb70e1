"""Settings and curves of every run for MLflow: in its database file, or at the address of its server."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from fedfilt.export._writing import Wanted
from fedfilt.runs.numbers import moments, numbers
from fedfilt.runs.records import Records

OUT = ""  # where MLflow itself would
DEVICES = False
MOST_METRICS, MOST_PARAMS, LONGEST = 1000, 100, 6000  # in a request, and letters of a setting: MLflow's own limits
NAME = re.compile(r"[\w. /-]{1,250}")  # of a setting
STATUS = {"finished": "FINISHED", "running": "RUNNING", "stopping": "RUNNING"}
RUN, HOLDS = "fedfilt.run", "fedfilt.holds"  # tags: which run it is, and what of it is there

Given = TypeVar("Given")


def write(runs: Sequence[Records], target: str, wanted: Wanted) -> str:
    """Write every run once: a complete one already there is left alone, an earlier state of it is replaced."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # an export tells nobody else
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        client = MlflowClient(_address(target))
        known = client.get_experiment_by_name(wanted.title)
        experiment = client.create_experiment(wanted.title) if known is None else known.experiment_id
        new = sum(_write(client, experiment, run, wanted) for run in wanted.watch(runs))
        there = f", {len(runs) - new} were already there" if new < len(runs) else ""
        return f"{new} runs in the experiment {wanted.title!r} of {client.tracking_uri}{there}"
    except MlflowException as error:
        raise ValueError(f"MLflow refused: {error}") from None


def _address(target: str) -> str | None:
    """What MLflow is to write to: an address as it is, a file as a database; None for its own choice."""
    if not target or "://" in target:
        return target or None
    path = Path(target).resolve()
    if path.is_dir():
        raise ValueError(f"--out must be a file, such as {path / 'mlflow.db'}, or an address, got the folder {target}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def _write(client: Any, experiment: str, run: Records, wanted: Wanted) -> bool:
    """Write a run unless it is already there; returns whether it was written."""
    from mlflow.entities import Metric, Param

    first = run.line(run.rounds[0]["round"])  # with the seconds that it took, it is unlike that of any other run
    mark = hashlib.sha256(json.dumps([run.environment.get("config_hash"), first]).encode()).hexdigest()[:16]
    devices = "all" if wanted.devices is None else ",".join(map(str, sorted(wanted.devices))) or "none"
    holds = f"round {run.rounds[-1]['round']}, devices {devices}"[:LONGEST]
    earlier = client.search_runs([experiment], f"tags.`{RUN}` = '{mark}'")
    if not wanted.force and any(one.data.tags.get(HOLDS) == holds for one in earlier):
        return False
    for one in earlier:
        client.delete_run(one.info.run_id)
    ended = {round: int(1000 * seconds) for round, seconds in moments(run).items()}
    tags = {RUN: mark, "fedfilt.rule": run.rule, "fedfilt.seed": str(run.seed)}
    for table, key in ((run.environment, "fedfilt"), (run.environment, "config_hash"), (run.result, "models_sha256")):
        if key in table:
            tags[f"fedfilt.{'version' if key == 'fedfilt' else key}"] = str(table[key])[:LONGEST]
    made = client.create_run(experiment, min(ended.values()), tags, run.name[:LONGEST]).info.run_id
    params = (Param(key, str(value)[:LONGEST]) for key, value in _flat(run.resolved) if NAME.fullmatch(key))
    for some in _parts(params, MOST_PARAMS):
        client.log_batch(made, params=some)
    found = numbers(run, wanted.devices)
    metrics = (Metric(one.key[:250], float(one.value), ended[one.round], one.round) for one in found)
    for batch in _parts(metrics, MOST_METRICS):
        client.log_batch(made, metrics=batch)
    client.set_terminated(made, STATUS.get(run.status, "KILLED"), max(ended.values()))
    client.set_tag(made, HOLDS, holds)  # at the very end: a run without it is written again
    return True


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a config with dotted names."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _parts(values: Iterable[Given], size: int) -> Iterator[list[Given]]:
    rest = iter(values)
    while some := list(islice(rest, size)):
        yield some
