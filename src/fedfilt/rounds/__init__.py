"""A round, from plan to mixed models, and what is known of it afterwards."""

from fedfilt.rounds.types import Evaluation, Experiment, Happening, Record, Reply, State, Tests, Updates

__all__ = ["Evaluation", "Experiment", "Happening", "Record", "Reply", "State", "Tests", "Updates"]
