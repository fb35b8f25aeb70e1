"""What a run has written down, read while it grows: for reports, the dashboard and the figures.

Nothing in a run folder is trusted or executed: files are parsed as TOML and JSON, unknown keys are passed over, what
is missing or damaged becomes a note in plain words, and the next `refresh` sees when it is mended.
"""

import fcntl
import json
import os
import threading
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fedfilt import __version__
from fedfilt.checks import Array
from fedfilt.events import Event as Scripted
from fedfilt.events import Moment, Timeline
from fedfilt.graph import Graph
from fedfilt.lines import TESTS, Table, checked
from fedfilt.topology import Topology

DEVICE_LIMIT = 1_000_000  # devices of a graph that is read
EDGE_LIMIT = 1_000_000  # links up to which a run folder holds its graph
TAIL = 200  # bytes by which a file is known again
STOP = "stop"  # a file of this name in a run folder asks the run to end after its round
# Lists of devices in a line of metrics.jsonl that are events, and their words
EVENT_LISTS = {"late": "late", "rejected": "rejected", "joined": "joined", "left": "left", "moved": "moved"}
EVENT_WORDS = {"join": "joined", "leave": "left", "move": "moved", "reject": "rejected", "offline": "went offline"}


class Event(NamedTuple):
    """Something that happened to a device."""

    round: int
    device: int | None
    what: str  # joined, left, moved, late, rejected, left out, ...

    def __str__(self) -> str:
        who = "" if self.device is None else f"device {self.device} "
        return f"round {self.round}: {who}{self.what}"


