"""Connections to the SuperLink: a limited number, and none for long without a request.

uvicorn accepts every connection, and keeps one that never sends a request for ever. Here, a connection counts from the
moment it is accepted, before TLS. When there are too many from one address, or too many altogether, the one that has
been idle longest makes room for the new one, so that clients that send requests get through. TLS, request and answer
have time-outs.
"""

import asyncio
import ipaddress
import logging
import resource
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn

log = logging.getLogger("flwr")

EACH = 512  # connections from one address; a device has at most two, and a hundred may share an address
MOST = 4096  # connections altogether
SPARE = 128  # open files of the process besides its connections
WAIT = 30.0  # seconds for TLS and for the head of the first request
BODY = 60.0  # seconds for the rest of a request
WORK = 120.0  # seconds for its answer (no limit for this machine), and then until the next request
TELL = 60.0  # seconds between two lines in the log about closed connections
BACKLOG = 2048  # connections waiting to be accepted
STATE = "fedfilt.connection"  # where a request finds its connection


def raise_limit() -> int:
    """Raise this process's limit of open files as far as allowed; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return MOST + SPARE if hard == resource.RLIM_INFINITY else hard


def group(host: str) -> str:
    """What counts as one address: for IPv6 a whole /64, because a single machine may own all of it.

    >>> group("192.168.1.7"), group("2001:db8::1:2"), group("::ffff:10.0.0.1")
    ('192.168.1.7', '2001:db8::/64', '10.0.0.1')
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, 64), strict=False))
        address = address.ipv4_mapped
    return str(address)


class Tls:
    """The server's side of TLS; the next connection uses a renewed certificate."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(*self._files)
        self._seen = self._stamp()

    def _stamp(self) -> int:
        return self._files[0].stat().st_mtime_ns

    def context(self) -> ssl.SSLContext:
        """The context with the current certificate, if that can be read."""
        try:
            if (stamp := self._stamp()) != self._seen:
                self._seen = stamp
                self._context.load_cert_chain(*self._files)
                log.info("the edge server has a new certificate")
        except (OSError, ssl.SSLError) as error:
            log.warning("cannot read the new certificate: %s", error)
        return self._context


class Gate:
    """All connections, by address."""

    def __init__(self, each: int = EACH, most: int = MOST) -> None:
        self._each, self._most = each, most
        self._by: dict[str, dict[Connection, None]] = {}
        self._told = -TELL

    def __len__(self) -> int:
        return sum(map(len, self._by.values()))

    def enter(self, connection: "Connection") -> bool:
        """Admit a connection, if need be in place of an idle one; returns whether there was room."""
        own = self._by.get(connection.address, {})
        full = own if len(own) >= self._each else None
        if full is None and len(self) >= self._most:
            full = max(self._by.values(), key=len)
        if full is not None:
            self._tell(f"{len(self)} connections, {len(own)} of them from {connection.address}: closing idle ones")
            idle = [one for one in full if not one.working]
            if not idle:
                return False
            min(idle, key=lambda one: (one.served, one.since)).drop()
        self._by.setdefault(connection.address, {})[connection] = None
        return True

    def leave(self, connection: "Connection") -> None:
        """Forget a connection."""
        own = self._by.get(connection.address, {})
        own.pop(connection, None)
        if not own:
            self._by.pop(connection.address, None)

    def _tell(self, line: str) -> None:
        if time.monotonic() - self._told > TELL:
            self._told = time.monotonic()
            log.warning("%s", line)


class Connection(asyncio.Protocol):
    """A connection from the first moment, in front of the protocol that reads its requests."""

    def __init__(self, gate: Gate, sock: socket.socket, address: str, make: Callable[["Connection"], Any]) -> None:
        self._gate, self._socket, self._make = gate, sock, make
        self._inner: Any = None  # once TLS is done
        self._transport: Any = None  # likewise
        self._timer: asyncio.TimerHandle | None = None
        self._begun: asyncio.Task[None] | None = None
        self._dropped = False
        self.address = address
        self.since = time.monotonic()  # idle since
        self.served = 0  # requests
        self.working = False  # on a complete request

    def begin(self, context: ssl.SSLContext | None) -> None:
        """Prepare for the first request."""
        self._expect(WAIT)
        self._begun = asyncio.get_running_loop().create_task(self._begin(context))

    async def _begin(self, context: ssl.SSLContext | None) -> None:
        loop, late = asyncio.get_running_loop(), {} if context is None else {"ssl_handshake_timeout": WAIT}
        try:
            await loop.connect_accepted_socket(lambda: self, self._socket, ssl=context, **late)
        except (OSError, asyncio.CancelledError):  # refused, too slow, closed, or dropped
            self._end()
            self._socket.close()

    def connection_made(self, transport: Any) -> None:
        """Be ready for requests."""
        if self._dropped:  # in the same moment
            transport.abort()
            return
        self._transport, self._inner = transport, self._make(self)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what arrived."""
        self._inner.data_received(data)

    def eof_received(self) -> None:
        """Pass on that nothing more will arrive."""
        self._inner.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the other end is slow."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that it has caught up."""
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Leave the gate."""
        self._end()
        if self._inner is not None:
            self._inner.connection_lost(error)

    def drop(self) -> None:
        """Close it now."""
        self._dropped = True
        self._end()
        if self._transport is not None:
            self._transport.abort()
        elif self._begun is not None:
            self._begun.cancel()

    def _end(self) -> None:
        self._expect(None)
        self._gate.leave(self)

    @contextmanager
    def request(self) -> Iterator[None]:
        """The time during which a request, whose head has arrived, is read and answered."""
        self._expect(BODY)
        try:
            yield
        finally:
            self.served += 1
            self.working = False
            self.since = time.monotonic()
            if not self._transport.is_closing():
                self._expect(WORK)  # which includes sending the answer

    def heard(self, receive: Callable[[], Awaitable[Any]], here: bool) -> Callable[[], Awaitable[Any]]:
        """Wrap what receives the parts of a request: after the last one, no other connection can take its place."""

        async def hear() -> Any:
            part = await receive()
            if part["type"] == "http.request" and not part.get("more_body") and not self.working:
                self.working = True
                self._expect(None if here else WORK)
            return part

        return hear

    def _expect(self, seconds: float | None) -> None:
        """Close it unless something happens within these seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.drop)


