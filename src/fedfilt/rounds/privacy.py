"""What the edge server and neighbours may learn of a device."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Privacy:
    """The table [privacy].

    With `blind` the edge server of a deployment mixes rows that it cannot read; see `fedfilt.system.blind`.
    """

    blind: bool = False
