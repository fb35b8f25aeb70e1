"""Pictures of buildings, filters and runs: functions that return Plotly figures."""

from collections.abc import Mapping
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
