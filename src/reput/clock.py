"""The time as an object: production uses the system's clocks, tests set theirs.

Functions that make decisions take ``now_ms`` as an argument; a clock is read only at the edges: by
the store for callers that give no time, and by loops.
"""

import time
from typing import Protocol

_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Times of timestamps, of durations, of what clients send, of slices and of use."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch; may jump, also backwards."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary moment; never goes backwards."""

    def client_ms(self) -> int:
        """Return milliseconds since the epoch by the clocks of clients.

        It differs from ``now_ms`` only in tests that advance the time of a broker.
        """

    def work_s(self) -> float:
        """Return seconds since an arbitrary moment, precise enough for slices of work."""

    def used_s(self) -> float:
        """Return the time that this thread has used, in seconds: constant while others run."""


class SystemClock:
    """The clocks of the machine."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // _NS_PER_MS

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary moment; never goes backwards."""
        return time.monotonic_ns() // _NS_PER_MS

    def client_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // _NS_PER_MS

    # Read several times in each turn of a loop: no function of Python is in between.
    work_s = staticmethod(time.perf_counter)
    used_s = staticmethod(time.thread_time)


class ManualClock:
    """A clock that changes only when it is set or advanced.

    Args:
        now_ms: Initial time, in milliseconds since the epoch.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the sum of all calls of ``advance``."""
        return self._monotonic_ms

    def client_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._now_ms

    # Those of the machine: work takes time, also while this clock does not advance.
    work_s = staticmethod(time.perf_counter)
    used_s = staticmethod(time.thread_time)

    def advance(self, duration_ms: int) -> None:
        """Advance all times."""
        assert duration_ms >= 0, f"time does not run backwards: {duration_ms} ms"
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def set(self, now_ms: int) -> None:
        """Set the time of day, like an operator or NTP; the monotonic time is unchanged."""
        self._now_ms = now_ms
