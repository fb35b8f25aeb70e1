"""A deployment against those who hold it up: replies that are announced and not sent, connections that say nothing."""

import sys
import tomllib

import pytest

pytest.importorskip("flwr")

from deployments import DEALT, Devices, deployed, metrics
from fedfilt.runs.config import from_table
from helpers import until

SILENT = """
import sys
from flwr.app import ConfigRecord, Message, RecordDict
from fedfilt.engines.flower import _compat
from fedfilt.flower import device
ask = _compat.Fleet._ask

def announce(self, call, request):
    return None if type(request).__name__ == "PushObjectRequest" else ask(self, call, request)

_compat.Fleet._ask = announce
device.answer = lambda self, order, ahead: Message(RecordDict({"none": ConfigRecord({"a": 1})}), reply_to=order)
from fedfilt.cli import app
app(["device", sys.argv[1]])
"""


@pytest.mark.slow(20)
def test_a_device_that_announces_its_reply_and_sends_nothing_holds_nobody_up(tmp_path, kept):
    """Three of four are enough: the round ends with them, long before the fourth is given up."""
    changes = {
        "rounds": 3,
        "late": {"policy": "quorum", "quorum": 0.75},
        "engine": {"name": "flower", "real_time": True},
    }
    building, server = deployed(tmp_path, kept, experiment=from_table(tomllib.loads(DEALT) | changes).toml())
    devices, log = Devices(building, kept), tmp_path / "silent.log"
    kept.start([sys.executable, "-c", SILENT, building / "devices" / "device-003"], log)
    until(lambda: "is connected to" in log.read_text(), "the silent device is there")
    for name in ("device-000", "device-001", "device-002"):
        devices.start(name)
    until(lambda: server.poll() is not None, "the end of the run")
    assert [line["absent"] for line in metrics(building)] == [{"3": "late: no answer in time"}] * 3
