"""Frequency responses, one per file. A new file in this folder is a new filter, available by name and tested."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.filters.allpass import AllPass as AllPass
    from fedfilt.filters.floor import Floor as Floor
    from fedfilt.filters.heat import Heat as Heat
    from fedfilt.filters.ideal import Ideal as Ideal
    from fedfilt.filters.tikhonov import Tikhonov as Tikhonov

__getattr__, __dir__ = folder(__name__)
