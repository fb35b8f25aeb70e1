import pytest

from deployments import Kept


@pytest.fixture
def kept():
    """Processes of ours that end with the test."""
    processes = Kept()
    yield processes
    processes.end()
