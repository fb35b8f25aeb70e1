"""Flower's SuperLink with its Control API closed to the network, started with Flower's own options.

Flower serves three APIs on one port: Fleet for devices (with their keys), Control to start runs and register keys, and
Runtime for the server app. The last two require no account, and whoever reaches them can run code on every device.
Here, they answer only to the SuperLink's own machine. Flower reads a request before it checks who sent it; here, a
request from another machine must not be larger than FEDFILT_MOST_BYTES. `gate` limits the connections.
"""

import ipaddress
import logging
import os
import sys
from contextlib import nullcontext

from anyio import to_thread
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from fedfilt.engines.flower._compat import Unsupported, be_patient, run_superlink
from fedfilt.flower.deploy.gate import STATE, serve

log = logging.getLogger("flwr")

OPEN = "/v1/fleet/"  # what devices need
MOST_BYTES = "FEDFILT_MOST_BYTES"
THREADS = 4  # that work on requests; by default there are 40, which wait for each other's lock on the database


class Guard:
    """Refuses requests outside the Fleet API, and large ones, unless they come from this machine."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app, self._most = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            to_thread.current_default_thread_limiter().total_tokens = THREADS
            await self._app(scope, receive, send)
            return
        connection, here = scope.get("state", {}).get(STATE), _from_here(scope)
        with nullcontext() if connection is None else connection.request():
            hear = receive if connection is None else connection.heard(receive, here)
            if here:
                await self._app(scope, hear, send)
            elif scope["type"] != "http" or not scope["path"].startswith(OPEN):
                await _refuse(scope, send, 403, "only the SuperLink's own machine may do this")
            elif not _small(scope, self._most):
                await _refuse(scope, send, 413, f"a request must declare its length, at most {self._most} bytes")
            else:
                await self._app(scope, hear, send)


def _small(scope: Scope, most: int) -> bool:
    """Whether a request has no body, or one with a known length that is not too large."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    known = all(length.isdigit() and len(length) < 20 and int(length) <= most for length in lengths)
    return known and all(name != b"transfer-encoding" for name, _ in scope["headers"])


async def _refuse(scope: Scope, send: Send, status: int, why: str) -> None:
    log.warning("refused: %r from %s: %s", scope["path"], scope.get("client"), why)
    if scope["type"] == "http":
        headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": f"{why}\n".encode()})


def _from_here(scope: Scope) -> bool:
    """Whether the other end is this machine: a loopback address, or the address it connected to."""
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or bool(server and client[0] == server[0])


def main() -> None:
    """Start the SuperLink behind the guard; with an unknown version of Flower, report that instead."""
    try:
        be_patient()
        run_superlink(serve, Middleware(Guard, most_bytes=int(os.environ[MOST_BYTES])))
    except Unsupported as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
