"""A random signal on 100 devices, filtered at three strengths."""

import numpy as np

from fedfilt.filters import Tikhonov
from fedfilt.graph.building import Building
from fedfilt.mixing import mix
from fedfilt.paper._figures import PAGE, to_print
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import table
from fedfilt.show.figures import graph_signals

place = "fig. Gfiltering"
order = 20


def make(results: Results) -> Item:
    """The signal and its three filtered versions, drawn and in numbers."""
    building = Building.generate(rooms=18, devices=100, seed=1)
    graph = building.graph(reach=7.5)
    signal = np.random.default_rng(0).standard_normal((graph.count, 1))
    panels = {"own values": signal[:, 0]}
    for words, mu in (("H₂, μ = 0.01", 0.01), ("H₁, μ = 1", 1.0), ("H₀, μ = 10⁴", 1e4)):
        panels[words] = mix(graph, Tikhonov(mu), signal)[:, 0]
    rows = []
    for name, values in panels.items():
        rooms = [values[building.rooms == room] for room in range(len(building.room_names))]
        within = np.sqrt(np.mean([room.var() for room in rooms]))
        rows.append([name, f"{values.mean():.3f}", f"{values.std():.3f}", f"{within:.3f}"])
    text = table(["signal", "mean", "spread over all devices", "spread within rooms"], rows)
    text += (
        "\n\nReproduces: μ = 10⁴ gives every device the average, a small μ leaves the signal as it is, and in between "
        "the devices of a room come to agree (the spread within rooms falls faster than the spread over all), although "
        "nothing tells the filter what a room is. The paper does not give its graph and signal; these are drawn."
    )
    figure = to_print(graph_signals(building, graph, panels), PAGE, 620, margin={"l": 4, "r": 4, "t": 24, "b": 4})
    figure.update_traces(marker={"size": 6}, selector={"mode": "markers"})
    figure.update_layout(coloraxis={"colorscale": "Cividis"})  # light and dark in grey too
    end, sizes = figure.layout.coloraxis.cmax, abs(signal)
    text += (
        f" Colours end at ±{end:.2f}, so that averages can be told apart: {(sizes > end).sum()} of {graph.count} own "
        f"values lie beyond (up to {sizes.max():.2f}) and have the colour of the end."
    )
    figure.update_xaxes(visible=False)
    return Item(text, {"graph_filtering": figure.update_yaxes(visible=False)})
