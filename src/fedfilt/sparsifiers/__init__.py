"""How an update is cut down to what may be sent, one rule per file."""

from fedfilt.parts import folder

__getattr__, __dir__ = folder(__name__)
