"""The system model: hardware, radio, plans, and what goes over the wire."""
