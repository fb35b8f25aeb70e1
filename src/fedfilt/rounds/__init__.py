"""A round, from plan to mixed models, and what is known about it afterwards."""
