"""The tables of a report, as HTML and as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedfilt.runs.groups import furthest, groups, seeds_of
from fedfilt.runs.records import Records
from fedfilt.show.report.terms import term
from fedfilt.show.words import happening, last, spread

ROWS = 200  # devices in a table; the CSV file has all
SUMMARY = ("run", "rounds", "local test", "std of devices", "worst device", "global test", "std of devices")
COSTS = ("latency", "desync", "joules", "bytes")


def csv_files(runs: Sequence[Records]) -> dict[str, str]:
    """The numbers as CSV: a line per run, per run and round, per run and device, per event."""
    per_round: list[list[Any]] = [
        ["run", "rule", "seed", "round", "loss", "latency_seconds", "desync_seconds", "joules", "bytes"]
    ]
    per_round[0] += ["local", "local_std", "local_worst", "global", "global_std", "global_worst"]
    per_device: list[list[Any]] = [["run", "rule", "seed", "device", "room", "samples", "local", "global"]]
    per_device[0] += [f"last_round_{name}" for name in ("seconds", "joules", "bytes", "outcome")]
    for run in runs:
        head: list[Any] = [run.name, run.rule, run.seed]
        for r in run.rounds:
            time, mixed = r["time"], r.get("mixed", {})
            costs = [time.get(key) for key in ("latency", "desync", "joules", "bytes")]
            scores = [mixed.get(test, {}).get(key) for test in ("local", "global") for key in ("mean", "std", "worst")]
            per_round.append([*head, r["round"], *map(short, [r.get("loss"), *costs, *scores])])
        per_device += [[*head, *row] for row in device_rows(run)]
    names, rows = _summary_rows(runs)
    return {
        "summary.csv": csv_text([names, *rows]),
        "rounds.csv": csv_text(per_round),
        "devices.csv": csv_text(per_device),
        "events.csv": csv_text(
            [
                ["run", "round", "device", "event"],
                *([r.name, e.round, e.device, happening(e._replace(device=None))] for r in runs for e in r.events),
            ]
        ),
    }


def device_rows(run: Records) -> list[list[Any]]:
    columns = run.columns()
    samples = run.weights()
    rooms = None if run.graph is None else run.graph.rooms
    own, everybody = run.accuracies("local"), run.accuracies("global")

    def cell(values: Any, i: int) -> Any:
        return values[i] if values is not None and i < len(values) else None

    rows = []
    for i in range(run.count):
        seconds = [cell(columns.get(key), i) for key in ("compute_seconds", "send_seconds")]
        total = None if None in seconds else seconds[0] + seconds[1]
        numbers = [cell(samples, i), cell(own, i), cell(everybody, i), total]
        numbers += [cell(columns.get(key), i) for key in ("joules", "bytes")]
        room = cell(rooms, i)
        rows.append([i, "" if room is None else room, *map(short, numbers), cell(columns.get("outcome"), i) or ""])
    return rows


def _summary_rows(runs: Sequence[Records]) -> tuple[list[str], list[list[Any]]]:
    head = ["run", "rounds", "local", "local_std", "local_worst", "global", "global_std", "latency_seconds"]
    head += ["desync_seconds", "joules", "bytes"]
    rows = []
    for run in runs:
        scores = [last(run, "local", key) for key in ("mean", "std", "worst")]
        scores += [last(run, "global", key) for key in ("mean", "std")]
        costs = [float(run.spent(key)[-1]) for key in COSTS]
        rows.append([run.name, run.rounds[-1]["round"], *map(short, scores), *map(short, costs)])
    return head, rows


def summary(runs: Sequence[Records]) -> str:
    seeds = groups(runs)
    words = "accuracy at the last test, costs of all rounds (simulated)"
    if all(len(group) == 1 for group in seeds.values()):
        return _summary_table({run.name: [run] for run in runs}, words)
    single = _summary_table({run.name: [run] for run in runs}, words)
    return (
        _summary_table(seeds, f"{words}; mean ± standard deviation over seeds")
        + f"<details><summary>Every seed</summary>{single}</details>"
    )


def _summary_table(rows: Mapping[str, Sequence[Records]], caption: str) -> str:
    """A row per name: of one run, or of the seeds of a rule that have come furthest."""
    names = [*SUMMARY, "latency", "desynchronisation", "energy", "sent"]
    head = "".join(f"<th>{term(name, {'desynchronisation': 'desync'}.get(name, name))}</th>" for name in names)
    columns = [("local", "mean"), ("local", "std"), ("local", "worst"), ("global", "mean"), ("global", "std")]
    chosen = {name: furthest(group, "local") or furthest(group, "global") or group for name, group in rows.items()}
    scores = {
        name: [[v for v in (last(run, *column) for run in group) if np.isfinite(v)] for column in columns]
        for name, group in chosen.items()
    }
    best = [max((np.mean(found[i]) for found in scores.values() if found[i]), default=None) for i in (0, 3)]
    body = []
    for name, group in chosen.items():
        done = f"{min(run.rounds[-1]['round'] for run in group)} of {group[0].planned}"
        if len(rows[name]) > 1:
            done += f", {seeds_of(group, rows[name])}"
        cells = [f"<td>{escape(name)}</td><td>{done}</td>"]
        for i, values in enumerate(scores[name]):
            top = len(rows) > 1 and i in (0, 3) and values and np.mean(values) == best[i // 3]
            cells.append(f"<td{' class=best' if top else ''}>{spread(values)}</td>")
        latency, desync, joules, sent = (float(np.mean([run.spent(key)[-1] for run in group])) for key in COSTS)
        cells.append(
            f"<td>{latency:.4g} s</td><td>{desync:.3g} s</td><td>{joules:.3g} J</td><td>{sent / 1e6:.4g} MB</td>"
        )
        body.append("<tr>" + "".join(cells) + "</tr>")
    return (
        f"<div class='scroll'><table><caption>{caption}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return table.getvalue()


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula.

    >>> _cell("=1+1"), _cell("kitchen"), _cell("-0.5")
    ("'=1+1", 'kitchen', '-0.5')
    """
    if not isinstance(value, str) or value[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def short(value: Any) -> Any:
    """A number with the digits it has, at most ten, and nothing for what is not known."""
    if value is None or (isinstance(value, float | np.floating) and not np.isfinite(value)):
        return ""
    if isinstance(value, np.float32):
        return f"{value:.6g}"
    return f"{round(float(value), 12):.10g}" if isinstance(value, float | np.floating) else value
