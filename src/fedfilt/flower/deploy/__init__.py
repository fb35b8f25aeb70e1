"""Deployments: what `fedfilt deploy` writes, and what keeps it running."""