class Server(uvicorn.Server):
    """uvicorn's server, with connections that come through a gate."""

    def __init__(self, config: uvicorn.Config, gate: Gate, tls: Tls | None) -> None:
        super().__init__(config)
        self._gate, self._tls = gate, tls
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, start the app, and accept connections: once it has started, clients can connect."""
        host, port = self.config.host, self.config.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        await super().startup(sockets=[])
        if self.should_exit:
            self._listener.close()
            return
        log.info("serving on %s, port %d", host, port)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, close idle ones, and then end the app."""
        if self._accepting is not None and self._listener is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._listener.close()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(listener)
            except OSError as error:  # it may have been closed already
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            connection = Connection(self._gate, sock, group(peer[0]), self._protocol)
            if self._gate.enter(connection):
                connection.begin(None if self._tls is None else self._tls.context())
            else:
                sock.close()

    def _protocol(self, connection: Connection) -> Any:
        """The protocol that reads the requests of a connection and tells the app where they come from."""
        make: Any = self.config.http_protocol_class
        state = {**self.lifespan.state, STATE: connection}
        return make(config=self.config, server_state=self.server_state, app_state=state)


def serve(app: Any, options: dict[str, Any]) -> None:
    """Serve an app with options of `uvicorn.run`, behind a gate."""
    certificate, key = options.pop("ssl_certfile", None), options.pop("ssl_keyfile", None)
    tls = Tls(Path(certificate), Path(key)) if certificate and key else None
    server = Server(uvicorn.Config(app, ws="none", **options), Gate(most=min(MOST, raise_limit() - SPARE)), tls)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(1)