class Records:
    """A run as its folder tells it; `refresh` reads what is new.

    `rounds` are the lines of metrics.jsonl without the columns per device, which `line(round)` reads when wanted.
    """

    def __init__(self, folder: str | Path, name: str = "") -> None:
        self.folder = Path(folder)
        self.name = name or self.folder.name
        self.version = 0  # rises with every change
        self._lock = threading.RLock()
        self._stamps: dict[str, Any] = {}
        self._kept: dict[str, Table] = {"config.toml": {}, "environment.json": {}, "result.json": {}}
        self._wrong: dict[str, str] = {}  # file -> what is wrong with it
        self._forget_log()
        self.status = ""
        self.refresh()

    # --- reading ------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read what is new in the folder; True if anything is. Never fails for what it finds there."""
        with self._lock:
            changed = [self._read_table(name) for name in self._kept]
            changed += [self._read_log(), self._stamped("partition.json"), self._stamped("graph.json")]
            if changed[-1] or changed[-2] or changed[0]:
                for name in ("graph", "label_counts", "timeline"):
                    self.__dict__.pop(name, None)  # cached; read again when wanted
            status = self._find_status()
            changed.append(status != self.status)
            self.status = status
            self.version += any(changed)
            return any(changed)

    def _stamped(self, name: str) -> bool:
        """Whether a file is another one than at the last look."""
        try:
            info = (self.folder / name).stat()
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
            return True
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
            table = tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
            if not isinstance(table, dict):
                raise ValueError("not a table")
            self._kept[name] = table
        except (OSError, ValueError, RecursionError) as error:
            self._wrong[name] = f"{name} cannot be read ({error})"
        return True

    def _forget_log(self) -> None:
        self.rounds: list[Table] = []
        self.events: list[Event] = []
        self._places: dict[int, tuple[int, int]] = {}  # round -> where its line is
        self._offset = 0
        self._lines = 0
        self._tail = b""  # the last bytes before the offset
        self._inode: int | None = None

        self._training: set[int] = set()  # devices that took part in the last round

    def _read_log(self) -> bool:
        """Read the lines that are complete; one that is being written waits for the next time."""
        try:
            with (self.folder / "metrics.jsonl").open("rb") as file:
                info = os.fstat(file.fileno())
                again = self._inode is not None and (info.st_ino != self._inode or not self._continues(file))
                if again:  # the run was resumed: rounds after its checkpoint are played again
                    self._forget_log()
                    self._wrong.pop("metrics.jsonl", None)
                self._inode = info.st_ino
                if info.st_size == self._offset:
                    return again
                file.seek(self._offset)
                block = file.read()
                self._tail = (self._tail + block[: block.rfind(b"\n") + 1])[-TAIL:]

        except OSError:
            return False  # not there yet, or gone: what was read stays on show
        complete = block[: block.rfind(b"\n") + 1]
        for raw in complete.splitlines(keepends=True):
            self._lines += 1
            try:
                self._take(checked(json.loads(raw)), self._offset, len(raw))
            except (ValueError, RecursionError):
                self._wrong["metrics.jsonl"] = f"metrics.jsonl is damaged in line {self._lines}, which is left out"
            self._offset += len(raw)
        return bool(complete)

    def _continues(self, file: IO[bytes]) -> bool:
        """Whether a file still begins with what was read of it."""
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
        for stage in ("mixed", "trained"):
            for test in TESTS:
                found = (line.get(stage) or {}).get(test)
                if found:
                    small = {k: v for k, v in found.items() if isinstance(v, int | float)}
                    accuracies = [np.nan if v is None else v for v in found.get("devices", [])]
                    kept.setdefault(stage, {})[test] = {**small, "devices": np.array(accuracies, np.float32)}
        self.events += self._events(line, devices)
        self.rounds.append(kept)
        self._places[number] = (offset, length)

    def _events(self, line: Table, columns: Table) -> list[Event]:
        number = line["round"]
        found: list[Event] = []
        for event in line.get("events") or []:
            found += _event(number, event)
        for table in (line, line.get("time") or {}):
            for key, words in EVENT_LISTS.items():
                listed = table.get(key)
                if isinstance(listed, list):
                    found += [Event(number, int(d), words) for d in listed if isinstance(d, int)]
        missing = line.get("absent")
        for device, why in missing.items() if isinstance(missing, dict) else ():
            words = "rejected" if str(why).startswith("refused") else "absent"
            found.append(Event(number, int(device), f"{words} ({str(why)[:200]})"))
        if epochs := columns.get("epochs"):
            now = {device for device, count in enumerate(epochs) if count}
            outcomes = columns.get("outcome") or [""] * len(epochs)
            before = self._training or now  # the first round: who is left out of it
            away = set(line.get("away") or [])  # its own events say so
            for device in sorted((before if self.rounds else set(range(len(epochs)))) - now - away):
                found.append(Event(number, device, f"left out ({outcomes[device] or 'no plan'})"))
            if self.rounds:
                found += [Event(number, device, "takes part again") for device in sorted(now - before)]
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

    # --- what it says -------------------------------------------------------------------------------------------

    @property
    def config(self) -> Table:
        """The table of config.toml."""
        return self._kept["config.toml"]

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
        """Rounds that the run is to have."""
        rounds = self.config.get("rounds", 0)
        return rounds if isinstance(rounds, int) else 0

    @property
    def seed(self) -> int:
        """Seed of the run."""
        seed = self.config.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @property
    def rule(self) -> str:
        """Name of the aggregation rule as `fedfilt compare` has it: fedavg, local, mu=10, ..."""
        return rule_name(self.config)

    @property
    def count(self) -> int:
        """Number of devices K, 0 if nothing says so yet."""
        if self.graph is not None:
            return self.graph.count
        return 0 if self.label_counts is None else len(self.label_counts)

    @property
    def notes(self) -> list[str]:
        """What is wrong or unusual, in plain words."""
        if self.status == "missing":
            return [f"{self.folder} is not there (deleted, or not begun); it is shown when it is"]
        found = list(self._wrong.values())
        if not self.config and "config.toml" not in self._wrong:
            found.append(f"{self.folder} holds no run yet (no config.toml)")
        by = self.environment.get("fedfilt")
        if by and by != __version__:
            found.append(f"written by fedfilt {by}, read by {__version__}: what is unknown is left out")
        if self.config and self.graph is None:
            found.append("the graph of this run is not in its folder: no picture of the building")
        if not self.rounds and self.config:
            found.append("no round is finished yet")
        return found

    @cached_property
    def label_counts(self) -> Array | None:
        """Training samples (K, C) per device and label."""
        try:
            table = json.loads((self.folder / "partition.json").read_text(encoding="utf-8"))
            counts = np.array(table["label_counts"], dtype=np.int64)
            return counts if counts.ndim == 2 and counts.size else None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    @cached_property
    def graph(self) -> Graph | None:
        """The graph of the devices, from graph.json or, in folders of older versions, from the config."""
        try:
            text = (self.folder / "graph.json").read_text(encoding="utf-8")
            return graph_from_json(text)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError):
            return None
        table = self.config.get("graph")
        if not isinstance(table, dict) or table.get("building") or table.get("file"):
            return None  # a file outside the folder
        try:
            return Topology(**table).graph(self.seed)
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None

    @cached_property
    def timeline(self) -> Timeline | None:
        """Who comes, goes and moves by the config's script."""
        script = self.config.get("events")
        if self.graph is None or not script:
            return None
        try:
            return Timeline([Scripted(**entry) for entry in script], self.graph, max(self.planned, 1))
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None

    def moment(self, number: int | None = None) -> Moment | None:
        """The graph and who was there in a round (the last if not said); None if the graph is not known."""
        if self.graph is None:
            return None
        last = self.rounds[-1]["round"] if self.rounds else 1
        if self.timeline is not None:
            return self.timeline.at((last if number is None else number) - 1)
        everybody = np.ones(self.graph.count, bool)
        return Moment(0, self.graph, self.graph, everybody, everybody, {}, ())

    def line(self, number: int | None = None) -> Table:
        """The whole line of a round (the last if not said), read from the file; {} if it is not there any more."""
        with self._lock:
            if not self.rounds:
                return {}
            place = self._places.get(self.rounds[-1]["round"] if number is None else number)
            if place is None:
                return {}
            try:
                with (self.folder / "metrics.jsonl").open("rb") as file:
                    if os.fstat(file.fileno()).st_ino != self._inode:
                        return {}
                    file.seek(place[0])
                    found = json.loads(file.read(place[1]))
                    return found if isinstance(found, dict) else {}
            except (OSError, ValueError):
                return {}

    def columns(self, number: int | None = None) -> Table:
        """Per-device columns of a round: compute_seconds, send_seconds, idle_seconds, bytes, epochs, outcome, ..."""
        found = (self.line(number).get("time") or {}).get("devices") or {}
        return {key: column for key, column in found.items() if column is not None}

    def tested(self, test: str, until: int | None = None) -> list[Table]:
        """The rounds in which models were tested, up to a round."""
        return [r for r in self.rounds if test in r.get("mixed", {}) and (until is None or r["round"] <= until)]

    def accuracies(self, test: str, until: int | None = None) -> Array | None:
        """Accuracy (K,) of every device at the last test up to a round."""
        found = self.tested(test, until)
        return found[-1]["mixed"][test]["devices"] if found else None

    def spent(self, key: str) -> Array:
        """Simulated latency, joules or bytes used up to and including each round."""
        return np.cumsum([float(r["time"].get(key) or 0) for r in self.rounds])

    def weights(self, number: int | None = None) -> Array | None:
        """Samples (K,) behind each device's update in a round, 0 for who was absent; without a round, all it holds."""
        if self.label_counts is None:
            return None
        held: Array = self.label_counts.sum(axis=1).astype(float)
        if number is None:
            return held
        line = self.line(number)
        columns = self.columns(number)
        fraction, epochs = columns.get("data_fraction"), columns.get("epochs")
        if fraction is None or epochs is None or len(fraction) != len(held) or len(epochs) != len(held):
            return held
        used = np.floor(np.array(fraction) * held + 1e-9) * (np.array(epochs) > 0)
        absent = [d for key in ("late", "rejected") for d in (line["time"].get(key) or [])]
        absent += [*(line.get("away") or []), *map(int, line.get("absent") or {})]
        used[[d for d in absent if isinstance(d, int) and 0 <= d < len(used)]] = 0
        return used


