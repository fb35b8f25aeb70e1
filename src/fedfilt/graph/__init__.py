"""The graph of the devices, and the building it comes from."""

from fedfilt.graph.graph import Graph

__all__ = ["Graph"]
