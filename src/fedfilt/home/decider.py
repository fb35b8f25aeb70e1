"""A device decides: it reads its sensors, cuts windows, asks its newest model every hop, and publishes the answer."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedfilt._files import write_atomically
from fedfilt._types import Array
from fedfilt.data import own
from fedfilt.data.own import SEEN, BadData, Making, owner, seen_by
from fedfilt.data.windows import Scaling, Seen
from fedfilt.home.bus import Bus
from fedfilt.home.clock import Clock, Hourly
from fedfilt.home.corrections import FORGOTTEN, Corrections, forgotten_since, label_of
from fedfilt.home.readings import Complaints, Source, source_of
from fedfilt.home.stream import Stream, Window
from fedfilt.home.topics import BadMessage, Correction, Decision, Status, Topics, status, written
from fedfilt.home.topics import correction as parsed
from fedfilt.system.battery import battery
from fedfilt.training import kept
from fedfilt.training.trainer import Trainer

log = logging.getLogger("fedfilt")

EXPIRES = 60.0  # seconds after which a decision is useless
MOST_BYTES = 1 << 26  # of windows in memory; 64 MiB
MOST_SAID = 100  # corrections in memory
AGAIN, PATIENCE = 1.0, 60.0  # seconds before a failed source is tried again: first, and at most
TELL = 300.0  # seconds after which a status is repeated: a broker may have lost it
LOOK = 5.0  # seconds between two looks at the disk while no readings arrive


class Model(NamedTuple):
    """A model as stored in its file."""

    row: Array
    round: int
    scaling: Scaling | None


def read_model(path: Path, trainer: Trainer) -> Model:
    """The model in a device's file; ValueError if it cannot be used."""
    found = kept.read(path, trainer.layout)
    try:
        scaling = Scaling.from_json(found.scaling) if found.scaling else None
        if scaling is not None and len(scaling.mean) != trainer.shape[0]:
            raise ValueError(f"its scaling must have {trainer.shape[0]} channels, got {len(scaling.mean)}")
        return Model(found.row, found.round, scaling)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