def find_runs(paths: Iterable[str | Path]) -> list[Records]:
    """The runs in the given folders, named and in order."""
    return named([Records(folder) for folder in run_folders(paths)])


def run_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Run folders among the given ones and inside them, also in comparisons (NAME/RULE/seed-N) in them.

    A folder without a run is kept: one may begin there.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(p.parent for depth in ("*", "*/*", "*/*/*") for p in path.glob(f"{depth}/config.toml"))
        found += [path] if (path / "config.toml").exists() or not inside else inside
    return list(dict.fromkeys(found))


def named(runs: list[Records]) -> list[Records]:
    """Name runs by rule, with the seed or the folder where that does not tell them apart, and order them."""
    several = len({run.seed for run in runs if run.config}) > 1
    names = [(run.rule + (f" seed {run.seed}" if several else "")) if run.config else run.folder.name for run in runs]
    for name, run in zip(names, runs, strict=True):
        run.name = f"{name} ({run.folder})" if names.count(name) > 1 else name
    return sorted(runs, key=lambda run: (run.seed, rule_order(run.rule), str(run.folder)))


def rule_name(table: Mapping[str, Any]) -> str:
    """Name of a config's aggregation rule.

    >>> rule_name({"aggregator": {"name": "gfedfilt", "filter": {"name": "tikhonov", "mu": 10.0}}})
    'mu=10'
    >>> rule_name({"aggregator": "fedavg"})
    'fedavg'
    """
    given = table.get("aggregator", {})
    given = {"name": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping):
        return "unknown"
    name = str(given.get("name", "gfedfilt"))
    if name != "gfedfilt":
        return name
    kind = given.get("filter", {})
    kind = {"name": kind} if isinstance(kind, str) else kind if isinstance(kind, Mapping) else {}
    response, mu = str(kind.get("name", "tikhonov")), kind.get("mu", 1.0)
    strength = f"mu={mu:g}" if isinstance(mu, int | float) else "gfedfilt"
    signal = " updates" if given.get("signal") == "updates" else ""
    return (strength if response == "tikhonov" else f"{response} {strength}" if "mu" in kind else response) + signal


