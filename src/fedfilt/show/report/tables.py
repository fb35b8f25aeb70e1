"""The tables of a report, as HTML and as CSV."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedfilt.export.csv import csv_text
from fedfilt.runs.groups import differences, furthest, groups, seeds_of
from fedfilt.runs.lines import MAIN
from fedfilt.runs.records import Records
from fedfilt.runs.rules import Look
from fedfilt.show.figures.curves import paired
from fedfilt.show.report.terms import term
from fedfilt.show.words import happening, last, metric_of, spread

ROWS = 200  # devices in a table; the CSV file has them all
COSTS = ("latency", "desync", "joules", "bytes")
# Columns of the summary: heading, the term that explains it, test, number of that test, and stage
SUMMARY = (
    ("local test", "local test", "local", "mean", "mixed"),
    ("fine-tuned", "fine-tuned", "local", "mean", "trained"),
    ("std of devices", "", "local", "std", "mixed"),
    ("worst device", "worst device", "local", "worst", "mixed"),
    ("global test", "global test", "global", "mean", "mixed"),
    ("std of devices", "", "global", "std", "mixed"),
)
BEST = (("local", "mean", "mixed"), ("local", "mean", "trained"), ("global", "mean", "mixed"))  # set in bold


def csv_files(runs: Sequence[Records]) -> dict[str, str]:
    """The numbers as CSV files: one line per run; per run and round; per run and device; per event; per two rules."""
    unlike = differences(runs)
    head = ["run", "rule", "seed", *unlike]
    who = {
        run: [run.name, run.rule, run.seed, *values] for run, values in zip(runs, _values(runs, unlike), strict=True)
    }
    per_round: list[list[Any]] = [
        [*head, "round", "loss", "latency_seconds", "desync_seconds", "joules", "bytes"],
    ]
    per_round[0] += ["local", "local_std", "local_worst", "global", "global_std", "global_worst"]
    per_round[0] += ["local_trained", "global_trained", "local_loss", "global_loss"]
    per_device: list[list[Any]] = [[*head, "device", "room", "samples", "local", "global"]]
    per_device[0] += [f"last_round_{name}" for name in ("seconds", "joules", "bytes", "outcome")]
    for run in runs:
        for r in run.rounds:
            time, mixed, trained = r["time"], r.get("mixed", {}), r.get("trained", {})
            costs = [time.get(key) for key in ("latency", "desync", "joules", "bytes")]
            scores = [mixed.get(test, {}).get(key) for test in MAIN for key in ("mean", "std", "worst")]
            scores += [
                found.get(test, {}).get(key) for found, key in ((trained, "mean"), (mixed, "loss")) for test in MAIN
            ]
            per_round.append([*who[run], r["round"], *map(short, [r.get("loss"), *costs, *scores])])
        per_device += [[*who[run], *row] for row in device_rows(run)]
    names, rows = _summary_rows(runs)
    found = {
        "summary.csv": csv_text(
            [[*names[:1], *unlike, *names[1:]], *([r[0], *who[run][3:], *r[1:]] for run, r in rows)]
        ),
        "rounds.csv": csv_text(per_round),
        "devices.csv": csv_text(per_device),
        "events.csv": csv_text(
            [
                ["run", "round", "device", "event"],
                *([r.name, e.round, e.device, happening(e._replace(device=None))] for r in runs for e in r.events),
            ]
        ),
    }
    if len(groups(runs)) > 1:
        found["differences.csv"] = csv_text(_pairs(runs))
    return found


def _values(runs: Sequence[Records], unlike: Mapping[str, Sequence[Any]]) -> list[tuple[Any, ...]]:
    """For every run, the values of the keys in which the runs differ."""
    return list(zip(*(map(_cell_value, values) for values in unlike.values()), strict=True)) or [()] * len(runs)


def _cell_value(value: Any) -> Any:
    return "" if value is None else value


def _pairs(runs: Sequence[Records]) -> list[list[Any]]:
    """Every rule against every other: the mean difference over seeds and its interval."""
    rows: list[list[Any]] = [["test", "rule", "baseline", "seeds", "difference", "low_95", "high_95"]]
    for test in MAIN:
        for baseline in groups(runs):
            for row in paired(runs, baseline, test):
                numbers = map(short, (row.mean, row.low, row.high))
                rows.append([test, row.name, baseline, len(row.seeds), *numbers])
    return rows


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


def _summary_rows(runs: Sequence[Records]) -> tuple[list[str], list[tuple[Records, list[Any]]]]:
    head = ["run", "rounds", "local", "local_trained", "local_std", "local_worst", "global", "global_std"]
    head += ["latency_seconds", "desync_seconds", "joules", "bytes"]
    rows = []
    for run in runs:
        scores = [last(run, test, key, stage) for _, _, test, key, stage in SUMMARY]
        costs = [float(run.spent(key)[-1]) for key in COSTS]
        rows.append((run, [run.name, run.rounds[-1]["round"], *map(short, scores), *map(short, costs)]))
    return head, rows


def summary(runs: Sequence[Records]) -> str:
    seeds = groups(runs)
    real = [run.real_time for run in runs]
    measured = (
        "measured" if all(real) else "measured on real devices, otherwise simulated" if any(real) else "simulated"
    )
    words = f"{metric_of(runs).words} at the last test, costs of all rounds ({measured})"
    if all(len(group) == 1 for group in seeds.values()):
        return _summary_table({run.name: [run] for run in runs}, words)
    single = _summary_table({run.name: [run] for run in runs}, words)
    return (
        _summary_table(seeds, f"{words}; mean ± standard deviation over seeds")
        + f"<details><summary>Every seed</summary>{single}</details>"
    )


def _summary_table(rows: Mapping[str, Sequence[Records]], caption: str) -> str:
    """One row per name: a run, or those seeds of a rule that are furthest along."""
    chosen = {name: furthest(group, "local") or furthest(group, "global") or group for name, group in rows.items()}
    metric = metric_of([run for group in chosen.values() for run in group])
    scores = {
        column: {
            name: [v for v in (last(run, *column[2:]) for run in group) if np.isfinite(v)]
            for name, group in chosen.items()
        }
        for column in SUMMARY
    }
    scores = {column: found for column, found in scores.items() if column[4] == "mixed" or any(found.values())}
    best = {
        column: metric.best((float(np.mean(values)) for values in found.values() if values), default=None)
        for column, found in scores.items()
        if column[2:] in BEST and len(rows) > 1
    }
    names = [("run", ""), ("rounds", ""), *((words, explained) for words, explained, *_ in scores)]
    names += [
        ("latency", "latency"),
        ("desync", "desynchronisation"),
        ("energy", "joules, bytes"),
        ("sent", "joules, bytes"),
    ]
    body = []
    for name, group in chosen.items():
        done = f"{min(run.rounds[-1]['round'] for run in group)} of {group[0].planned}"
        if len(rows[name]) > 1:
            done += f", {seeds_of(group, rows[name])}"
        cells = [(f"{swatch(group[0].look) * (len(rows) > 1)}{escape(name)}", ""), (done, "")]
        for column, found in scores.items():
            values = found[name]
            top = column in best and values and float(np.mean(values)) == best[column]
            cells.append((spread(values, metric), " class=best" if top else ""))
        latency, desync, joules, sent = (float(np.mean([run.spent(key)[-1] for run in group])) for key in COSTS)
        cells += [
            (text, "")
            for text in (
                f"{latency:.4g}&nbsp;s",
                f"{desync:.3g}&nbsp;s",
                f"{joules:.3g}&nbsp;J",
                f"{sent / 1e6:.4g}&nbsp;MB",
            )
        ]
        body.append(cells)
    return table(names, body, caption)


def table(names: Sequence[tuple[str, str]], body: Sequence[Sequence[tuple[str, str]]], caption: str = "") -> str:
    """An HTML table: columns with the terms that explain them, cells (HTML) with attributes.

    Every cell carries its column's heading, which is shown instead of columns on narrow screens.
    """
    head = "".join(
        f"<th scope='col'>{term(explained, words) if explained else escape(words)}</th>" for words, explained in names
    )
    lines = []
    for cells in body:
        labelled = zip(names, cells, strict=True)
        lines.append(
            "".join(f"<td data-label='{escape(words)}'{more}>{text}</td>" for (words, _), (text, more) in labelled)
        )
    return (
        f"<div class='scroll'><table class='cards'>{f'<caption>{escape(caption)}</caption>' if caption else ''}"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table></div>"
    )


def swatch(look: Look) -> str:
    """A short line in a curve's colour and dash, as SVG; the page adds the marker."""
    dashes = {"dash": "6 4", "dot": "2 3", "dashdot": "6 3 2 3", "longdash": "9 4", "longdashdot": "9 3 2 3"}
    dash = f" stroke-dasharray='{dashes[look.dash]}'" if look.dash in dashes else ""
    line = f"<path d='M0 8H34' stroke='{look.colour}' stroke-width='2'{dash}/>"
    return f"<svg class='swatch' viewBox='0 0 34 16' aria-hidden='true' data-symbol='{look.symbol}'>{line}</svg>"


def short(value: Any) -> Any:
    """A number with at most ten digits, or nothing for an unknown one."""
    if value is None or (isinstance(value, float | np.floating) and not np.isfinite(value)):
        return ""
    if isinstance(value, np.float32):
        return f"{value:.6g}"
    return f"{round(float(value), 12):.10g}" if isinstance(value, float | np.floating) else value
