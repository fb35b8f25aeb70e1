"""The bus of a home over MQTT 5. Messages sent while the broker is away wait, within bounds.

paho-mqtt (`fedfilt[mqtt]`) reconnects by itself. Its own queue is not used: it has no expiry, and a retained message
need not be sent once there is a newer one.
"""

import logging
import ssl
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from fedfilt.home.bus import Handler, call, check_size, matches
from fedfilt.home.topics import MOST_BYTES

log = logging.getLogger("fedfilt")

MOST_WAITING = 1000  # messages waiting for the broker, and topics with a retained message
SOONEST, LATEST = 1, 30  # seconds before the next attempt to connect
KEEPALIVE = 30  # seconds; a broker publishes a last will after one and a half of them
OVERHEAD = 1024  # bytes of a packet in addition to its content
EVERY = 60.0  # seconds between two lines in the log about what was dropped
CLOSING = 5.0  # seconds to send the last messages


class Keys(NamedTuple):
    """Files by which a client and its broker authenticate each other."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path, name: str = "client") -> "Keys":
        """The files that `fedfilt home write` put into a folder."""
        return cls(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key")


class _Waiting(NamedTuple):
    topic: str
    content: bytes
    retain: bool
    until: float  # monotonic


class Mqtt:
    """A home's bus on a broker. Handlers are called one at a time, on a thread of its own.

    This client publishes its retained messages again on every connection, in case the broker has forgotten them, and to
    replace a last will. All other messages sent while the broker is away are queued; when too many wait, the oldest are
    dropped. It connects in the background: it is no error if there is no broker yet.
    """

    def __init__(
        self,
        host: str,
        port: int,
        name: str,
        *,
        keys: Keys | None = None,
        will: tuple[str, bytes] | None = None,
    ) -> None:
        """`name` is the client's; `will` is a topic and the message retained there when we are gone."""
        self.dropped: Counter[str] = Counter()
        self._where, self._will = f"{host}:{port}", will
        self._handlers: list[tuple[str, Handler, bool]] = []
        self._retained: dict[str, _Waiting] = {}
        self._queue: deque[_Waiting] = deque(maxlen=MOST_WAITING)
        self._lock, self._turn = threading.RLock(), threading.RLock()  # for our state; for the handlers
        self._connected = threading.Event()
        self._largest = MOST_BYTES
        self._said, self._told = "", -EVERY
        self._last: paho.MQTTMessageInfo | None = None
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        self._client = client
        # Waiting messages go out at once, in addition to those the broker had not acknowledged when it went away
        client.max_queued_messages_set(2 * MOST_WAITING)
        client.reconnect_delay_set(SOONEST, LATEST)
        self._keys, self._context = keys, None if keys is None else ssl.create_default_context(cafile=keys.ca)
        if keys is not None and self._context is not None:
            self._context.load_cert_chain(keys.certificate, keys.key)
            client.tls_set_context(self._context)
        if will is not None:
            client.will_set(*will, qos=1, retain=True)
        client.on_connect, client.on_connect_fail = self._on_connect, self._on_connect_fail
        client.on_disconnect, client.on_message = self._on_disconnect, self._on_message
        client.on_publish, client.on_subscribe = self._on_publish, self._on_subscribe
        asked = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        asked.MaximumPacketSize = MOST_BYTES + OVERHEAD
        client.connect_async(host, port, KEEPALIVE, clean_start=True, properties=asked)
        client.loop_start()

    def publish(self, topic: str, content: bytes, *, retain: bool = False, expires: float | None = None) -> None:
        """Send a message, or keep it until the broker is back."""
        check_size(topic, content)
        end = float("inf") if expires is None else time.monotonic() + expires
        message = _Waiting(topic, content, retain, end)
        with self._lock:
            if retain:
                self._retained.pop(topic, None)  # the newest last
                self._retained[topic] = message
                if len(self._retained) > MOST_WAITING:
                    del self._retained[next(iter(self._retained))]
                    self._drop("too many topics to publish again after reconnecting")
            if self._connected.is_set():
                self._send(message)
            elif not retain:
                if len(self._queue) == MOST_WAITING:
                    self._drop("too many were waiting for the broker")
                self._queue.append(message)

    def subscribe(self, pattern: str, handler: Handler, *, retained: bool = True) -> None:
        """Call a handler for matching messages; on every new connection, again with what is retained."""
        with self._turn:
            self._handlers.append((pattern, handler, retained))
        with self._lock:
            if self._connected.is_set():
                self._ask([(pattern, retained)])

    def unsubscribe(self, handler: Handler) -> None:
        """Stop calling a handler, and unsubscribe from patterns that nobody needs any longer."""
        with self._turn:
            given = {pattern for pattern, one, _ in self._handlers if one == handler}
            self._handlers = [one for one in self._handlers if one[1] != handler]
        with self._lock:
            unwanted = given - {pattern for pattern, _, _ in self._handlers}
            if unwanted and self._connected.is_set():
                self._client.unsubscribe(sorted(unwanted))

    def wait(self, seconds: float) -> bool:
        """Wait until the broker is connected; returns whether it is."""
        return self._connected.wait(seconds)

    def close(self) -> None:
        """Publish the last will, if the broker is connected, and disconnect."""
        if self._will is not None:
            self.publish(*self._will, retain=True)
        if self._connected.is_set() and self._last is not None:
            try:
                self._last.wait_for_publish(CLOSING)
            except (RuntimeError, ValueError) as error:  # it never got that far
                log.warning("the last messages to the broker at %s were lost: %s", self._where, error)
        self._client.disconnect()
        self._client.loop_stop()

    def _send(self, message: _Waiting) -> None:
        left = message.until - time.monotonic()
        if left <= 0:
            self._drop("expired before the broker was back")
            return
        if len(message.content) > self._largest:  # paho would report success, and the broker would disconnect us
            self._drop(f"too large for the broker, which accepts {self._largest} bytes")
            return
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if left < float("inf"):
            properties.MessageExpiryInterval = max(1, round(left))
        # Retained messages are sent again on every connection anyway. With QoS 1, paho would do so too, and an older
        # message that was not acknowledged would arrive after a newer one.
        qos = 0 if message.retain else 1
        told = self._client.publish(message.topic, message.content, qos, message.retain, properties)
        if told.rc == paho.MQTT_ERR_QUEUE_SIZE:
            self._drop("the broker is too slow")
        else:
            self._last = told

    def _ask(self, patterns: list[tuple[str, bool]]) -> None:
        """Subscribe."""
        handling = {True: SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE, False: SubscribeOptions.RETAIN_DO_NOT_SEND}
        asked = [(pattern, SubscribeOptions(qos=1, retainHandling=handling[old])) for pattern, old in patterns]
        if asked:
            self._client.subscribe(asked)

    def _on_connect(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        if code.is_failure:
            self._say(f"the broker at {self._where} refused the connection: {code}")
            return
        self._say(f"connected to the broker at {self._where}", logging.INFO)
        with self._lock:
            limit = getattr(properties, "MaximumPacketSize", MOST_BYTES + OVERHEAD)
            self._largest = min(MOST_BYTES, max(0, limit - OVERHEAD))
            wanted: dict[str, bool] = {}
            for pattern, _, retained in self._handlers:
                wanted[pattern] = wanted.get(pattern, False) or retained
            self._ask(list(wanted.items()))
            self._connected.set()
            for topic, message in list(self._retained.items()):
                if message.until <= time.monotonic():
                    del self._retained[topic]
                else:
                    self._send(message)
            while self._queue:
                self._send(self._queue.popleft())

    def _on_connect_fail(self, client: Any, data: Any) -> None:
        self._say(f"the broker at {self._where} cannot be reached; trying again, at most every {LATEST} s")

    def _take_up_keys(self) -> None:
        """Use a renewed certificate from the next connection on."""
        if self._keys is not None and self._context is not None:
            try:
                self._context.load_cert_chain(self._keys.certificate, self._keys.key)
            except OSError as error:  # they may be being replaced
                log.warning("cannot read the certificate for the broker: %s", error)

    def _on_disconnect(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        self._take_up_keys()
        with self._lock:
            there = self._connected.is_set()
            self._connected.clear()
            if there and code.is_failure:
                self._say(f"lost the connection to the broker at {self._where} ({code}); reconnecting")
            elif code.is_failure and "refuses" not in self._said:
                self._say(f"the broker at {self._where} hangs up before letting us in: did it issue our certificate?")

    def _on_publish(self, client: Any, data: Any, number: int, code: Any, properties: Any) -> None:
        if code.is_failure:
            self._drop(f"refused by the broker ({code})")

    def _on_subscribe(self, client: Any, data: Any, number: int, codes: Any, properties: Any) -> None:
        for code in codes:
            if code.is_failure:
                self._drop(f"subscriptions refused by the broker ({code})")

    def _on_message(self, client: Any, data: Any, message: paho.MQTTMessage) -> None:
        if len(message.payload) > MOST_BYTES:
            self._drop("too large")
            return
        with self._turn:
            topic, content = message.topic, bytes(message.payload)
            for pattern, handler, retained in list(self._handlers):
                if matches(pattern, topic) and (retained or not message.retain):
                    call(handler, topic, content)

    def _say(self, line: str, level: int = logging.WARNING) -> None:
        """Log a line, but only once as long as nothing changes."""
        if line != self._said:
            self._said = line
            log.log(level, "%s", line)

    def _drop(self, why: str) -> None:
        self.dropped[why] += 1
        if time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            log.warning("messages were dropped: %s", ", ".join(f"{n} {what}" for what, n in self.dropped.items()))
