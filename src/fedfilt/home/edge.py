"""The edge server of a living home: it collects devices' decisions, lets rooms vote, and passes on corrections.

It also writes what happens to files in a folder, for the dashboard:

    state.json          rooms and devices right now, rewritten every two seconds
    decisions.jsonl     a line when a room's activity changes, and every minute in between
    devices.jsonl       a line when a device comes, goes, changes rooms or gets a new model
    corrections.jsonl   a line for every correction
    waiting.json        corrections that devices have not stored yet
"""

import json
import logging
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fedfilt._checks import check_number
from fedfilt._types import Table
from fedfilt.home import assistant
from fedfilt.home.bus import Bus
from fedfilt.home.clock import Clock
from fedfilt.home.outbox import Outbox
from fedfilt.home.rooms import UNKNOWN, Device, Household, Voting
from fedfilt.home.topics import BadMessage, Correction, RoomState, Topics, correction, decision, status, written

log = logging.getLogger("fedfilt")

ONLINE, OFFLINE = b"online", b"offline"
LABEL_SECONDS = 30.0  # that a correction covers
LONGEST_LABEL = 3600.0
LONGEST_AGO = 86_400.0  # seconds since the end of a correction's span; devices keep no more in memory
SEND_AGAIN = 30.0  # seconds of the machine's clock after which a device that is online is told again
EXPIRE_SECONDS = 30.0  # after which the last message of a room or a device is no longer shown
SETTLE = 60.0  # seconds for devices to report after the start, before traces of others are removed
MOST_LABELS = 100  # that wait
MOST_TOPICS = 10_000
MOST_FILE = 4_000_000  # bytes of a file of lines; there is one older one of each
STATE_EVERY, LINE_EVERY, TELL_EVERY = 2.0, 60.0, 60.0  # seconds
LONGEST_WAIT = 1.0  # seconds, of the machine's
SHORTEST_STEP = 0.01  # seconds from one step to the next; what comes meanwhile is read together


