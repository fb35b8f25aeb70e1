"""Where training happens, one per file: jobs in, replies out."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.engines.flower import Flower as Flower
    from fedfilt.engines.local import Local as Local

__getattr__, __dir__ = folder(__name__)
