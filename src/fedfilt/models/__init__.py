"""Models, one per file: plain torch modules made from an input shape and a number of classes."""

from fedfilt.parts import folder

__getattr__, __dir__ = folder(__name__)
