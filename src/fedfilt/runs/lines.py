"""The lines of metrics.jsonl: writing one from a record, checking one, and the result of all."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfilt._reading import read
from fedfilt._types import Table
from fedfilt.graph.serial import links_of
from fedfilt.rounds.scores import summary
from fedfilt.rounds.types import Record
from fedfilt.training.client import passes

if TYPE_CHECKING:  # readers of lines need no torch
    from fedfilt.runs.build import Run

MAIN = ("local", "global")  # tests that judge methods
TESTS = (*MAIN, "validation")
COSTS = ("deadline", "latency", "desync", "flops", "joules", "bytes")
NUMBERS = ("compute_seconds", "send_seconds", "idle_seconds", "joules", "data_fraction", "density")
COUNTS = ("bytes", "samples", "epochs")
MOST_DEVICES = 250_000  # most devices in a line
MOST_LINES = 4 << 30  # bytes of a whole metrics.jsonl when a run continues
MOST_NAME = 60  # characters in the name of a score
SPENT = ("epsilon", "delta", "noise")
# What the result keeps of a test: the paper's scores for labels; a name and other scores if not the accuracy
KEPT = ("mean", "std", "worst", "worst_device", "metric", "lower", "scores", "I_1", "I_2", "I_3", "I_4")
LISTS = ("late", "rejected", "joined", "left", "moved", "away", "drawn")  # of devices


def line_of(run: "Run", record: Record, before: Table | None = None) -> Table:
    """A record as a line of metrics.jsonl; `before` is the previous round's line, None for the first."""
    line: Table = {
        "round": record.round,
        "seconds": round(record.seconds, 4),
        "loss": _loss(run, record),
        "samples": int(record.samples.sum()),
        "time": _time(run, record),
    }
    if run.events is not None or record.events:
        line["events"] = [{"what": what, "device": device, **details} for _, device, what, details in record.events]
    if run.events is not None:
        line["away"] = list(record.away)
    if record.drawn is not None:
        line["drawn"] = list(record.drawn)
    if run.config.privacy.noisy:
        line["privacy"] = _spent(run, record, before)
    if record.graph is not None:
        line["graph"] = links_of(record.graph)
    if record.kept is not None:
        line["kept_bytes"] = record.kept.tolist()
    if record.measured:
        line["measured"] = {name: np.round(found.astype(float), 6).tolist() for name, found in record.measured.items()}
    if record.absent:
        line["absent"] = {str(device): why for device, why in sorted(record.absent.items())}
    for name in ("mixed", "trained"):
        tests = getattr(record, name)
        if tests is not None:
            line[name] = summary(tests, run.data, run.trainer.goal)
    return line


def _loss(run: "Run", record: Record) -> float | None:
    """The paper's objective Σ κ_i L_i over the devices that trained, with the weights used for mixing."""
    trained = np.isfinite(record.losses)
    counts = run.hardware.samples if run.config.weights == "held" else record.samples
    weights = np.where(trained & (record.samples > 0), counts, 0)
    if not weights.any():
        return float(record.losses[trained].mean()) if trained.any() else None
    return float(np.average(record.losses[trained], weights=weights[trained]))


def _spent(run: "Run", record: Record, before: Table | None) -> Table:
    """Privacy spent so far: epsilon of the device that took part most often, and of every device.

    None stands for an epsilon that is too large to promise anything.
    """
    privacy = run.config.privacy
    noise = privacy.multiplier(run.config.rounds)
    played = np.array(before["privacy"]["rounds"]) if before is not None else np.zeros(run.graph.count, int)
    played = played + (record.samples > 0)
    found = {count: privacy.spent(noise, int(count)) for count in set(played.tolist())}
    told = {count: float(f"{value:.6g}") if math.isfinite(value) else None for count, value in found.items()}
    return {
        "epsilon": told[int(played.max())],
        "delta": privacy.delta,
        "noise": float(f"{noise:.6g}"),
        "rounds": played.tolist(),
        "devices": [told[count] for count in played.tolist()],
    }


