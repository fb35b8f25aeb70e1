"""One look for all figures: colours for colour-blind readers (Okabe and Ito), and marks that work in grey."""

from html import escape
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from fedfilt.runs.rules import GREEN, ORANGE, PINK, RED

INK, FAINT, WALL, CLEAR = "#222222", "#B5B5B5", "#8A8A8A", "rgba(0,0,0,0)"
BLUE, SKY = "#0072B2", "#56B4E9"  # with the rules' colours: Okabe and Ito
SCALE = "Cividis"  # for amounts: even in lightness, and the same to colour-blind readers
PHONE, WIDE = 340, 45  # width of a figure on a phone in pixels, and the letters of a title that fit in it
LETTER, LINE = 7, 19  # pixels of a letter and a line of a legend
KEYS = 2  # lines of a legend that fit into a figure
LEGEND = {"orientation": "h", "y": 0, "yanchor": "bottom", "yref": "container", "x": 0, "xref": "container"}
LEGEND |= {"tracegroupgap": 0}

AXIS = {"gridcolor": "#E4E8EE", "linecolor": "#E4E8EE", "zerolinecolor": "#E4E8EE", "automargin": True, "ticks": ""}
TEMPLATE: dict[str, Any] = {  # small, because every figure carries it
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


OUTCOMES = {  # outcome of a plan -> colour and mark
    "sync": (BLUE, "circle"),
    "idle_saturated": (SKY, "square"),
    "idle_energy": (ORANGE, "diamond"),
    "idle_integer": (GREEN, "triangle-up"),
    "infeasible_energy": (RED, "x"),
    "infeasible_time": ("#000000", "cross"),
}


def plain(text: str) -> str:
    """Escapes words from a run so that Plotly shows them as they are: it would interpret tags and links.

    >>> plain("<a href='https://example.org'>hall</a>")
    "&lt;a href='https://example.org'&gt;hall&lt;/a&gt;"
    """
    return escape(text, quote=False)


def blank(*traces: Any) -> Any:
    """A figure in this style, with these traces."""
    return go.Figure(data=list(traces), layout={"template": TEMPLATE})


def wrapped(text: str, width: int = WIDE) -> str:
    """Words from a run, wrapped to lines that fit on a phone.

    >>> wrapped("mean accuracy on the local test, mean over seeds")
    'mean accuracy on the local test, mean over<br>seeds'
    """
    return "<br>".join(plain(line) for line in wrap(text, width))


def styled(figure: Any, title: str, height: int = 420, **layout: Any) -> Any:
    """The common frame: white, a title, space for labels and for the legend on a phone, as wide as the page."""
    margin = {"l": 56, "r": 16, "t": 48, "b": 48, **layout.pop("margin", {})}
    text, more = wrapped(title), 0
    if layout.get("legend", {}).get("orientation") == "h" and layout.get("showlegend") is not False:
        more = LINE * max(_legend_lines(figure) - KEYS, 0)
    if more:
        margin["b"] += more
        layout["legend"] = {**layout["legend"], "maxheight": 0.9}
    margin["t"] += LINE * text.count("<br>")
    tall = height + more + LINE * text.count("<br>")
    figure.update_layout(title=_title(text, tall), height=tall, margin=margin, **layout)  # once: Plotly is slow at it
    return figure


def titled(figure: Any, title: str) -> Any:
    """The same figure with another title, in as many lines as it needs on a phone."""
    text, before = wrapped(title), figure.layout.title.text or ""
    more = LINE * (text.count("<br>") - before.count("<br>"))
    tall = figure.layout.height + more
    figure.update_layout(title=_title(text, tall), height=tall, margin={"t": figure.layout.margin.t + more})
    return figure


def _title(text: str, height: float) -> dict[str, Any]:
    y = 1 - 10 / height if "<br>" in text else 1  # Plotly puts several lines higher than one
    at = {"x": 0, "xref": "container", "pad": {"l": 10, "t": 12}, "y": y, "yanchor": "top", "yref": "container"}
    return {"text": text, "font": {"size": 15}, **at}


def _legend_lines(figure: Any) -> int:
    """Number of lines of a horizontal legend on a phone, in columns as wide as the longest name."""
    names = [trace.name.split("<br>") for trace in figure.data if trace.name and trace.showlegend is not False]
    if not names:
        return 0
    columns = max(PHONE // (50 + LETTER * max(len(line) for name in names for line in name)), 1)
    return sum(max(map(len, names[at : at + columns])) for at in range(0, len(names), columns))


def empty(words: str, height: int = 420) -> Any:
    """A figure that says why there is nothing to see."""
    figure = blank()
    figure.add_annotation(
        text=wrapped(words, 36), showarrow=False, font={"size": 15}, x=0.5, y=0.5, xref="paper", yref="paper"
    )
    axis = {"visible": False}
    return styled(figure, "", height, xaxis=axis, yaxis=axis)
