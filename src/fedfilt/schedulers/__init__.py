"""Rules that plan how much each device trains and sends in a round, one per file."""

from fedfilt.parts import folder

__getattr__, __dir__ = folder(__name__)
