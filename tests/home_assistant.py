"""A real, headless Home Assistant for tests, and the script that sets one up in an environment of its own.

`make test-home-assistant` does that in .venv-assistant, where tests find it from then on. It is not installed with the
tests: it takes minutes, 800 MB and Python 3.13. An environment elsewhere:

    python tests/home_assistant.py /tmp/assistant [PYTHON3.13]
    FEDFILT_HOME_ASSISTANT=/tmp/assistant/bin/python make test
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

VERSION = "2025.4.4"
WITH = ("home-assistant-frontend==20250411.0", "paho-mqtt==2.1.0", "PyTurboJPEG==1.7.5")  # it would fetch these itself
VARIABLE = "FEDFILT_HOME_ASSISTANT"
USUAL = Path(__file__).resolve().parent.parent / ".venv-assistant"
INTERPRETER = os.environ.get(VARIABLE) or (str(USUAL / "bin" / "python") if (USUAL / "installed").exists() else None)

CONFIGURATION = """
homeassistant:
  name: Test
  unit_system: metric
  time_zone: UTC
http:
  server_host: 127.0.0.1
  server_port: {port}
api:
auth:
onboarding:
"""


class Assistant:
    """A Home Assistant in a folder, started on a port of loopback, and its REST interface."""

    def __init__(self, folder, port, broker, keys, start):
        """`broker` (host, port), `keys` a folder with ca.crt, client.crt and client.key; `start` starts a process."""
        self.folder, self._address, self._token = folder, f"http://127.0.0.1:{port}", ""
        (folder / ".storage").mkdir(parents=True)
        (folder / "configuration.yaml").write_text(CONFIGURATION.format(port=port))
        files = {"certificate": "ca.crt", "client_cert": "client.crt", "client_key": "client.key"}
        secrets = {key: (keys / file).read_text() for key, file in files.items()}
        entry = {
            "created_at": "2025-01-01T00:00:00+00:00",
            "modified_at": "2025-01-01T00:00:00+00:00",
            "data": {"broker": broker[0], "port": broker[1], "protocol": "5", "discovery": True, **secrets},
            "disabled_by": None,
            "discovery_keys": {},
            "domain": "mqtt",
            "entry_id": "fedfilt",
            "minor_version": 2,
            "options": {"discovery": True, "discovery_prefix": "homeassistant"},
            "pref_disable_new_entities": False,
            "pref_disable_polling": False,
            "source": "user",
            "subentries": [],
            "title": "fedfilt",
            "unique_id": None,
            "version": 1,
        }
        table = {"version": 1, "minor_version": 5, "key": "core.config_entries", "data": {"entries": [entry]}}
        (folder / ".storage" / "core.config_entries").write_text(json.dumps(table))
        words = [INTERPRETER, "-m", "homeassistant", "--config", folder, "--skip-pip"]
        self.process = start(words, folder / "log")

    def up(self):
        """Whether it answers; at the first answer a user is made."""
        try:
            urllib.request.urlopen(f"{self._address}/manifest.json", timeout=5).read()
        except OSError:
            assert self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
            return False
        me = f"{self._address}/"
        user = {"client_id": me, "name": "t", "username": "t", "password": "tttttttt", "language": "en"}
        try:
            code = self._ask("/api/onboarding/users", user)["auth_code"]
        except urllib.error.HTTPError as error:
            if error.code == 404:  # not yet
                return False
            raise
        grant = {"grant_type": "authorization_code", "code": code, "client_id": me}
        self._token = self._ask("/auth/token", grant, form=True)["access_token"]
        return True

    def states(self):
        """By entity, its state and attributes."""
        return {one["entity_id"]: (one["state"], one["attributes"]) for one in self._ask("/api/states")}

    def events(self):
        """What happens, as it happens."""
        request = urllib.request.Request(f"{self._address}/api/stream", headers=self._headers())
        with urllib.request.urlopen(request, timeout=120) as answer:  # it says "ping" at times
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    def activity(self, room):
        """What a room does."""
        return self.states().get(f"sensor.{room}_activity", ("missing", {}))[0]

    def online(self, device):
        """Whether a device is available."""
        entity = f"sensor.{device.replace('-', '_')}_last_round"
        return self.states().get(entity, ("missing", {}))[0] not in ("missing", "unknown", "unavailable")

    def choose(self, room, label):
        """Correct what a room does."""
        about = {"entity_id": f"select.{room}_correct_activity", "option": label}
        self._ask("/api/services/select/select_option", about)

    def _headers(self):
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _ask(self, path, data=None, form=False):
        headers, body = self._headers(), None
        if data is not None:
            body = (urllib.parse.urlencode(data) if form else json.dumps(data)).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded" if form else "application/json"
        request = urllib.request.Request(self._address + path, body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def install(folder: Path, python: str) -> None:
    """Install Home Assistant into a new environment."""
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    inside = str(folder / "bin" / "python")
    subprocess.run([inside, "-m", "pip", "install", "--quiet", f"homeassistant=={VERSION}", *WITH], check=True)
    (folder / "installed").touch()
    print(f"{VARIABLE}={inside}")


def python313() -> str:
    """A Python 3.13 of this machine: on the path, or one of pyenv's, which are there but not on it."""
    found = [shutil.which("python3.13") or "", *map(str, Path.home().glob(".pyenv/versions/3.13*/bin/python3.13"))]
    for path in filter(None, found):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    sys.exit("Home Assistant needs Python 3.13, which is not here")


if __name__ == "__main__":
    install(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else python313())