def _time(run: "Run", record: Record) -> Table:
    """Simulated time, energy and bytes of a round, in total and per device."""
    plans = record.schedule.plans
    arrivals = record.costs[:, :2].sum(axis=1)
    there = arrivals > 0
    more = int(run.extra(record.round, run.config.rounds))
    epochs = np.array([plan.epochs + more if plan.epochs else 0 for plan in plans])
    trained = np.array([plan.samples(held) for plan, held in zip(plans, run.hardware.samples, strict=True)])
    joules = record.costs[:, 2:4].sum(axis=1)
    columns = {
        "compute_seconds": record.costs[:, 0],
        "send_seconds": record.costs[:, 1],
        "idle_seconds": record.costs[:, 4],
        "joules": joules,
    }
    return {
        "deadline": record.schedule.deadline if math.isfinite(record.schedule.deadline) else None,
        "latency": record.latency,
        "desync": max(0.0, record.latency - float(arrivals[there].min())) if there.any() else 0.0,
        "flops": round(run.flops_per_sample * passes(run.config.client) * int((epochs * trained).sum())),
        "joules": float(joules.sum()),
        "bytes": int(record.sizes.sum()),
        "late": np.flatnonzero(record.late).tolist(),
        "devices": {
            **{name: [float(f"{value:.6g}") for value in column] for name, column in columns.items()},
            "bytes": record.sizes.tolist(),
            "samples": record.samples.astype(int).tolist(),
            "epochs": epochs.tolist(),
            "data_fraction": [round(plan.data_fraction, 6) for plan in plans],
            "density": [round(plan.density, 6) for plan in plans],
            "clock": [round(plan.clock, 6) for plan in plans],
            "bandwidth_hz": [float(f"{plan.bandwidth_hz:.6g}") for plan in plans],
            "outcome": [plan.outcome for plan in plans],
        },
    }


def read_lines(folder: Path) -> list[Table]:
    """The lines of metrics.jsonl; a last line cut short by a crash is skipped."""
    path = folder / "metrics.jsonl"
    texts = read(path, MOST_LINES).decode().splitlines() if path.exists() else []
    found = []
    for number, text in enumerate(texts, start=1):
        try:
            found.append(json.loads(text))
        except (ValueError, RecursionError):
            if number < len(texts):
                raise ValueError(f"{path} is damaged in line {number}") from None
    return found


def of_devices(line: Table, count: int) -> Table:
    """A line extended to `count` devices: those that had not joined yet were away."""
    if not (columns := line["time"]["devices"]) or len(columns["epochs"]) >= count:
        return line
    new = count - len(columns["epochs"])
    longer = {key: values + new * ["away" if key == "outcome" else 0] for key, values in columns.items()}
    found = {**line, "time": {**line["time"], "devices": longer}}
    for stage in ("mixed", "trained"):
        if stage in line:
            tests = line[stage].items()
            found[stage] = {name: {**test, "devices": test["devices"] + new * [None]} for name, test in tests}
    if privacy := line.get("privacy"):
        found["privacy"] = {**privacy, **{key: privacy[key] + new * [0] for key in ("rounds", "devices")}}
    return found


def brief(line: Table) -> Table:
    """The part of a line that the result needs, without values per device, to save memory in long runs."""
    kept = {key: line[key] for key in ("round", "seconds", "samples", "mixed", "privacy") if key in line}
    return kept | {"time": {key: line["time"][key] for key in COSTS if key in line["time"]}}


def result_of(played: list[Table]) -> Table:
    """The result of all lines: the last round, the best by mean score (local and global), and total simulated costs."""
    result: Table = {}
    tested = [line for line in played if "mixed" in line]
    for test in TESTS:
        found = [line for line in tested if test in line["mixed"]]
        if found:
            last = found[-1]
            lower = last["mixed"][test].get("lower", False)
            best = (min if lower else max)(found, key=lambda line: line["mixed"][test]["mean"])
            result[test] = {
                name: {
                    "round": line["round"],
                    **{key: line["mixed"][test][key] for key in KEPT if key in line["mixed"][test]},
                }
                for name, line in (("last", last), ("best", best))
            }
    if played and "privacy" in played[-1]:
        result["privacy"] = {key: played[-1]["privacy"][key] for key in SPENT}
    names = {"I_5_flops": "flops", "I_6_latency_seconds": "latency", "I_7_desync_seconds": "desync"}
    result["totals"] = {
        name: sum(line["time"][key] for line in played)
        for name, key in (names | {k: k for k in ("joules", "bytes")}).items()
    }
    return result


