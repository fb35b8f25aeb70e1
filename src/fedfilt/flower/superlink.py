"""Flower's SuperLink, with its control shut to the network: `python -m fedfilt.flower.superlink`, options as Flower's.

Flower serves its three APIs on one port: Fleet for devices (with their keys), Control to start runs and register keys,
Runtime for the server app. The last two ask for no account, and whoever reaches them may run code on every device.
Here they answer only to the machine of the SuperLink itself.
"""

import ipaddress
import logging
from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("flwr")

OPEN = ("/v1/fleet/",)  # what devices need


class OnlyFleetFromOutside:
    """Refuses every request that is not of the Fleet API unless it comes from this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"].startswith(OPEN) or _from_here(scope):
            await self._app(scope, receive, send)
            return
        log.warning(
            "refused: %s to %s, which only this machine may use", (scope.get("client") or "?",)[0], scope["path"]
        )
        if scope["type"] == "http":
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": b"only the machine of the SuperLink may do this\n"})


def _from_here(scope: Scope) -> bool:
    """Whether the other end is this machine: a loopback address, or the very address it connected to."""
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
    """Start the SuperLink with this in front of all it serves."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink

    given = extensions.get_middleware

    def guarded() -> tuple[Any, ...]:
        return Middleware(OnlyFleetFromOutside), *given()

    extensions.get_middleware = guarded
    flower_superlink()


if __name__ == "__main__":
    main()
