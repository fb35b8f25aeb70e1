"""A real, headless Home Assistant for tests, and the script that sets one up in an environment of its own.

    python tests/home_assistant.py /tmp/assistant [PYTHON3.13]
    FEDFILT_HOME_ASSISTANT=/tmp/assistant/bin/python make test

It is not installed with the tests: it takes minutes, 500 MB and Python 3.13.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

VERSION = "2025.4.4"
WITH = ("home-assistant-frontend==20250411.0", "paho-mqtt==2.1.0", "PyTurboJPEG==1.7.5")  # it would fetch these itself
VARIABLE = "FEDFILT_HOME_ASSISTANT"
INTERPRETER = os.environ.get(VARIABLE)

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

    def choose(self, entity, option):
        """Choose an option of a `select`."""
        self._ask("/api/services/select/select_option", {"entity_id": entity, "option": option})

    def _ask(self, path, data=None, form=False):
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        body = None
        if data is not None:
            body = (urllib.parse.urlencode(data) if form else json.dumps(data)).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded" if form else "application/json"
        request = urllib.request.Request(self._address + path, body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def install(folder: Path, python: str) -> None:
    """Install Home Assistant into a new environment."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = str(folder / "bin" / "python")
    subprocess.run([inside, "-m", "pip", "install", "--quiet", f"homeassistant=={VERSION}", *WITH], check=True)
    print(f"{VARIABLE}={inside}")


if __name__ == "__main__":
    install(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "python3.13")
