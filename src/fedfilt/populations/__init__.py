"""What hardware the devices have, one rule per file."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.populations.everyday import Everyday as Everyday
    from fedfilt.populations.measured import Measured as Measured
    from fedfilt.populations.paper import Paper as Paper
    from fedfilt.populations.prescribed import Prescribed as Prescribed

__getattr__, __dir__ = folder(__name__)
