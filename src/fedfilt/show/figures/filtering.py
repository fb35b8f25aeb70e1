"""The filter: its response over the graph's frequencies, and the mixing matrix it makes."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedfilt.graph.graph import SPECTRUM_LIMIT
from fedfilt.runs.records import Records
from fedfilt.runs.rules import ORANGE, filter_of, with_strength
from fedfilt.show.figures.style import BLUE, LEGEND, blank, empty, plain, styled, wrapped
from fedfilt.show.shares import shares

CELLS = 100  # most devices for which the matrix is drawn cell by cell


def response(run: Records, mu: float | None = None) -> Any:
    """Gain of the run's filter over graph frequency; the dots are the frequencies of this graph.

    With `mu`, the same filter at that strength is drawn beside it.
    """
    now = run.moment()
    if now is None:
        return empty("the graph of this run is unknown", 340)
    graph = now.graph
    own = run.config.get("aggregator")
    filtered = isinstance(own, dict) and "filter" in own
    if not filtered and mu is None:
        return empty(f"{run.label} has no filter", 340)
    try:
        kinds = {f"this run ({run.label})": filter_of(run.config)} if filtered else {}
        if mu is not None:
            kinds[f"what if mu = {mu:.3g}"] = with_strength(next(iter(kinds.values()), None), mu)
    except ValueError as error:
        return empty(str(error), 340)
    known = graph.frequencies if graph.count <= SPECTRUM_LIMIT else np.zeros(0)
    top = float(known[-1]) if len(known) else 2 * float(graph.degrees.max())
    grid = np.linspace(0, max(top, 1e-9), 121)
    figure = blank()
    for number, (name, kind) in enumerate(kinds.items()):
        what_if = name.startswith("what")
        line = {"color": ORANGE if what_if else BLUE, "dash": "dash" if what_if else "solid", "width": 2}
        figure.add_trace(go.Scatter(x=grid, y=kind(grid), mode="lines", line=line, name=wrapped(name, 40)))
        if len(known):
            dots = {"color": line["color"], "size": 6, "symbol": "circle" if number == 0 else "diamond"}
            hover = "frequency %{x:.3f}: gain %{y:.3f}<extra></extra>"
            points = go.Scatter(x=known, y=kind(known), mode="markers", marker=dots, hovertemplate=hover)
            figure.add_trace(points.update(showlegend=False))
    return styled(
        figure,
        "filter response",
        340,
        xaxis={"title": "graph frequency λ (smooth → rough)"},
        yaxis={"title": "gain h(λ)", "range": [-0.04, 1.08]},
        legend=LEGEND,
        margin={"l": 56, "r": 16, "t": 48, "b": 84},
    )


def mixing(run: Records, mu: float | None = None, number: int | None = None) -> Any:
    """The mixing matrix: row i shows what device i's new model is made of. With many devices, room by room."""
    try:
        matrix = shares(run, mu, number)
    except ValueError as error:
        return empty(str(error), 460)
    now, what = run.moment(number), "device"
    graph = None if now is None else now.graph
    title = "who learns how much from whom"
    names: list[Any] = list(range(len(matrix)))
    if len(matrix) > CELLS:
        if graph is None or graph.rooms is None or len(np.unique(graph.rooms)) > 3 * CELLS:
            return empty(f"{len(matrix)} devices: click one in the building to see whom it learns from", 460)
        found, room = np.unique(graph.rooms, return_inverse=True)
        member = np.eye(len(found))[room]  # (K, rooms)
        matrix = (member.T @ matrix @ member) / member.sum(axis=0)[:, None]
        names, what = [plain(n) if isinstance(n, str) else n for n in found.tolist()], "room"
        title = "what rooms learn from each other"
    hover = f"{what} %{{y}} takes %{{z:.1%}} from {what} %{{x}}<extra></extra>"
    bar = {"title": "share", "tickformat": ".0%"}
    z = np.round(matrix, 4)
    heat = go.Heatmap(
        z=z,
        x=names,
        y=names,
        colorscale="Blues",
        zmin=0,
        zmax=max(float(z.max()), 1e-9),
        hovertemplate=hover,
        colorbar=bar,
    )
    suffix = "" if mu is None else f", if mu = {mu:.3g}"
    axis = {"dtick": 1 if len(names) <= 12 else 5, "tickangle": 0} if len(names) <= 40 and what == "device" else {}
    return styled(
        blank(heat),
        title + suffix,
        460,
        xaxis={"title": f"from {what}", **axis},
        yaxis={"title": what, "autorange": "reversed", **axis},
    )
