"""Where a device's readings come from, one per file. A new file in this folder is a new source, available by name."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.sources.csv import Csv as Csv
    from fedfilt.sources.mqtt import Mqtt as Mqtt
    from fedfilt.sources.replay import Replay as Replay

__getattr__, __dir__ = folder(__name__)
