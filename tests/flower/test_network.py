"""A deployment against those who hold it up: replies that are announced and not sent, connections that say nothing."""

import contextlib
import resource
import socket
import ssl
import sys
import time
import tomllib
from functools import partial

import pytest

pytest.importorskip("flwr")

from deployments import DEALT, Devices, deployed, metrics, site
from fedfilt.flower.deploy.control import control
from fedfilt.flower.deploy.gate import EACH
from fedfilt.runs.config import from_table
from helpers import ROOT, SLOW, until


@pytest.mark.slow(20)
def test_a_device_that_announces_its_reply_and_sends_nothing_holds_nobody_up(tmp_path, kept):
    """Three of four are enough: the round ends with them, long before the fourth is given up."""
    changes = {
        "rounds": 3,
        "late": {"policy": "quorum", "quorum": 0.75},
        "engine": {"name": "flower", "real_time": True},
    }
    building, server = deployed(tmp_path, kept, experiment=from_table(tomllib.loads(DEALT) | changes).toml())
    devices, log = Devices(building, kept), tmp_path / "silent.log"
    silent = [sys.executable, ROOT / "benchmarks" / "silent_device.py", building / "devices" / "device-003"]
    process = kept.start(silent, log)

    def connected():
        assert process.poll() is None, log.read_text()
        return "connected" in log.read_text()

    until(connected, "the silent device is there")
    for name in ("device-000", "device-001", "device-002"):
        devices.start(name)
    until(lambda: server.poll() is not None, "the end of the run")
    assert [line["absent"] for line in metrics(building)] == [{"3": "late: no answer in time"}] * 3


# --- connections --------------------------------------------------------------------------------------------------

MANY = 1500


class Idle:
    """Connections that send what they are told, and then nothing."""

    def __init__(self, building, source):
        self._where, self._source = site(building).where, source
        self._context = ssl.create_default_context(cafile=building / "server" / "certificates" / "ca.crt")
        self.sockets: list[socket.socket] = []

    def open(self, count, tls=False, says=b""):
        for _ in range(count):
            one = socket.create_connection(self._where, SLOW, (self._source, 0))
            self.sockets.append(one)
            with contextlib.suppress(OSError):  # others have taken its place
                if tls:
                    self.sockets[-1] = one = self._context.wrap_socket(one, server_hostname=self._where.host)
                one.sendall(says)

    def ended(self, count):
        """Whether the server has closed so many."""
        return sum(map(_closed, self.sockets)) >= count

    def close(self):
        for one in self.sockets:
            one.close()


def _closed(one):
    one.setblocking(False)
    try:
        return not one.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


@pytest.fixture
def many_files():
    """As many open files as this process may have; of these connections, half are its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY + 500:
        pytest.skip(f"a process may have only {hard} open files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def asked(building):
    """Seconds that a request of the edge server's own takes, with a new connection."""
    start = time.monotonic()
    with control(str(site(building).where), building / "server" / "certificates" / "ca.crt") as link:
        link.nodes()
    return time.monotonic() - start


@pytest.mark.slow(20)
@pytest.mark.usefixtures("many_files")
def test_idle_connections_shut_nobody_out(tmp_path, kept, capsys):
    """However many there are, from the address of honest devices or from another, with TLS or without."""
    building, _ = deployed(tmp_path, kept)
    before = min(asked(building) for _ in range(3))
    head = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: edge\r\n"
    for source in ("127.0.0.1", "127.0.0.9"):
        idle = Idle(building, source)
        idle.open(MANY - 400)
        idle.open(300, tls=True, says=head)  # a head that does not end
        idle.open(100, tls=True, says=head + b"Content-Length: 1000\r\n\r\nx")  # a body that does not
        seconds = asked(building)
        with capsys.disabled():
            print(f"\n{MANY} idle connections from {source}: {seconds:.3f} s for a request, {before:.3f} s without")
        until(partial(idle.ended, MANY - EACH), "those that are too many are closed")
        idle.close()
    Devices(building, kept).start_all()
    until(lambda: len(metrics(building)) == 2, "the rounds are played")
    log = (building / "server" / "superlink.log").read_text()
    assert "closing idle ones" in log
    assert "Traceback" not in log
    assert "never retrieved" not in log
