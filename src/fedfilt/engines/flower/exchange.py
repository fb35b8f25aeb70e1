"""Messages out, replies in, over any Flower Grid, polled on a monotonic clock.

Flower's `send_and_receive` sleeps three seconds between polls, uses wall time, and gives what came without saying what
did not. A reply is matched to its message by the id it answers: errors that Flower makes itself carry its own node id.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Set
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedfilt.engines.flower._compat import hurry, short

log = logging.getLogger("fedfilt")

LOOK = 10.0  # seconds between two looks for nodes that were started again
POLL = 0.1  # seconds between two looks


class Answer(NamedTuple):
    """What came back for a device."""

    device: int
    content: RecordDict | None  # None: nothing usable
    seconds: float  # since the messages were sent
    problem: str = ""  # why there is no content
    late: bool = False


def exchange(
    grid: Grid,
    sent: Mapping[int, Message],
    seconds: float,
    enough: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    restarted: Callable[[float], Set[int]] = lambda seconds: frozenset(),
) -> Iterator[Answer]:
    """Send a message to each device and yield answers as they arrive.

    A device without an answer after `seconds` is late; the last poll starts no sooner than that. `enough` good answers
    end the wait. A message to a node that has recently `restarted` counts as lost with the process that fetched it.
    """
    start, looked = clock(), 0.0
    pushed: set[str] = set()
    for message in sent.values():  # one by one: Flower announces all that it is given before it hands over the first
        pushed |= {str(id) for id in grid.push_messages([message]) if id}
    waiting: dict[str, int] = {}
    for device, message in sent.items():
        if message.metadata.message_id in pushed:
            waiting[message.metadata.message_id] = device
        else:
            yield Answer(device, None, 0.0, "offline: the message was not taken")
    good, wanted = 0, math.inf if enough is None else enough
    while waiting:
        last = clock() - start >= seconds
        if last:
            hurry(grid)
        for reply in list(grid.pull_messages(list(waiting))):
            device = waiting.pop(reply.metadata.reply_to_message_id, -1)
            if device < 0:
                log.warning("a reply that answers no open message is ignored (repeated, stale or foreign)")
                continue
            answer = _answer(device, sent[device], reply, clock() - start)
            good += answer.content is not None
            yield answer
        if clock() - start - looked > LOOK:
            looked = clock() - start
            lost = restarted(looked)
            for id in [id for id, device in waiting.items() if sent[device].metadata.dst_node_id in lost]:
                yield Answer(waiting.pop(id), None, looked, "failed: it was started again, and the order lost")
        if not waiting or last or good >= wanted:
            break
        sleep(min(POLL, max(0.0, seconds - (clock() - start))))
    for device in waiting.values():
        yield Answer(device, None, clock() - start, "late: no answer in time", late=True)


def _answer(device: int, message: Message, reply: Message, seconds: float) -> Answer:
    if reply.has_error():
        return Answer(device, None, seconds, short(f"failed: {reply.error.reason or reply.error.code}"))
    node, run = message.metadata.dst_node_id, message.metadata.run_id
    if reply.metadata.src_node_id != node or reply.metadata.run_id != run:
        return Answer(device, None, seconds, f"refused: reply must come from node {node} in run {run}")
    if reply.metadata.message_type != message.metadata.message_type or not reply.has_content():
        return Answer(device, None, seconds, "refused: reply must be of the kind that was asked for")
    return Answer(device, reply.content, seconds)
