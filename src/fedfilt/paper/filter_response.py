"""The filter's response over the frequencies of the experiment graph."""

from fedfilt.graph import Graph
from fedfilt.paper._figures import responses
from fedfilt.paper._items import Item
from fedfilt.paper._printed import HIGHEST_FREQUENCY
from fedfilt.paper._results import Results
from fedfilt.paper._tables import table

place = "fig. GF"
order = 10


def make(results: Results) -> Item:
    """h(λ) for the paper's μ = 5 and the strengths of its tables."""
    graph = Graph.paper()
    below = [f"{value:.3f}" for value in graph.frequencies[:5]]
    highest = float(graph.frequencies[-1])
    text = table(
        ["", "paper", "here"],
        [
            ["number of frequencies", "20", str(len(graph.frequencies))],
            ["lowest five", "first is 0", ", ".join(below).replace("-0.000", "0.000")],
            ["highest", f"{HIGHEST_FREQUENCY}", f"{highest:.3f}"],
            ["what μ = 5 leaves of the highest", "-", f"{1 / (1 + 5 * highest):.1%}"],
        ],
    )
    words = (
        "The shape reproduces: a smooth low-pass filter. The graph that the authors published has the highest "
        f"frequency {highest:.3f}, not {HIGHEST_FREQUENCY}. Four frequencies lie below 1, because there are four "
        "rooms. The grey lines are the graph's frequencies."
    )
    return Item(f"{text}\n\n{words}", {"filter_response": responses(graph, (0.1, 1, 5, 10, 100), mark=5)})
