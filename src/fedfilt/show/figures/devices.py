"""What the devices hold and how well they do: label counts, bars per device, confusion."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedfilt._types import Array
from fedfilt.runs.records import Records
from fedfilt.show.figures.style import INK, blank, empty, styled
from fedfilt.training.goal import ACCURACY

TEXT_LIMIT = 60  # most rows and columns for which cells show numbers


def label_counts(counts: Array) -> Any:
    """Training samples per device and label."""
    few = len(counts) <= TEXT_LIMIT and counts.shape[1] <= TEXT_LIMIT
    text = {"text": [[str(n) if n else "" for n in row] for row in counts], "texttemplate": "%{text}"} if few else {}
    labelled = counts.shape[1] > 1
    hover = f"device %{{y}}{', label %{x}' * labelled}: %{{z}} samples<extra></extra>"
    heat = go.Heatmap(z=counts, colorscale="Blues", colorbar={"title": "samples"}, hovertemplate=hover, **text)
    return styled(
        blank(heat),
        f"training samples per device{' and label' * labelled}",
        max(360, 140 + 22 * min(len(counts), TEXT_LIMIT)),
        xaxis={
            "title": "label" * labelled,
            "showticklabels": labelled,
            "dtick": 1 if counts.shape[1] <= TEXT_LIMIT else None,
        },
        yaxis={"title": "device", "autorange": "reversed", "dtick": 1 if len(counts) <= 40 else None},
    )


def labels(run: Records) -> Any:
    """The label counts of a run's devices."""
    return empty("no partition yet") if run.label_counts is None else label_counts(run.label_counts)


def device_bars(run: Records, test: str = "local", number: int | None = None) -> Any:
    """Accuracy of every device at the last test up to a round. The worst is marked; the line is the mean."""
    values = run.accuracies(test, number)
    if values is None or not np.isfinite(values).any():
        return empty("not tested yet")
    metric = run.metric
    worst, mean = int((np.nanargmax if metric.lower else np.nanargmin)(values)), float(np.nanmean(values))
    colours = [INK if i == worst else run.look.colour for i in range(len(values))]
    hover = f"device %{{x}}: %{{y:{metric.form}}}<extra></extra>"
    bar = go.Bar(x=list(range(len(values))), y=values, marker={"color": colours}, hovertemplate=hover)
    figure = blank(bar)
    figure.add_hline(y=mean, line={"color": INK, "dash": "dot", "width": 1.5})
    words = f"worst: device {worst}, {metric.text(float(values[worst]))}"
    at: dict[str, Any] = {"x": worst, "y": float(values[worst]), "showarrow": True, "arrowhead": 2, "ay": -32, "ax": 0}
    at["xanchor"] = "left" if worst < len(values) / 4 else "right" if worst >= 3 * len(values) / 4 else "center"
    figure.add_annotation(text=words, **at, bgcolor="#FFFFFF", bordercolor=INK, borderpad=3)
    at_round = run.tested(test, number)[-1]["round"]
    scale: dict[str, Any] = {"rangemode": "tozero"}
    if metric.share:
        scale = {"range": [0, 1.12], "tickvals": [0, 0.25, 0.5, 0.75, 1]}
    # Plotly leaves out numbers that do not fit on a phone
    return styled(
        figure,
        f"{test} {metric.words}, round {at_round} (mean {metric.text(mean)})",
        xaxis={"title": "device", "nticks": 21, "range": [-0.6, len(values) - 0.4]},
        yaxis={"title": f"{test} {metric.words}", "tickformat": metric.ticks, **scale},
    )


def confusion(run: Records, test: str = "local", number: int | None = None) -> Any:
    """The summed confusion matrix at the last test up to a round: how devices answered for each true label."""
    tested = run.tested(test, number)
    table = ((run.line(tested[-1]["round"]).get("mixed") or {}).get(test) or {}) if tested else {}
    try:
        matrix = np.array(table.get("confusion", []), dtype=float)
    except ValueError:
        matrix = np.zeros(0)
    if matrix.ndim != 2 or not matrix.size:
        return empty(
            "no confusion matrix yet" if run.metric == ACCURACY else "no confusion matrix: samples have no labels"
        )
    total = matrix.sum(axis=1, keepdims=True)
    part = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    few = len(matrix) <= 20
    text = {"text": [[f"{v:.0%}" if v >= 0.005 else "" for v in row] for row in part], "texttemplate": "%{text}"}
    hover = "true %{y}, given %{x}: %{z:.1%}<extra></extra>"
    ranges = {"zmin": 0, "zmax": 1, "colorbar": {"title": "share", "tickformat": ".0%"}}
    heat = go.Heatmap(z=part, colorscale="Blues", hovertemplate=hover, **ranges, **(text if few else {}))
    return styled(
        blank(heat),
        f"answers on the {test} test, round {tested[-1]['round']}",
        480,
        xaxis={"title": "answer", "dtick": 1 if few else None},
        yaxis={"title": "true label", "autorange": "reversed", "dtick": 1 if few else None},
    )
