"""Pictures of buildings, filters and runs: functions that return Plotly figures, used everywhere.

A figure of a run takes its `fedfilt.Records`. There is one file per theme: `places` (the building and who learns from
whom), `curves`, `devices`, `timelines`, `filtering`; `style` holds the colours.
"""

from fedfilt.runs.rules import look
from fedfilt.show.figures.curves import (
    AGAINST,
    LOSSES,
    STAGES,
    accuracy,
    accuracy_curves,
    axis_of,
    device_curve,
    device_scatter,
    loss,
    paired_differences,
    pareto,
)
from fedfilt.show.figures.devices import confusion, device_bars, label_counts, labels
from fedfilt.show.figures.filtering import mixing, response
from fedfilt.show.figures.places import COLOURS, building, colours, graph_signals, learns_from
from fedfilt.show.figures.style import empty, plain, titled
from fedfilt.show.figures.timelines import round_timeline, timeline

__all__ = [
    "AGAINST",
    "COLOURS",
    "LOSSES",
    "STAGES",
    "accuracy",
    "accuracy_curves",
    "axis_of",
    "building",
    "colours",
    "confusion",
    "device_bars",
    "device_curve",
    "device_scatter",
    "empty",
    "graph_signals",
    "label_counts",
    "labels",
    "learns_from",
    "look",
    "loss",
    "mixing",
    "paired_differences",
    "pareto",
    "plain",
    "response",
    "round_timeline",
    "timeline",
    "titled",
]
