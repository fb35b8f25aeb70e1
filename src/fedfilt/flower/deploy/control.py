"""Flower's Control API of the edge server's own SuperLink."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from fedfilt._types import Table
from fedfilt.engines.flower._compat import Control
from fedfilt.engines.flower.identity import registered


@contextmanager
def control(address: str, authority: Path | None) -> Iterator[Control]:
    """The Control API of the SuperLink at an address; `authority` is its CA's certificate, None without TLS."""
    client = Control(address, authority)
    try:
        yield client
    except httpx.HTTPError as error:
        raise OSError(f"unexpected answer from the SuperLink at {address}: {error}") from error
    finally:
        client.close()


def register(table: Table, link: Control) -> None:
    """Register the devices' keys with the SuperLink, and remove other keys under their names."""
    nodes = link.nodes()
    for device in registered(table) or []:
        named = [node for node in nodes if node.name == device.name]
        for node in named:
            if node.public_key != device.public_key:
                link.unregister(node.id)
        if device.public_key and not any(node.public_key == device.public_key for node in named):
            link.register(device.name, device.public_key)
