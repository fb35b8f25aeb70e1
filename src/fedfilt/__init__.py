"""Personalised federated learning over the graph of a building's devices (GFIoTL / G-Fedfilt).

>>> import fedfilt
>>> graph = fedfilt.Graph.paper()
>>> graph.count
20
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfilt import aggregators, filters
    from fedfilt.building import Building
    from fedfilt.fitting import Fitted, fit
    from fedfilt.graph import Graph
    from fedfilt.mixing import Strength, mix, mixing_matrix, strength
    from fedfilt.rounds import Updates
    from fedfilt.voting import vote

__version__ = "0.1.0"

# Public name -> module that defines it. Loaded on first use, so that the command line starts at once.
_HOMES = {
    "Building": "building",
    "Fitted": "fitting",
    "Graph": "graph",
    "Strength": "mixing",
    "Updates": "rounds",
    "aggregators": "",
    "filters": "",
    "fit": "fitting",
    "mix": "mixing",
    "mixing_matrix": "mixing",
    "strength": "mixing",
    "vote": "voting",
}

__all__ = [
    "Building",
    "Fitted",
    "Graph",
    "Strength",
    "Updates",
    "aggregators",
    "filters",
    "fit",
    "mix",
    "mixing_matrix",
    "strength",
    "vote",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedfilt' has no attribute {name!r}")
    home = _HOMES[name]
    value = getattr(import_module(f"fedfilt.{home}"), name) if home else import_module(f"fedfilt.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
