"""Access to the page: a socket of its own, always a token, and no other site can act in the reader's name.

Loopback keeps nobody out: every user of the machine can reach it, and whoever opens the page can stop and resume runs.
"""

import hmac
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedfilt.show.dashboard.app import make_app
from fedfilt.show.dashboard.folders import Watch

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHORTEST = 16  # letters in a token
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def serve(
    paths: Sequence[str | Path],
    host: str = "127.0.0.1",
    port: int = 8050,
    token: str = "",
    ready: Callable[[str, str], None] = lambda address, once: None,
) -> None:
    """Show runs at an address until interrupted. Port 0 takes any free port; without a token, one is drawn at random.

    `ready` receives the address with the token, and one that opens only once: other users of the machine can see the
    command line that starts a browser.
    """
    check_address(host, token)
    token = token or secrets.token_urlsafe(24)
    listening = bind(host, port)
    try:
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"  # keeps connections open: less work per request

            def log_request(self, *_: Any) -> None:
                pass

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        app = make_app(Watch(paths))
        number = listening.getsockname()[1]
        once = secrets.token_urlsafe(24)
        guard(app.server, host, number, token, once)
        server = make_server(host, number, app.server, threaded=True, request_handler=Quiet, fd=listening.fileno())
        name = f"[{host}]" if ":" in host else host
        warm = app.server.test_client()  # so that the first visitor need not wait for imports
        for path in (f"/?token={token}", "/", "/_dash-layout", "/_dash-dependencies"):
            warm.get(path, base_url=f"http://{name}:{number}")
        ready(*(f"http://{name}:{number}/?token={one}" for one in (token, once)))
        try:
            server.serve_forever()
        finally:
            server.server_close()
    finally:
        listening.close()


def check_address(host: str, token: str) -> None:
    """Refuse an address that others can reach unless a token is chosen, and a token that can be guessed."""
    if host not in LOOPBACK and not token:
        raise ValueError(
            f"--host {host} lets other machines in: choose a --token (or FEDFILT_TOKEN), such as "
            f"{secrets.token_urlsafe(18)}"
        )
    if token and (len(token) < SHORTEST or not all(c.isalnum() or c in "-_" for c in token)):
        raise ValueError(f"--token must have at least {SHORTEST} letters, digits, - and _")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or a ValueError in plain words if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(64)
    except (OSError, OverflowError) as error:
        found.close()
        raise ValueError(
            f"cannot listen on {host}:{port} ({error}); if the port is in use, choose another with --port, or any free "
            "one with --port 0"
        ) from None
    return found


def guard(server: Any, host: str, port: int, token: str, once: str = "") -> None:
    """Check every request: the right host on loopback (against DNS rebinding), the token, and the page's own origin."""
    from flask import Response, request

    names = {*LOOPBACK, "[::1]", host}
    hosts = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
    cookie = f"fedfilt_token_{port}"  # browsers share cookies among all ports of a machine
    unused = [once] if once else []

    def check() -> Any:
        if host in LOOPBACK and request.host not in hosts:
            return Response(f"This page is for {host}:{port} only.\n", 403)
        given = request.args.get("token", "")
        first = bool(unused) and _same(given, unused[0])
        if first:
            unused.clear()
        if first or _same(given, token):
            # Not a redirect: after one, a browser withholds the cookie if a page of another site led here
            answer = Response(f"<!doctype html><meta http-equiv=refresh content='0;url={escape(request.path)}'>")
            answer.set_cookie(cookie, token, httponly=True, samesite="Strict")
            return answer
        if not _same(request.cookies.get(cookie, ""), token):
            return Response("This page needs a token: open the address that fedfilt printed.\n", 403)
        origin = request.headers.get("Origin")
        if request.method != "GET" and origin is not None and origin != f"http://{request.host}":
            return Response("Requests from other pages are refused.\n", 403)
        if request.method == "POST" and not isinstance(request.get_json(silent=True), dict):
            return Response("This request does not come from this page.\n", 400)
        return None

    def add_headers(answer: Any) -> Any:
        answer.headers.update(HEADERS)
        return answer

    server.before_request(check)
    server.after_request(add_headers)


def _same(given: str, wanted: str) -> bool:
    """Whether two secrets are equal, in a time that does not reveal how much of them matches."""
    return hmac.compare_digest(given.encode(), wanted.encode())
