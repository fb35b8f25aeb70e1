"""A malicious device: it announces a reply to every job at once, and never sends it.

Usage: python benchmarks/silent_device.py FOLDER
"""

import sys
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict

from fedfilt.engines.flower._compat import Fleet, Refused
from fedfilt.flower.device import Device

device = Device.read(Path(sys.argv[1]))
while True:
    try:
        fleet = device.connection().__enter__()
        break
    except Refused as error:  # the edge server has just started and does not know its devices yet
        print(error, flush=True)
        time.sleep(0.5)
print("connected", flush=True)
ask = fleet._ask
fleet._ask = lambda call, request: None if "PushObject" in type(request).__name__ else ask(call, request)  # type: ignore[method-assign]
while True:
    order = Fleet.receive(fleet)
    if order is not None:
        fleet.send(Message(RecordDict({"none": ConfigRecord({"a": 1})}), reply_to=order), 0.0)
