"""One look for all figures: colours that the colour-blind can tell apart (Okabe and Ito), marks that print in grey."""

from html import escape
from typing import Any

import plotly.graph_objects as go

from fedfilt.runs.rules import GREEN, ORANGE, PINK, RED

INK, FAINT, WALL, CLEAR = "#222222", "#B5B5B5", "#8A8A8A", "rgba(0,0,0,0)"
BLUE, SKY = "#0072B2", "#56B4E9"  # with the colours of the rules: Okabe and Ito
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


OUTCOMES = {  # how a plan came about -> colour and mark
    "sync": (BLUE, "circle"),
    "idle_saturated": (SKY, "square"),
    "idle_energy": (ORANGE, "diamond"),
    "idle_integer": (GREEN, "triangle-up"),
    "infeasible_energy": (RED, "x"),
    "infeasible_time": ("#000000", "cross"),
}


def plain(text: str) -> str:
    """Words from a run, which Plotly is to show as they are: it takes tags for markup, and links for links.

    >>> plain("<a href='https://example.org'>hall</a>")
    "&lt;a href='https://example.org'&gt;hall&lt;/a&gt;"
    """
    return escape(text, quote=False)


def blank(*traces: Any) -> Any:
    """A figure in this look, with these traces."""
    return go.Figure(data=list(traces), layout={"template": TEMPLATE})


def styled(figure: Any, title: str, height: int = 420, **layout: Any) -> Any:
    """The common frame: white, a title, room for labels, as wide as the page."""
    figure.update_layout(
        title={"text": plain(title), "font": {"size": 15}, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        height=height,
        margin={"l": 56, "r": 16, "t": 48, "b": 48},
    )
    figure.update_layout(**layout)
    return figure


def empty(words: str, height: int = 420) -> Any:
    """A figure that says why there is nothing to see."""
    figure = blank()
    figure.add_annotation(
        text=plain(words), showarrow=False, font={"size": 15}, x=0.5, y=0.5, xref="paper", yref="paper"
    )
    axis = {"visible": False}
    return styled(figure, "", height, xaxis=axis, yaxis=axis)
