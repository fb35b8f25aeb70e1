"""A deployment: what `fedfilt deploy` writes, and what keeps it running."""
