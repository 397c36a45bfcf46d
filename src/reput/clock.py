"""The time, as an object that is passed in: production reads the system's, tests own theirs.

What decides takes ``now_ms`` as an argument; a clock is asked where somebody calls in from outside:
by the store for a caller that names no time, and by loops.
"""

import time
from typing import Protocol

_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Two times: one to write down, one to measure with."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch; may jump, also backwards."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since some moment; never goes backwards."""


class SystemClock:
    """The clocks of the machine."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // _NS_PER_MS

    def monotonic_ms(self) -> int:
        """Return milliseconds since some moment; never goes backwards."""
        return time.monotonic_ns() // _NS_PER_MS


class ManualClock:
    """A clock that stands still until it is told otherwise.

    Args:
        now_ms: What it shows first, milliseconds since the epoch.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return how far ``advance`` was told to go so far."""
        return self._monotonic_ms

    def advance(self, duration_ms: int) -> None:
        """Let time pass."""
        assert duration_ms >= 0, f"time does not run backwards: {duration_ms} ms"
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def set(self, now_ms: int) -> None:
        """Set the time of day, as an operator or NTP does: monotonic time does not notice."""
        self._now_ms = now_ms
