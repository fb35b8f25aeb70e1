"""The gate of the SuperLink: time-outs of half-open requests, and who makes room for whom."""

import contextlib
import logging
import socket
import ssl
import threading

import pytest

pytest.importorskip("flwr")

import uvicorn

from fedfilt.flower.deploy import gate
from fedfilt.flower.deploy.address import Address
from fedfilt.flower.deploy.certificates import certificates, renew_server
from fedfilt.flower.deploy.gate import Gate, Server, Tls
from fedfilt.flower.deploy.superlink import Guard
from helpers import until

WAIT = 60.0
HEAD = b"POST /v1/fleet/any HTTP/1.1\r\nHost: edge\r\nContent-Length: 4\r\n"


class Held:
    """An app that answers when it is told to."""

    def __init__(self):
        self.asked, self.answer = 0, threading.Event()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return
        while (part := await receive()).get("more_body"):
            pass
        if part["type"] == "http.disconnect":
            return
        self.asked += 1
        while not self.answer.is_set():
            await gate.asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextlib.contextmanager
def serving(app, tls=None, **limits):
    """A server behind a gate on a thread; how to connect to it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = uvicorn.Config(Guard(app, most_bytes=1000), host="127.0.0.1", port=port, log_config=None, ws="none")
    server = Server(config, Gate(**limits), tls)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), "the server has started", WAIT)
        yield lambda: socket.create_connection(("127.0.0.1", port), WAIT)
    finally:
        app.answer.set()
        server.should_exit = True
        thread.join(WAIT)
        assert not thread.is_alive()


def closed(one):
    """Whether the server closes a connection; waits for it."""
    try:
        return one.recv(100) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"", b"POST /v1/fl", HEAD, HEAD + b"\r\nab"], ids=["none", "line", "head", "body"])
def test_a_request_that_does_not_end_is_cut_off(monkeypatch, sent):
    monkeypatch.setattr(gate, "WAIT", 0.2)
    monkeypatch.setattr(gate, "BODY", 0.2)
    with serving(Held()) as connect, connect() as one:
        one.sendall(sent)
        assert closed(one)


def test_tls_that_does_not_end_is_cut_off(monkeypatch, tmp_path):
    certificates(tmp_path / "c", Address("127.0.0.1", 1))
    tls = Tls(tmp_path / "c" / "server.crt", tmp_path / "c" / "server.key")
    monkeypatch.setattr(gate, "WAIT", 0.2)
    with serving(Held(), tls) as connect, connect() as one:
        one.sendall(b"\x16\x03\x01\x00\xff")  # a hello, begun
        assert closed(one)


def test_the_longest_idle_makes_room_and_whoever_is_worked_for_does_not(caplog):
    caplog.set_level(logging.WARNING, "flwr")
    logging.getLogger("flwr").propagate = True
    app = Held()
    with serving(app, each=2) as connect, contextlib.ExitStack() as stack:

        def asking():
            one = stack.enter_context(connect())
            one.sendall(HEAD + b"\r\nabcd")
            return one

        first = asking()
        until(lambda: app.asked == 1, "the first request is worked on", WAIT)
        idle = stack.enter_context(connect())
        second = asking()
        assert closed(idle)
        until(lambda: app.asked == 2, "the second request is worked on", WAIT)
        assert closed(asking())  # nobody else can make room
        app.answer.set()
        for one in (first, second):
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
        assert b"200" in asking().recv(1000)  # in place of one that was served
    assert "2 connections, 2 of them from 127.0.0.1: closing idle ones" in caplog.text


def test_all_together_are_bounded_and_the_address_with_most_makes_room():
    with serving(Held(), each=10, most=3) as connect, contextlib.ExitStack() as stack:
        ones = [stack.enter_context(connect()) for _ in range(4)]
        assert closed(ones[0])


def test_a_renewed_certificate_is_taken_up_by_the_next_connection(tmp_path):
    folder, where = tmp_path / "c", Address("127.0.0.1", 1)
    certificates(folder, where)
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    app = Held()
    app.answer.set()

    def serial(connect):
        with connect() as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as one:
            one.sendall(HEAD + b"\r\nabcd")
            assert b"200" in one.recv(1000)
            return one.getpeercert()["serialNumber"]

    with serving(app, Tls(folder / "server.crt", folder / "server.key")) as connect:
        before = serial(connect)
        renew_server(folder, where)
        assert serial(connect) != before
        (folder / "server.crt").write_bytes(b"nonsense")  # then it goes on with the one it has
        assert serial(connect) != before
