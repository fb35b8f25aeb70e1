"""Smart homes whose devices learn together over a graph, redrawn."""

from typing import Any

import plotly.graph_objects as go

from fedfilt.paper._figures import PAGE, to_print
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import table

place = "fig. HidFL"
order = 7
DEVICES = ("TV", "phone", "watch", "tablet", "laptop")
HOMES = ("home 1", "home 2", "home 3", "home 4")
WITHIN = ((0, 1), (0, 4), (1, 2), (1, 3), (3, 4))
BETWEEN = (((0, 1), (1, 4)), ((0, 2), (1, 3)), ((1, 2), (2, 3)), ((2, 1), (3, 4)))  # (home, device) each


def make(results: Results) -> Item:
    """The picture, and which part of the software each of its parts is."""
    rows = [
        ["smart home, a room or cluster", "a room of the [graph](training.md#topologies)"],
        ["device with a model of its own", "a row of the model buffer, trained by `training/work.py`"],
        ["links within homes (thin) and between homes (thick)", "`Graph`; `[graph]` chooses how devices are linked"],
        ["edge server in the building", "`rounds/play.py`; over a network [`fedfilt deploy`](deploy.md)"],
        ["updates go up", "bytes in the format of `system/wire.py`, as many as the [schedule](scheduling.md) allows"],
        ["the server filters", "`aggregators/gfedfilt.py`: (N + μL)⁻¹ N on all rows"],
        ["a device's own row comes down", "only its own row; the paper broadcasts all of them"],
        ["the homes decide together", "the [vote of a room](smart_home.md)"],
    ]
    words = "The paper's figure shows a building from outside; this one shows what travels."
    text = f"{table(['in the picture', 'here'], rows)}\n\n{words}"
    return Item(text, {"architecture": _picture()})


def _picture() -> Any:
    figure = go.Figure()
    spots = [(0.0, 1.0), (0.95, 0.35), (0.6, -0.75), (-0.6, -0.75), (-0.95, 0.35)]
    centres = [(0.0, 0.0), (3.1, 0.0), (6.2, 0.0), (9.3, 0.0)]

    def at(home: int, device: int) -> tuple[float, float]:
        return centres[home][0] + spots[device][0], centres[home][1] + spots[device][1]

    def line(ends: tuple[tuple[float, float], tuple[float, float]], **look: Any) -> None:
        xs, ys = zip(*ends, strict=True)
        figure.add_trace(go.Scatter(x=xs, y=ys, mode="lines", line=look, hoverinfo="skip"))

    for home, (x, y) in enumerate(centres):
        wall = {"type": "rect", "x0": x - 1.45, "x1": x + 1.45, "y0": y - 1.35, "y1": y + 1.55, "layer": "below"}
        figure.add_shape(**wall, line={"color": "#000000", "width": 1}, fillcolor="#FAFAFA")
        figure.add_annotation(x=x, y=y - 1.55, text=HOMES[home], showarrow=False)
        for a, b in WITHIN:
            line((at(home, a), at(home, b)), color="#777777", width=1, dash="solid")
        for step, dash in ((-0.12, "up"), (0.12, "down")):
            tail, head = (1.6, 2.75) if dash == "up" else (2.75, 1.6)
            arrow = {"x": x + step, "y": head, "ax": x + step, "ay": tail, "axref": "x", "ayref": "y", "text": ""}
            figure.add_annotation(
                **arrow, xref="x", yref="y", arrowhead=2, arrowsize=0.9, arrowcolor="#000000", arrowwidth=1
            )
    for (one, first), (other, second) in BETWEEN:
        line((at(one, first), at(other, second)), color="#000000", width=1.8, dash="dash")
    points = [at(home, device) for home in range(len(HOMES)) for device in range(len(DEVICES))]
    marker = {"symbol": "square", "size": 27, "color": "#D9E8F2", "line": {"color": "#000000", "width": 0.8}}
    labels = {"text": list(DEVICES) * len(HOMES), "textfont": {"size": 7}}
    xs, ys = zip(*points, strict=True)
    figure.add_trace(go.Scatter(x=xs, y=ys, mode="markers+text", marker=marker, hoverinfo="text", **labels))
    server = {"type": "rect", "x0": -1.45, "x1": 10.75, "y0": 2.85, "y1": 3.95, "layer": "below"}
    figure.add_shape(**server, line={"color": "#000000", "width": 1}, fillcolor="#F2C879")
    said = "edge server: stacks the updates, filters them over the graph, h(λ) = 1 / (1 + μλ)"
    figure.add_annotation(x=4.65, y=3.4, text=said, showarrow=False)
    figure.add_annotation(x=1.55, y=2.2, text="updates ↑<br>own rows ↓", showarrow=False)
    to_print(figure, PAGE, 300, showlegend=False, margin={"l": 4, "r": 4, "t": 4, "b": 4})
    figure.update_annotations(font={"size": 9})
    figure.update_xaxes(visible=False, range=[-1.7, 11.0])
    return figure.update_yaxes(visible=False, range=[-1.9, 4.1])
