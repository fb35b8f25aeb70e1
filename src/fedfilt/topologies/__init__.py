"""Ways to link the devices of an experiment: functions of the seed that return a graph, one per file.

A topology that needs what the devices learn in their first round also has a method `learn(seed, updates)`, and an
attribute `learned` that says whether it will be called.
"""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.topologies.complete import Complete as Complete
    from fedfilt.topologies.distance import Distance as Distance
    from fedfilt.topologies.edges import Edges as Edges
    from fedfilt.topologies.empty import Empty as Empty
    from fedfilt.topologies.found import Found as Found
    from fedfilt.topologies.homes import Homes as Homes
    from fedfilt.topologies.nearest import Nearest as Nearest
    from fedfilt.topologies.paper import Paper as Paper
    from fedfilt.topologies.rooms import Rooms as Rooms

__getattr__, __dir__ = folder(__name__)
