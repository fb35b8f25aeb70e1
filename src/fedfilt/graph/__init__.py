"""The graph of the devices, and the building behind it."""

from fedfilt.graph.graph import Graph

__all__ = ["Graph"]
