"""Rules that deal samples to devices, one per file."""

from fedfilt.parts import folder

__getattr__, __dir__ = folder(__name__)
