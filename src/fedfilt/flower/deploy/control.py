"""The control of the edge server's own SuperLink."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from fedfilt.engines.flower._compat import Control


@contextmanager
def control(address: str, authority: Path | None) -> Iterator[Control]:
    """The control of the SuperLink at an address; `authority` is its CA's certificate, None without TLS."""
    client = Control(address, authority)
    try:
        yield client
    except httpx.HTTPError as error:
        raise OSError(f"the SuperLink at {address} did not answer as it should: {error}") from error
    finally:
        client.close()
