"""The runs and homes on the dashboard: found in the given folders and followed while they grow."""

import hashlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from fedfilt.home.records import Home, home_folders
from fedfilt.runs.groups import experiments
from fedfilt.runs.records import Records, named, run_folders

PAUSE = 0.5  # seconds between two looks at the folders, however many pages ask
SEARCH = 3.0  # seconds between searches for new runs


class Watch:
    """The runs and homes in the given folders, including those that start later."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.paths = [Path(path) for path in paths]
        self.runs: list[Records] = []
        self.experiments: dict[str, list[Records]] = {}  # the newest first
        self._named: list[tuple[Path, str]] = []
        self.homes: list[Home] = []
        self._lock = threading.Lock()
        self._looked = self._searched = float("-inf")
        self.refresh()

    def refresh(self) -> None:
        """Look for news, unless somebody just did."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked < PAUSE:
                return
            self._looked = now
            if now - self._searched >= SEARCH:
                self._searched = now
                self._search()
            for run in self.runs:
                run.refresh()
            self._name()
            for home in self.homes:
                home.refresh()

    def _search(self) -> None:
        known = {run.folder: run for run in self.runs}
        folders = run_folders(self.paths)
        folders += [folder for folder, run in known.items() if run.config and folder not in folders]  # deleted: say so
        if set(folders) != set(known):
            self.runs = [known.get(folder) or Records(folder) for folder in folders]
        homes = {home.folder: home for home in self.homes}
        self.homes = [
            homes.get(folder) or Home(folder) for folder in dict.fromkeys([*homes, *home_folders(self.paths)])
        ]

    def _name(self) -> None:
        """Name each experiment's runs by what distinguishes them, whenever one is new or has another config."""
        now = [(run.folder, run.config_text) for run in self.runs]
        if sorted(now) != self._named:
            self._named = sorted(now)
            self.experiments = {name: named(found) for name, found in experiments(self.runs).items()}
            self.runs = [run for found in self.experiments.values() for run in found]

    def experiment(self, run: Records | None) -> tuple[str, list[Records]]:
        """The name of a run's experiment, and all its runs."""
        return next(((name, found) for name, found in self.experiments.items() if run in found), ("", []))

    @property
    def only_homes(self) -> bool:
        """Whether there are homes but no run."""
        return bool(self.homes) and not any(run.config for run in self.runs)

    def run(self, key: object) -> Records | None:
        """The run with that key, if there is one: the page cannot name any other folder."""
        return next((run for run in self.runs if run_key(run) == key), None)


def run_key(run: Records) -> str:
    """The page's key for a run."""
    return hashlib.sha256(str(run.folder).encode()).hexdigest()[:12]
