"""Frequency responses, one per file. A new file in this folder is a new filter: usable by its name, and tested."""

from fedfilt.parts import folder

__getattr__, __dir__ = folder(__name__)
