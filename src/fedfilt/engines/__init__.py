"""Where training happens, one per file: jobs in, replies out."""

from fedfilt.parts import folder

__getattr__, __dir__ = folder(__name__)
