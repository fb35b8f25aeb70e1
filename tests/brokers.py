"""A home on a real Mosquitto for tests: as `fedfilt home write` makes it, with TLS and an ACL, on loopback."""

import shutil
import signal
import threading
import time

import pytest

from deployments import free_port, listens, own_experiment, written
from fedfilt.flower.deploy.address import address
from fedfilt.flower.deploy.home_toml import settings
from fedfilt.home.edge import ONLINE
from fedfilt.home.mqtt import Keys, Mqtt
from fedfilt.home.topics import Topics, room_state, status
from helpers import call, until

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/sbin")
needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="no mosquitto here (Debian: apt-get install mosquitto)")
WAIT = 60.0  # seconds for anything, on a busy machine too
TOPICS = Topics("villa")
ROOMS = {"device-000": "kitchen", "device-001": "kitchen", "device-002": "bath", "device-003": "bath"}


class Broker:
    """The broker of a deployment, which can be killed and started again."""

    def __init__(self, folder, kept):
        self.building, self._kept = folder, kept
        self.where = address(settings(folder / "server")["broker"])
        self._process = None
        for file in (folder / "broker" / "data").iterdir():  # what it kept of an earlier test
            file.unlink()
        self.start()

    def start(self):
        log = self.building / "broker" / "log"
        self._process = self._kept.start([self.building / "broker" / "start.sh"], log)

        def ready():
            assert self._process.poll() is None, log.read_text()
            return listens(self._process.pid, self.where.port)

        until(ready, "the broker listens", WAIT)

    def save(self):
        """Have the broker write what it knows to its disk, as it does every minute."""
        self._process.send_signal(signal.SIGUSR1)
        until((self.building / "broker" / "data" / "mosquitto.db").exists, "the broker's memory", WAIT)

    def freeze(self):
        """Have it answer nobody until it is killed."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def client(self, folder, name, file="client", **options):
        """A client with the keys in a folder of the deployment, connected."""
        bus = Mqtt(self.where.host, self.where.port, name, keys=Keys.of(self.building / folder, file), **options)
        assert bus.wait(60)
        return bus

    def device(self, name, **options):
        return self.client(f"devices/{name}/mqtt", name, **options)

    def edge(self, **options):
        return self.client("server/mqtt", "edge", "edge", **options)


def home_written(folder, **changes):
    """A deployment with a home of four devices in two rooms; its experiment may be changed."""
    building = written(folder, experiment=own_experiment(folder / "homes", count=4, **changes))
    rooms = [word for name, room in ROOMS.items() for word in ("--room", f"{name}={room}")]
    done = call("home", "write", building, "--home", "villa", "--address", f"127.0.0.1:{free_port()}", *rooms)
    assert done.returncode == 0, done.stderr
    return building


class Heard(list):
    """What a client hears on a pattern: (topic, content)."""

    def __init__(self, bus, pattern, **options):
        super().__init__()
        self.listens = threading.Event()
        bus._client.on_subscribe = lambda *_: self.listens.set()
        bus.subscribe(pattern, lambda topic, content: self.append((topic, content)), **options)
        assert self.listens.wait(WAIT)  # what others publish from now on is heard

    def wait(self, topic, content=None, what="a message"):
        until(lambda: any(t == topic and content in (None, c) for t, c in self), f"{what} on {topic}", WAIT)


class Screen:
    """What people see and do in Home Assistant, without one: by its certificate on the broker."""

    def __init__(self, broker):
        self._bus = broker.client("assistant", "homeassistant")
        self._heard = Heard(self._bus, "fedfilt/villa/#")

    def up(self):
        return True

    def activity(self, room):
        said = self._last(TOPICS.state(room))
        return said and room_state(said).activity

    def online(self, device):
        said = self._last(TOPICS.status(device))
        return bool(said and status(said).online and self._last(TOPICS.edge) == ONLINE)

    def choose(self, room, label):
        self._bus.publish(TOPICS.label(room), label.encode())

    def _last(self, topic):
        return next((content for heard, content in reversed(self._heard) if heard == topic), None)


def quiet(seconds=1.0):
    """Time for a message that should not come."""
    time.sleep(seconds)
