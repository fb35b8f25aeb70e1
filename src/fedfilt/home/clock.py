"""The time of a home: that of the machine, or faster, for recordings that are replayed."""

import threading
import time


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
