"""The building from above: rooms, devices and links, coloured by what devices have or take from each other."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedfilt._checks import check_choice
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.graph.building import Building
from fedfilt.graph.similarity import clusters
from fedfilt.runs.records import Records
from fedfilt.runs.rules import PINK, RED
from fedfilt.show.figures.style import (
    CLEAR,
    FAINT,
    INK,
    LEGEND,
    OUTCOMES,
    SCALE,
    WALL,
    blank,
    empty,
    plain,
    styled,
)
from fedfilt.show.shares import shares
from fedfilt.show.words import clusters_in_words
from fedfilt.training.goal import ACCURACY, Metric

SCORES = ("local", "global")
# What devices can be coloured by -> words and number format; scores use those of their metric
COLOURS = {
    **{test: (f"{test} {ACCURACY.words}", ACCURACY.form) for test in SCORES},
    "bytes": ("bytes sent", ".3s"),
    "idle": ("idle seconds", ".3g"),
    "outcome": ("plan outcome", ""),
    "cluster": ("cluster of the graph", ""),
}
# Colours that colour-blind readers can tell apart (Okabe and Ito), and marks, by cluster; both start over after
CLUSTERS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "star", "pentagon", "hexagon", "cross")
NAMED = 20  # clusters with a look of their own
SOURCES = 60  # most lines to devices that one learns from

BAR = {"orientation": "h", "y": 0, "yanchor": "top", "thickness": 12, "len": 0.7, "xanchor": "center", "x": 0.5}


def colours(metric: Metric = ACCURACY) -> dict[str, tuple[str, str]]:
    """`COLOURS` for runs judged by a metric."""
    return COLOURS | {test: (f"{test} {metric.words}", metric.form) for test in SCORES}


class FloorPlan(NamedTuple):
    """Where devices and rooms are drawn."""

    places: Array  # (K, 2)
    rooms: list[tuple[str, float, float, float, float]]  # label and x0, y0, x1, y1


def floor_plan(graph: Graph) -> FloorPlan:
    """Positions from above if the graph has them, floors side by side; otherwise rooms in a grid, devices in rings."""
    names, room = (np.array([""]), np.zeros(graph.count, int))
    if graph.rooms is not None:
        names, room = np.unique(graph.rooms, return_inverse=True)
    if graph.positions is None:
        places = _rings(room, len(names))
        columns = int(np.ceil(np.sqrt(len(names))))
        corners = np.column_stack([np.arange(len(names)) % columns, -(np.arange(len(names)) // columns)]) * 10.0
        low, high = corners + 0.4, corners + 9.6
    else:
        space = np.pad(graph.positions, ((0, 0), (0, max(0, 3 - graph.positions.shape[1]))))
        places = space[:, :2].copy()
        floor = _floors(places, space[:, 2], room, len(names))
        width = np.ptp(places[:, 0]) * 1.1 + 1
        places[:, 0] += floor[room] * width
        ends = [(places[room == r].min(axis=0), places[room == r].max(axis=0)) for r in range(len(names))]
        low, high = np.array([a for a, _ in ends]), np.array([b for _, b in ends])
        pad = 0.06 * max(float(np.median(high - low)), 0.1)
        low, high = low - pad, high + pad
    if graph.rooms is None:
        return FloorPlan(places, [])
    words = [str(name) if isinstance(name, str) else f"room {name}" for name in names.tolist()]
    boxes = np.column_stack([low, high]).tolist()
    return FloorPlan(places, [(w, *box) for w, box in zip(words, boxes, strict=True)])


def _rings(room: Array, rooms: int) -> Array:
    columns = int(np.ceil(np.sqrt(rooms)))
    places = np.zeros((len(room), 2))
    for r in range(rooms):
        members = np.flatnonzero(room == r)
        turn = np.pi / 2 - 2 * np.pi * np.arange(len(members)) / max(len(members), 1)
        ring = np.column_stack([np.cos(turn), np.sin(turn)]) * (3.2 if len(members) > 1 else 0)
        places[members] = ring + np.array([r % columns + 0.5, 0.5 - r // columns]) * 10
    return places


def _floors(places: Array, heights: Array, room: Array, rooms: int) -> Array:
    """A floor number for each room: 0, unless rooms overlap; then by height, in steps of 1.5 m."""
    ends = [(places[room == r].min(axis=0), places[room == r].max(axis=0)) for r in range(rooms)]
    low, high = np.array([a for a, _ in ends]), np.array([b for _, b in ends])
    both = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    area = np.prod(np.maximum(both, 0), axis=2)
    own = np.prod(high - low, axis=1)
    over = area > 0.5 * np.maximum(np.minimum(own[:, None], own), 1e-12)
    np.fill_diagonal(over, False)
    if not over.any():
        return np.zeros(rooms, int)
    mean = np.array([heights[room == r].mean() for r in range(rooms)])
    order = np.argsort(mean, kind="stable")
    floor = np.zeros(rooms, int)
    floor[order[1:]] = np.cumsum(np.diff(mean[order]) > 1.5)
    return floor


def building(
    run: Records, colour: str = "local", number: int | None = None, device: int | None = None, height: int = 520
) -> Any:
    """The building: rooms, links and devices, coloured by a key of `COLOURS` as of a round; `device` gets a ring.

    The device's number is in `customdata` of the markers.
    """
    check_choice("colour", colour, COLOURS)
    now = run.moment(number)
    if now is None:
        return empty("the graph of this run is unknown", height)
    graph = now.graph
    plan = floor_plan(graph)
    figure = _ground(graph, plan)
    metric = run.metric
    words, form = colours(metric)[colour]
    title, values = f"the building: {words}", None
    if colour == "cluster":
        member, modularity = clusters(graph)
        values, title = member.tolist(), f"the building: {clusters_in_words(graph, member, modularity)}"
    elif colour in SCORES:
        values = run.accuracies(colour, number)
        tested = run.tested(colour, number)
        title += f", round {tested[-1]['round']}" if tested else " (not tested yet)"
    else:
        columns = run.columns(number)
        values = columns.get({"bytes": "bytes", "idle": "idle_seconds", "outcome": "outcome"}[colour])
        shown = run.rounds[-1]["round"] if number is None and run.rounds else number
        title += f", round {shown}" if values is not None else " (no round yet)"
    if values is None or len(values) != graph.count:
        _devices(figure, plan, graph, {"color": "#DDDDDD"}, np.arange(graph.count), "device %{customdata}")
    elif colour == "cluster":
        order = np.argsort(-np.bincount(values), kind="stable")  # largest first; the many small ones share a colour
        place = np.minimum(np.argsort(order, kind="stable")[values], NAMED - 1)
        for cluster in range(place.max() + 1):
            chosen = np.flatnonzero(place == cluster)
            shade = {"color": CLUSTERS[cluster % len(CLUSTERS)], "symbol": SYMBOLS[cluster % len(SYMBOLS)]}
            said = "a smaller cluster" if cluster == NAMED - 1 else f"cluster {cluster + 1}"
            _devices(figure, plan, graph, shade, chosen, f"device %{{customdata}}: {said}", f"{said} ({len(chosen)})")
    elif colour == "outcome":
        for outcome in sorted(set(values)):
            chosen = np.flatnonzero(np.array(values) == outcome)
            fill, symbol = OUTCOMES.get(outcome, (WALL, "circle-open"))
            said = plain(outcome or "not planned")
            hover = f"device %{{customdata}}: {said}"
            name = f"{said} ({len(chosen)})"
            _devices(figure, plan, graph, {"color": fill, "symbol": symbol}, chosen, hover, name)
    else:
        numbers = np.array(values, dtype=float)
        low, high = (0.0, max(float(np.nanmax(numbers, initial=0.0)), 1e-9))
        if colour in SCORES:
            finite = numbers[np.isfinite(numbers)]
            low, high = (0.0, 1.0) if metric.share or not len(finite) else (float(finite.min()), float(finite.max()))
        ends = {"cmin": low, "cmax": high}
        bar = {**BAR, "title": {"text": words, "side": "top"}}
        bar["tickformat"] = metric.ticks if colour in SCORES else form
        marker = {"color": numbers, "colorscale": SCALE, "colorbar": bar, **ends}
        hover = f"device %{{customdata}}: %{{marker.color:{form}}}"
        _devices(figure, plan, graph, marker, np.arange(graph.count), hover)
        if colour in SCORES and np.isfinite(numbers).any():
            worst = int((np.nanargmax if metric.lower else np.nanargmin)(numbers))
            said = f"worst: device {worst}, {metric.text(float(numbers[worst]))}"
            _ring(figure, plan, worst, RED, said, graph.count)
    if device is not None and 0 <= device < graph.count:
        _ring(figure, plan, device, PINK, f"chosen: device {device}", graph.count)
    return _seen_from_above(figure, title, height)


def learns_from(
    run: Records, device: int, mu: float | None = None, number: int | None = None, height: int = 460
) -> Any:
    """A device's row of the mixing matrix, on the graph: what its new model is made of."""
    now = run.moment(number)
    if now is None or not 0 <= device < now.graph.count:
        return empty("the graph of this run is unknown" if now is None else f"there is no device {device}", height)
    graph = now.graph
    try:
        row = shares(run, mu, number)[device]
    except ValueError as error:
        return empty(str(error), height)
    plan = floor_plan(graph)
    figure = _ground(graph, plan)
    x, y = plan.places.T
    sources = [j for j in np.argsort(-row, kind="stable") if j != device and row[j] > 1e-4]
    widths: dict[float, list[int]] = {}  # shares that look alike are one trace
    for j in sources[:SOURCES]:
        widths.setdefault(round(min(1 + 24 * float(row[j]), 10), 1), []).append(int(j))
    for width, alike in widths.items():
        ends = np.ravel([(device, j, -1) for j in alike])
        to = {key: np.where(ends < 0, np.nan, axis[ends]) for key, axis in (("x", x), ("y", y))}
        line = {"color": PINK, "width": width}
        figure.add_trace(go.Scatter(**to, mode="lines", line=line, hoverinfo="skip", name="sources"))
    figure.update_traces(showlegend=False)
    bar = {**BAR, "title": {"text": "share", "side": "top"}, "tickformat": ".0%"}
    marker = {"color": row, "colorscale": "Blues", "colorbar": bar, "cmin": 0, "cmax": max(float(row.max()), 1e-9)}
    _devices(figure, plan, graph, marker, np.arange(graph.count), "device %{customdata}: %{marker.color:.1%}")
    _ring(figure, plan, device, PINK, "", graph.count)
    rule = run.label if mu is None else f"mu = {mu:.3g}"
    title = f"device {device}: {row[device]:.0%} its own, {row.sum() - row[device]:.0%} others' ({rule})"
    if len(sources) > SOURCES:
        title += f"; lines to the {SOURCES} largest of {len(sources)} sources"
    return _seen_from_above(figure, title, height)


