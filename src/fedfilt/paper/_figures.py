"""Pictures that only the paper's items need; others come from `fedfilt.show.figures`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.paper._printed import WORDS
from fedfilt.runs.rules import look

COLOURS = ["#000000", "#D55E00", "#E69F00", "#009E73", "#0072B2", "#CC79A7", "#56B4E9"]


def curves(panels: Mapping[str, Mapping[str, Array]], axis: str, columns: int = 2, low: float | None = None) -> Any:
    """A panel per title with a curve per rule: (round, mean over seeds, each seed ...), the seeds' range as a band.

    A rule may be followed by where it was tried, as in "mu=10, Setup 2": the second place is drawn in dots.
    """
    rows = -(-len(panels) // columns)
    figure = make_subplots(rows, min(columns, len(panels)), subplot_titles=list(panels), vertical_spacing=0.12)
    places = list(dict.fromkeys(name.partition(", ")[2] for lines in panels.values() for name in lines))
    for panel, lines in enumerate(panels.values()):
        place = {"row": panel // columns + 1, "col": panel % columns + 1}
        for name, points in lines.items():
            rule, _, where = name.partition(", ")
            colour, dash, _ = look(rule)
            dash = dash if len(places) == 1 else ("solid", "dot")[places.index(where)]
            least, most = (points[:, 2:].min(axis=1), points[:, 2:].max(axis=1)) if len(points) else ([], [])
            x = np.concatenate([points[:, 0], points[::-1, 0]])
            band = {"fill": "toself", "fillcolor": colour, "opacity": 0.15, "line": {"width": 0}, "mode": "lines"}
            band |= {"hoverinfo": "skip", "showlegend": False, "legendgroup": name}
            figure.add_trace(go.Scatter(x=x, y=np.concatenate([most, least[::-1]]), **band), **place)
            shown = {"name": name.replace(rule, WORDS[rule]), "legendgroup": name, "showlegend": panel == 0}
            line = {"color": colour, "width": 2, "dash": dash}
            figure.add_trace(go.Scatter(x=points[:, 0], y=points[:, 1], mode="lines", line=line, **shown), **place)
    figure.update_xaxes(title="round")
    figure.update_yaxes(title=axis, range=None if low is None else [low, None])
    width = 520 * min(columns, len(panels)) + (120 if len(panels) > 1 else 240)
    figure.update_layout(template="plotly_white", width=width, height=400 * rows + 40, margin={"t": 50})
    return figure


def responses(graph: Graph, strengths: Sequence[float], mark: float) -> Any:
    """h(λ) = 1 / (1 + μλ) for several μ, one of them marked, over the graph's frequencies as lines."""
    figure = go.Figure()
    x = np.linspace(0, float(graph.frequencies[-1]) * 1.02, 400)
    for frequency in graph.frequencies:
        figure.add_vline(x=float(frequency), line={"color": "#BBBBBB", "width": 1})
    for mu in strengths:
        line = {
            "color": look(f"mu={mu}").colour,
            "dash": "dot" if mu == mark else "solid",
            "width": 4 if mu == mark else 1.5,
        }
        figure.add_trace(go.Scatter(x=x, y=1 / (1 + mu * x), name=f"μ = {mu:g}", mode="lines", line=line))
    figure.update_xaxes(title="graph frequency λ", showgrid=False)
    figure.update_yaxes(title="response h(λ)", range=[0, 1.03])
    figure.update_layout(template="plotly_white", width=760, height=440, margin={"t": 30})
    return figure


def network(graph: Graph, positions: Array) -> Any:
    """Devices with their numbers, coloured by room; links between rooms are thicker."""
    figure = go.Figure()
    rooms = np.zeros(graph.count, int) if graph.rooms is None else np.asarray(graph.rooms)
    for a, b in graph.edges:
        same = rooms[a] == rooms[b]
        line = {"color": "#BBBBBB" if same else "#555555", "width": 1.5 if same else 3}
        ends = positions[[a, b]]
        figure.add_trace(go.Scatter(x=ends[:, 0], y=ends[:, 1], mode="lines", line=line, hoverinfo="skip"))
    marker = {"size": 30, "color": [COLOURS[1 + room % 4] for room in rooms], "line": {"color": "white", "width": 2}}
    numbers = [str(i) for i in range(graph.count)]
    devices = {"x": positions[:, 0], "y": positions[:, 1], "text": numbers, "textfont": {"color": "white", "size": 13}}
    figure.add_trace(go.Scatter(mode="markers+text", marker=marker, hoverinfo="text", **devices))
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, scaleanchor="x")
    figure.update_layout(template="plotly_white", showlegend=False, width=640, height=600, margin={"t": 10, "b": 10})
    return figure


def bars(groups: Sequence[str], columns: Mapping[str, Sequence[float]], axis: str) -> Any:
    """Bars side by side: for every name a number per group."""
    figure = go.Figure()
    for (name, values), colour in zip(columns.items(), ["#999999", *COLOURS[1:]], strict=False):
        shown = [f"{value:,.0f}" for value in values]
        figure.add_trace(go.Bar(x=list(groups), y=list(values), name=name, text=shown, marker={"color": colour}))
    figure.update_yaxes(title=axis)
    figure.update_layout(template="plotly_white", barmode="group", width=760, height=440, margin={"t": 30})
    return figure


def scatter(points: Mapping[str, Array], axes: tuple[str, str]) -> Any:
    """Dots (x, y) per name, and the diagonal."""
    figure = go.Figure()
    everything = np.concatenate([*points.values(), np.zeros((0, 2))])
    ends = [everything.min() - 2, everything.max() + 2] if len(everything) else [0, 100]
    diagonal = {"color": "#BBBBBB", "dash": "dash"}
    figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line=diagonal, showlegend=False, hoverinfo="skip"))
    for (name, dots), colour in zip(points.items(), ["#0072B2", "#D55E00"], strict=False):
        marker = {"color": colour, "size": 9, "opacity": 0.8}
        figure.add_trace(go.Scatter(x=dots[:, 0], y=dots[:, 1], name=name, mode="markers", marker=marker))
    figure.update_xaxes(title=axes[0])
    figure.update_yaxes(title=axes[1])
    figure.update_layout(template="plotly_white", width=640, height=560, margin={"t": 30})
    return figure
