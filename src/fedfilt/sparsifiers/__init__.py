"""How an update is reduced to what may be sent, one rule per file."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.sparsifiers.top_k import TopK as TopK

__getattr__, __dir__ = folder(__name__)
