"""A device of a deployment that means harm: it announces a reply to every order at once, and never sends it.

Usage: python benchmarks/silent_device.py FOLDER
"""

import sys
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict

from fedfilt.engines.flower._compat import Fleet
from fedfilt.flower.device import Device

device = Device.read(Path(sys.argv[1]))
with device.connection() as fleet:
    print("connected", flush=True)
    ask = fleet._ask
    fleet._ask = lambda call, request: None if "PushObject" in type(request).__name__ else ask(call, request)  # type: ignore[method-assign]
    while True:
        order = Fleet.receive(fleet)
        if order is not None:
            fleet.send(Message(RecordDict({"none": ConfigRecord({"a": 1})}), reply_to=order), 0.0)
