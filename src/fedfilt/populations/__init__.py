"""What hardware the devices have, one rule per file."""

from fedfilt.parts import folder

__getattr__, __dir__ = folder(__name__)
