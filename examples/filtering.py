"""A building of 100 devices, and what a filter on its graph does to a random signal at three strengths.

Makes the paper's figure "An illustration of different graph filtering": python examples/filtering.py [OUT_DIR]
"""

import sys
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

import fedfilt
from fedfilt.filters import Tikhonov


def main(out: Path) -> None:
    building = fedfilt.Building.generate(rooms=18, devices=100, seed=1)
    graph = building.graph(reach=7.5)
    print(graph)
    print("frequencies:", np.array2string(graph.frequencies, precision=2, max_line_width=100))

    signal = np.random.default_rng(0).standard_normal((graph.count, 1)).astype(np.float32)
    panels = {"the devices' own values": signal[:, 0]}
    for mu in (0.01, 1.0, 1e4):
        response = Tikhonov(mu)
        panels[f"filtered, mu = {mu:g}"] = fedfilt.mix(graph, response, signal)[:, 0]
        print(f"mu = {mu:g}: {fedfilt.strength(graph, response)}")

    out.mkdir(parents=True, exist_ok=True)
    picture = out / "filtering.html"
    draw(building, graph, panels).write_html(picture)
    print(f"picture: {picture} (open it in a browser)")


def draw(building: fedfilt.Building, graph: fedfilt.Graph, panels: dict[str, np.ndarray]) -> go.Figure:
    """One panel per signal, seen from above: rooms as boxes, links as lines, devices coloured by their value."""
    figure = make_subplots(2, 2, subplot_titles=list(panels), horizontal_spacing=0.03, vertical_spacing=0.06)
    gaps = np.column_stack([graph.edges, np.full(len(graph.edges), -1)]).ravel()  # one line, with a gap after each link
    x, y = building.positions[:, :2].T
    links = [np.where(gaps < 0, np.nan, axis[gaps]) for axis in (x, y)]
    for panel, values in enumerate(panels.values()):
        place = {"row": panel // 2 + 1, "col": panel % 2 + 1}
        for (x0, y0, _), (x1, y1, _) in building.boxes:
            figure.add_shape(type="rect", x0=x0, y0=y0, x1=x1, y1=y1, line_color="#999", layer="below", **place)
        figure.add_trace(go.Scatter(x=links[0], y=links[1], mode="lines", line_color="#bbb", hoverinfo="skip"), **place)
        marker = {"color": values, "coloraxis": "coloraxis", "size": 9, "line": {"color": "#333", "width": 0.5}}
        figure.add_trace(go.Scatter(x=x, y=y, mode="markers", marker=marker, text=building.names), **place)
        figure.update_yaxes(scaleanchor=f"x{panel + 1}" if panel else "x", **place)
    limit = max(
        float(values.std()) for values in panels.values()
    )  # colours saturate beyond this, so that means stay visible
    figure.update_layout(template="plotly_white", showlegend=False, width=1040, height=920)
    figure.update_layout(coloraxis={"colorscale": "RdBu_r", "cmin": -limit, "cmax": limit})
    return figure.update_xaxes(visible=False).update_yaxes(visible=False)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
