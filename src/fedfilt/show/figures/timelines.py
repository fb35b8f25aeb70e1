"""The round as bars: computing, sending and waiting of every device against the deadline."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedfilt._types import Array
from fedfilt.runs.records import Records
from fedfilt.runs.rules import ORANGE, RED
from fedfilt.show.figures.style import BLUE, LEGEND, blank, empty, styled

SHOWN = 60  # most devices in one picture


def timeline(columns: Mapping[str, Array], deadline: float | None, names: Sequence[str], title: str) -> Any:
    """The round as bars, one line per device: seconds computing, sending and idle, against the deadline."""
    looks = {"compute_seconds": (BLUE, ""), "send_seconds": (ORANGE, "/"), "idle_seconds": ("#DDDDDD", "")}
    figure = blank()
    for key, (colour, shape) in looks.items():
        words = key.removesuffix("_seconds")
        marker = {"color": colour, "pattern": {"shape": shape, "fillmode": "overlay", "fgcolor": "#7A5300", "size": 5}}
        hover = "%{y}: %{x:.4g} s<extra>" + words + "</extra>"
        bar = go.Bar(y=list(names), x=columns[key], name=words, orientation="h", marker=marker, hovertemplate=hover)
        figure.add_trace(bar)
    if deadline is not None:
        figure.add_vline(x=deadline, line={"color": RED, "dash": "dash", "width": 2})
        mark = {"text": "deadline", "x": deadline, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
        figure.add_annotation(**mark, font={"color": RED})
    return styled(
        figure,
        title,
        max(320, 150 + 20 * min(len(names), SHOWN)),
        barmode="stack",
        bargap=0.15,
        xaxis={"title": "simulated seconds"},
        yaxis={"autorange": "reversed", "dtick": 1 if len(names) <= SHOWN else None, "automargin": True},
        legend=LEGEND,
        margin={"l": 70, "r": 16, "t": 70, "b": 70},
    )


def round_timeline(run: Records, number: int | None = None) -> Any:
    """The timeline of a round (by default the last); of many devices, only the ones that finished last."""
    columns = run.columns(number)
    keys = ("compute_seconds", "send_seconds", "idle_seconds")
    if not run.rounds or any(key not in columns for key in keys):
        return empty("no round with times yet")
    number = run.rounds[-1]["round"] if number is None else number
    found = next(r for r in run.rounds if r["round"] == number)
    arrays = {key: np.array(columns[key], dtype=float) for key in keys}
    order = np.arange(len(arrays[keys[0]]))
    title = f"round {number}: who computes, sends and waits"
    if len(order) > SHOWN:
        order = np.argsort(-(arrays[keys[0]] + arrays[keys[1]]), kind="stable")[:SHOWN]
        title = f"round {number}: the {SHOWN} devices that finished last"
    late = found["time"].get("late") or []
    names = [f"{i} late" if i in late else str(i) for i in order]
    figure = timeline({key: a[order] for key, a in arrays.items()}, found["time"].get("deadline"), names, title)
    figure.update_yaxes(title="device", type="category")
    figure.update_xaxes(title="seconds" if run.real_time else "simulated seconds")
    return figure
