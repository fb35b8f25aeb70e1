"""Reads the files of a home's edge server while they grow, for the dashboard.

Nothing in the folder is trusted: only regular files are opened, a limited amount of each is read, every line is
checked, and damaged lines are skipped and counted.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, Generic, NamedTuple, TypeVar

from fedfilt._files import regular
from fedfilt._types import Table
from fedfilt.home.rooms import Voting
from fedfilt.home.topics import BadMessage, RoomState, Status, is_share, room_state_in, status_in, time_in

STATE = "state.json"
LINES = ("decisions", "devices", "corrections")
MOST_STATE = 8_000_000  # bytes of state.json
NEWEST = 2_000_000  # bytes read from the end of a file of lines
LONGEST = 200_000  # bytes of a line
KEPT = 10_000  # lines of a kind
MOST_ENTRIES = 2000  # rooms, devices or labels of a home: the page compares every room with every device
MOST_HOMES, MOST_FOLDERS = 100, 20_000  # homes to show, and folders to search for them
LONGEST_NAME, LONGEST_TIME = 100, 1e10  # letters; seconds since 1970
TAIL = 100  # bytes by which a file is recognised
RUNS = 15.0  # seconds without a new state after which an edge server counts as stopped

One = TypeVar("One")


class Say(NamedTuple):
    """A device's last decision."""

    label: str
    share: float
    at: float


class Room(NamedTuple):
    """The current state of a room."""

    state: RoomState | None  # None before its first vote
    says: dict[str, Say]  # by device


class Known(NamedTuple):
    """The current state of a device; its room is in its status."""

    status: Status
    seen: float | None  # when it last sent anything


class Now(NamedTuple):
    """The current state of a home: state.json."""

    at: float
    home: str
    labels: tuple[str, ...]
    fresh_seconds: float
    rooms: dict[str, Room]
    devices: dict[str, Known]
    received: int
    dropped: dict[str, int]
    damaged: int  # rooms, devices and reasons that cannot be read


class Decided(NamedTuple):
    """A line of decisions.jsonl."""

    at: float
    room: str
    activity: str
    confidence: float


class Changed(NamedTuple):
    """A line of devices.jsonl."""

    at: float
    device: str
    status: Status


class Corrected(NamedTuple):
    """A line of corrections.jsonl."""

    at: float
    room: str
    label: str
    begin: float
    end: float
    devices: tuple[str, ...]  # that received it
    said: str | None  # what the room said before, if known


class Home:
    """A home, read from its folder. `refresh` reads what is new and never fails, whatever it finds.

    Lists are replaced, never changed, so that they can be read while another thread refreshes.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.now: Now | None = None
        self.written = 0.0  # time of state.json, by this machine's clock
        self._wrong = ""
        self._stamp: object = None
        self._decisions = _Lines(self.folder, "decisions", _decided)
        self._changes = _Lines(self.folder, "devices", _changed)
        self._corrections = _Lines(self.folder, "corrections", _corrected)
        self.refresh()

    def refresh(self) -> None:
        """Read what is new."""
        self._read_state()
        for lines in (self._decisions, self._changes, self._corrections):
            lines.refresh()

    def _read_state(self) -> None:
        try:
            with regular(self.folder / STATE, links=False) as file:
                about = os.fstat(file.fileno())
                stamp = about.st_ino, about.st_size, about.st_mtime_ns
                if stamp == self._stamp:
                    return
                self._stamp, self._wrong = stamp, ""
                if about.st_size > MOST_STATE:
                    raise BadMessage(f"it has more than {MOST_STATE} bytes")
                self.now, self.written = _now(_table(file.read(MOST_STATE))), about.st_mtime
        except BadMessage as error:
            self._wrong = f"{STATE} cannot be read: {error}"
        except OSError as error:
            self._stamp, self._wrong = None, f"{STATE} cannot be read: {error.strerror}"

    @property
    def name(self) -> str:
        """The home's name."""
        return self.now.home if self.now is not None else self.folder.resolve().parent.name

    @property
    def decisions(self) -> list[Decided]:
        """What rooms have decided, newest last."""
        return self._decisions.found

    @property
    def changes(self) -> list[Changed]:
        """How devices have changed, newest last."""
        return self._changes.found

    @property
    def corrections(self) -> list[Corrected]:
        """What people have corrected, newest last."""
        return self._corrections.found

    @property
    def runs(self) -> bool:
        """Whether the edge server is running: it then writes its state every two seconds."""
        return self.now is not None and not self._wrong and abs(time.time() - self.written) < RUNS

    @property
    def notes(self) -> list[str]:
        """What is wrong, in plain words."""
        found = [self._wrong] if self._wrong else []
        if self.now is not None and self.now.damaged:
            found.append(f"{_counted(self.now.damaged, 'entry', 'entries')} of {STATE} cannot be read")
        return found + [note for lines in (self._decisions, self._changes, self._corrections) for note in lines.notes]


