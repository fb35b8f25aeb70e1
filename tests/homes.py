"""A living home for tests: a real edge server on a bus in memory, which writes to a folder."""

import json
import os
import time
from pathlib import Path
from typing import Any

from fedfilt.home.bus import Memory
from fedfilt.home.clock import Clock
from fedfilt.home.edge import OFFLINE, Edge
from fedfilt.home.rooms import Voting
from fedfilt.home.topics import Decision, Status, Topics, written

LABELS = ("rest", "walk", "cook")
DEVICES = {"watch": "kitchen", "phone": "kitchen", "band": "bath"}


class Hand(Clock):
    """A clock that is moved by hand."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.time = at

    def now(self) -> float:
        return self.time


class Living:
    """A home whose devices say what a test has them say. After every step the files are those of that moment."""

    def __init__(self, folder: Path, home: str = "villa", clock: Clock | None = None, **options: Any) -> None:
        self.folder, self.topics, self.bus = folder, Topics(home), Memory()
        self.clock = Hand(float(int(time.time()))) if clock is None else clock
        self.labels = options.pop("labels", LABELS)
        devices = options.pop("devices", DEVICES)
        moving = ["watch"] if "watch" in (devices or ()) else ()
        voting = options.pop("voting", Voting(gather_seconds=0.0, how="mean"))
        member = self.bus.member((self.topics.edge, OFFLINE))
        self.edge = Edge(
            member,
            self.clock,
            self.topics,
            self.labels,
            devices,
            moving=moving,
            voting=voting,
            folder=folder,
            home_assistant=False,
        )

    def step(self, seconds: float = 0.0) -> None:
        """Let time pass, and the edge server do what is due."""
        if isinstance(self.clock, Hand):
            self.clock.time += seconds
        self.edge.step()
        assert self.edge._files is not None
        self.edge._files.state(self.edge._table, last=True)

    def status(self, *devices: str, online: bool = True, **about: Any) -> None:
        """Devices say how they are."""
        for name in devices:
            self.bus.publish(self.topics.status(name), written(Status(online, **about)), retain=True)

    def says(self, device: str, label: str, share: float = 0.9) -> None:
        """A device says what it thinks."""
        rest = (1 - share) / (len(self.labels) - 1)
        shares = tuple(share if one == label else rest for one in self.labels)
        self.bus.publish(self.topics.decision(device), written(Decision(self.clock.now(), 1, shares)))

    def corrects(self, room: str, label: str, seconds: float = 30.0) -> None:
        """Somebody says what a room does."""
        self.bus.publish(self.topics.label(room), json.dumps({"label": label, "seconds": seconds}).encode())


def a_morning(folder: Path, **options: Any) -> Living:
    """A home in which something of everything has happened."""
    home = Living(folder, **options)
    home.status("watch", round=3, accuracy=0.75, battery=0.81)
    home.status("phone", "band", round=3)
    home.step()
    for minute in range(6):
        activity = LABELS[minute % 3]
        home.says("watch", activity)
        home.says("phone", activity if minute % 2 else "walk", 0.6)
        home.says("band", "rest", 0.99)
        home.step()
        home.step(45)
    home.corrects("kitchen", "walk")
    home.corrects("bath", "rest", 5)
    home.status("watch", round=4, accuracy=0.875, battery=0.8)
    home.status("band", online=False)
    home.bus.publish(home.topics.decision("phone"), b"{")
    home.step(1)
    home.says("watch", "cook", 0.7)
    home.says("phone", "rest", 0.5)
    home.step(1)
    return home


def aged(folder: Path, seconds: float) -> None:
    """Let a state be as old as that of an edge server that ended so long ago."""
    then = time.time() - seconds
    os.utime(folder / "state.json", (then, then))
