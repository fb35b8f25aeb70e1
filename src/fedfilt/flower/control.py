"""What the edge server tells its own SuperLink: register a key, start a run, say how a run is.

The same requests as of the commands `flwr supernode register`, `flwr run` and `flwr list`, without a new process each.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.run_pb2 import Run
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor


class Control:
    """The control of a SuperLink."""

    def __init__(self, client: ControlHttpClient) -> None:
        self._client = client

    def names(self) -> set[str]:
        """Names of the nodes that are registered."""
        return {node.name for node in self._client.ListNodes(ListNodesRequest()).nodes_info if node.name}

    def register(self, name: str, public_key: bytes) -> None:
        """Let who holds this key (PEM) in, under this name."""
        self._client.RegisterNode(RegisterNodeRequest(public_key=public_key, name=name))

    def start(self, app: Path) -> int:
        """Start a run of a Flower app, and give its id."""
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        return int(self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)

    def stop(self, run_id: int) -> None:
        """End a run."""
        self._client.StopRun(StopRunRequest(run_id=run_id))

    def run(self, run_id: int) -> Run:
        """How a run is: `status.status` is "finished" at its end, `status.details` says why."""
        return self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id]


@contextmanager
def control(address: str, authority: Path | None) -> Iterator[Control]:
    """The control of the SuperLink at an address; `authority` is its CA's certificate, None without TLS."""
    client = ControlHttpClient.from_server_address(
        address,
        authority is None,
        None if authority is None else authority.read_bytes(),
        [RuntimeVersionHttpInterceptor(component_name="fedfilt")],
    )
    try:
        yield Control(client)
    except httpx.HTTPError as error:
        raise OSError(f"the SuperLink at {address} did not answer as it should: {error}") from error
    finally:
        client.close()