class Edge:
    """The edge server of a home, on any bus. `run` works until it is stopped; `step` is one turn.

    Only the newest message of each topic waits, so that no device can crowd out another, however much it sends.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        topics: Topics,
        labels: Sequence[str],
        devices: Mapping[str, str] | None = None,
        *,
        moving: Collection[str] = (),
        rooms: Collection[str] = (),
        ears: Bus | None = None,
        voting: Voting | None = None,
        folder: Path | None = None,
        correct_seconds: float = LABEL_SECONDS,
        home_assistant: bool = True,
        corrected: Callable[[], None] = lambda: None,
    ) -> None:
        """`devices` by name, each with its room; None admits any device. `folder` is for files about what happens.

        Devices that are `moving` may report another room: that of another device, or one of `rooms`.

        `corrected` is called after every correction. Decisions arrive on the bus `ears`, if there is one: a broker
        drops what is too much for a client, and that should never be a label or a status.

        The last will of the bus should be (`topics.edge`, OFFLINE).
        """
        self.household = Household(labels, devices, voting, moving, rooms)
        self.received, self.dropped = 0, Counter[str]()  # messages; dropped ones, by reason
        self._bus, self._clock, self._topics, self._labels = bus, clock, topics, tuple(labels)
        self._seconds = check_number("correct_seconds", correct_seconds, 0, LONGEST_LABEL, above=True)
        self._assistant, self._corrected = home_assistant, corrected
        self._waiting: dict[str, bytes] = {}  # by topic, what devices said
        self._commands: deque[tuple[str, bytes]] = deque()
        self._greeted = False  # Home Assistant has started since we last looked
        self._lock, self._woken = threading.Lock(), threading.Event()
        self._announced: dict[str, bytes] = {}  # by topic, to Home Assistant
        self._known: tuple[list[str], list[tuple[str, bool]]] | None = None  # the rooms and devices in it
        self._traces: set[str] = set()  # topics on which something of this home was announced before the start
        self._start = clock.now()
        self._files = _Files(folder) if folder is not None else None
        self._outbox = Outbox(self._labels, None if folder is None else folder / "waiting.json")
        self._sent: dict[str, tuple[Correction, float]] = {}  # by device, what it was told last, and when (monotonic)
        self._told = time.monotonic()
        self._before: Counter[str] = Counter()
        bus.subscribe(topics.status("+"), self._take)
        (ears or bus).subscribe(topics.decision("+"), self._take, retained=False)
        bus.subscribe(topics.kept("+"), self._take, retained=False)
        bus.subscribe(topics.label("+"), self._take, retained=False)
        if home_assistant:
            bus.subscribe(assistant.found_at("+"), self._take_trace)
            bus.subscribe(assistant.BIRTH, self._take_birth, retained=False)
        bus.publish(topics.edge, ONLINE, retain=True)
        self.step()

    def run(self, stop: threading.Event, each: Callable[[], None] = lambda: None) -> None:
        """Be the edge server until stopped; `each` is called on every turn."""
        while not stop.is_set():
            begin = time.monotonic()
            each()
            wait = min(self.step() / self._clock.speed, LONGEST_WAIT)
            self._woken.wait(max(wait, 0.001))
            time.sleep(max(0.0, begin + SHORTEST_STEP / self._clock.speed - time.monotonic()))
        self.step()
        if self._files is not None:
            self._files.state(self._table, last=True)

    def step(self) -> float:
        """Read what has arrived, hold due votes, publish the results; returns the seconds until the next vote."""
        self._woken.clear()
        with self._lock:
            said, self._waiting = self._waiting, {}
            commands, self._commands = self._commands, deque()
            greeted, self._greeted = self._greeted, False
        now = self._clock.now()
        self.household.forget(now)
        if greeted:
            self._tell_all()
        for topic, content in said.items():
            self._read(topic, content, now)
        for topic, content in commands:
            self._correct(topic, content, now)
        self._pass_on(now)
        for room, state in self.household.vote(now).items():
            self._publish(room, state)
        if self._assistant:
            self._announce(now)
        if self._files is not None:
            self._files.state(self._table)
        self._tell()
        return self.household.wait(now)

    @property
    def waits(self) -> bool:
        """Whether a device has yet to store a correction."""
        with self._lock:
            return bool(self._commands or self._outbox.devices)

    def enlist(self, devices: Mapping[str, str], moving: Collection[str] = (), rooms: Collection[str] = ()) -> None:
        """From now on, these devices may publish, each in its room unless it moves."""
        self.household.enlist(devices, self._clock.now(), moving, rooms)

    # --- on the thread of the bus ---------------------------------------------------------------------------------

    def _take(self, topic: str, content: bytes) -> None:
        parsed = self._topics.parsed(topic)
        with self._lock:
            self.received += 1
            if parsed is None:
                self.dropped["unknown topic"] += 1
            elif parsed[0] == "rooms":
                if len(self._commands) < MOST_LABELS:
                    self._commands.append((topic, content))
                else:
                    self.dropped["too many labels at once"] += 1
            elif topic in self._waiting or (self.household.known(parsed[1]) and len(self._waiting) < MOST_TOPICS):
                self.dropped["replaced by a newer one"] += topic in self._waiting
                self._waiting[topic] = content
            else:
                self.dropped["unknown device"] += 1
        self._woken.set()

    def _take_trace(self, topic: str, content: bytes) -> None:
        with self._lock:
            if content and assistant.is_ours(self._topics, topic) and len(self._traces) < MOST_TOPICS:
                self._traces.add(topic)

    def _take_birth(self, topic: str, content: bytes) -> None:
        if content == ONLINE:  # Home Assistant has started, and knows nothing
            with self._lock:
                self._greeted = True
            self._woken.set()

    # --- on ours --------------------------------------------------------------------------------------------------

    def _read(self, topic: str, content: bytes, now: float) -> None:
        """Take in a device's message. The topic identifies the device: the broker lets nobody else publish there."""
        _, name, what = self._topics.parsed(topic) or ("", "", "")
        try:
            if what == "decision":
                self.household.hear(name, decision(content, len(self._labels)), now)
            elif what == "kept":
                if self._outbox.kept(name, correction(content, self._labels)):
                    self._sent.pop(name, None)
            elif content:
                self._sent.pop(name, None)  # it may just have arrived and missed what was sent before
                before = self.household.devices.get(name)
                was = before and (before.status, before.room)
                if self.household.status(name, status(content), now) and self._files is not None:
                    device = self.household.devices[name]
                    if (device.status, device.room) != was:
                        self._files.line("devices", {"at": now, "device": name, **_about(device)})
        except BadMessage as error:
            with self._lock:
                self.dropped["bad message"] += 1
            log.debug("%s of %s was dropped: %s", what, name, error)

    def _tell_all(self) -> None:
        """Repeat everything that Home Assistant needs to know."""
        self._announced, self._known = {}, None
        for room in self.household.rooms:
            if (state := self.household.state(room)) is not None:
                self._publish(room, state)

    def _correct(self, topic: str, content: bytes, now: float) -> None:
        """Tell the devices of a room what was right, and tell the sender which devices these are."""
        _, room, _ = self._topics.parsed(topic) or ("", "", "")
        try:
            said = self._label(content, now)
            since = {name: self.household.devices[name].since for name in self.household.members(room)}
            members = [name for name in since if since[name] <= said.end]
            for name in members:  # for as long as it was in this room
                self._outbox.add(name, said._replace(begin=max(said.begin, since[name])))
            answer = {**said._asdict(), "devices": members}
            self._send(self._topics.corrected(room), json.dumps(answer).encode(), expires=EXPIRE_SECONDS)
            if not members:
                raise BadMessage("no device is in that room")
        except BadMessage as error:
            with self._lock:
                self.dropped["bad label"] += 1
            log.warning("a label for %s was refused: %s", room, error)
            return
        log.info("%s: %s for %g s, to %s", room, said.label, said.end - said.begin, ", ".join(members))
        self._corrected()
        if self._files is not None:
            begin, state = max(said.begin, min(since[name] for name in members)), self.household.state(room)
            line = {"at": now, "room": room, "label": said.label, "begin": begin, "end": said.end, "devices": members}
            self._files.line("corrections", {**line, "said": state.activity if state else UNKNOWN})

    def _pass_on(self, now: float) -> None:
        """Send devices what they have not stored yet: only the next correction, to keep the order."""
        self._outbox.forget(now)
        for name in self._outbox.devices:
            said, there = self._outbox.next(name), self.household.devices.get(name)
            before, when = self._sent.get(name, (None, 0.0))
            late = there is not None and there.status.online and time.monotonic() - when > SEND_AGAIN
            if said is not None and (said != before or late):
                self._sent[name] = said, time.monotonic()
                self._send(self._topics.correction(name), written(said), expires=SEND_AGAIN)

    def _label(self, content: bytes, now: float) -> Correction:
        """Read a label: its name, a table with the number of last `seconds`, or a whole correction."""
        try:
            text = content.decode()
            table = {"label": text} if text in self._labels else json.loads(text)
        except (ValueError, RecursionError):
            table = {}
        label, seconds = (table.get("label"), table.get("seconds")) if isinstance(table, dict) else (None, None)
        if not isinstance(label, str) or label not in self._labels:
            raise BadMessage(f"it must be one of {', '.join(self._labels)}, got {content[:100]!r}")
        try:
            if "end" not in table:
                seconds = self._seconds if seconds is None else seconds
                return Correction(label, now - check_number("seconds", seconds, 0, LONGEST_LABEL, True), now)
            said = correction(content, self._labels)
            check_number("seconds", said.end - said.begin, 0, LONGEST_LABEL, True)
            check_number("seconds since its end", now - said.end, -self.household.voting.ahead_seconds, LONGEST_AGO)
            return said
        except ValueError as error:
            raise BadMessage(str(error)) from None

    def _publish(self, room: str, state: RoomState) -> None:
        expires = EXPIRE_SECONDS / self._clock.speed
        self._send(self._topics.state(room), written(state), retain=True, expires=expires)
        if self._files is not None:
            self._files.decision(room, state, self._says(room))

    def _send(self, topic: str, content: bytes, *, retain: bool = False, expires: float | None = None) -> None:
        """Publish a message; if it cannot be sent, count it and carry on."""
        try:
            self._bus.publish(topic, content, retain=retain, expires=expires)
        except ValueError as error:
            with self._lock:
                self.dropped["cannot be sent"] += 1
            log.debug("a message was not sent: %s", error)

    def _says(self, room: str) -> Table:
        """The decision of each device in a room, by name."""
        found = {}
        for name in self.household.members(room):
            said = self.household.devices[name].decision
            if said is not None:
                best = max(range(len(self._labels)), key=said.probabilities.__getitem__)
                found[name] = {"label": self._labels[best], "share": round(said.probabilities[best], 4), "at": said.at}
        return found

    def _announce(self, now: float) -> None:
        """Announce new rooms and devices to Home Assistant once, and withdraw those that are gone."""
        home, topics = self.household, self._topics
        batteries = [(name, device.status.battery is not None) for name, device in home.devices.items()]
        with self._lock:
            settled = now - self._start > SETTLE
            traces, self._traces = (self._traces, set()) if settled else (set(), self._traces)
        if not traces and self._known == (home.rooms, batteries):
            return
        self._known = home.rooms, batteries
        expires, wanted = EXPIRE_SECONDS / self._clock.speed, {}
        for room in home.rooms:
            topic = assistant.found_at(assistant.room_identity(topics, room))
            wanted[topic] = assistant.room_config(topics, room, self._labels, expires)
        for name, battery in batteries:
            topic = assistant.found_at(assistant.device_identity(topics, name))
            wanted[topic] = assistant.device_config(topics, name, self._labels, expires, battery)
        for topic in (self._announced.keys() | traces) - wanted.keys():
            self._send(topic, b"", retain=True)
        for topic, content in wanted.items():
            if self._announced.get(topic) != content:
                self._send(topic, content, retain=True)
        self._announced = wanted

    def _table(self) -> Table:
        """The current state of the home, for state.json."""
        rooms = {}
        for room in self.household.rooms:
            state = self.household.state(room)
            rooms[room] = {**(state._asdict() if state else {"activity": UNKNOWN}), "says": self._says(room)}
        devices = {name: _about(device) for name, device in self.household.devices.items()}
        dropped = dict(self._lost())
        about: Table = {"at": self._clock.now(), "home": self._topics.home, "labels": self._labels}
        about["fresh_seconds"] = self.household.voting.fresh_seconds
        return {**about, "rooms": rooms, "devices": devices, "received": self.received, "dropped": dropped}

    def _lost(self) -> Counter[str]:
        """The number of dropped messages, by reason."""
        with self._lock:
            return self.dropped + self.household.dropped

    def _tell(self) -> None:
        """Log what was dropped, at most once a minute."""
        if time.monotonic() - self._told >= TELL_EVERY:
            self._told = time.monotonic()
            total = self._lost()
            new = total - self._before
            self._before = total
            if new:
                log.warning("dropped in the last minute: %s", ", ".join(f"{count} {why}" for why, count in new.items()))


