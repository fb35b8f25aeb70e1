"""Pictures that only the paper's items need, fit to print; others come from `fedfilt.show.figures`.

A column of the journal is 3.5 inches wide, a page 7.16; a pixel here is 1/96 inch. Lines differ in dash and symbol and
colours in lightness, so that a picture can be read in grey.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.paper._printed import WORDS

COLUMN, PAGE = 336, 688  # pixels
COLOURS = ["#000000", "#D55E00", "#E69F00", "#009E73", "#0072B2", "#CC79A7", "#56B4E9"]
FONT = {"family": "Liberation Sans, Arial, Helvetica, sans-serif", "size": 10, "color": "#000000"}  # 7.5 point
# Short strokes, so that a curve is not torn
DOTS, DOT_DASH, DASHES, LONG_DASHES = "1.5px,2.5px", "7px,2px,1.5px,2px", "5px,3px", "12px,2px,2px,2px,2px,2px"
# Colour, dash, symbol: from light to dark as μ grows, and never two alike in grey
LOOKS = {
    "fedavg": ("#000000", "solid", "circle"),
    "mu=0.1": ("#E69F00", DOTS, "diamond"),
    "mu=1": ("#C2609B", DOT_DASH, "triangle-up"),
    "mu=10": ("#007D5C", DASHES, "square"),
    "mu=100": ("#0A3F78", LONG_DASHES, "x"),
    "mu=1e4": ("#E08A45", DASHES, "cross"),
    "before": ("#000000", "solid", "circle"),
    "`slowest_minimum`": ("#E69F00", DOT_DASH, "triangle-up"),
    "`fastest_full`, = T": ("#0A3F78", DASHES, "square"),
    "`fastest_full`, <= T": ("#B8558F", DOTS, "diamond"),
}


def to_print(figure: Any, width: int, height: int, **layout: Any) -> Any:
    """The figure at a width and height on paper, in its fonts; the legend is below."""
    legend = {"orientation": "h", "xanchor": "center", "x": 0.5, "font": {"size": 9}, "itemwidth": 40}
    legend |= {"yref": "container", "yanchor": "bottom", "y": 0.01}
    figure.update_layout(template="plotly_white", font=FONT, width=width, height=height, legend=legend)
    figure.update_layout({"margin": {"l": 46, "r": 8, "t": 22, "b": 40}, **layout})
    ticks = {"tickfont": {"size": 9}, "title": {"font": {"size": 10}, "standoff": 4}, "gridcolor": "#E5E5E5"}
    lines = {"showline": True, "linecolor": "#000000", "linewidth": 0.7, "ticks": "outside", "ticklen": 3}
    lines["zeroline"] = False
    figure.update_xaxes(**ticks, **lines)
    figure.update_yaxes(**ticks, **lines)
    figure.for_each_annotation(lambda note: note.update(font={"size": 10, **note.font.to_plotly_json()} | {"size": 10}))
    return figure


def curves(
    panels: Mapping[str, Mapping[str, Array]],
    axis: str,
    along: str = "round",
    columns: int = 2,
    low: float | None = None,
    until: float | None = None,
) -> Any:
    """A panel per title with a curve per rule: (round, mean over seeds, each seed ...), the seeds' range as a band.

    A rule may be followed by where it was tried, as in "mu=10, Setup 2": the second place is drawn with open symbols.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    space = {"vertical_spacing": 0.16 if rows > 1 else 0.1, "horizontal_spacing": 0.1}
    figure = make_subplots(rows, columns, subplot_titles=list(panels), **space)
    shown: set[str] = set()
    for panel, lines in enumerate(panels.values()):
        place = {"row": panel // columns + 1, "col": panel % columns + 1}
        drawn = {name: (*_look(name), points) for name, points in lines.items() if len(points)}
        for colour, _, _, points in drawn.values():  # all bands lie under all lines
            least, most = points[:, 2:].min(axis=1), points[:, 2:].max(axis=1)
            x = np.concatenate([points[:, 0], points[::-1, 0]])
            band = {"fill": "toself", "fillcolor": colour, "opacity": 0.08, "line": {"width": 0}, "mode": "lines"}
            band |= {"hoverinfo": "skip", "showlegend": False}
            figure.add_trace(go.Scatter(x=x, y=np.concatenate([most, least[::-1]]), **band), **place)
        for name, (colour, dash, symbol, points) in drawn.items():
            marker = {"symbol": symbol, "size": 5, "maxdisplayed": 6, "color": colour}
            line = {"color": colour, "width": 1.5, "dash": dash}
            words = {"name": _said(name), "legendgroup": name, "showlegend": name not in shown}
            shown.add(name)
            trace = go.Scatter(x=points[:, 0], y=points[:, 1], mode="lines+markers", line=line, marker=marker, **words)
            figure.add_trace(trace, **place)
    for number in range(1, columns + 1):
        figure.update_xaxes(title=along, row=rows, col=number)
    for number in range(1, rows + 1):
        figure.update_yaxes(title=axis, row=number, col=1)
    everything = [points for lines in panels.values() for points in lines.values() if len(points)]
    if low is not None:
        top = max(float(points[:, 1:].max()) for points in everything)
        figure.update_yaxes(range=[low, top + 1])
    if until is not None:
        figure.update_xaxes(range=[0, until])
    width, height = (COLUMN, 250) if columns == 1 else (PAGE, 60 + 210 * rows)
    return to_print(figure, width, height, margin={"l": 46, "r": 8, "t": 22, "b": 60})


def _look(name: str) -> tuple[str, str, str]:
    """Colour, dash and symbol of a curve."""
    if name in LOOKS:
        return LOOKS[name]
    rule, _, where = name.partition(", ")
    colour, dash, symbol = LOOKS[rule]
    return (colour, dash, symbol) if where.endswith("1") else (colour, DOTS, f"{symbol}-open")


def _said(name: str) -> str:
    rule, comma, where = name.partition(", ")
    known = {"before": "no schedule"}
    return known.get(name) or (f"{WORDS[rule]}{comma}{where}" if rule in WORDS else name.replace("`", ""))


def timelines(rounds: Mapping[str, Mapping[str, Array]], deadlines: Mapping[str, float | None]) -> Any:
    """Rounds side by side, a device a line: computing, sending, waiting, against the deadline."""
    looks = {
        "compute_seconds": ("computes", "#1F4E79"),
        "send_seconds": ("sends", "#F2C879"),
        "idle_seconds": ("waits", "#FAFAFA"),
    }
    titles = [_said(name) for name in rounds]
    figure = make_subplots(1, len(rounds), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.03)
    for column, (name, seconds) in enumerate(rounds.items(), start=1):
        for key, (words, colour) in looks.items():
            marker = {"color": colour, "line": {"color": "#555555", "width": 0.4}}
            bar = {"orientation": "h", "marker": marker, "name": words, "showlegend": column == 1}
            figure.add_trace(go.Bar(y=list(range(len(seconds[key]))), x=seconds[key], **bar), row=1, col=column)
        if (end := deadlines[name]) is not None:
            figure.add_vline(x=end, line={"color": "#000000", "width": 2}, row=1, col=column)
        figure.update_xaxes(title="seconds", rangemode="tozero", row=1, col=column)
    figure.update_yaxes(title="device, the fastest first", autorange="reversed", row=1, col=1)
    to_print(figure, PAGE, 300, barmode="stack", bargap=0.2, margin={"l": 46, "r": 8, "t": 22, "b": 60})
    return figure.update_layout(legend_traceorder="normal")


def responses(graph: Graph, strengths: Sequence[float], mark: float) -> Any:
    """h(λ) = 1 / (1 + μλ) for several μ, one of them marked, over the graph's frequencies as lines."""
    figure = go.Figure()
    x = np.linspace(0, (float(graph.frequencies[-1]) * 1.02) ** 0.25, 400) ** 4  # dense where responses fall
    for frequency in graph.frequencies:
        figure.add_vline(x=float(frequency), line={"color": "#BBBBBB", "width": 0.7}, layer="below")
    for mu in strengths:
        colour, dash, _ = LOOKS.get(f"mu={mu:g}", ("#000000", "solid", ""))
        line = {"color": colour, "dash": dash, "width": 2.5 if mu == mark else 1.5, "simplify": False}
        figure.add_trace(go.Scatter(x=x, y=1 / (1 + mu * x), name=f"μ = {mu:g}", mode="lines", line=line))
    figure.update_xaxes(title="graph frequency λ", showgrid=False)
    figure.update_yaxes(title="response h(λ)", range=[0, 1.03])
    return to_print(figure, COLUMN, 240, margin={"l": 40, "r": 8, "t": 8, "b": 58})


def network(graph: Graph, positions: Array) -> Any:
    """Devices with their numbers, a symbol and colour per room; links between rooms are thick."""
    figure = go.Figure()
    rooms = np.zeros(graph.count, int) if graph.rooms is None else np.asarray(graph.rooms)
    for a, b in graph.edges:
        same = rooms[a] == rooms[b]
        line = {"color": "#999999" if same else "#000000", "width": 1 if same else 2}
        ends = positions[[a, b]]
        figure.add_trace(go.Scatter(x=ends[:, 0], y=ends[:, 1], mode="lines", line=line, hoverinfo="skip"))
    looks = [("circle", "#FFFFFF"), ("square", "#F2C879"), ("hexagon", "#B8D8E8"), ("diamond", "#D9D9D9")]
    marker = {
        "size": 19,
        "symbol": [looks[room % 4][0] for room in rooms],
        "color": [looks[room % 4][1] for room in rooms],
        "line": {"color": "#000000", "width": 1},
    }
    numbers = [str(i) for i in range(graph.count)]
    devices = {"x": positions[:, 0], "y": positions[:, 1], "text": numbers, "textfont": {"size": 8}}
    figure.add_trace(go.Scatter(mode="markers+text", marker=marker, hoverinfo="text", **devices))
    to_print(figure, COLUMN, 320, showlegend=False, margin={"l": 4, "r": 4, "t": 4, "b": 4})
    figure.update_xaxes(visible=False)
    return figure.update_yaxes(visible=False, scaleanchor="x")


def bars(groups: Sequence[str], columns: Mapping[str, Sequence[float]], axis: str) -> Any:
    """Bars side by side: for every name a number per group."""
    figure = go.Figure()
    for (name, values), colour in zip(columns.items(), ["#FFFFFF", "#F2C879", "#1F4E79", "#7FA8C9"], strict=False):
        marker = {"color": colour, "line": {"color": "#000000", "width": 0.8}}
        shown: dict[str, Any] = {
            "text": [f"{value:,.0f}" for value in values],
            "textposition": "outside",
            "textfont": {"size": 9},
        }
        shown |= {"textangle": -90, "constraintext": "none"}
        words = "no schedule" if name == "before" else name.replace("`", "")
        figure.add_trace(go.Bar(x=list(groups), y=list(values), name=words, marker=marker, cliponaxis=False, **shown))
    highest = max(value for values in columns.values() for value in values)
    figure.update_yaxes(title=axis, range=[0, 1.2 * highest])
    return to_print(figure, COLUMN, 260, barmode="group", margin={"l": 50, "r": 8, "t": 12, "b": 58})


def scatter(points: Mapping[str, Array], axes: tuple[str, str]) -> Any:
    """Dots (x, y) per name, and the diagonal."""
    figure = go.Figure()
    everything = np.concatenate([*points.values(), np.zeros((0, 2))])
    ends = [everything.min() - 2, everything.max() + 2] if len(everything) else [0, 100]
    diagonal = {"color": "#999999", "dash": "dash", "width": 1}
    figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line=diagonal, showlegend=False, hoverinfo="skip"))
    looks = [("#0072B2", "circle"), ("#D55E00", "triangle-up-open")]
    for (name, dots), (colour, symbol) in zip(points.items(), looks, strict=False):
        marker = {"color": colour, "size": 6, "symbol": symbol, "line": {"width": 1, "color": colour}}
        figure.add_trace(go.Scatter(x=dots[:, 0], y=dots[:, 1], name=name, mode="markers", marker=marker))
    figure.update_xaxes(title=axes[0])
    figure.update_yaxes(title=axes[1])
    return to_print(figure, COLUMN, 300, margin={"l": 46, "r": 8, "t": 8, "b": 58})


