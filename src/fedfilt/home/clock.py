"""The time of a home: that of the machine, or faster, for recordings that are replayed."""

import threading
import time

HOUR = 3600.0  # seconds


class Clock:
    """Seconds since 1970 as the home counts them; with a `speed`, they pass that many times as fast from now on.

    With an `origin` they do so from that time on by the machine's clock. All processes with the same speed and origin
    agree on the time, and so does one that was started again.

    >>> clock = Clock(speed=1000.0, start=0.0)
    >>> clock.sleep(20.0)
    True
    >>> 20.0 <= clock.now() < 60_000.0
    True
    """

    def __init__(self, speed: float = 1.0, start: float | None = None, origin: float | None = None) -> None:
        self.speed, self._origin = speed, origin
        self._zero = time.time() if start is None else start
        self._since = time.monotonic()

    def now(self) -> float:
        """The time at home. At speed 1 it follows the machine's clock, also when that is set."""
        if self.speed == 1.0:
            return time.time()
        if self._origin is not None:
            return self._origin + self.speed * (time.time() - self._origin)
        return self._zero + self.speed * (time.monotonic() - self._since)

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> bool:
        """Let so many seconds pass at home; False if `stop` was set before they had."""
        left = max(0.0, seconds) / self.speed
        if stop is not None:
            return not stop.wait(left)
        time.sleep(left)
        return True


class Hourly:
    """Says once an hour at home that it is time to remove what is old.

    Not when more time has passed: then the clock was set, and has an hour to be set right before anything goes.

    >>> hourly = Hourly(0.0)
    >>> [hourly.due(now) for now in (1800.0, 3600.0, 7300.0, 1e9, 1e9 + 60, 1e9 + 3600, 7300.0)]
    [False, True, True, False, False, True, False]
    """

    def __init__(self, now: float) -> None:
        self._last = now

    def due(self, now: float) -> bool:
        """Whether an hour has passed since this was last true."""
        passed = now - self._last
        if 0 <= passed < HOUR:
            return False
        self._last = now
        return 0 <= passed < 2 * HOUR