def checked(line: Any) -> Table:
    """The line, if everything that is read from it has the right type; else ValueError. Unknown keys are ignored.

    >>> checked({"round": 3, "time": {"latency": 0.5}})["round"]
    3
    >>> checked({"round": 3, "time": {"latency": "long"}})
    Traceback (most recent call last):
    ValueError: latency must be a number
    """
    table = _table(line, "a line")
    time = _table(table.get("time"), "time")
    _need(_whole(table.get("round")) and table["round"] > 0, "round must be a whole number")
    for key in ("seconds", "loss", "samples"):
        _need(table.get(key) is None or _number(table[key]), f"{key} must be a number")
    for key in COSTS:
        _need(time.get(key) is None or _number(time[key]), f"{key} must be a number")
    privacy = _table(table.get("privacy"), "privacy")
    for key in SPENT:
        _need(privacy.get(key) is None or _number(privacy[key]), f"{key} must be a number")
    for key, found in _table(table.get("measured"), "measured").items():
        _need(_number(found) or (isinstance(found, list) and _list(found, _number)), f"{key} must be numbers")
    for key in LISTS:
        for place in (table, time):
            _need(_list(place.get(key), _whole), f"{key} must be a list of devices")
    absent = list(_table(table.get("absent"), "absent"))
    _need(_list(absent, lambda key: str(key).isdigit()), "absent must name devices")
    _need(_list(table.get("events"), lambda event: True), "events must be a list")
    found = _table(table.get("graph"), "graph")
    _need(_list(found.get("clusters"), _whole), "clusters must be whole numbers")
    _columns(_table(time.get("devices"), "devices"))
    for stage in ("mixed", "trained"):
        tests = _table(table.get(stage), stage)
        for test in TESTS:
            if tests.get(test):
                _test(_table(tests[test], test))
    return table


def _columns(columns: Table) -> None:
    """Check columns per device: numbers, all of the same length."""
    lengths = set()
    for key in (*NUMBERS, *COUNTS, "outcome"):
        if columns.get(key) is not None:
            kind = (lambda value: isinstance(value, str)) if key == "outcome" else _any_number
            _need(_list(columns[key], kind), f"{key} of devices must be a list of one kind")
            lengths.add(len(columns[key]))
    _need(len(lengths) <= 1, "columns of devices must have one length")
    for key in COUNTS:
        _need(_list(columns.get(key), _whole), f"{key} must be whole numbers")


def _test(found: Table) -> None:
    """Check the scores of a test."""
    _need(_number(found.get("mean")), "mean must be a number")
    metric = found.get("metric", "")
    word = isinstance(metric, str) and len(metric) <= MOST_NAME and (not metric or metric.isidentifier())
    _need(word, "metric must be the name of a score")
    _need(found.get("lower") in (None, False, True), "lower must be true or false")
    _need(all(map(_number, _table(found.get("scores"), "scores").values())), "scores must be numbers")
    for key in ("std", "worst"):
        _need(found.get(key) is None or _number(found[key]), f"{key} must be a number")
    devices = found.get("devices")
    _need(_list(devices, lambda value: value is None or _number(value)), "devices must be a list of numbers")
    worst = found.get("worst_device", 0)
    _need(_whole(worst) and (worst == 0 or worst < len(devices or [])), "worst_device must be a device")
    confusion = found.get("confusion") or []
    rows = isinstance(confusion, list) and all(isinstance(row, list) and _list(row, _number) for row in confusion)
    _need(rows and len({len(row) for row in confusion}) <= 1, "confusion must be a matrix")


def _need(true: bool, words: str) -> None:
    if not true:
        raise ValueError(words)


def _table(value: Any, name: str) -> Table:
    if value is None:
        return {}
    _need(isinstance(value, dict), f"{name} must be a table")
    return dict(value)


def _list(value: Any, kind: Any) -> bool:
    return value is None or (isinstance(value, list) and len(value) <= MOST_DEVICES and all(map(kind, value)))


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _any_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _number(value: Any) -> bool:
    return _any_number(value) and math.isfinite(value)