def histograms(panels: Mapping[str, Array], marks: Mapping[str, Sequence[float]]) -> Any:
    """How numbers are distributed, a panel each, with marked values as dashed lines."""
    figure = make_subplots(1, len(panels), horizontal_spacing=0.08)
    for column, (name, values) in enumerate(panels.items(), start=1):
        bar = {"marker": {"color": "#B8D8E8", "line": {"color": "#000000", "width": 0.4}}, "showlegend": False}
        counts, ends = np.histogram(values, 30)
        shares = 100 * counts / counts.sum()
        figure.add_trace(go.Bar(x=(ends[1:] + ends[:-1]) / 2, y=shares, **bar), row=1, col=column)
        figure.update_yaxes(range=[0, 1.2 * shares.max()], row=1, col=column)  # marks are named above the bars
        for mark in marks[name]:
            line = {"color": "#000000", "dash": "dash", "width": 1}
            note = {"annotation_text": f"{mark:g}", "annotation_font": {"size": 9}}
            figure.add_vline(x=mark, line=line, row=1, col=column, **note)
        figure.update_xaxes(title=name, row=1, col=column)
    figure.update_yaxes(title="% of draws", row=1, col=1)
    return to_print(figure, PAGE, 220, bargap=0, margin={"l": 46, "r": 20, "t": 22, "b": 40})
