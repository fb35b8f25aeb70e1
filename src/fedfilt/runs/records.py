"""Reads what a run writes, while it grows, for reports, the dashboard and the figures.

Nothing in a run folder is trusted or executed: files are parsed as TOML and JSON, and unknown keys are ignored. What is
missing or damaged becomes a note in plain words, which disappears when a later `refresh` finds it repaired.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedfilt import _parts
from fedfilt._brief import lines_of
from fedfilt._files import STOP, in_use, regular
from fedfilt._reading import MOST_TOML, json_of, read, read_json, toml_of
from fedfilt._trust import code_in
from fedfilt._types import Array, Table
from fedfilt._version import __version__
from fedfilt.graph import Graph
from fedfilt.graph.serial import graph_of
from fedfilt.rounds.participation import UNASKED
from fedfilt.rounds.timeline import Event, Moment, Timeline
from fedfilt.rounds.types import Happening
from fedfilt.runs.config import PLACE, current, graph_table
from fedfilt.runs.history import frame_of, rows_of
from fedfilt.runs.lines import SPENT, TESTS, checked
from fedfilt.runs.names import labels, looks, rising
from fedfilt.runs.rules import Look, look, rule_name, rule_order
from fedfilt.system.orders import whole
from fedfilt.training.goal import ACCURACY, Metric
from fedfilt.training.goal import named as metric_named

LOG = "metrics.jsonl"
TAIL = 200  # bytes by which a file is recognised
LONGEST = 16 << 20  # bytes in a line: a round of 100,000 devices
MOST_ROUNDS, MOST_BYTES = 200_000, 200 << 20  # most lines of metrics.jsonl to read, and most bytes
MOST_EVENTS = 100_000  # most events to show
MOST_DRAWN = 1500  # most devices for which a graph is made again from a config
MOST_SCRIPT, MOST_STEPS = 5000, 2_000_000  # most events to replay, and most events times devices
DEPTH = 4  # levels of folders to search for runs: NAME, sweep, RULE, seed-N
MOST_FOLDERS = 20_000  # most folders to search
# Lists of devices in a line of metrics.jsonl, and what happened to those devices
LISTED = {"late": "late", "rejected": "reject", "joined": "join", "left": "leave", "moved": "move"}


class Records:
    """A run, read from its folder; `refresh` reads what is new.

    `rounds` are the lines of metrics.jsonl without the columns per device, which `line(round)` reads on demand.

    >>> import fedfilt, tempfile
    >>> table = {"data": "digits", "model": "logistic", "rounds": 2, "samples": {"train": 9, "local_test": 9}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fedfilt.run(table, f"{folder}/run", engine={"workers": 1})
    ...     records = Records(f"{folder}/run")
    >>> records.status, [line["round"] for line in records.rounds]
    ('finished', [1, 2])
    """

    def __init__(self, folder: str | Path, name: str = "") -> None:
        self.folder = Path(folder)
        self.name = name or self.folder.name
        self._label = ""  # this and the look are set by `named`, among other runs
        self._look: Look | None = None
        self.version = 0  # grows with every change
        self._lock = threading.RLock()
        self._stamps: dict[str, Any] = {}
        self._kept: dict[str, Table] = {"config.toml": {}, "environment.json": {}, "result.json": {}}
        self._texts: dict[str, str] = {}  # file -> its content
        self._wrong: dict[str, str] = {}  # file -> what is wrong with it
        self._forget_log()
        self.status = ""
        self.refresh()

    # --- reading ------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read what is new in the folder; True if anything is. Never fails, whatever it finds there."""
        with self._lock:
            changed = [self._read_table(name) for name in self._kept]
            changed += [self._read_log(), self._stamped("partition.json"), self._stamped("graph.json")]
            if changed[-1] or changed[-2] or changed[0]:
                for name in ("experiment", "graph", "label_counts", "resolved", "timeline"):
                    self.__dict__.pop(name, None)  # cached; read again on demand
            status = self._find_status()
            changed.append(status != self.status)
            self.status = status
            self.version += any(changed)
            return any(changed)

    def _stamped(self, name: str) -> bool:
        """Whether a file has changed since the last look."""
        try:
            info = (self.folder / name).lstat()
            stamp = (info.st_ino, info.st_size, info.st_mtime_ns)
        except OSError:
            stamp = None
        changed = self._stamps.get(name) != stamp
        self._stamps[name] = stamp
        return changed

    def _read_table(self, name: str) -> bool:
        if not self._stamped(name):
            return False
        self._wrong.pop(name, None)
        if self._stamps[name] is None:
            self._kept[name] = {}
            self._texts.pop(name, None)
            return True
        try:
            content = read(self.folder / name, MOST_TOML)
            table = toml_of(content) if name.endswith(".toml") else json_of(content)
            if not isinstance(table, dict):
                raise ValueError("not a table")
            self._kept[name] = table
            self._texts[name] = content.decode()
        except (OSError, ValueError) as error:
            self._wrong[name] = f"{name} cannot be read ({getattr(error, 'strerror', None) or error})"
        return True

    def _forget_log(self) -> None:
        self.rounds: list[Table] = []
        self.events: list[Happening] = []
        self._places: dict[int, tuple[int, int]] = {}  # round -> where its line is
        self._offset = 0
        self._lines = 0
        self._found: dict[int, Table] = {}  # round -> the links found in it
        self._tail = b""  # the last bytes before the offset
        self._inode: int | None = None

        self._training: set[int] = set()  # devices that took part in the last round, or would have if drawn

    def _read_log(self) -> bool:
        """Read complete lines; a line still being written waits for the next time."""
        try:
            with regular(self.folder / LOG, links=False) as file:
                info = os.fstat(file.fileno())
                again = self._inode is not None and (info.st_ino != self._inode or not self._continues(file))
                if again:  # the run was resumed: rounds after its checkpoint are repeated
                    self._forget_log()
                    self._wrong.pop(LOG, None)
                self._inode = info.st_ino
                if info.st_size == self._offset:
                    return again
                file.seek(self._offset)
                return self._read_lines(file) or again
        except FileNotFoundError:
            return False  # not there yet, or gone: what was read stays visible
        except OSError as error:
            said = f"{LOG} cannot be read ({error.strerror})"
            new, self._wrong[LOG] = self._wrong.get(LOG) != said, said
            return new

    def _read_lines(self, file: IO[bytes]) -> bool:
        """Take complete lines from here on, as long as there are not too many."""
        before = self._lines
        while (raw := file.readline(LONGEST)).endswith(b"\n"):
            if self._lines >= MOST_ROUNDS or self._offset + len(raw) > MOST_BYTES:
                self._wrong[LOG] = f"{LOG} is too long to be read to the end: {self._lines} rounds are shown"
                break
            self._lines += 1
            try:
                self._take(checked(json_of(raw)), self._offset, len(raw))
            except ValueError:
                self._wrong[LOG] = f"{LOG} is damaged in line {self._lines}, which is skipped"
            self._offset += len(raw)
            self._tail = (self._tail + raw)[-TAIL:]
        if len(raw) == LONGEST:
            self._wrong[LOG] = f"{LOG} has a line of more than {LONGEST} bytes, where reading stops"
        return self._lines > before

    def _continues(self, file: IO[bytes]) -> bool:
        """Whether a file still begins with what was read from it."""
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _take(self, line: Table, offset: int, length: int) -> None:
        number = line["round"]
        if self.rounds and number <= self.rounds[-1]["round"]:
            raise ValueError("rounds must rise")
        time = dict(line.get("time") or {})
        devices = time.pop("devices", None) or {}
        kept: Table = {"round": number, "time": time}
        kept |= {key: line[key] for key in ("seconds", "loss", "samples") if isinstance(line.get(key), int | float)}
        if line.get("privacy"):
            kept["privacy"] = {key: line["privacy"].get(key) for key in SPENT}
        if line.get("measured"):  # by the rule, in this round
            kept["measured"] = {key: found for key, found in line["measured"].items() if isinstance(found, int | float)}
        for stage in ("mixed", "trained"):
            for test in TESTS:
                found = (line.get(stage) or {}).get(test)
                if found:
                    small = {k: v for k, v in found.items() if isinstance(v, int | float)}
                    small |= {key: found[key] for key in ("metric", "scores") if found.get(key)}
                    accuracies = [np.nan if v is None else v for v in found.get("devices", [])]
                    kept.setdefault(stage, {})[test] = {**small, "devices": np.array(accuracies, np.float32)}
        if line.get("graph"):
            self._found[number] = line["graph"]
        self.events += self._events(line, devices)[: MOST_EVENTS - len(self.events)]
        self.rounds.append(kept)
        self._places[number] = (offset, length)

    def _events(self, line: Table, columns: Table) -> list[Happening]:
        number = line["round"]
        found: list[Happening] = []
        for event in line.get("events") or []:
            found += _told(number, event)
        for table in (line, line.get("time") or {}):
            for key, what in LISTED.items():
                listed = table.get(key)
                if isinstance(listed, list):
                    found += [Happening(number, int(d), what) for d in listed if isinstance(d, int)]
        missing = line.get("absent")
        for device, why in missing.items() if isinstance(missing, dict) else ():
            what = "reject" if str(why).startswith("refused") else "absent"
            found.append(Happening(number, int(device), what, {"why": str(why)[:200]}))
        if epochs := columns.get("epochs"):
            outcomes = columns.get("outcome") or [""] * len(epochs)
            now = {device for device, count in enumerate(epochs) if count or outcomes[device] in UNASKED}
            before = self._training or now  # in the first round, all that are left out
            away = set(line.get("away") or [])  # these have events of their own
            for device in sorted((before if self.rounds else set(range(len(epochs)))) - now - away):
                found.append(Happening(number, device, "left_out", {"why": outcomes[device] or "no plan"}))
            if self.rounds:
                found += [Happening(number, device, "return") for device in sorted(now - before)]
            self._training = now
        return found

    def _find_status(self) -> str:
        if not self.folder.is_dir():
            return "missing"
        if not self.config:
            return "waiting"
        if in_use(self.folder):
            return "stopping" if (self.folder / STOP).exists() else "running"
        done = bool(self.rounds) and self.rounds[-1]["round"] == self.planned
        return "finished" if done and self.result else "stopped"

    # --- content ------------------------------------------------------------------------------------------------

    @property
    def config(self) -> Table:
        """The table of config.toml."""
        return self._kept["config.toml"]

    @cached_property
    def resolved(self) -> Table:
        """The table of config.toml as this version writes it, as far as possible."""
        return current(self.config)

    @cached_property
    def experiment(self) -> str:
        """Its config without the seed and where it runs, as text: equal for runs that can be averaged."""
        table = {key: value for key, value in self.resolved.items() if key not in ("seed", *PLACE)}
        return json.dumps(table, sort_keys=True, default=str)

    @property
    def config_text(self) -> str:
        """The text of config.toml, "" if there is no readable one."""
        return self._texts.get("config.toml", "")

    @property
    def environment(self) -> Table:
        """Versions, machine and hashes."""
        return self._kept["environment.json"]

    @property
    def result(self) -> Table:
        """result.json of a finished run."""
        return self._kept["result.json"]

    @property
    def planned(self) -> int:
        """The planned number of rounds."""
        rounds = self.config.get("rounds", 0)
        return rounds if isinstance(rounds, int) else 0

    @property
    def seed(self) -> int:
        """Seed of the run."""
        seed = self.config.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @property
    def rule(self) -> str:
        """Name of the aggregation rule as in `fedfilt compare`: fedavg, local, mu=10, ..."""
        return rule_name(self.config)

    @property
    def label(self) -> str:
        """The rule, with the values of keys that distinguish it from other runs; the same for all seeds."""
        return self._label or self.rule

    @property
    def look(self) -> Look:
        """Colour, dash and mark in every figure, different from those of other runs."""
        return self._look or look(self.rule)

    @property
    def changed(self) -> float:
        """When the run last wrote a round, or was started: seconds since 1970, 0 if neither has happened."""
        return max(self._touched(name) for name in (LOG, "config.toml"))

    def _touched(self, name: str) -> float:
        try:
            return (self.folder / name).lstat().st_mtime
        except OSError:
            return 0.0

    @property
    def real_time(self) -> bool:
        """Whether seconds come from real devices instead of a simulation."""
        engine = self.config.get("engine")
        return isinstance(engine, dict) and engine.get("real_time") is True

    @property
    def count(self) -> int:
        """The number of devices K, 0 if not known yet."""
        if self.graph is not None:
            return self.graph.count
        return 0 if self.label_counts is None else len(self.label_counts)

    @property
    def notes(self) -> list[str]:
        """What is wrong or unusual, in plain words."""
        if self.status == "missing":
            return [f"{self.folder} does not exist (deleted, or not started); the run appears when it does"]
        found = list(self._wrong.values())
        if not self.config and "config.toml" not in self._wrong:
            found.append(f"{self.folder} holds no run yet (no config.toml)")
        by = self.environment.get("fedfilt")
        if by and by != __version__:
            found.append(f"written by fedfilt {by}, read by {__version__}: unknown entries are ignored")
        if self.config and self.graph is None:
            found.append("the graph of this run is not in its folder, so there is no picture of the building")
        if not self.rounds and self.config:
            found.append("no round is finished yet")
        return found

    @cached_property
    def label_counts(self) -> Array | None:
        """Training samples (K, C) per device and label."""
        try:
            table = read_json(self.folder / "partition.json")
            counts = np.array(table["label_counts"], dtype=np.int64)
            return counts if counts.ndim == 2 and counts.size else None
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None

    @cached_property
    def graph(self) -> Graph | None:
        """The graph of the devices, from graph.json or, in folders of older versions, from the config."""
        try:
            return graph_of(read_json(self.folder / "graph.json"))
        except FileNotFoundError:
            pass
        except (OSError, ValueError):
            return None
        table = self.config.get("graph")
        if not isinstance(table, dict) or any(table.get(key) for key in ("building", "file")):
            return None  # a file outside the folder
        if code_in(table):
            return None  # code from outside the package
        try:
            rooms, devices = table.get("rooms", 0), table.get("devices")
            if max(7 * rooms if devices is None else devices, rooms) > MOST_DRAWN:
                return None  # that would take a while; a graph this large is in a file
            return graph_table(table).graph(self.seed)
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None

    @cached_property
    def timeline(self) -> Timeline | None:
        """The devices that come, go and move according to the config's events."""
        script = self.config.get("events")
        if self.graph is None or not isinstance(script, list) or not script:
            return None
        if len(script) > MOST_SCRIPT or len(script) * self.graph.count > MOST_STEPS:
            return None
        try:
            return Timeline([Event(**entry) for entry in script], self.graph, max(self.planned, 1))
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None

    def moment(self, number: int | None = None) -> Moment | None:
        """The graph and the devices present in a round (by default the last); None if the graph is unknown."""
        if self.graph is None:
            return None
        last = self.rounds[-1]["round"] if self.rounds else 1
        if self.timeline is not None:
            return self.timeline.at(last if number is None else number)
        begun = max((round for round in self._found if round <= (last if number is None else number)), default=1)
        graph, everybody = self._graph_found(begun), np.ones(self.graph.count, bool)
        return Moment(begun, graph, graph, everybody, everybody, {}, ())

    def _graph_found(self, number: int) -> Graph:
        """The graph with the links found in a round, if there are any."""
        assert self.graph is not None
        first, found = self.graph, self._found.get(number)
        if found is None:
            return first
        try:
            table = {"count": first.count, "edges": found.get("edges"), "weights": found.get("weights")}
            return replace(first, adjacency=graph_of(table).adjacency)
        except ValueError:
            return first  # damaged: the one before round 1 is shown

    def line(self, number: int | None = None) -> Table:
        """The whole line of a round (by default the last), read from the file; {} if it is no longer there."""
        with self._lock:
            if not self.rounds:
                return {}
            place = self._places.get(self.rounds[-1]["round"] if number is None else number)
            if place is None:
                return {}
            try:
                with regular(self.folder / LOG, links=False) as file:
                    if os.fstat(file.fileno()).st_ino != self._inode:
                        return {}
                    file.seek(place[0])
                    found = json_of(file.read(place[1]))
                    return found if isinstance(found, dict) else {}
            except (OSError, ValueError):
                return {}

    def columns(self, number: int | None = None) -> Table:
        """A round's columns per device: compute_seconds, send_seconds, idle_seconds, bytes, epochs, outcome, ..."""
        found = (self.line(number).get("time") or {}).get("devices") or {}
        return {key: column for key, column in found.items() if column is not None}

    def tested(self, test: str, until: int | None = None, stage: str = "mixed") -> list[Table]:
        """The rounds in which models were tested, up to a round: "mixed", or "trained" on the devices' own data."""
        return [r for r in self.rounds if test in r.get(stage, {}) and (until is None or r["round"] <= until)]

    def accuracies(self, test: str, until: int | None = None) -> Array | None:
        """Accuracy, or another score (see `metric`), of every device (K,) at the last test up to a round."""
        found = self.tested(test, until)
        return found[-1]["mixed"][test]["devices"] if found else None

    @property
    def metric(self) -> Metric:
        """The score of its tests; accuracy unless they say otherwise."""
        for line in reversed(self.rounds):
            for test in line.get("mixed", {}).values():
                return metric_named(test["metric"], bool(test.get("lower"))) if "metric" in test else ACCURACY
        return ACCURACY

    def spent(self, key: str) -> Array:
        """Simulated latency, joules or bytes used up to and including each round."""
        return np.cumsum([float(r["time"].get(key) or 0) for r in self.rounds])

    def weights(self, number: int | None = None) -> Array | None:
        """Samples (K,) behind each update of a round, 0 for absent devices; without a round, all samples they hold."""
        held = None if self.label_counts is None else self.label_counts.sum(axis=1).astype(float)
        if number is None:
            return held
        line, columns = self.line(number), self.columns(number)
        reported = columns.get("samples")
        if reported is not None and len(reported) == self.count:
            used = np.array(reported, float)
        elif held is None or any(len(columns.get(key, ())) != len(held) for key in ("data_fraction", "epochs")):
            return held
        else:
            used = whole(columns["data_fraction"], held) * (np.array(columns["epochs"]) > 0)
        absent = [d for key in ("late", "rejected") for d in (line["time"].get(key) or [])]
        absent += [*(line.get("away") or []), *map(int, line.get("absent") or {})]
        used[[d for d in absent if isinstance(d, int) and 0 <= d < len(used)]] = 0
        return used

    # --- for people ---------------------------------------------------------------------------------------------

    def history(self, devices: bool = False) -> Any:
        """The rounds as a pandas (or polars) data frame: one row per round or, with `devices`, per test and device.

        Columns: round, seconds, loss, samples; for tested rounds local_mean, local_std, local_worst, ... and the same
        for global; latency, joules, bytes, ...; see `fedfilt.runs.history.rows_of`.
        """
        return frame_of(rows_of(self.rounds, devices))

    def plot(self, test: str = "local", against: str = "rounds") -> Any:
        """Mean accuracy over devices on the "local" or "global" test, as a Plotly figure.

        The horizontal axis is `against`: "rounds", simulated "seconds", "joules" or "bytes".
        """
        return _parts.figure("accuracy")([self], test, against)

    def __repr__(self) -> str:
        last = self.rounds[-1]["round"] if self.rounds else 0
        scores = []
        for test in TESTS:
            for line in self.tested(test)[-1:]:
                found = line["mixed"][test]
                scores.append(f"{test} test {found['mean']:.4g} (worst device {found.get('worst', np.nan):.4g})")
        return lines_of(
            f"Records of {self.folder}: {self.status}, round {last} of {self.planned}, "
            f"{self.count} devices, rule {self.rule}, seed {self.seed}",
            f"  last tests, mean over devices: {', '.join(scores) or 'none yet'}",
            *(f"  {note}" for note in self.notes),
        )


def find_runs(paths: Iterable[str | Path]) -> list[Records]:
    """The runs in the given folders, named and in order."""
    return named([Records(folder) for folder in run_folders(paths)])


def run_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Run folders among the given ones and inside them, including comparisons (NAME/RULE/seed-N).

    A folder without a run is kept, because one may start there. Flower's config.toml in a deployment is not a run's.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        inside = [p for p in _folders_in(path) if os.path.lexists(p / "config.toml")]
        inside = [p for p in inside if p.name != "flower" or not (p.parent / "deployment.toml").exists()]
        found += [path] if os.path.lexists(path / "config.toml") or not inside else inside
    return list(dict.fromkeys(found))


def _folders_in(path: Path) -> list[Path]:
    """The folders in a folder, some levels deep, by name; links are not followed, because they may lead anywhere."""
    found: list[Path] = []
    level = [path]
    for _ in range(DEPTH):
        below: list[Path] = []
        for folder in level:
            with suppress(OSError), os.scandir(folder) as entries:
                left = MOST_FOLDERS - len(found) - len(below)
                below += islice((folder / one.name for one in entries if one.is_dir(follow_symlinks=False)), left)
        found, level = found + below, below
    return sorted(found)


def named(runs: list[Records]) -> list[Records]:
    """Give runs distinct names and looks, and sort them.

    A name is the rule with the values of keys that differ, and the seed or the folder if that is not enough.
    """
    known = [run for run in runs if run.config]
    several = len({run.seed for run in known}) > 1
    for run, label in zip(known, labels([(run.rule, run.resolved) for run in known]), strict=True):
        run._label = label
        run.name = f"{label} seed {run.seed}" if several else label
    again = Counter(run.name for run in known)
    for run in known:
        if again[run.name] > 1:
            run.name = f"{run.name} ({run.folder})"
    in_order = sorted(runs, key=lambda run: (rule_order(run.rule), rising(run.label), str(run.folder)))
    shown = looks({run.label: run.rule for run in in_order if run.config})
    for run in known:
        run._look = shown[run.label]
    return sorted(in_order, key=lambda run: run.seed)


def _told(number: int, event: Any) -> Iterator[Happening]:
    """An entry of a line's `events`: {"what": "join", "device": 3, ...}, or plain words in older versions."""
    if not isinstance(event, Mapping):
        yield Happening(number, None, "said", {"words": str(event)[:200]})
        return
    device = event.get("device")
    details = {key: _short(value) for key, value in event.items() if key not in ("what", "device")}
    yield Happening(number, device if isinstance(device, int) else None, str(event.get("what", "event"))[:40], details)


def _short(value: Any) -> Any:
    """A detail as it is, or as a text of limited length."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)[:200]
