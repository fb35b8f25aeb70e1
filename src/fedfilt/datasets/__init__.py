"""Sources of samples, one per file."""

from fedfilt.parts import folder

__getattr__, __dir__ = folder(__name__)
