"""Rules that turn the models and updates of all devices into their next models, one per file."""

from fedfilt.parts import folder

__getattr__, __dir__ = folder(__name__)
