"""The time of a home: the machine's clock, or a faster one for replayed recordings."""

import threading
import time

HOUR = 3600.0  # seconds


class Clock:
    """Seconds since 1970 as the home counts them; with a `speed`, time passes that many times as fast from now on.

    With an `origin`, it does so from that time of the machine's clock on. All processes with the same speed and origin
    agree on the time, even after a restart.

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
        """The time at home. At speed 1 it follows the machine's clock, even when somebody sets that."""
        if self.speed == 1.0:
            return time.time()
        if self._origin is not None:
            return self._origin + self.speed * (time.time() - self._origin)
        return self._zero + self.speed * (time.monotonic() - self._since)

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> bool:
        """Wait for a number of seconds of home time; False if `stop` was set before they were over."""
        left = max(0.0, seconds) / self.speed
        if stop is not None:
            return not stop.wait(left)
        time.sleep(left)
        return True


class Hourly:
    """Signals once an hour of home time that old data should be removed.

    Not after a longer gap: then somebody set the clock, and has an hour to correct it before anything is removed.

    >>> hourly = Hourly(0.0)
    >>> [hourly.due(now) for now in (1800.0, 3600.0, 7300.0, 1e9, 1e9 + 60, 1e9 + 3600, 7300.0)]
    [False, True, True, False, False, True, False]
    """

    def __init__(self, now: float) -> None:
        self._last = now

    def due(self, now: float) -> bool:
        """Whether an hour has passed since this last returned True."""
        passed = now - self._last
        if 0 <= passed < HOUR:
            return False
        self._last = now
        return 0 <= passed < 2 * HOUR