def home_folders(paths: Iterable[str | Path]) -> list[Path]:
    """The given folders that are homes, and those named `home` in them or one level deeper; links are not followed."""
    found: list[Path] = []
    for path in map(Path, paths):
        found += [path] if _holds_home(path) else []
        with suppress(OSError), os.scandir(path) as entries:
            below = sorted(islice((one.name for one in entries if one.is_dir(follow_symlinks=False)), MOST_FOLDERS))
            inside = [path / "home", *(path / name / "home" for name in below)]
            found += [folder for folder in inside if not folder.is_symlink() and _holds_home(folder)]
    return list(dict.fromkeys(found))[:MOST_HOMES]


def _holds_home(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in (STATE, *(f"{name}.jsonl" for name in LINES)))


# --- files ------------------------------------------------------------------------------------------------------------


class _Lines(Generic[One]):
    """The newest lines of NAME.jsonl, which grows, and is renamed to NAME.1.jsonl when it gets long."""

    def __init__(self, folder: Path, name: str, check: Callable[[Table], One]) -> None:
        self._unreadable: list[str] = []
        self._paths, self._check = (folder / f"{name}.1.jsonl", folder / f"{name}.jsonl"), check
        self._forget()

    def _forget(self) -> None:
        self.found: list[One] = []
        self._damaged = 0
        self._place: object = None  # the file read last
        self._offset, self._tail = 0, b""  # how far it was read, and the last bytes before that

    @property
    def notes(self) -> list[str]:
        """What is wrong with the files."""
        name = self._paths[1].name
        damaged = f"{_counted(self._damaged, 'damaged line', 'damaged lines')} of {name} skipped"
        return [*self._unreadable, *[damaged][: self._damaged]]

    def refresh(self) -> None:
        """Read new, complete lines."""
        with ExitStack() as opened:
            files: list[IO[bytes]] = []
            self._unreadable = []
            for path in self._paths:
                try:
                    files.append(opened.enter_context(regular(path, links=False)))
                except FileNotFoundError:
                    pass
                except OSError as error:
                    self._unreadable.append(f"{path.name} cannot be read: {error.strerror}")
            with suppress(OSError):  # the disk may fail; what was read stays
                self._read(files)

    def _read(self, files: Sequence[IO[bytes]]) -> None:
        places = [(about.st_dev, about.st_ino) for about in (os.fstat(file.fileno()) for file in files)]
        known = places.index(self._place) if self._place in places else -1
        if known < 0 or not self._continues(files[known]):
            self._forget()  # the first time, and after files were replaced
            known = 0
        new: list[One] = []
        for file, place in list(zip(files, places, strict=True))[known:]:
            if place != self._place:
                self._place, self._offset, self._tail = place, 0, b""
            new += self._checked(self._complete(file))
        if new:
            self.found = [*self.found, *new][-KEPT:]

    def _continues(self, file: IO[bytes]) -> bool:
        """Whether a file still begins with what was read from it."""
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _complete(self, file: IO[bytes]) -> bytes:
        """Lines completed since the last look; if there are many, only the newest."""
        size = os.fstat(file.fileno()).st_size
        begin = max(self._offset, size - NEWEST)
        file.seek(begin)
        block = file.read(size - begin)
        end = block.rfind(b"\n") + 1 or (len(block) if len(block) > LONGEST else 0)
        start = block.find(b"\n") + 1 if begin > self._offset else 0  # it starts in the middle of a line
        self._offset, self._tail = begin + end, (self._tail + block[:end])[-TAIL:]
        return block[start:end]

    def _checked(self, lines: bytes) -> Iterable[One]:
        for line in lines.splitlines():
            try:
                if len(line) > LONGEST:
                    raise BadMessage("too long")
                yield self._check(_table(line))
            except BadMessage:
                self._damaged += 1