def _about(device: Device) -> Table:
    seen = device.seen if math.isfinite(device.seen) else None
    return {**device.status._asdict(), "room": device.room, "seen": seen}


class _Files:
    """Files about what happens, which stay small. A full disk only causes a line in the log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._written = -math.inf
        self._lines: dict[str, tuple[str, float]] = {}  # by room: what was last written, and when
        self._failed = False

    def decision(self, room: str, state: RoomState, says: Table) -> None:
        activity, at = self._lines.get(room, ("", -math.inf))
        if state.activity != activity or not 0 <= state.at - at < LINE_EVERY:
            if len(self._lines) > MOST_TOPICS:
                self._lines.clear()
            self._lines[room] = state.activity, state.at
            self.line("decisions", {"room": room, **state._asdict(), "says": says})

    def line(self, name: str, table: Table) -> None:
        path = self._folder / f"{name}.jsonl"
        try:
            if path.exists() and path.stat().st_size > MOST_FILE:
                os.replace(path, self._folder / f"{name}.1.jsonl")
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(table, allow_nan=False) + "\n")
            self._failed = False
        except OSError as error:
            self._fail(error)

    def state(self, table: Callable[[], Table], last: bool = False) -> None:
        if time.monotonic() - self._written < STATE_EVERY and not last:
            return
        self._written = time.monotonic()
        content = json.dumps(table(), allow_nan=False).encode()
        try:
            temporary = self._folder / ".state.json.tmp"  # not needed after a crash, so it is not synced to disk
            temporary.write_bytes(content)
            os.replace(temporary, self._folder / "state.json")
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            log.warning("cannot write what happens at home: %s", error)
        self._failed = True
