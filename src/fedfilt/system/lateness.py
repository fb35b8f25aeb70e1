"""What the server does about late devices."""

import math
from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_choice, check_number
from fedfilt._types import Array


@dataclass(frozen=True)
class Lateness:
    """What the server does about late devices: the table [late].

    policy "wait" waits for all; "deadline" leaves out devices that have not replied by deadline · exp(margin · σ),
    where σ is the spread that the plan does not know; "quorum" ends the round when this share of the devices has
    replied.
    """

    policy: str = "wait"  # "wait" for all, until the "deadline", or for a "quorum"
    # devices are late after deadline · exp(margin · σ), where σ is the spread that the plan does not know
    margin: float = 1.6
    quorum: float = 0.9  # the round ends when this share of the devices has arrived

    def __post_init__(self) -> None:
        check_choice("late.policy", self.policy, ("wait", "deadline", "quorum"))
        check_number("late.margin", self.margin, low=0)
        check_number("late.quorum", self.quorum, low=0, high=1, above=True)

    def end(self, arrivals: Array, deadline: float, spread: float) -> float:
        """When the round ends: devices that reply later are absent.

        >>> arrivals = np.array([1.0, 2.0, 4.0])
        >>> [Lateness(p, quorum=0.6).end(arrivals, 3.0, 0.0) for p in ("wait", "deadline", "quorum")]
        [4.0, 3.0, 2.0]
        """
        last = float(arrivals.max())
        if self.policy == "deadline":
            if math.isinf(deadline):
                raise ValueError(
                    "late.policy = 'deadline' needs a scheduler that sets a deadline, such as same_deadline"
                )
            return min(last, deadline * float(np.exp(np.minimum(self.margin * spread, 700))))
        if self.policy == "quorum":
            return float(np.sort(arrivals)[math.ceil(self.quorum * len(arrivals) - 1e-9) - 1])
        return last
