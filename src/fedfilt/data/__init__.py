"""Samples, recordings and where they are kept."""

from fedfilt.data.samples import FederatedData, Samples

__all__ = ["FederatedData", "Samples"]
