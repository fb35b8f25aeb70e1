"""The members of a deployment and what is known about them: `deployment.toml`, `changes.json`, `status.json`.

`deployment.toml` lists the devices by row and, in order, each `change` since the deployment was written: a device that
joins or leaves. Only the commands for changes write it. The server app reads it between rounds and records in
`changes.json` the round before which each change takes place, so that a run that is resumed, or repeated on one
machine, has the same events in the same rounds.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedfilt._files import write_atomically
from fedfilt._types import Table
from fedfilt.engines.flower.engine import Seen
from fedfilt.engines.flower.identity import Registered, registered
from fedfilt.rounds.timeline import Event
from fedfilt.runs.config import Config
from fedfilt.training.goal import ACCURACY


class Members:
    """The members of a deployment, in the folder of its edge server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        self._file = folder / "deployment.toml"
        self._content = self._file.read_bytes()

    @property
    def table(self) -> Table:
        """The deployment as last read."""
        return tomllib.loads(self._content.decode())

    def changed(self) -> bool:
        """Whether it has changed since."""
        return self._file.read_bytes() != self._content

    def registered(self) -> list[Registered] | None:
        """The devices by row, with their keys; None without authentication."""
        return registered(self.table)

    def rounds(self) -> list[int]:
        """The round before which each change took place; new changes are missing, and a new run has none."""
        path = self.folder / "changes.json"
        return list(json.loads(path.read_text())) if path.exists() and self._begun() else []

    def played(self) -> int:
        """How many rounds have been played; lines are counted, not read, because this is called often."""
        path = self.run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def last(self) -> float | None:
        """When the last round ended, in seconds since 1970; None before the first."""
        path = self.run / "metrics.jsonl"
        return path.stat().st_mtime if path.exists() and path.stat().st_size else None

    def _begun(self) -> bool:
        return (self.run / "config.toml").exists()

    def gone(self) -> set[int]:
        """Rows of devices that were removed."""
        return {row for row, device in enumerate(self.table["device"]) if device.get("gone")}

    def settle(self, config: Config) -> Config:
        """The experiment with all changes up to now; new ones take place before the next round."""
        self._content = self._file.read_bytes()
        changes, rounds = self.table.get("change", []), self.rounds()
        played = self.played()
        new = len(changes) - len(rounds)
        if new > 0 and played < config.rounds:
            rounds += [played + 1] * new
            write_atomically(self.folder / "changes.json", json.dumps(rounds).encode())
        return with_changes(config, self.table, rounds)

    def report(self, line: Table, seen: Mapping[int, Seen]) -> None:
        """Record what is known about the devices after a round, for `fedfilt deploy status`."""
        own = line.get("mixed", {}).get("local", {})
        tested = own.get("devices", [])
        known = self.known()
        for row, device in enumerate(self.table["device"]):
            found = known.setdefault(device["name"], {})
            now = seen.get(row, Seen())
            found |= now._asdict() if now.round else {"problem": now.problem or found.get("problem", "")}
            if row < len(tested) and now.round == line["round"]:
                found |= {"score": tested[row], "metric": own.get("metric", ACCURACY.key)}
        write_atomically(self.folder / "status.json", json.dumps({"round": line["round"], "devices": known}).encode())

    def known(self) -> dict[str, Table]:
        """What is known about the devices, by name."""
        path = self.folder / "status.json"
        return dict(json.loads(path.read_text())["devices"]) if path.exists() and self._begun() else {}


def with_changes(config: Config, table: Table, rounds: list[int]) -> Config:
    """An experiment with the changes of a deployment, each before its round."""
    rows = {device["name"]: row for row, device in enumerate(table["device"])}
    events = []
    for change, round in zip(table.get("change", []), rounds, strict=False):
        device = rows[change["device"]]
        if change["what"] == "leave":
            events.append(Event(round, leave=device))
        else:
            links = tuple((device, rows[other]) for other in change["links"])
            start = "own" if config.privacy.blind else "neighbours"  # a blind server cannot mix the neighbours' models
            events.append(Event(round, join=device, links=links, room=change.get("room"), start=start))
    return replace(config, events=(*config.events, *events))
