import os
import urllib.request
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from fedfilt._trust import trusting

settings.register_profile(
    "fedfilt", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedfilt")
torch.set_num_threads(1)  # the tests run in one process per core


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker is left with one at the end."""

    def seconds(item: pytest.Item) -> float:
        marker = item.get_closest_marker("slow")
        return 0.0 if marker is None else float(marker.args[0])

    items.sort(key=seconds, reverse=True)


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory):
    """What tests trust is remembered in a folder of theirs."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def own_proxies():
    """urllib keeps the proxies of its first call in a process, which may be those that another test has set."""
    yield
    none: Any = None
    urllib.request.install_opener(none)


@pytest.fixture
def trusted():
    """The user has said --trust-code."""
    with trusting():
        yield


@pytest.fixture
def kept():
    """Processes of a deployment that end with the test."""
    from deployments import Kept  # needs Flower

    processes = Kept()
    yield processes
    processes.end()