def rule_order(rule: str) -> tuple[int, float, str]:
    """FedAvg, Local, then strengths in rising order, then the rest."""
    first = {"fedavg": 0, "local": 1}.get(rule, 2 if rule.startswith("mu=") else 3)
    try:
        return first, float(rule.removeprefix("mu=").split()[0]) if first == 2 else 0.0, rule
    except ValueError:
        return first, 0.0, rule


def graph_json(graph: Graph) -> str | None:
    """A graph as a run folder keeps it; None if it is too large for that.

    >>> graph_from_json(graph_json(Graph.paper())).hash == Graph.paper().hash
    True
    """
    if graph.adjacency.nnz > 2 * EDGE_LIMIT:
        return None
    edges = graph.edges
    weights = np.asarray(graph.adjacency[edges[:, 0], edges[:, 1]]).ravel() if len(edges) else np.ones(0)
    table: Table = {"count": graph.count, "laplacian": graph.laplacian_kind, "edges": edges.tolist()}
    if (weights != 1).any():
        table["weights"] = weights.tolist()
    if graph.rooms is not None:
        table["rooms"] = graph.rooms.tolist()
    if graph.positions is not None:
        table["positions"] = graph.positions.tolist()
    return json.dumps(table)


def graph_from_json(text: str) -> Graph:
    """The graph that `graph_json` wrote; ValueError if it is none. Sizes are checked before memory is taken."""
    table = json.loads(text)
    try:
        count, rooms = table["count"], table.get("rooms")
        if type(count) is not int or not 0 < count <= DEVICE_LIMIT:
            raise ValueError(f"count must be from 1 to {DEVICE_LIMIT}, got {count!r}")
        if rooms is not None and {type(room) for room in rooms} not in ({int}, {str}):
            raise ValueError("rooms must be all numbers or all names")
        return _graph_of(table)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a graph ({type(error).__name__}: {error})") from None


def _graph_of(table: Table) -> Graph:
    graph = Graph.from_edges(table["count"], table["edges"], table.get("weights"), rooms=table.get("rooms"))
    return Graph(graph.adjacency, graph.rooms, table.get("positions"), table.get("laplacian", "combinatorial"))


def in_use(folder: Path) -> bool:
    """Whether a process holds a run folder; looks without getting in the way of one that is about to."""
    try:
        with (folder / "lock").open("r") as file:
            os.kill(max(int(file.read(20)), 1), 0)  # raises if there is no such process
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False  # the number belongs to another process now
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False


def _event(number: int, event: Any) -> Iterator[Event]:
    """An entry of a line's `events`: {"kind": "join", "device": 3}, {"join": 3}, {"join": [3, 4]} or plain words."""
    if not isinstance(event, Mapping):
        yield Event(number, None, str(event)[:200])
        return
    kind = next((str(event[key]) for key in ("kind", "event", "what", "type") if key in event), "")
    devices = event.get("device", event.get("devices"))
    if not kind:
        kind, devices = next(((key, event[key]) for key in EVENT_WORDS if key in event), ("event", devices))
    words = EVENT_WORDS.get(kind, kind)
    for device in devices if isinstance(devices, list) else [devices]:
        yield Event(number, device if isinstance(device, int) else None, words)