# --- what they must look like -----------------------------------------------------------------------------------------


def _table(content: bytes) -> Table:
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        raise BadMessage("not JSON") from None
    return _is_table(table)


def _now(table: Table) -> Now:
    labels, fresh = table.get("labels"), table.get("fresh_seconds", Voting.fresh_seconds)
    if not isinstance(labels, list) or not isinstance(fresh, int | float) or not 0 < fresh < LONGEST_TIME:
        raise BadMessage("it must have labels, and a time for which a decision is fresh")
    if len(labels) > MOST_ENTRIES:
        raise BadMessage(f"it has more than {MOST_ENTRIES} labels")
    received = _count(table.get("received", 0))
    rooms, bad_rooms = _each(table.get("rooms"), _room)
    devices, bad_devices = _each(table.get("devices"), _known)
    dropped, bad_reasons = _each(table.get("dropped", {}), _count)
    damaged, home = bad_rooms + bad_devices + bad_reasons, _name(table.get("home"))
    names = tuple(map(_name, labels))
    return Now(_time(table, "at"), home, names, float(fresh), rooms, devices, received, dropped, damaged)


def _each(entries: Any, check: Callable[[Any], One]) -> tuple[dict[str, One], int]:
    """The readable entries of a table by name, and how many are not readable."""
    found = {}
    if len(_is_table(entries)) > MOST_ENTRIES:
        raise BadMessage(f"it has more than {MOST_ENTRIES} entries of a kind")
    for name, entry in entries.items():
        with suppress(BadMessage):
            found[_name(name)] = check(entry)
    return found, len(entries) - len(found)


def _room(entry: Any) -> Room:
    says, damaged = _each(_is_table(entry).get("says", {}), _say)
    if damaged:
        raise BadMessage("a device's decision cannot be read")
    return Room(_room_state(entry) if "at" in entry else None, says)


def _say(entry: Any) -> Say:
    if not is_share(_is_table(entry).get("share")):
        raise BadMessage("share must be from 0 to 1")
    return Say(_name(entry.get("label")), float(entry["share"]), _time(entry, "at"))


def _known(entry: Any) -> Known:
    return Known(_status(_is_table(entry)), None if entry.get("seen") is None else _time(entry, "seen"))


def _decided(table: Table) -> Decided:
    state = _room_state(table)
    return Decided(state.at, _name(table.get("room")), state.activity, state.confidence)


def _changed(table: Table) -> Changed:
    return Changed(_time(table, "at"), _name(table.get("device")), _status(table))


def _corrected(table: Table) -> Corrected:
    devices, said = table.get("devices"), table.get("said")
    if not isinstance(devices, list):
        raise BadMessage("it must list devices")
    begin, end = _time(table, "begin"), _time(table, "end")
    if begin > end:
        raise BadMessage("a correction must end after it begins")
    room, label = _name(table.get("room")), _name(table.get("label"))
    told = tuple(map(_name, devices))
    return Corrected(_time(table, "at"), room, label, begin, end, told, None if said is None else _name(said))


def _room_state(table: Table) -> RoomState:
    state = room_state_in(table)
    _time(table, "at")
    return state._replace(activity=_name(state.activity), probabilities={_name(k): v for k, v in state[3].items()})


def _status(table: Table) -> Status:
    """How a device is; its room may have any name here."""
    room = table.get("room", "")
    return status_in({**table, "room": ""})._replace(room=_name(room) if room else "")


def _is_table(value: Any) -> Table:
    if not isinstance(value, dict):
        raise BadMessage("not a table")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        raise BadMessage(f"a name must be a text of up to {LONGEST_NAME} letters")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise BadMessage("a count must be a whole number")
    return value


def _time(table: Table, key: str) -> float:
    """A time that a calendar has."""
    found = time_in(table, key)
    if not 0 <= found <= LONGEST_TIME:
        raise BadMessage(f"{key} must be a time since 1970")
    return found


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