class Decider:
    """Decides with the newest model in a device's folder, and keeps the corrections that people make.

    The trainer must be its own, because torch cannot train and decide with one module at the same time. Models are read
    again when their file changes; if it is damaged or missing, this is logged once, and the last good model stays. The
    windows of the last minutes stay in memory, bounded in time and number, for corrections. Statistics of all that the
    sensors have seen, labelled or not, are kept in `state/seen.json`: as long as they cover more windows than there are
    to train on, they scale the samples.
    """

    def __init__(
        self,
        folder: Path,
        making: Making,
        trainer: Trainer,
        bus: Bus,
        topics: Topics,
        name: str,
        room: str = "",
        clock: Clock | None = None,
    ) -> None:
        self.folder, self.making, self.trainer = folder, making, trainer
        self.bus, self.topics, self.name, self.room = bus, topics, name, room
        self.clock = Clock() if clock is None else clock
        self.settings = owner(folder)
        self.stream = Stream(making, self.settings.decide.hop, name)
        self.corrections = Corrections(folder, making, self.settings.decide)
        self.model: Model | None = None
        self.accuracy: float | None = None
        self.complaints = Complaints(name)
        self.seen = seen_by(folder, making)
        self._counted = 0 if self.seen is None else self.seen.windows  # of them, on disk
        self._file: tuple[int, ...] | None = None  # of the model
        self._said: Status | None = None
        self._told = 0.0  # monotonic
        self._over = False
        self._battery: float | None = None
        self._forgotten = _file(folder / FORGOTTEN)
        self._hourly = Hourly(self.clock.now())
        most = MOST_BYTES // (4 * math.prod(making.shape))
        self._windows: deque[Window] = deque(maxlen=max(most, 1))
        self._recent: deque[Correction] = deque(maxlen=MOST_SAID)  # the newest last
        # Others may call from their threads. Nothing is published under a lock, because a bus may hold its own.
        # One lock guards what is kept in memory; the other, taken first, guards the model and the trainer
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self.look()
        bus.subscribe(topics.status(name), self._heard)
        bus.subscribe(topics.correction(name), self.corrected)

    def live(self, stop: threading.Event, source: Source | None = None) -> None:
        """Decide on readings from a source, or from the one in own.toml, until stopped; a source may fail."""
        try:
            self._live(stop, source)
        finally:
            self._over = stop.is_set()  # a last will is now true

    def watch(self, stop: threading.Event) -> None:
        """Until stopped, look for a changed model or battery, even while no readings arrive."""
        while not stop.is_set():
            self._battery = battery()
            self.look()
            stop.wait(LOOK)
        self._over = True

    def _live(self, stop: threading.Event, source: Source | None) -> None:
        delay = AGAIN
        while not stop.is_set():
            try:
                found = source_of(self.settings.source, self.folder) if source is None else source
                for reading in found.readings(self.making, self.bus, self.clock, stop):
                    delay = AGAIN
                    if (window := self.stream.push(reading)) is not None:
                        self.decide(window)
                    if stop.is_set():
                        return
                if not stop.is_set():
                    log.info("%s: the source has ended", self.name)
                return
            except Exception as error:  # a source may be the owner's code
                log.warning("%s: the source failed: %s; trying again in %g s", self.name, error, delay)
            stop.wait(delay)
            delay = min(2 * delay, PATIENCE)

    def decide(self, window: Window) -> Array | None:
        """(labels,) the newest model's probabilities for a window, which are also published; None without a model."""
        with self._looking:
            self._look()
            self._remember(window)
            model = self.model
            probabilities = None if model is None else self.probabilities(window.values[None])[0]
        self.tell()
        if model is None or probabilities is None:
            return None
        if not np.isfinite(probabilities).all():
            self.complaints("model", "the model of round %d does not return probabilities", model.round)
            return None
        decision = Decision(window.end, model.round, tuple(np.round(probabilities.astype(float), 6).tolist()))
        self.bus.publish(self.topics.decision(self.name), written(decision), expires=EXPIRES)
        return probabilities

    def _remember(self, window: Window) -> None:
        """Keep a window for a while, and its statistics for good."""
        with self._lock:
            if self._windows and window.begin < self._windows[-1].begin:
                self._recent.clear()  # the clock was set back: they belong to another time
            late = label_of(window, self._recent)
            self._windows.append(window)
            oldest = window.end - 60 * self.settings.decide.keep_minutes
            while not oldest <= self._windows[0].begin <= window.end and len(self._windows) > 1:
                self._windows.popleft()  # too old, or from before the clock was set back
            new = Seen.of(window.values[None])
            self.seen = new if self.seen is None else self.seen.and_then(new)
            if self.seen.windows >= max(10, 1.5 * self._counted):
                self._keep(self._keep_seen)
        if late:  # the correction came before the window
            self._keep(lambda: self.corrections.add_late(window, lambda: self._label_of(window)))

    def _forget(self) -> None:
        """Drop from memory what the owner wants this device to forget."""
        found = _file(self.folder / FORGOTTEN)
        if found == self._forgotten:
            return
        self._forgotten, since = found, forgotten_since(self.folder)
        with self._lock:
            windows = [one for one in self._windows if one.end <= since]
            recent = [one for one in self._recent if one.end <= since]
            self._windows.clear()
            self._windows.extend(windows)
            self._recent.clear()
            self._recent.extend(recent)
            if since == -math.inf:
                self.seen, self._counted = None, 0

    def probabilities(self, x: Array) -> Array:
        """(n, labels) the newest model's probabilities for raw windows (n, channels, rows)."""
        assert self.model is not None
        scaling = self.model.scaling
        if scaling is not None and scaling.unknown and self.seen is not None:
            scaling = self.seen.scaling(scaling.soft)  # it had neither samples nor readings when the model arrived
        return self.trainer.predict(self.model.row, x if scaling is None else scaling.apply(x))

    def look(self) -> None:
        """Load a new model, if there is one, and publish this device's status, if that has changed."""
        with self._looking:
            self._look()
        self.tell()

    def _look(self) -> None:
        self._forget()
        path = self.folder / "state" / "model.safetensors"
        found = _file(path)
        if found != self._file:
            self._file = found
            try:
                self.model = read_model(path, self.trainer)
                self.accuracy = self._validated()
            except ValueError as error:
                goes_on = "" if self.model is None else f"; it continues with that of round {self.model.round}"
                log.warning("%s cannot use its model%s: %s", self.name, goes_on, error)
        now = self.clock.now()
        if self._hourly.due(now):
            with self._lock:
                self._keep(self._keep_seen)
            self._keep(lambda: self.corrections.tidy(now))

    def tell(self, room: str | None = None) -> None:
        """Publish this device's status if it has changed or is long ago; `room` says that it has moved."""
        self.room = self.room if room is None else room
        now = Status(True, self.room, 0 if self.model is None else self.model.round, self.accuracy, self._battery)
        if now != self._said or time.monotonic() - self._told > TELL:
            self._said, self._told = now, time.monotonic()
            self.bus.publish(self.topics.status(self.name), written(now), retain=True)

    def _heard(self, topic: str, content: bytes) -> None:
        """A status of this device arrived: its last will, from when the connection was lost. It is online again."""
        try:
            gone = not status(content).online
        except BadMessage:
            gone = True
        if gone and not self._over:
            self._said = None
            self.tell()

    def corrected(self, topic: str, content: bytes) -> None:
        """Keep the windows of a correction sent to this device among its own data."""
        try:
            correction = parsed(content, self.making.labels)
        except BadMessage as error:
            self.complaints("correction", "a correction was refused: %s", error)
            self.bus.publish(self.topics.kept(self.name), content)  # so that others can follow
            return
        self._forget()
        with self._lock:
            # The edge server repeats it until it knows that it is kept; only then does it send the next
            again = bool(self._recent) and correction == self._recent[-1]
            if not again:
                self._recent.append(correction)
            windows = list(self._windows)
        if not again:
            count = self._keep(lambda: self.corrections.add(correction, windows))
            if count is None:
                with self._lock:
                    if self._recent and correction == self._recent[-1]:
                        self._recent.pop()
                return
            if not count:
                log.warning("%s has no windows from the time corrected to %s", self.name, correction.label)
        self.bus.publish(self.topics.kept(self.name), content)

    def _label_of(self, window: Window) -> str:
        with self._lock:
            return label_of(window, self._recent)

    def _keep(self, change: Callable[[], int]) -> int | None:
        """Change what is on disk; None if that fails."""
        try:
            return change()
        except (OSError, ValueError) as error:
            self.complaints("disk", "cannot write to disk: %s", getattr(error, "strerror", None) or error)
            return None

    def _keep_seen(self) -> int:
        if self.seen is not None:
            self._counted = self.seen.windows
            (self.folder / SEEN).parent.mkdir(exist_ok=True)
            write_atomically(self.folder / SEEN, self.seen.to_json().encode())
        return self._counted

    def _validated(self) -> float | None:
        """The share of its own validation windows that the newest model gets right, if there are any."""
        assert self.model is not None
        try:
            held = own.read(self.folder, self.making)
        except BadData as error:
            self.complaints("data", "its own data cannot be used: %s", error)
            return None
        if not len(held.validation_y):
            return None
        guess = self.trainer.predict(self.model.row, held.validation_x).argmax(axis=1)
        return float((guess == held.validation_y).mean())


def _file(path: Path) -> tuple[int, ...]:
    """What distinguishes one version of a file from another; () if there is no file."""
    try:
        about = path.stat()
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size, about.st_ino


def last_will(topics: Topics, name: str) -> tuple[str, bytes]:
    """(topic, content) of the retained message that a bus publishes when a device is gone."""
    return topics.status(name), written(Status(False))
