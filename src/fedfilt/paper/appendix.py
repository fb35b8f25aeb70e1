"""The appendix's example in numbers: three devices, two parameters."""

import numpy as np

from fedfilt._types import Array
from fedfilt.filters import Tikhonov
from fedfilt.graph import Graph
from fedfilt.mixing import mix
from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import table

place = "appendix"
order = 130
UPDATES = np.array([[1.0, 0.0], [2.0, 3.0], [6.0, 3.0]])


def rules(mu: float) -> dict[str, Array]:
    """Updates of three devices in a row by the printed rule, with V of unit length or the appendix's V, and by ours."""
    graph = Graph.from_edges(3, [(0, 1), (1, 2)])
    frequencies, modes = np.linalg.eigh(graph.laplacian.toarray())
    response = 1 / (1 + mu * frequencies)
    ones = modes / modes[0, 0]  # the appendix's first column: ones
    ones[:, 1:] = modes[:, 1:]

    def printed(basis: Array) -> Array:
        return basis @ np.diag(np.full(3, 1 / 3)) @ np.diag(response) @ basis.T @ UPDATES

    return {"unit": printed(modes), "ones": printed(ones), "ours": mix(graph, Tikhonov(mu), UPDATES)}


def make(results: Results) -> Item:
    """What each device gets at three strengths."""
    rows = []
    for mu in (0.0, 1.0, 1e4):
        made = rules(mu)
        for device in range(3):
            cells = [", ".join(f"{value:.2f}" for value in made[key][device] + 0.0) for key in ("unit", "ones", "ours")]
            rows.append([f"{mu:g}", str(device), ", ".join(f"{value:g}" for value in UPDATES[device]), *cells])
    text = "Three devices in a row (links 0-1 and 1-2, frequencies 0, 1, 3), each with two numbers:\n\n"
    head = [
        "μ",
        "device",
        "own",
        "H diag(κ) G, V of unit length",
        "the appendix's, first column of V ones",
        "here: (N + μL)⁻¹ N G",
    ]
    text += table(head, rows)
    text += (
        "\n\nWith V of unit length, as L = V Λ Vᵀ needs, the printed rule gives a third of the average at μ = 10⁴ and "
        "a third of each own update at μ = 0: the weights 1/K are applied on top of the filter. The appendix gets the "
        "average at μ = 10⁴ because it writes the first column of V as ones, but then V is no longer orthonormal: at "
        "μ = 0 the result is neither a device's own update nor the average. The rule used here gives a device's own "
        "update at μ = 0 and the average for large μ."
    )
    return Item(text)
