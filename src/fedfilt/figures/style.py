"""One look for all figures: colours that the colour-blind can tell apart (Okabe and Ito), marks that print in grey."""

import math
import zlib
from typing import Any, NamedTuple

import plotly.graph_objects as go

INK, FAINT, WALL, CLEAR = "#222222", "#B5B5B5", "#8A8A8A", "rgba(0,0,0,0)"
BLUE, ORANGE, GREEN, RED, PINK, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
SCALE = "Cividis"  # for amounts: even in lightness, the same for the colour-blind


AXIS = {"gridcolor": "#E4E8EE", "linecolor": "#E4E8EE", "zerolinecolor": "#E4E8EE", "automargin": True, "ticks": ""}
TEMPLATE: dict[str, Any] = {  # small, as every figure carries it
    "layout": {
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "colorway": [BLUE, RED, GREEN, PINK, ORANGE, SKY, "#000000"],
        "font": {"size": 13, "color": INK},
        "hoverlabel": {"namelength": -1, "align": "left"},
        "xaxis": {**AXIS, "title": {"standoff": 12}},
        "yaxis": {**AXIS, "title": {"standoff": 12}},
    }
}


class Look(NamedTuple):
    """Colour, dash and mark of an algorithm, the same in every figure."""

    colour: str
    dash: str
    symbol: str


LOOKS = {
    "fedavg": Look(RED, "dash", "square"),
    "local": Look(GREEN, "dot", "diamond"),
    "room_average": Look(PINK, "dashdot", "triangle-up"),
    "self_blend": Look(ORANGE, "longdash", "triangle-left"),
    "fedu": Look("#7A5195", "longdashdot", "triangle-right"),
    "sfl": Look("#6B5B00", "dashdot", "pentagon"),
    "paper_literal": Look("#000000", "dot", "x"),
}
OUTCOMES = {  # how a plan came about -> colour and mark
    "sync": (BLUE, "circle"),
    "idle_saturated": (SKY, "square"),
    "idle_energy": (ORANGE, "diamond"),
    "idle_integer": (GREEN, "triangle-up"),
    "infeasible_energy": (RED, "x"),
    "infeasible_time": ("#000000", "cross"),
}
BLUES = ("#5AA5DC", "#2B86C9", "#0067AE", "#004780", "#002A52")  # G-Fedfilt, from weak to strong mixing
MARKS = ("star", "triangle-down", "circle", "hexagon", "cross")


def look(rule: str) -> Look:
    """The look of an aggregation rule; G-Fedfilt is blue, the darker the stronger.

    >>> look("fedavg").colour, look("mu=10").symbol, look("mu=10 seed 3") == look("mu=10")
    ('#D55E00', 'circle', True)
    """
    rule = rule.split(" seed ")[0].split(" (")[0]
    if rule in LOOKS:
        return LOOKS[rule]
    if rule.startswith("mu="):
        try:
            place = round(math.log10(max(float(rule[3:].split()[0]), 1e-9))) + 1  # 0.1 -> 0, 1 -> 1, 10 -> 2, ...
        except (ValueError, OverflowError):
            place = 2
        place = min(max(place, 0), len(BLUES) - 1)
        return Look(BLUES[place], "solid", MARKS[place])
    other = list(LOOKS.values())
    return other[zlib.crc32(rule.encode()) % len(other)]._replace(dash="solid", symbol="circle-open")


def blank(*traces: Any) -> Any:
    """A figure in this look, with these traces."""
    return go.Figure(data=list(traces), layout={"template": TEMPLATE})


def styled(figure: Any, title: str, height: int = 420, **layout: Any) -> Any:
    """The common frame: white, a title, room for labels, as wide as the page."""
    figure.update_layout(
        title={"text": title, "font": {"size": 15}, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        height=height,
        margin={"l": 56, "r": 16, "t": 48, "b": 48},
    )
    figure.update_layout(**layout)
    return figure


def empty(words: str, height: int = 420) -> Any:
    """A figure that says why there is nothing to see."""
    figure = blank()
    figure.add_annotation(text=words, showarrow=False, font={"size": 15}, x=0.5, y=0.5, xref="paper", yref="paper")
    axis = {"visible": False}
    return styled(figure, "", height, xaxis=axis, yaxis=axis)
