"""Which Flower node is which device: by its registered key or, in a simulation, by its own statement."""

import logging
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from datetime import datetime

from flwr.serverapp import Grid

from fedfilt.engines.flower import messages
from fedfilt.engines.flower._compat import START
from fedfilt.engines.flower.exchange import exchange
from fedfilt.engines.flower.identity import Registered

log = logging.getLogger("fedfilt")

ANSWER = 30.0  # seconds for a node that has just come online to fetch an order and answer it


class Nodes:
    """The nodes of the devices that are online now.

    With `registered` devices, a row belongs only to the holder of its private key. Without, nodes are asked for their
    number (`partition-id`); a number that an online node already has is not assigned twice.
    """

    def __init__(
        self, grid: Grid, count: int, registered: Sequence[Registered] | None = None, gone: Set[int] = frozenset()
    ) -> None:
        """`gone` are rows of devices that were removed; nothing is sent to them."""
        if registered is not None and len(registered) != count:
            raise ValueError(
                f"there must be {count} registered devices, one per row of the graph, got {len(registered)}"
            )
        self._grid, self._count, self._registered, self._gone = grid, count, registered, gone
        self._numbers: dict[int, int] = {}  # node id -> device, of nodes that said their number
        self._refused: set[int] = set()

    def online(self) -> dict[int, int]:
        """Node id of every device that is online."""
        found = self._by_number() if self._registered is None else self._by_key(self._registered)
        return {row: node for row, node in found.items() if row not in self._gone}

    def restarted(self, seconds: float) -> set[int]:
        """Ids of nodes that came online within the last `seconds`, but long enough ago to have answered."""
        found: set[int] = set()
        now = time.time()
        if self._registered is None:  # simulated, or told apart by what they say: not known
            return found
        for node in self._grid.get_nodes():
            with suppress(ValueError):
                began = datetime.fromisoformat(node.last_activated_at).timestamp()
                if now - seconds < began < now - ANSWER:
                    found.add(int(node.node_id))
        return found

    def wait(self, wanted: Set[int], seconds: float, patience: float = 180.0) -> dict[int, int]:
        """Wait for devices to be online: at most so long for the first, and then `patience` for the others."""
        end, said = time.monotonic() + seconds, -1
        while (here := len(wanted & (found := self.online()).keys())) < len(wanted) and time.monotonic() < end:
            if here and said <= 0:
                end = min(end, time.monotonic() + patience)
            if here != said:
                log.info("%d of %d devices are online", said := here, len(wanted))
            time.sleep(1.0)
        return found

    def _by_key(self, registered: Sequence[Registered]) -> dict[int, int]:
        rows = {device.public_key: row for row, device in enumerate(registered) if device.public_key}
        found = {}
        for node in self._grid.get_nodes():
            row = rows.get(bytes(node.public_key))
            if row is not None and node.name in ("", registered[row].name):
                found[row] = int(node.node_id)
            elif node.node_id not in self._refused:
                self._refused.add(node.node_id)
                log.warning("node %d (%r) does not hold the key of a device; it is ignored", node.node_id, node.name)
        return found

    def _by_number(self) -> dict[int, int]:
        here = {int(node) for node in self._grid.get_node_ids()}
        self._numbers = {node: device for node, device in self._numbers.items() if node in here}
        new = sorted(here - set(self._numbers))
        asked = {node: messages.addressed("who", node, messages.who_order(), 0, START) for node in new}
        for answer in exchange(self._grid, asked, START):
            node, problem = answer.device, answer.problem
            try:
                if answer.content is not None:
                    device = messages.read_who_reply(answer.content, self._count)
                    if device not in self._numbers.values():
                        self._numbers[node] = device
                        continue
                    problem = f"refused: it claims to be device {device}, which is another node"
            except messages.BadMessage as error:
                problem = f"refused: {error}"
            if node not in self._refused:
                self._refused.add(node)
                log.warning("node %d is ignored; %s", node, problem)
        return {device: node for node, device in self._numbers.items()}