def _ground(graph: Graph, plan: FloorPlan) -> Any:
    """Walls and links: one trace each, with a gap (NaN) after every piece."""
    figure = blank()
    walls = np.array([[(a, b), (c, b), (c, d), (a, d), (a, b), (np.nan, np.nan)] for _, a, b, c, d in plan.rooms])
    if len(walls):
        x, y = walls.reshape(-1, 2).T
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line={"color": WALL, "width": 1}, hoverinfo="skip"))
        if len(plan.rooms) <= 36:
            middle = [((a + c) / 2, d) for _, a, _, c, d in plan.rooms]
            text = {"text": [plain(w) for w, *_ in plan.rooms], "textfont": {"color": "#555555", "size": 12}}
            x, y = np.array(middle).T
            labels = go.Scatter(x=x, y=y, mode="text", textposition="top center", hoverinfo="skip", **text)
            figure.add_trace(labels)
    x, y = _lines(graph, plan.places)
    line = {"color": FAINT, "width": 1 if graph.count <= 200 else 0.5}
    figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip"))
    figure.data[-1].name = "links"
    return figure.update_traces(showlegend=False)


def _lines(graph: Graph, places: Array) -> list[Array]:
    edges = graph.edges
    if len(edges) > 20_000:  # more than one could distinguish
        edges = edges[:: -(-len(edges) // 20_000)]
    ends = np.column_stack([edges, np.full(len(edges), -1)]).ravel()
    return [np.where(ends < 0, np.nan, axis[ends]) for axis in places.T]


def _size(count: int) -> int:
    return 22 if count <= 40 else 12 if count <= 200 else 7


def _devices(
    figure: Any, plan: FloorPlan, graph: Graph, marker: dict[str, Any], chosen: Array, hover: str, name: str = ""
) -> None:
    marker = {"size": _size(graph.count), "line": {"color": INK, "width": 0.6}, **marker}
    if graph.count <= 40:  # the number on the device, with a halo to be readable on light and dark
        x, y = plan.places[chosen].T
        numbers = {"text": [f"\u2002{i}" for i in chosen], "textfont": {"size": 10, "color": INK}}
        text = {"mode": "markers+text", "textposition": "middle right", **numbers}
    else:
        text = {"mode": "markers"}
    x, y = plan.places[chosen].T
    # A plain list: Dash cannot read the number of a clicked device from a packed array
    hovered = {"customdata": chosen.tolist(), "hovertemplate": hover + "<extra></extra>"}
    figure.add_trace(go.Scatter(x=x, y=y, marker=marker, name=name, showlegend=bool(name), **hovered, **text))


def _ring(figure: Any, plan: FloorPlan, device: int, colour: str, name: str, count: int) -> None:
    marker = {"size": _size(count) + 9, "color": CLEAR, "line": {"color": colour, "width": 3}}
    x, y = [[value] for value in plan.places[device].tolist()]
    ring = go.Scatter(x=x, y=y, mode="markers", marker=marker, name=name, showlegend=bool(name), hoverinfo="skip")
    figure.add_trace(ring)


def _seen_from_above(figure: Any, title: str, height: int) -> Any:
    return styled(
        figure,
        title,
        height,
        xaxis={"visible": False},
        yaxis={"visible": False, "scaleanchor": "x", "constrain": "domain"},
        legend=LEGEND,
        margin={"l": 8, "r": 8, "t": 40, "b": 110},
        hovermode="closest",
        dragmode="pan",
    )


def graph_signals(building: Building, graph: Graph, signals: Mapping[str, Array]) -> Any:
    """One panel per signal, seen from above: rooms as boxes, links as lines, devices coloured by their value.

    The paper's figure "An illustration of different graph filtering on a single shared gradient update".
    """
    columns = 2 if len(signals) > 1 else 1
    rows = -(-len(signals) // columns)
    figure = make_subplots(rows, columns, subplot_titles=list(signals), horizontal_spacing=0.03, vertical_spacing=0.06)
    x, y = building.positions[:, 0], building.positions[:, 1]
    # One trace for all links: a gap (NaN) after each
    ends = np.column_stack([graph.edges, np.full(len(graph.edges), -1)]).ravel()
    lines = [np.where(ends < 0, np.nan, axis[ends]) for axis in (x, y)]
    limit = max(
        float(values.std()) for values in signals.values()
    )  # colours saturate beyond this, so that means stay visible
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
        labels = [f"{plain(name)}: {value:.3f}" for name, value in zip(building.names, values, strict=True)]
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
