"""How messages travel in a home: within this process or over MQTT, behind the same interface."""

import logging
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

from fedfilt.home.topics import MOST_BYTES

log = logging.getLogger("fedfilt")

Handler = Callable[[str, bytes], None]  # topic, content


class Bus(Protocol):
    """Delivers messages by topic. Handlers are called one at a time, in the order in which messages arrive."""

    def publish(self, topic: str, content: bytes, *, retain: bool = False, expires: float | None = None) -> None:
        """Send a message. A retained one also reaches later subscribers, until it `expires` (seconds).

        An empty retained message removes the retained one. A message that is too large is refused (ValueError).
        """
        ...

    def subscribe(self, pattern: str, handler: Handler, *, retained: bool = True) -> None:
        """Call a handler for every message on a matching topic; + stands for one level, # for the rest.

        Messages that are `retained` come first; set it to False to receive only new ones.
        """
        ...

    def unsubscribe(self, handler: Handler) -> None:
        """Stop calling a handler."""
        ...

    def close(self) -> None:
        """Leave the bus; the last will is published."""
        ...


class _Kept(NamedTuple):
    content: bytes
    until: float  # monotonic


@lru_cache(maxsize=4096)  # the same few, thousands of times a second
def matches(pattern: str, topic: str) -> bool:
    """Whether a topic matches a pattern, by the rules of MQTT.

    >>> [matches(pattern, "a/b/c") for pattern in ("a/+/c", "a/#", "a/b", "+/b/c/#")]
    [True, True, False, True]
    """
    wanted, given = pattern.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(given) or level not in ("+", given[place]):
            return False
    return len(wanted) == len(given)


def check_size(topic: str, content: bytes) -> None:
    """Refuse a message that is too large to be read; a broker would even disconnect its sender."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"a message must be at most {MOST_BYTES} bytes, got {len(content)} for {topic}")


class Memory:
    """A bus within this process, for an edge server and several devices; each uses a `member` of it.

    >>> bus, got = Memory(), []
    >>> bus.publish("home/lamp", b"on", retain=True)
    >>> bus.subscribe("home/+", lambda topic, content: got.append(content))
    >>> got
    [b'on']
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[str, Handler]] = []
        self._retained: dict[str, _Kept] = {}
        self._lock = threading.RLock()

    def publish(self, topic: str, content: bytes, *, retain: bool = False, expires: float | None = None) -> None:
        """Call all handlers of the topic at once, in this thread."""
        check_size(topic, content)
        with self._lock:
            if retain and not content:
                self._retained.pop(topic, None)
            elif retain:
                end = float("inf") if expires is None else time.monotonic() + expires
                self._retained[topic] = _Kept(content, end)
            for pattern, handler in list(self._handlers):
                if matches(pattern, topic):
                    call(handler, topic, content)

    def subscribe(self, pattern: str, handler: Handler, *, retained: bool = True) -> None:
        """Call a handler, first with what is retained."""
        with self._lock:
            self._handlers.append((pattern, handler))
            for topic, kept in list(self._retained.items()) if retained else ():
                if matches(pattern, topic) and kept.until > time.monotonic():
                    call(handler, topic, kept.content)

    def member(self, will: tuple[str, bytes] | None = None) -> "Member":
        """A part of this bus that can be closed separately; its last will is then published, retained."""
        return Member(self, will)

    def unsubscribe(self, *handlers: Handler) -> None:
        """Forget handlers."""
        with self._lock:
            self._handlers = [(pattern, handler) for pattern, handler in self._handlers if handler not in handlers]

    def close(self) -> None:
        """Forget all handlers."""
        with self._lock:
            self._handlers.clear()


class Member:
    """One user of a bus in memory."""

    def __init__(self, shared: Memory, will: tuple[str, bytes] | None) -> None:
        self._shared, self._will = shared, will
        self._handlers: list[Handler] = []

    def publish(self, topic: str, content: bytes, *, retain: bool = False, expires: float | None = None) -> None:
        """Send a message to all members."""
        self._shared.publish(topic, content, retain=retain, expires=expires)

    def subscribe(self, pattern: str, handler: Handler, *, retained: bool = True) -> None:
        """Call a handler for matching messages."""
        self._handlers.append(handler)
        self._shared.subscribe(pattern, handler, retained=retained)

    def unsubscribe(self, handler: Handler) -> None:
        """Forget a handler."""
        self._handlers = [one for one in self._handlers if one != handler]
        self._shared.unsubscribe(handler)

    def close(self) -> None:
        """Leave the bus, with the last will."""
        self._shared.unsubscribe(*self._handlers)
        if self._will is not None:
            self._shared.publish(*self._will, retain=True)


def call(handler: Handler, topic: str, content: bytes) -> None:
    """Call a handler; if it raises, log the error."""
    try:
        handler(topic, content)
    except Exception:  # whatever it is, the other handlers still get the message
        log.exception("a message on %s could not be handled", topic)
