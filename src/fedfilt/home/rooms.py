"""What the rooms of a home decide: a vote over the newest decision of each device present, smoothed on request.

Time is always passed in, which makes replays, tests and clocks that jump all work alike.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedfilt._checks import check_choice, check_number
from fedfilt._types import Array
from fedfilt.home.topics import Decision, RoomState, Status, check_name
from fedfilt.rounds.voting import tally

UNKNOWN = "unknown"
MOST_DEVICES, MOST_ROOMS = 1000, 100  # for a home without a list of them
MOST_TRUSTED = 0.9  # accuracy; a device that claims more counts as this good, because nobody can check its claim
FORGET = 3600.0  # seconds after which an empty room, or an unlisted device that is away, is forgotten
DOUBT = 0.01  # no label counts as less likely than this: one wrong certainty must not rule it out for long


@dataclass(frozen=True)
class Voting:
    """How rooms decide.

    >>> Voting(switch_seconds=20.0).switch_seconds
    20.0
    """

    how: str = "weighted"  # by validated accuracy, or "mean"
    threshold: float = 0.5  # below this confidence, a room says "unknown"
    switch_seconds: float = 0.0  # mean time between two changes of activity, for smoothing; 0: no smoothing
    fresh_seconds: float = 10.0  # how long a decision counts after the last sample of its window
    ahead_seconds: float = 2.0  # that a device's clock may be ahead
    gather_seconds: float = 0.1  # from a room's first new decision to its vote, so that others can take part

    def __post_init__(self) -> None:
        check_choice("how", self.how, ("mean", "weighted"))
        check_number("threshold", self.threshold, 0, 1)
        for name in ("switch_seconds", "ahead_seconds", "gather_seconds"):
            check_number(name, getattr(self, name), 0)
        check_number("fresh_seconds", self.fresh_seconds, 0, above=True)


@dataclass
class Device:
    """What is known about a device."""

    room: str
    since: float  # when it came into this room
    status: Status = Status(online=False)
    known: bool = False  # it has sent a status
    decision: Decision | None = None
    new: bool = False  # no vote has counted its decision
    seen: float = -math.inf  # when it last sent anything


@dataclass
class _Room:
    due: float = math.inf  # time of the next vote
    until: float = math.inf  # when the first decision it counted goes stale
    alone: float | None = None  # since when no device is in it
    belief: Array | None = None  # after the last vote, if it smooths
    voted: float = 0.0
    state: RoomState | None = None


class Household:
    """The devices of a home, the rooms they are in, and what the rooms decide.

    >>> home = Household(["rest", "walk"], {"watch": "hall", "phone": "hall"})
    >>> [home.hear("watch", Decision(0.0, 1, (0.1, 0.9)), 0.0), home.hear("phone", Decision(0.0, 1, (0.4, 0.6)), 0.0)]
    [True, True]
    >>> home.vote(now=1.0)["hall"]
    RoomState(at=0.0, activity='walk', confidence=0.75, probabilities={'rest': 0.25, 'walk': 0.75}, devices=2)
    """

    def __init__(
        self,
        labels: Sequence[str],
        devices: Mapping[str, str] | None = None,
        voting: Voting | None = None,
        moving: Collection[str] = (),
        rooms: Collection[str] = (),
    ) -> None:
        """`devices` are the names of those that may publish, each with its room; None admits any, up to a limit.

        Only those that are `moving` may report another room: that of another device, or one of `rooms`.
        """
        if len(labels) < 2 or len(set(labels)) < len(labels) or UNKNOWN in labels:
            raise ValueError(f"labels must be at least two, all different and none {UNKNOWN!r}, got {list(labels)}")
        self.labels, self.voting = tuple(labels), voting or Voting()
        self.devices: dict[str, Device] = {}
        self._rooms: dict[str, _Room] = {}
        self._listed = devices is not None
        self.dropped: Counter[str] = Counter()  # messages that did not count, by reason
        self._home: dict[str, str] = {}  # by device, its room
        self._open: set[str] = set()  # rooms that devices may move to
        self._moving: set[str] = set()
        self.enlist(devices or {}, moving=moving, rooms=rooms)

    def enlist(
        self,
        devices: Mapping[str, str],
        now: float = -math.inf,
        moving: Collection[str] = (),
        rooms: Collection[str] = (),
    ) -> None:
        """From now on, these devices may publish, each in its room unless it moves; others are forgotten."""
        for name in devices:
            check_name("device", name)
        for name in (*devices.values(), *rooms):
            check_name("room", name)
        for name in set(moving) - set(devices):
            raise ValueError(f"moving must name listed devices ({', '.join(devices)}), got {name!r}")
        for name in self._home.keys() - devices.keys():
            self._withdraw(self.devices.pop(name), now)
        self._home, self._moving, self._open = dict(devices), set(moving), {*devices.values(), *rooms}
        for name, room in devices.items():
            device = self.devices.setdefault(name, Device(room, -math.inf))
            self._move(device, self._room(name, device.status.room), now)

    @property
    def rooms(self) -> list[str]:
        """The names of the rooms."""
        return list(self._rooms)

    def known(self, device: str) -> bool:
        """Whether a device may publish."""
        return device in self.devices or (not self._listed and len(self.devices) < MOST_DEVICES)

    def members(self, room: str) -> list[str]:
        """The devices in a room, including those that are away."""
        return [name for name, device in self.devices.items() if device.room == room]

    def state(self, room: str) -> RoomState | None:
        """What a room decided last."""
        return self._rooms[room].state if room in self._rooms else None

    def status(self, name: str, status: Status, now: float) -> bool:
        """Note a device's status; False if it may not publish."""
        if not self.known(name):
            self.dropped["unknown device"] += 1
            return False
        if not status.online and name in self.devices:  # a last will says no more than that
            status = self.devices[name].status._replace(online=False)
        room = self._room(name, status.room)
        device = self.devices.setdefault(name, Device(room, -math.inf))
        if status.room and status.online and room != status.room:
            self.dropped["another room"] += 1  # than it may be in; the rest of its status counts
        since = device.since
        self._move(device, room, now)
        if not device.known:  # it may have been there for long: we have just started
            device.known, device.since = True, since
        if not status.online:
            self._withdraw(device, now)
        device.status, device.seen = status, now
        return True

    def hear(self, name: str, decision: Decision, now: float) -> bool:
        """Note a device's decision; False if it does not count."""
        device = self.devices.get(name)
        reason = ""
        if device is None:
            reason = "unknown device" if not self.known(name) else "no status yet"
        elif not device.room:
            reason = "no room"
        elif decision.at <= now - self.voting.fresh_seconds:
            reason = "stale"
        elif decision.at > now + self.voting.ahead_seconds:
            reason = "from the future"
        elif (last := self._say(device, now)) is not None and decision <= last:
            reason = "older than its last" if decision.at < last.at else "repeated"
        if reason or device is None:
            self.dropped[reason] += 1
            return False
        device.decision, device.new, device.seen = decision, True, now
        room = self._rooms.setdefault(device.room, _Room())
        room.due = min(room.due, now + self.voting.gather_seconds)
        return True

    def wait(self, now: float) -> float:
        """Seconds until the next vote of a room."""
        return max(0.0, min((self._due(room, now) for room in self._rooms.values()), default=math.inf) - now)

    def vote(self, now: float) -> dict[str, RoomState]:
        """What rooms decide if something is new: a decision, or one that has gone stale."""
        decided = {}
        for name, room in self._rooms.items():
            if self._due(room, now) <= now:
                decided[name] = room.state = self._decide(name, room, now)
        return decided

    def forget(self, now: float) -> None:
        """Forget rooms and devices that have been gone for long; listed ones stay.

        Times in rooms that lie in the future, because the clock was set back, are forgotten too.
        """
        for device in self.devices.values():
            if device.since > now + self.voting.ahead_seconds:  # the clock was set back: nobody knows when it came
                device.since = now
        if not self._listed:
            for name, device in list(self.devices.items()):
                if not device.status.online and now - device.seen > FORGET:
                    del self.devices[name]
        full = {device.room for device in self.devices.values()}
        for name, room in list(self._rooms.items()):
            if name in full or name in self._home.values():
                room.alone = None
            elif room.alone is None or now < room.alone:
                room.alone = now
            elif now - room.alone > FORGET:
                del self._rooms[name]

    def _room(self, name: str, said: str) -> str:
        """The room of a device that reports `said`: that room if it may move there, otherwise the listed one."""
        if self._listed:
            return said if name in self._moving and said in self._open else self._home[name]
        if not said or said in self._rooms or len(self._rooms) < MOST_ROOMS:
            return said
        return self.devices[name].room if name in self.devices else ""

    def _move(self, device: Device, room: str, now: float) -> None:
        """Note that a device is in a room."""
        if room != device.room:
            self._withdraw(device, now)  # its decision was about the room it was in
            device.room, device.since = room, now
        if room:
            self._rooms.setdefault(room, _Room()).alone = None

    def _withdraw(self, device: Device, now: float) -> None:
        if device.decision is not None and device.room:
            self._rooms[device.room].due = min(self._rooms[device.room].due, now + self.voting.gather_seconds)
        device.decision, device.new = None, False

    def _due(self, room: _Room, now: float) -> float:
        """When a room votes next: at once if that is so far off that the clock must have been set back."""
        voting = self.voting
        far = now + voting.fresh_seconds + voting.ahead_seconds + voting.gather_seconds
        when = min(room.due, room.until)
        return now if far < when < math.inf else when

    def _say(self, device: Device, now: float) -> Decision | None:
        """A device's decision, unless it is stale or, after the clock was set back, in the future."""
        said, voting = device.decision, self.voting
        if said is None or not now - voting.fresh_seconds < said.at <= now + voting.ahead_seconds:
            return None
        return said

    def _decide(self, name: str, room: _Room, now: float) -> RoomState:
        there = [self.devices[member] for member in sorted(self.members(name))]
        voters = [(device, said) for device in there if (said := self._say(device, now)) is not None]
        times = [said.at for _, said in voters]
        room.due, room.until = math.inf, min(times, default=math.inf) + self.voting.fresh_seconds
        if self.voting.switch_seconds:
            shares = self._smoothed(room, [voter for voter in voters if voter[0].new], now)
        elif voters:
            shares = self._shares(voters)
        for device, _ in voters:
            device.new = False
        if not voters:
            return RoomState(now, UNKNOWN, 0.0, {}, 0)
        best = int(shares.argmax())
        sure = float(shares[best])
        activity = self.labels[best] if sure >= self.voting.threshold else UNKNOWN
        by_label = {label: round(float(share), 4) for label, share in zip(self.labels, shares, strict=True)}
        return RoomState(max(times), activity, round(sure, 4), by_label, len(voters))

    def _shares(self, voters: Sequence[tuple[Device, Decision]]) -> Array:
        """The devices' joint opinion: what the vote counts for each label, as shares of 1."""
        said = np.array([said.probabilities for _, said in voters])[:, None, :]
        total = counted(said, [device.status.accuracy for device, _ in voters], self.voting.how)[0]
        return total / total.sum()

    def _smoothed(self, room: _Room, voters: Sequence[tuple[Device, Decision]], now: float) -> Array:
        """A step of the forward algorithm: activities change at random, and the vote on what is new is the evidence.

        An activity lasts for `switch_seconds` on average; then any other follows.
        """
        count = len(self.labels)
        if room.belief is None:
            room.belief, room.voted = np.full(count, 1 / count), now
        passed = max(0.0, now - room.voted)
        stays = math.exp(-passed / self.voting.switch_seconds * count / (count - 1))
        belief = 1 / count + (room.belief - 1 / count) * stays
        if voters:
            belief = belief * np.maximum(self._shares(voters), DOUBT)
            belief = belief / belief.sum()
        room.belief, room.voted = belief, now
        return belief


def counted(probabilities: Array, accuracies: Sequence[float | None], how: str = Voting.how) -> Array:
    """(M, labels) what the vote counts for these (devices, M, labels) `probabilities` and claimed `accuracies`.

    No device counts as more accurate than `MOST_TRUSTED`, so that two devices that are right 8 times in 10, and 90 %
    sure, outvote any third. A device that does not know its accuracy counts as the average of those that do.

    >>> counted(np.array([[[0.9, 0.1]], [[0.9, 0.1]], [[0.0, 1.0]]]), [0.8, 0.8, 1.0]).argmax()
    np.int64(0)
    """
    known = [min(accuracy, MOST_TRUSTED) for accuracy in accuracies if accuracy is not None]
    if how == "mean" or not known:
        return tally(probabilities)
    other = sum(known) / len(known)
    return tally(probabilities, how, [other if one is None else min(one, MOST_TRUSTED) for one in accuracies])
