"""What a line of metrics.jsonl must look like, so that whoever reads it may rely on it."""

import math
from typing import Any

Table = dict[str, Any]
TESTS = ("local", "global")
COSTS = ("deadline", "latency", "desync", "flops", "joules", "bytes")
COLUMNS = ("compute_seconds", "send_seconds", "idle_seconds", "joules", "bytes", "epochs", "data_fraction", "density")
LISTS = ("late", "rejected", "joined", "left", "moved", "away")  # of devices


def checked(line: Any) -> Table:
    """The line, if all that is read of it is of its kind; else ValueError. Unknown keys are passed over.

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
    for key in LISTS:
        for place in (table, time):
            _need(_list(place.get(key), _whole), f"{key} must be a list of devices")
    _need(all(str(key).isdigit() for key in _table(table.get("absent"), "absent")), "absent must name devices")
    _need(_list(table.get("events"), lambda event: True), "events must be a list")
    _columns(_table(time.get("devices"), "devices"))
    for stage in ("mixed", "trained"):
        tests = _table(table.get(stage), stage)
        for test in TESTS:
            if tests.get(test):
                _test(_table(tests[test], test))
    return table


def _columns(columns: Table) -> None:
    """Per-device columns: numbers, all of one length."""
    lengths = set()
    for key in (*COLUMNS, "outcome"):
        if columns.get(key) is not None:
            kind = (lambda value: isinstance(value, str)) if key == "outcome" else _any_number
            _need(_list(columns[key], kind), f"{key} of devices must be a list of one kind")
            lengths.add(len(columns[key]))
    _need(len(lengths) <= 1, "columns of devices must have one length")
    _need(_list(columns.get("epochs"), _whole), "epochs must be whole numbers")
    _need(_list(columns.get("bytes"), _whole), "bytes must be whole numbers")


def _test(found: Table) -> None:
    """Accuracies of a test."""
    _need(_number(found.get("mean")), "mean must be a number")
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
    return value is None or (isinstance(value, list) and all(map(kind, value)))


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _any_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _number(value: Any) -> bool:
    return _any_number(value) and math.isfinite(value)
