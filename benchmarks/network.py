"""What can hold up an edge server: a device that announces replies but sends none, and idle connections.

Four devices with TLS and keys, of which one is benchmarks/silent_device.py, train with 20 s for a round. Then the edge
server is asked for its nodes, over a new connection each time, while 1,500 others are idle, from the address of the one
who asks or from another: most as plain TCP, a fifth with TLS and half of a head, some without the end of a body.
Usage: python benchmarks/network.py [--rounds 3] [--connections 1500] [--out results/network.json]
"""

import argparse
import json
import os
import resource
import socket
import ssl
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from common import conclude, heading, where
from fedfilt.flower.deploy.control import control
from fedfilt.flower.deploy.supervise import free_port, running
from processes import HERE, PATH, device, lines, memory, said, server, tree, until, written

EXPERIMENT = """
rounds = {rounds}
data = "digits"

[samples]
train = 20
local_test = 10
global_test = 40

[model]
name = "mlp"
hidden = 8

[partition]
name = "labels"
per_device = 3

[graph]
name = "rooms"
rooms = 1
devices = 4

[evaluation]
every = 1000

[engine]
name = "flower"
timeout_seconds = 20
"""
HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: edge\r\n"
KINDS = [(0.75, None), (0.2, HEAD), (0.05, HEAD + b"Content-Length: 1000\r\n\r\nx")]  # shares, and what they say
ASKS = 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=1500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    heading("flwr")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as made:
        found, checks = measured(Path(made), options)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(where("flwr") | found, indent=1) + "\n")
    conclude(checks)


def measured(folder, options):
    port, building = free_port(), folder / "building"
    (folder / "e.toml").write_text(EXPERIMENT.format(rounds=1000))
    folders = written(folder / "e.toml", building, port)
    authority = building / "server" / "certificates" / "ca.crt"
    with ExitStack() as stack:
        process = stack.enter_context(server(building))
        until(lambda: said(building / "server.log", "Flower run"), "the edge server is there")
        words = [sys.executable, str(HERE / "silent_device.py"), str(folders[3])]
        extra = {"PYTHONPATH": PATH}
        stack.enter_context(running(words, folders[3] / "flower", folders[3] / "device.log", extra))
        until(lambda: said(folders[3] / "device.log", "connected"), "the silent device is there")
        for one in folders[:3]:
            stack.enter_context(device(one))
        until(lambda: len(lines(building)) >= options.rounds, "the rounds are played", 60 * options.rounds)
        played = [
            {"seconds": round(line["seconds"], 2), "absent": line.get("absent", {})}
            for line in lines(building)[: options.rounds]
        ]
        link = next(pid for pid, command in tree(process.pid) if "deploy.superlink" in command)
        idle = {"none": asked(port, authority) | {"resident_mb": memory(link)[1] // 2**20}}
        for source in ("127.0.0.1", "127.0.0.9"):
            with ExitStack() as opened:
                for share, says in KINDS:
                    connections(opened, round(share * options.connections), port, source, says, authority)
                name = f"{options.connections} from {'the same' if source == '127.0.0.1' else 'another'} address"
                idle[name] = asked(port, authority) | {"resident_mb": memory(link)[1] // 2**20}
    honest = min(3 - len(set(one["absent"]) - {"3"}) for one in played)
    checks = [
        ("honest replies of 3 that counted in every round", honest, 3),
        ("seconds left of 21 after the longest round", 21 - max(one["seconds"] for one in played), 0),
        ("seconds left of 1 after the median request", 1 - max(one["median"] for one in idle.values()), 0),
    ]
    return {"load": os.getloadavg()[0], "rounds": played, "requests": idle}, checks


def connections(stack, count, port, source, says, authority):
    """Open so many; those that were closed to make room for others are of no interest."""
    context = ssl.create_default_context(cafile=authority)
    for _ in range(count):
        one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60, (source, 0)))
        if says is not None:
            with suppress(OSError):
                one = stack.enter_context(context.wrap_socket(one, server_hostname="127.0.0.1"))
                one.sendall(says)


def asked(port, authority):
    """Seconds that requests take, each over a connection of its own."""
    taken = []
    for _ in range(ASKS):
        start = time.monotonic()
        with control(f"127.0.0.1:{port}", authority) as link:
            link.nodes()
        taken.append(time.monotonic() - start)
    return {"median": round(statistics.median(taken), 3), "longest": round(max(taken), 3)}


if __name__ == "__main__":
    main()
