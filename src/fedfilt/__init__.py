"""Personalised federated learning over the graph of a building's devices (GFIoTL / G-Fedfilt).

>>> import fedfilt
>>> graph = fedfilt.Graph.paper()
>>> graph.count
20
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedfilt._version import __version__ as __version__

if TYPE_CHECKING:
    from fedfilt import (
        aggregators,
        clients,
        datasets,
        engines,
        filters,
        models,
        partitions,
        populations,
        schedulers,
        sources,
        sparsifiers,
        topologies,
    )
    from fedfilt.calls import advise, compare, load, report, run, tune
    from fedfilt.data.samples import FederatedData
    from fedfilt.data.store import DataMissing, Store
    from fedfilt.graph.building import Building
    from fedfilt.graph.graph import Graph
    from fedfilt.mixing import Strength, mix, mixing_matrix, strength
    from fedfilt.rounds.guard import Guard
    from fedfilt.rounds.participation import Participation
    from fedfilt.rounds.play import play, play_round
    from fedfilt.rounds.privacy import Privacy
    from fedfilt.rounds.remembering import Remembered
    from fedfilt.rounds.rooms import Rooms
    from fedfilt.rounds.scores import summary
    from fedfilt.rounds.timeline import Event
    from fedfilt.rounds.types import Evaluation, Experiment, Record, State, Updates
    from fedfilt.rounds.voting import vote
    from fedfilt.runs.advice import Advice
    from fedfilt.runs.build import Run
    from fedfilt.runs.comparison import Comparison
    from fedfilt.runs.config import Config, from_table
    from fedfilt.runs.fit import Fitted, fit
    from fedfilt.runs.play import play_in_folder
    from fedfilt.runs.records import Records
    from fedfilt.runs.tuning import Tuned
    from fedfilt.system.hardware import Hardware
    from fedfilt.system.orders import Plan, Schedule
    from fedfilt.training._torch import torch_module
    from fedfilt.training.client import Sent, Task
    from fedfilt.training.encoders import Encoder
    from fedfilt.training.sgd import Diverged, Training

# Public name -> module that defines it. Loaded on first use, so that the command line starts at once.
_HOMES = {
    "Advice": "runs.advice",
    "Building": "graph.building",
    "Comparison": "runs.comparison",
    "Config": "runs.config",
    "DataMissing": "data.store",
    "Diverged": "training.sgd",
    "Encoder": "training.encoders",
    "Evaluation": "rounds.types",
    "Event": "rounds.timeline",
    "Experiment": "rounds.types",
    "FederatedData": "data.samples",
    "Fitted": "runs.fit",
    "Graph": "graph.graph",
    "Guard": "rounds.guard",
    "Hardware": "system.hardware",
    "Participation": "rounds.participation",
    "Plan": "system.orders",
    "Privacy": "rounds.privacy",
    "Record": "rounds.types",
    "Records": "runs.records",
    "Remembered": "rounds.remembering",
    "Rooms": "rounds.rooms",
    "Run": "runs.build",
    "Schedule": "system.orders",
    "Sent": "training.client",
    "State": "rounds.types",
    "Store": "data.store",
    "Strength": "mixing",
    "Task": "training.client",
    "Training": "training.sgd",
    "Tuned": "runs.tuning",
    "Updates": "rounds.types",
    "advise": "calls",
    "compare": "calls",
    "fit": "runs.fit",
    "from_table": "runs.config",
    "load": "calls",
    "mix": "mixing",
    "mixing_matrix": "mixing",
    "play": "rounds.play",
    "play_in_folder": "runs.play",
    "play_round": "rounds.play",
    "report": "calls",
    "run": "calls",
    "strength": "mixing",
    "summary": "rounds.scores",
    "torch_module": "training._torch",
    "tune": "calls",
    "vote": "rounds.voting",
}
__all__ = [
    "Advice",
    "Building",
    "Comparison",
    "Config",
    "DataMissing",
    "Diverged",
    "Encoder",
    "Evaluation",
    "Event",
    "Experiment",
    "FederatedData",
    "Fitted",
    "Graph",
    "Guard",
    "Hardware",
    "Participation",
    "Plan",
    "Privacy",
    "Record",
    "Records",
    "Remembered",
    "Rooms",
    "Run",
    "Schedule",
    "Sent",
    "State",
    "Store",
    "Strength",
    "Task",
    "Training",
    "Tuned",
    "Updates",
    "advise",
    "aggregators",
    "clients",
    "compare",
    "datasets",
    "engines",
    "filters",
    "fit",
    "from_table",
    "load",
    "mix",
    "mixing_matrix",
    "models",
    "partitions",
    "play",
    "play_in_folder",
    "play_round",
    "populations",
    "report",
    "run",
    "schedulers",
    "sources",
    "sparsifiers",
    "strength",
    "summary",
    "topologies",
    "torch_module",
    "tune",
    "vote",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedfilt' has no attribute {name!r}")
    if name not in _HOMES:
        return import_module(f"fedfilt.{name}")  # a folder of parts
    value = getattr(import_module(f"fedfilt.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
