"""A building of 100 devices, and what a filter on its graph does to a random signal at three strengths.

Makes the paper's figure "An illustration of different graph filtering": python examples/filtering.py [OUT_DIR]
"""

import sys
from pathlib import Path

import numpy as np

import fedfilt
from fedfilt.filters import Tikhonov
from fedfilt.show.figures import graph_signals


def main(out: Path) -> None:
    building = fedfilt.Building.generate(rooms=18, devices=100, seed=1)
    graph = building.graph(reach=7.5)
    print(graph)
    print("frequencies:", np.array2string(graph.frequencies, precision=2, max_line_width=100))

    signal = np.random.default_rng(0).standard_normal((graph.count, 1)).astype(np.float32)
    panels = {"the devices' own values": signal[:, 0]}
    for mu in (0.01, 1.0, 1e4):
        response = Tikhonov(mu)
        panels[f"filtered, mu = {mu:g}"] = fedfilt.mix(graph, response, signal)[:, 0]
        print(f"mu = {mu:g}: {fedfilt.strength(graph, response)}")

    out.mkdir(parents=True, exist_ok=True)
    picture = out / "filtering.html"
    graph_signals(building, graph, panels).write_html(picture)
    print(f"picture: {picture} (open it in a browser)")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
