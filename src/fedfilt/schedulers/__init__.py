"""Rules that plan how much each device trains and sends in a round, one per file."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.schedulers.everything import Everything as Everything
    from fedfilt.schedulers.same_deadline import SameDeadline as SameDeadline

__getattr__, __dir__ = folder(__name__)
