"""Pictures of buildings, filters and runs: functions that return Plotly figures, the same everywhere.

Where a figure is of a run it takes its `fedfilt.Records`. A file per theme: `places` (the building and who
learns from whom), `curves`, `devices`, `timelines`, `filtering`; `style` holds the colours.
"""

from fedfilt.runs.rules import look
from fedfilt.show.figures.curves import AGAINST, accuracy, accuracy_curves, device_curve, pareto
from fedfilt.show.figures.devices import confusion, device_bars, label_counts, labels
from fedfilt.show.figures.filtering import mixing, response
from fedfilt.show.figures.places import COLOURS, building, graph_signals, learns_from
from fedfilt.show.figures.style import empty, plain
from fedfilt.show.figures.timelines import round_timeline, timeline

__all__ = [
    "AGAINST",
    "COLOURS",
    "accuracy",
    "accuracy_curves",
    "building",
    "confusion",
    "device_bars",
    "device_curve",
    "empty",
    "graph_signals",
    "label_counts",
    "labels",
    "learns_from",
    "look",
    "mixing",
    "pareto",
    "plain",
    "response",
    "round_timeline",
    "timeline",
]
