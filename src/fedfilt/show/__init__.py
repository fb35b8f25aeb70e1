"""Showing runs: figures, the report and the dashboard."""
