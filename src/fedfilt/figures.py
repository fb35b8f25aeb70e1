"""Pictures of buildings, filters and runs: functions that return Plotly figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedfilt.building import Building
from fedfilt.checks import Array
from fedfilt.graph import Graph


def graph_signals(building: Building, graph: Graph, signals: Mapping[str, Array]) -> Any:
    """A panel per signal, seen from above: rooms as boxes, links as lines, devices coloured by their value.

    The paper's figure "An illustration of different graph filtering on a single shared gradient update".
    """
    columns = 2 if len(signals) > 1 else 1
    rows = -(-len(signals) // columns)
    figure = make_subplots(rows, columns, subplot_titles=list(signals), horizontal_spacing=0.03, vertical_spacing=0.06)
    x, y = building.positions[:, 0], building.positions[:, 1]
    # One trace for all links: a gap (NaN) after each
    ends = np.column_stack([graph.edges, np.full(len(graph.edges), -1)]).ravel()
    lines = [np.where(ends < 0, np.nan, axis[ends]) for axis in (x, y)]
    limit = max(float(values.std()) for values in signals.values())  # colours saturate beyond, so that means show
    for panel, values in enumerate(signals.values()):
        place = {"row": panel // columns + 1, "col": panel % columns + 1}
        if building.boxes is not None:
            for (x0, y0, _), (x1, y1, _) in building.boxes:
                wall = {"color": "#999999", "width": 1}
                figure.add_shape(type="rect", x0=x0, y0=y0, x1=x1, y1=y1, line=wall, layer="below", **place)
        links = {"color": "#bbbbbb", "width": 1}
        figure.add_trace(go.Scatter(x=lines[0], y=lines[1], mode="lines", line=links, hoverinfo="skip"), **place)
        markers = {
            "color": values,
            "coloraxis": "coloraxis",
            "size": 9,
            "line": {"color": "#333333", "width": 0.5},
        }
        labels = [f"{name}: {value:.3f}" for name, value in zip(building.names, values, strict=True)]
        figure.add_trace(go.Scatter(x=x, y=y, mode="markers", marker=markers, text=labels, hoverinfo="text"), **place)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    for number in range(1, len(signals) + 1):
        suffix = "" if number == 1 else str(number)
        figure.update_layout({f"yaxis{suffix}": {"scaleanchor": f"x{suffix}"}})
    figure.update_layout(
        template="plotly_white",
        showlegend=False,
        height=460 * rows,
        width=520 * columns,
        margin={"l": 10, "r": 10, "t": 40, "b": 10},
        coloraxis={"colorscale": "RdBu_r", "cmin": -limit, "cmax": limit, "colorbar": {"title": "value"}},
    )
    return figure


def label_counts(counts: Array) -> Any:
    """Training samples per device and label: who holds what."""
    text = [[str(n) if n else "" for n in row] for row in counts]
    heat = go.Heatmap(z=counts, text=text, texttemplate="%{text}", colorscale="Blues", colorbar={"title": "samples"})
    figure = go.Figure(heat)
    figure.update_layout(
        template="plotly_white",
        title="training samples per device and label",
        xaxis={"title": "label", "dtick": 1},
        yaxis={"title": "device", "autorange": "reversed", "dtick": 1 if len(counts) <= 40 else None},
        width=760,
        height=max(360, 140 + 22 * min(len(counts), 60)),
    )
    return figure


def accuracy_curves(curves: Mapping[str, Array], title: str) -> Any:
    """Accuracy against rounds: for every name an array of (round, mean accuracy)."""
    figure = go.Figure()
    for name, points in curves.items():
        figure.add_trace(go.Scatter(x=points[:, 0], y=points[:, 1], name=name, mode="lines+markers"))
    figure.update_layout(
        template="plotly_white",
        title=title,
        colorway=["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"],
        xaxis={"title": "round"},
        yaxis={"title": "accuracy", "tickformat": ".0%"},
        width=760,
        height=440,
    )
    return figure


def timeline(columns: Mapping[str, Array], deadline: float | None, names: Sequence[str], title: str) -> Any:
    """The round as bars, a device a line: computing, sending, idle (seconds), against the deadline."""
    colours = {"compute_seconds": "#0072B2", "send_seconds": "#E69F00", "idle_seconds": "#DDDDDD"}
    figure = go.Figure()
    for key, colour in colours.items():
        words = key.removesuffix("_seconds")
        figure.add_trace(go.Bar(y=list(names), x=columns[key], name=words, orientation="h", marker={"color": colour}))
    if deadline is not None:
        figure.add_vline(x=deadline, line={"color": "#D55E00", "dash": "dash"}, annotation_text="deadline")
    figure.update_layout(
        template="plotly_white",
        title=title,
        barmode="stack",
        xaxis={"title": "seconds"},
        yaxis={"autorange": "reversed", "dtick": 1 if len(names) <= 60 else None},
        width=860,
        height=max(320, 150 + 20 * min(len(names), 60)),
    )
    return figure
