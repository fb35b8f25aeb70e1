"""Pictures of the living home."""

from typing import Any

import plotly.graph_objects as go

from fedfilt._types import Table

DASHES = ("solid", "dash", "dot")


def against_corrections(lines: list[Table]) -> Any:
    """Accuracy of devices and rooms against the number of corrections that people made, by rule."""
    figure = go.Figure()
    for what, dash in (("room", DASHES[0]), ("device", DASHES[1])):
        for rule in dict.fromkeys(line["rule"] for line in lines):
            own = [line for line in lines if line["rule"] == rule]
            x, y = [line["corrections"] for line in own], [line[what] for line in own]
            figure.add_trace(go.Scatter(x=x, y=y, name=f"{rule}, {what}", line={"dash": dash}, mode="lines+markers"))
    figure.update_layout(
        template="plotly_white",
        title="What corrections are worth",
        xaxis={"title": "corrections of each exercise", "dtick": 1},
        yaxis={"title": "accuracy on later exercises", "tickformat": ".0%"},
    )
    return figure
