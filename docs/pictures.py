"""The pictures of the concept pages, from the code and the results: `python docs/pictures.py` writes docs/pictures.

It needs `fedfilt[pictures]` and Chrome or Chromium.
"""

import sys
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

import fedfilt
from fedfilt.filters import Floor, Heat, Ideal, Tikhonov
from fedfilt.paper._cases import Case
from fedfilt.paper._results import Results
from fedfilt.show.figures.places import FloorPlan, floor_plan
from fedfilt.show.figures.style import BLUE, FAINT, INK, TEMPLATE, WALL

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "paper"
DIVERGING = [
    "#0072B2",
    "#F7F7F7",
    "#D55E00",
]  # blue to orange: told apart by the colour-blind, and in grey by lightness
RULES = ("local", "mu=0.1", "mu=1", "mu=10", "fedavg")
PLACES = {"fedavg": "bottom center", "mu=0.1": "middle right", "local": "middle right"}


def signals(panels: dict[str, np.ndarray], limit: float) -> go.Figure:
    """The paper's building from above, once for each of four signals, its devices coloured by it."""
    graph = fedfilt.Graph.paper()
    plan = floor_plan(graph)
    figure = make_subplots(2, 2, subplot_titles=list(panels), horizontal_spacing=0.04, vertical_spacing=0.1)
    for panel, values in enumerate(panels.values()):
        place = {"row": panel // 2 + 1, "col": panel % 2 + 1}
        for trace in (*_links(graph, plan), _dots(plan, values, limit)):
            figure.add_trace(trace, **place)
        for _, x0, y0, x1, y1 in plan.rooms:
            box = {"x0": x0, "y0": y0, "x1": x1, "y1": y1, "line": {"color": "#D5DAE1"}, "layer": "below"}
            figure.add_shape(type="rect", **place, **box)
        figure.update_yaxes(scaleanchor=f"x{panel + 1 if panel else ''}", **place)
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    return framed(figure, 640, 620)


def _links(graph: fedfilt.Graph, plan: FloorPlan) -> list[go.Scatter]:
    gaps = np.column_stack([graph.edges, np.full(len(graph.edges), -1)]).ravel()
    x, y = (np.where(gaps < 0, np.nan, axis[gaps]) for axis in np.asarray(plan.places).T[:2])
    return [go.Scatter(x=x, y=y, mode="lines", line={"color": FAINT, "width": 1.2})]


def _dots(plan: FloorPlan, values: np.ndarray, limit: float) -> go.Scatter:
    x, y = np.asarray(plan.places).T[:2]
    marker = {"color": values, "colorscale": DIVERGING, "cmin": -limit, "cmax": limit, "size": 14}
    return go.Scatter(x=x, y=y, mode="markers", marker={**marker, "line": {"color": WALL, "width": 1}})


def waves() -> go.Figure:
    """Four waves of the paper's graph, from slow to fast."""
    graph = fedfilt.Graph.paper()
    frequencies, shapes = np.linalg.eigh(graph.laplacian.toarray())
    panels = {f"λ = {frequencies[k]:.2f}": shapes[:, k] for k in (0, 1, 4, 19)}
    return signals(panels, 0.45)


def strengths() -> go.Figure:
    """A random signal on the paper's graph, and what three filters make of it."""
    graph = fedfilt.Graph.paper()
    signal = 0.4 + np.random.default_rng(4).standard_normal((graph.count, 1))
    panels = {"each device's own": signal[:, 0]}
    for mu, words in ((0.1, "weak, μ = 0.1"), (1, "moderate, μ = 1"), (100, "strong, μ = 100")):
        panels[words] = fedfilt.mix(graph, Tikhonov(mu), signal)[:, 0]
    return signals(panels, 1.3)


def responses() -> go.Figure:
    """The response of each kind of filter over the frequencies of the paper's graph."""
    graph = fedfilt.Graph.paper()
    grid, figure = np.linspace(0, float(graph.frequencies[-1]), 400), go.Figure()
    kinds = {
        "Tikhonov(mu=0.1)": (Tikhonov(0.1), {"dash": "dot", "color": BLUE}),
        "Tikhonov(mu=1)": (Tikhonov(1), {"color": BLUE, "width": 3}),
        "Tikhonov(mu=10)": (Tikhonov(10), {"dash": "dash", "color": BLUE}),
        "Heat(t=0.5)": (Heat(0.5), {"color": "#D55E00"}),
        "Ideal(cutoff=2)": (Ideal(2.0), {"color": "#009E73"}),
        "Floor(mu=10, floor=0.3)": (Floor(10, 0.3), {"color": "#CC79A7"}),
    }
    for name, (kind, line) in kinds.items():
        figure.add_trace(go.Scatter(x=grid, y=kind(grid), name=name, mode="lines", line=line))
    marks = go.Scatter(x=graph.frequencies, y=0 * graph.frequencies, mode="markers", name="frequencies of the graph")
    figure.add_trace(marks.update(marker={"symbol": "line-ns", "size": 10, "line": {"width": 1.5, "color": INK}}))
    figure.update_layout(xaxis_title="graph frequency λ, slow to fast", yaxis_title="gain h(λ)")
    return framed(figure, 760, 380, legend=True)


def matrices() -> go.Figure:
    """The mixing matrix of the paper's graph at three strengths."""
    graph, strong = fedfilt.Graph.paper(), (0.1, 1, 10)
    figure = make_subplots(1, 3, subplot_titles=[f"μ = {mu:g}" for mu in strong], horizontal_spacing=0.04)
    for column, mu in enumerate(strong, 1):
        shares = fedfilt.mixing_matrix(graph, Tikhonov(mu))
        figure.add_trace(go.Heatmap(z=shares, coloraxis="coloraxis"), row=1, col=column)
        figure.update_yaxes(autorange="reversed", scaleanchor=f"x{column if column > 1 else ''}", row=1, col=column)
    figure.update_layout(coloraxis={"colorscale": "Blues", "cmin": 0, "cmax": 0.5, "colorbar": {"tickformat": ".0%"}})
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    return framed(figure, 860, 320)


def trade_off() -> go.Figure:
    """Own test against everybody's test of each rule, from the results of the paper's pages."""
    results, data = Results(RESULTS), {"mnist_2": "2 digits per device", "mnist_4": "4 digits per device"}
    figure = make_subplots(1, 2, subplot_titles=list(data.values()), shared_yaxes=True, horizontal_spacing=0.04)
    for column, name in enumerate(data, 1):
        x, y = (
            [np.mean(list(results.values(Case(name, rule), test, "mean").values())) for rule in RULES]
            for test in ("local", "global")
        )
        places = [PLACES.get(rule, "top center") for rule in RULES]
        words = [rule.replace("mu", "μ") for rule in RULES]
        line = go.Scatter(x=x, y=y, text=words, textposition=places, mode="lines+markers+text", line_color=BLUE)
        figure.add_trace(line.update(marker={"size": 9}, cliponaxis=False), row=1, col=column)
    figure.update_xaxes(title="a device's own test, %", range=[83.5, 97.5])
    figure.update_yaxes(range=[10, 95]).update_yaxes(title="everybody's test, %", row=1, col=1)
    return framed(figure, 860, 420).update_layout(margin={"l": 60, "r": 20, "t": 40, "b": 60})


def framed(figure: go.Figure, width: int, height: int, legend: bool = False) -> go.Figure:
    """The figure at its size, in the look of all figures."""
    below = {"orientation": "h", "y": -0.22, "x": 0.5, "xanchor": "center"}
    margin = {"l": 60, "r": 20, "t": 20, "b": 60} if legend else {"l": 10, "r": 10, "t": 40, "b": 10}
    figure.update_layout(template=TEMPLATE, width=width, height=height, margin=margin, showlegend=legend, legend=below)
    return figure


PICTURES = {one.__name__: one for one in (waves, strengths, responses, matrices, trade_off)}


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        draw().write_image(out / f"{name}.svg")
        print(out / f"{name}.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "pictures")
