"""The rounds of runs as rows of a data frame."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fedfilt._brief import frame
from fedfilt._types import Table

STAGES = {"mixed": "", "trained": "trained_"}  # prefix of a column: tests after mixing, and before


def rows_of(lines: Iterable[Table], devices: bool = False) -> Iterator[Table]:
    """One row per line of metrics.jsonl; with `devices`, one per tested round and device.

    Columns are the keys of a line, and those inside `mixed` and `trained` with the names of the tables around them:
    round, seconds, loss, samples; local_mean, local_std, local_worst, ..., global_mean, ...; the same with the prefix
    trained_ if models were tested before mixing; latency, joules, bytes, ...; with noise, epsilon, ... With `devices`:
    round, device, local, global, trained_local, trained_global.

    >>> lines = [{"round": 1, "time": {"bytes": 8}, "mixed": {"local": {"mean": 0.5, "devices": [0.25, 0.75]}}}]
    >>> list(rows_of(lines)), list(rows_of(lines, devices=True))[1]
    ([{'round': 1, 'local_mean': 0.5, 'bytes': 8}], {'round': 1, 'device': 1, 'local': 0.75})
    """
    for line in lines:
        tests = {
            STAGES[stage] + test: found for stage in STAGES for test, found in (line.get(stage) or {}).items() if found
        }
        if devices:
            for device in range(max((len(found["devices"]) for found in tests.values()), default=0)):
                scores = {test: _score(found["devices"], device) for test, found in tests.items()}
                yield {"round": line["round"], "device": device, **scores}
            continue
        row = _numbers(line)
        for test, found in tests.items():
            row |= {f"{test}_{key}": value for key, value in _numbers(found).items()}
        yield row | _numbers(line.get("time") or {}) | _numbers(line.get("privacy") or {})


def frame_of(rows: Iterable[Table]) -> Any:
    """Rows as a data frame of pandas or polars, with NaN for missing numbers."""
    kept = list(rows)
    names = dict.fromkeys(name for row in sorted(kept, key=len, reverse=True) for name in row)  # tested rounds have all
    return frame({name: _alike([row.get(name, np.nan) for row in kept]) for name in names})


def _alike(values: list[Any]) -> list[Any]:
    """The values of a column; all floats if one is, as polars requires."""
    return [float(value) for value in values] if any(isinstance(value, float) for value in values) else values


def _numbers(table: Mapping[str, Any]) -> Table:
    return {key: value for key, value in table.items() if type(value) in (int, float)}


def _score(devices: Any, device: int) -> float:
    value = devices[device] if device < len(devices) else None
    return np.nan if value is None else float(value)
