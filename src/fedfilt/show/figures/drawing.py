"""A figure as plain SVG, which a browser draws at once: the building before plotly.js has loaded."""

from html import escape, unescape
from typing import Any

import numpy as np
from plotly.colors import hex_to_rgb

from fedfilt._types import Array
from fedfilt.show.figures.style import CLEAR, INK


def svg(figure: Any) -> str:
    """The lines, dots and words of a figure seen from above; lines and dots keep their size in pixels at any scale.

    >>> import plotly.graph_objects as go
    >>> svg(go.Figure(go.Scatter(x=[0, 1], y=[0, 1], mode="lines"))).split("<path ")[1]
    'd="M0 0L1 -1" stroke="#222222" stroke-width="1" fill="none"/></g></svg>'
    """
    ringed = sorted(figure.data, key=lambda trace: "markers" in (trace.mode or "") and _solid(trace.marker.color))
    traces = [(trace, _numbers(trace.x), 0 - _numbers(trace.y)) for trace in ringed]  # rings lie under the devices
    points = np.concatenate([np.column_stack([x, y]) for _, x, y in traces] or [np.zeros((1, 2))])
    low, high = np.nanmin(points, axis=0), np.nanmax(points, axis=0)
    size = np.maximum(high - low, 1e-9)
    pad = 0.05 * size.max()
    box = " ".join(_short(value) for value in (*(low - pad), *(size + 2 * pad)))
    drawn = "".join(_drawn(trace, x, y, 0.018 * size.max()) for trace, x, y in traces)
    title = escape(unescape(figure.layout.title.text or ""))
    return f'<svg viewBox="{box}" role="img" aria-label="{title}"><g>{drawn}</g></svg>'


def _drawn(trace: Any, x: Array, y: Array, letter: float) -> str:
    places = [f"{_short(a)} {_short(b)}" if np.isfinite(a) else "" for a, b in zip(x, y, strict=True)]
    mode, parts = trace.mode or "", []
    if "lines" in mode:
        path = "M" + "L".join(places).replace("LL", "M").removesuffix("L")
        line = f'stroke="{trace.line.color or INK}" stroke-width="{trace.line.width or 1:g}" fill="none"'
        parts.append(f'<path d="{path}" {line}/>')
    if "markers" in mode:
        edge = trace.marker.line
        if edge.color:
            parts.append(_dots(places, [edge.color] * len(places), trace.marker.size + 2 * edge.width))
        parts.append(_dots(places, _colours(trace.marker, len(places)), trace.marker.size))
    if "text" in mode:
        words = [] if trace.text is None else trace.text
        style = f'font-size="{letter:.3g}" fill="{INK}"' + (' text-anchor="middle"' if mode == "text" else "")
        texts = [
            f'<text x="{_short(a)}" y="{_short(b)}">{escape(unescape(str(w)))}</text>'
            for a, b, w in zip(x, y, words, strict=False)
        ]
        parts.append(f"<g {style}>{''.join(texts)}</g>")
    return "".join(parts)


def _dots(places: list[str], colours: list[str], size: float) -> str:
    """Dots are lines of zero length with round ends, which keep their width on the screen at any scale."""
    dots = "".join(f'<path d="M{place}h0" stroke="{c}"/>' for place, c in zip(places, colours, strict=True))
    return f'<g class="dots" stroke-width="{size:g}" stroke-linecap="round">{dots}</g>'


def _colours(marker: Any, count: int) -> list[str]:
    if marker.color is None or isinstance(marker.color, str):
        return ["#FFFFFF" if not _solid(marker.color) else marker.color or INK] * count
    steps = [step for step, _ in marker.colorscale]
    shades = np.array([hex_to_rgb(colour) for _, colour in marker.colorscale])
    part = (_numbers(marker.color) - marker.cmin) / max(marker.cmax - marker.cmin, 1e-9)
    mixed = np.column_stack([np.interp(part, steps, shade) for shade in shades.T])
    return ["#DDDDDD" if np.isnan(r) else f"rgb({r:.0f},{g:.0f},{b:.0f})" for r, g, b in mixed]


def _solid(colour: Any) -> bool:
    return not (isinstance(colour, str) and colour == CLEAR)


def _numbers(values: Any) -> Array:
    return np.asarray([] if values is None else values, dtype=float)


def _short(value: float) -> str:
    return f"{value:.5g}"
